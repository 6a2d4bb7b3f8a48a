"""Conformance: a unit that replaces another one is placed where that one is, which is moved."""

import psycopg
import pytest

from tests.cases import run
from tests.cases.fleet import replaced
from tests.cases.model import Case, folder, lease_id, read_cases
from tests.cases.support import REPLACES, needs
from tests.cases.translate import translate
from tests.direct import Direct

CASES = [case for case in read_cases(folder()) if REPLACES in needs(case)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case_id)
def test_it_is_placed_and_the_other_one_moves(conn: psycopg.Connection, case: Case) -> None:
    """What Fleet decides: to allow it, to allow it and move what it replaces, or neither."""
    direct, translated = Direct(conn), translate(case)
    epochs = run.set_up(direct, translated)
    olds = [lease_id(name) for name in replaced(case)][:1]  # one at a time
    options = {**translated.lease, "placement": translated.placement}
    if olds:
        options["replaces"] = {"lease": str(olds[0]), "then": "requeue"}
    lease = direct.spawn(run.QUEUE, options)["lease_id"]
    direct.settle_terms()
    direct.reap()
    [node] = case.candidates
    able = None if olds else direct.could_take(lease)
    stopped = {
        found["lease_id"]: direct.lease(found["lease_id"])
        for found in direct.rows("list_leases", filter={"state": "claimed"})
        if found["lease_id"] != lease and direct.lease(found["lease_id"])["stop_reason"] == "preempted"
    }
    assert stopped.keys() <= set(olds)
    for old, found in stopped.items():
        direct.release(old, found["claim_token"])
    direct.reap()
    rows = direct.claim(run.QUEUE, translated.nodes[node][0], epochs[node])
    assert [row["lease_id"] for row in rows] in ([lease], [])
    assert able in (None, {translated.nodes[node][0]} if rows else set())
    moved = [direct.lease(old)["state"] for old in stopped] == ["pending"]
    placed = "allow_and_move" if moved else "allow"
    assert case.expect["decision"] == (placed if rows else "deny")
