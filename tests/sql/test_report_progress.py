"""What attempts tell of themselves: progress and log lines."""

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


def test_the_last_report_is_shown(api: Api, conn: psycopg.Connection, claim: Row) -> None:
    """And it changes nothing else."""
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


def test_a_report_holds_up_no_settlement(api: Api, conn: psycopg.Connection, dsn: str, claim: Row) -> None:
    """Nor the other way round: it takes no lock of the claim."""
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
def test_bad_arguments(api: Api, claim: Row) -> None:
    """A bad report names its field."""
    for field, said in BAD:
        bad = [report(claim, fraction=0.5), report(claim, **said)]
        assert api.refused("QHA01", "report_progress", reports=bad).field == f"p_reports[1].{field}"
    reports: Any
    for reports in ({}, None, [7], [{"lease_id": str(NOBODY)}], [{}] * 1001):
        refusal = api.refused("QHA01", "report_progress", reports=reports)
        assert str(refusal.field).startswith("p_reports")


AT = "2030-01-31T12:00:00+00:00"


def lines(numbers: range, **said: Any) -> list[Row]:
    """Lines with these numbers, which are their messages."""
    return [{"line": number, "at": AT, "message": str(number), **said} for number in numbers]


def of(claim: Row, numbers: range, **said: Any) -> Row:
    """The lines of one claim, as append_logs takes them."""
    return beat(claim)[0] | {"lines": lines(numbers, **said)}


def logged(api: Api, claim: Row, **wanted: Any) -> list[str]:
    """The messages that lease_logs returns, each with how many were dropped before it."""
    rows = api.rows("lease_logs", lease=claim["lease_id"], **wanted)
    return [f"{row['dropped']}+" * (row["dropped"] > 0) + row["message"] for row in rows]


@pytest.fixture
def claim(api: Api) -> Row:
    return api.running(api.queue(), api.node())


def test_lines_are_read_as_they_were_logged(api: Api, claim: Row) -> None:
    warning = {"level": "warning", "message": "no texture", "fields": {"frame": 7}}
    first = of(claim, range(1, 2), **warning)
    assert api.value("append_logs", logs=[first, of(claim, range(2, 3))]) == 2
    one, two = api.rows("lease_logs", lease=claim["lease_id"])
    told = {name: one[name] for name in ("attempt", "claim_token", "line", "dropped", *warning)}
    assert told == {
        "attempt": 1, "claim_token": claim["claim_token"], "line": 1, "dropped": 0, **warning
    }  # fmt: skip
    assert one["logged_at"].isoformat() == AT
    assert (two["level"], two["message"], two["fields"]) == ("info", "2", None)


def test_pages_follow_one_another(api: Api, claim: Row) -> None:
    """Of a batch that is sent twice, and kept once."""
    for added in (5, 0):
        assert api.value("append_logs", logs=[of(claim, range(1, 6))]) == added
    seen, after = [], None
    while page := api.rows("lease_logs", lease=claim["lease_id"], after=after, limit=2):
        seen.append([row["message"] for row in page])
        after = page[-1]["cursor"]
    assert seen == [["1", "2"], ["3", "4"], ["5"]]
    assert logged(api, claim, last=True, limit=2) == ["4", "5"]
    assert logged(api, claim, last=True, limit=2, after=after) == []
    api.value("append_logs", logs=[of(claim, range(9, 11))])  # a gap is told
    assert logged(api, claim)[4:] == ["5", "3+9", "10"]
    assert logged(api, claim, last=True, limit=2) == ["3+9", "10"]
    assert logged(api, claim, last=True, limit=1) == ["10"]


def test_the_last_thousand_of_a_claim_are_kept(api: Api, conn: psycopg.Connection, claim: Row) -> None:
    count = "select count(*), min(line), max(line) from hwqueue.attempt_log where lease_id = %s"
    its = [claim["lease_id"]]
    assert api.value("append_logs", logs=[of(claim, range(1, 801))]) == 800
    seen = api.rows("lease_logs", lease=claim["lease_id"], limit=10)[-1]["cursor"]
    assert api.value("append_logs", logs=[of(claim, range(801, 1501))]) == 700
    assert conn.execute(count, its).fetchall() == [(1000, 501, 1500)]
    assert logged(api, claim, limit=2) == ["500+501", "502"]
    assert logged(api, claim, limit=1, after=seen) == ["490+501"]
    # nor do lines that come late, in two entries or one, make more of them
    assert api.value("append_logs", logs=[of(claim, range(1, 1001))]) == 500 - 500
    late = [of(claim, range(3001, 4001)), of(claim, range(2001, 3001))]
    assert api.value("append_logs", logs=late) == 1000
    assert conn.execute(count, its).fetchall() == [(1000, 3001, 4000)]


