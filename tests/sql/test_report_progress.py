"""Progress: what claims report, where it is shown, and how long it stays."""

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, beat, token


def report(claim: Row, **said: Any) -> Row:
    return beat(claim)[0] | said


def shown(api: Api, claim: Row) -> Row | None:
    """The progress that get_lease shows, without its time."""
    progress: Row | None = api.lease(claim["lease_id"])["progress"]
    return progress and {name: progress[name] for name in progress if name != "reported_at"}


def test_the_last_report_is_shown(api: Api, conn: psycopg.Connection) -> None:
    """And it changes nothing else."""
    claim = api.running(api.queue(), api.node())
    assert shown(api, claim) is None
    before = api.contents()
    first = report(claim, fraction=0.25, message="frame 25")
    assert api.value("report_progress", reports=[first]) == 1
    after = api.contents()
    assert {name for name in after if after[name] != before[name]} == {"progress"}
    nothing = {"fraction": None, "done": None, "total": None, "message": None}
    assert shown(api, claim) == nothing | {"fraction": 0.25, "message": "frame 25"}
    two = [report(claim, message="lost"), report(claim, done=3, total=4)]
    assert api.value("report_progress", reports=two) == 1
    assert shown(api, claim) == nothing | {"fraction": 0.75, "done": 3, "total": 4}
    small = json.dumps([report(claim, fraction=0.25)]).replace("0.25", "1e-400")  # for a double
    told = conn.execute("select hwqueue.report_progress(%s::jsonb)", [small]).fetchone()
    assert (told, shown(api, claim)) == ((1,), nothing | {"fraction": 0})


def test_it_stays_with_the_attempt_that_ended(api: Api) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 0}), api.node()
    first = api.running(queue, node)
    api.value("report_progress", reports=[report(first, fraction=0.5)])
    api.value("fail_lease", **token(first), error={"message": "no"})
    assert shown(api, first) is None
    [second] = api.claim(node, queue)
    assert shown(api, second) is None
    api.value("report_progress", reports=[report(second, fraction=0.75)])
    api.value("complete_lease", **token(second))
    lease = api.lease(second["lease_id"])
    assert (lease["attempts"][0]["progress"]["fraction"], lease["progress"]["fraction"]) == (0.5, 0.75)


def test_only_who_holds_the_claim_reports(api: Api, conn: psycopg.Connection) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 0}), api.node()
    first = api.running(queue, node)
    api.value("fail_lease", **token(first), error={"message": "no"})
    assert api.value("report_progress", reports=[report(first, fraction=1)]) == 0
    [second] = api.claim(node, queue)
    stale = [report(first, fraction=1), {"lease_id": str(NOBODY), "claim_token": 1}]
    assert api.value("report_progress", reports=stale) == 0
    conn.execute("update hwqueue.claim set login = 'nobody_at_all'")
    with conn.transaction(force_rollback=True):
        conn.execute("create role hwqueue_test_other login in role hwqueue_worker")
        conn.execute("set local session authorization hwqueue_test_other")
        assert api.value("report_progress", reports=[report(second, fraction=1)]) == 0
    assert shown(api, second) is None


def test_it_goes_with_the_lease(api: Api, conn: psycopg.Connection, clock: Clock) -> None:
    queue, node = api.queue(retain_completed=0), api.node()
    claims = [api.running(queue, node), api.running(queue, node, idempotency_key="k")]
    for claim in claims:
        api.value("report_progress", reports=[report(claim, fraction=1)])
        api.value("complete_lease", **token(claim))
    api.prune_after(clock, timedelta(hours=2))
    left = "select from hwqueue.progress where lease_id = any (%s)"
    assert conn.execute(left, [[claim["lease_id"] for claim in claims]]).fetchall() == []


def test_a_report_holds_up_no_settlement(api: Api, conn: psycopg.Connection, dsn: str) -> None:
    """Nor the other way round: it takes no lock of the claim."""
    claim = api.running(api.queue(), api.node())
    with psycopg.connect(dsn) as other:
        api_of_other = Api(other)
        assert api_of_other.value("report_progress", reports=[report(claim, fraction=0.5)]) == 1
        conn.execute("set lock_timeout = '1ms'")
        api.value("complete_lease", **token(claim))
        conn.execute("set lock_timeout = 0")
    assert shown(api, claim) is not None


BAD: list[tuple[str, Row]] = [
    ("fraction", {"fraction": 1.01}),
    ("fraction", {"fraction": -0.1}),
    ("fraction", {"fraction": "half"}),
    ("done", {"done": 5, "total": 4}),
    ("done", {"total": 4}),
    ("done", {"done": -1}),
    ("total", {"done": 0, "total": 0}),
    ("message", {"message": "x" * 201}),
    ("claim_token", {"claim_token": "one"}),
    ("lease_id", {"lease_id": "one"}),
]


@pytest.mark.thorough
def test_bad_arguments(api: Api) -> None:
    """A bad report names its field."""
    claim = api.running(api.queue(), api.node())
    for field, said in BAD:
        bad = [report(claim, fraction=0.5), report(claim, **said)]
        assert api.refused("QHA01", "report_progress", reports=bad).field == f"p_reports[1].{field}"
    reports: Any
    for reports in ({}, None, [7], [{"lease_id": str(NOBODY)}], [{}] * 1001):
        refusal = api.refused("QHA01", "report_progress", reports=reports)
        assert str(refusal.field).startswith("p_reports")
