"""Progress: what claims report, where it is shown, and how long it stays."""

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.calls import Row
from tests.sql.api import NOBODY, Api, beat, token


def report(claim: Row, **said: Any) -> Row:
    """A report as report_progress takes it."""
    return beat(claim)[0] | said


def shown(api: Api, claim: Row) -> Row | None:
    """The progress that get_lease shows, without its time."""
    progress: Row | None = api.lease(claim["lease_id"])["progress"]
    return progress and {name: progress[name] for name in progress if name != "reported_at"}


def test_the_last_report_is_shown(api: Api) -> None:
    claim = api.running(api.queue(), api.node())
    assert shown(api, claim) is None
    first = report(claim, fraction=0.25, message="frame 25")
    assert api.value("report_progress", reports=[first]) == 1
    assert shown(api, claim) == {
        "fraction": 0.25, "done": None, "total": None, "message": "frame 25"
    }  # fmt: skip
    two = [report(claim, message="lost"), report(claim, done=3, total=4)]
    assert api.value("report_progress", reports=two) == 1
    assert shown(api, claim) == {"fraction": 0.75, "done": 3, "total": 4, "message": None}


def test_a_fraction_too_small_for_a_double_is_none(api: Api, conn: psycopg.Connection) -> None:
    claim = api.running(api.queue(), api.node())
    reports = json.dumps([report(claim, fraction=0.25)]).replace("0.25", "1e-400")
    told = conn.execute("select hwqueue.report_progress(%s::jsonb)", [reports]).fetchone()
    assert told == (1,)
    progress = shown(api, claim)
    assert progress is not None
    assert progress["fraction"] == 0


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
    assert lease["attempts"][0]["progress"]["fraction"] == 0.5
    assert lease["progress"]["fraction"] == 0.75


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


def test_a_report_changes_nothing_else(api: Api) -> None:
    claim = api.running(api.queue(), api.node())
    before = api.contents()
    api.value("report_progress", reports=[report(claim, fraction=1)])
    after = api.contents()
    assert {name for name in after if after[name] != before[name]} == {"progress"}


@pytest.mark.parametrize("kept", [False, True])
def test_it_goes_with_the_lease(api: Api, conn: psycopg.Connection, clock: Any, kept: bool) -> None:
    queue = api.queue(retain_completed=0)
    lease = api.running(queue, api.node(), **({"idempotency_key": "k"} if kept else {}))
    api.value("report_progress", reports=[report(lease, fraction=1)])
    api.value("complete_lease", **token(lease))
    clock.advance(timedelta(hours=2))
    api.rows("prune")
    left = "select from hwqueue.progress where lease_id = %s"
    assert conn.execute(left, [lease["lease_id"]]).fetchall() == []


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


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"fraction": 1.01}, "fraction"),
        ({"fraction": -0.1}, "fraction"),
        ({"fraction": "half"}, "fraction"),
        ({"done": 5, "total": 4}, "done"),
        ({"total": 4}, "done"),
        ({"done": -1}, "done"),
        ({"done": 0, "total": 0}, "total"),
        ({"message": "x" * 201}, "message"),
        ({"claim_token": "one"}, "claim_token"),
        ({"lease_id": "one"}, "lease_id"),
    ],
)
@pytest.mark.thorough
def test_a_bad_report_names_its_field(api: Api, said: Row, field: str) -> None:
    claim = api.running(api.queue(), api.node())
    bad = [report(claim, fraction=0.5), report(claim, **said)]
    assert api.refused("QHA01", "report_progress", reports=bad).field == f"p_reports[1].{field}"


@pytest.mark.parametrize("reports", [{}, None, [7], [{"lease_id": str(NOBODY)}], [{}] * 1001])
@pytest.mark.thorough
def test_bad_arguments(api: Api, reports: Any) -> None:
    field = api.refused("QHA01", "report_progress", reports=reports).field
    assert field is not None
    assert field.startswith("p_reports")