def test_each_attempt_has_its_own(api: Api) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 0}), api.node()
    first = api.running(queue, node)
    api.value("append_logs", logs=[of(first, range(1, 2), message="first")])
    api.value("fail_lease", **token(first), error={"message": "no"})
    [second] = api.claim(node, queue)
    api.value("append_logs", logs=[of(second, range(1, 2), message="second")])
    api.complete(second)
    assert logged(api, second) == ["first", "second"]
    assert logged(api, second, attempt=1) == ["first"]
    assert logged(api, second, attempt=3) == []


def tell(api: Api, *claims: Row) -> list[int]:
    """Report progress of claims, and log a line of each; of how many of them that was taken."""
    reports = [report(claim, fraction=1) for claim in claims]
    logs = [of(claim, range(1, 2)) for claim in claims]
    return [api.value("report_progress", reports=reports), api.value("append_logs", logs=logs)]


def test_only_who_holds_the_claim_tells(api: Api, conn: psycopg.Connection) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 0}), api.node()
    first = api.running(queue, node)
    api.value("fail_lease", **token(first), error={"message": "no"})
    assert tell(api, first) == [0, 0]
    [second] = api.claim(node, queue)
    assert tell(api, first, {"lease_id": NOBODY, "claim_token": 1}) == [0, 0]
    conn.execute("update hwqueue.claim set login = 'nobody_at_all'")
    with conn.transaction(force_rollback=True):
        conn.execute("create role hwqueue_test_other login in role hwqueue_worker")
        conn.execute("set local session authorization hwqueue_test_other")
        assert tell(api, second) == [0, 0]
    assert (shown(api, second), logged(api, second)) == (None, [])


@pytest.mark.parametrize("kept", [False, True])
def test_they_go_with_the_lease(api: Api, conn: psycopg.Connection, clock: Clock, kept: bool) -> None:
    queue = api.queue(retain_completed=0)
    lease = api.running(queue, api.node(), **({"idempotency_key": "k"} if kept else {}))
    assert tell(api, lease) == [1, 1]
    api.complete(lease)
    api.prune_after(clock, timedelta(hours=2))
    left = "select lease_id from hwqueue.progress union all select lease_id from hwqueue.attempt_log"
    assert (lease["lease_id"],) not in conn.execute(left).fetchall()


def test_lines_hold_up_no_settlement(api: Api, conn: psycopg.Connection, dsn: str, claim: Row) -> None:
    """They write nothing else, take no lock of the claim, and are kept when they commit after its end."""
    with psycopg.connect(dsn) as other:
        before = api.contents()
        assert Api(other).value("append_logs", logs=[of(claim, range(1, 2))]) == 1
        after = Api(other).contents()
        assert {name for name in after if after[name] != before[name]} == {"attempt_log"}
        conn.execute("set lock_timeout = '1ms'")
        api.complete(claim)
        conn.execute("set lock_timeout = 0")
    assert logged(api, claim) == ["1"]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"line": 0}, "lines[0].line"),
        ({"line": 2**31}, "lines[0].line"),
        ({"line": None}, "lines[0]"),
        ({"at": "noon"}, "lines[0].at"),
        ({"at": None}, "lines[0]"),
        ({"level": "loud"}, "lines[0].level"),
        ({"message": 7}, "lines[0].message"),
        ({"message": "é" * 2049}, "lines[0].message"),
        ({"fields": []}, "lines[0].fields"),
        ({"fields": {"a": "x" * 4090}}, "lines[0].fields"),
        ({"more": 1}, "lines[0].more"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
@pytest.mark.thorough
def test_a_bad_line_names_its_field(api: Api, claim: Row, said: Row, field: str) -> None:
    bad = [of(claim, range(1, 2)), of(claim, range(2, 3), **said)]
    told = api.refused("QHA01", "append_logs", logs=bad).field
    assert told is not None
    assert f"p_logs[1].{field}".startswith(told)
    assert logged(api, claim) == []


@pytest.mark.thorough
def test_what_cannot_be_a_page_or_a_list_of_lines(api: Api, claim: Row) -> None:
    for after in ("7", "9223372036854775808.1", "1.2147483648"):
        assert api.fault("lease_logs", lease=claim["lease_id"], after=after) == "p_after"
    nobody: Row = {"lease_id": str(NOBODY), "claim_token": 1}
    lists: list[Any] = [{}, None, [7], [{"lease_id": str(NOBODY)}], [{}] * 1001]
    for logs in (*lists, [nobody | {"lines": [{}] * 1001}], [nobody | {"lines": [7]}]):
        assert (api.fault("append_logs", logs=logs) or "").startswith("p_logs")
    api.refused("QHL04", "lease_logs", lease=NOBODY)
