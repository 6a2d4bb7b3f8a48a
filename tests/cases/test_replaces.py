"""Conformance: a unit that replaces another one is placed where that one is, which is moved."""

import psycopg
import pytest

from tests.cases import run
from tests.cases.fleet import replaced
from tests.cases.model import Case, folder, lease_id, read_cases
from tests.cases.support import POLICY, REPLACES, needs
from tests.cases.translate import translate
from tests.direct import Direct

CASES = [case for case in read_cases(folder()) if REPLACES in needs(case)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case_id)
def test_it_is_placed_and_the_other_one_moves(conn: psycopg.Connection, case: Case) -> None:
    """What Fleet decides: to allow it, or to allow it and move what it replaces."""
    direct, translated = Direct(conn), translate(case)
    epochs = run.set_up(direct, translated, POLICY)
    olds = [lease_id(name) for name in replaced(case)]
    options = {**translated.lease, "placement": translated.placement}
    if olds:
        options["replaces"] = {"lease": str(olds[0]), "then": "requeue"}
    lease = direct.spawn(run.QUEUE, options)["lease_id"]
    direct.settle_terms()
    direct.reap()
    for old in olds:
        found = direct.lease(old)
        assert found["stop_reason"] == "preempted"
        direct.release(old, found["claim_token"])
    direct.reap()
    [node] = case.candidates
    rows = direct.claim(run.QUEUE, translated.nodes[node][0], epochs[node])
    assert [row["lease_id"] for row in rows] == [lease]
    moved = [direct.lease(old)["state"] for old in olds] == ["pending"]
    assert case.expect["decision"] == ("allow_and_move" if moved else "allow")
