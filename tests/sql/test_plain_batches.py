"""Completions as two lists do the same as in p_settle, where each gets a row and has its result."""

from uuid import UUID

import pytest

from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, completed, settlement, token

pytestmark = pytest.mark.thorough

NOTHING: list[Row] = []
NEEDS = {"placement": {"resources": {"cpu_milli": 10}}}


def settle(
    api: Api, node: Node, settlements: list[Row], done: list[Row] = NOTHING
) -> dict[int, tuple[str, str]]:
    """Settle only: the verdict and the state by ordinal; `done` goes as lists."""
    rows = api.rows(
        "settle_and_claim", **node.who, **completed(*done), settle=settlements, queues=[api.queue()], qty=0
    )
    assert {row["kind"] for row in rows} <= {"settled"}
    by_ordinal = {row["ordinal"]: (row["verdict"], row["state"]) for row in rows}
    assert len(by_ordinal) == len(rows)
    leases = [UUID(item["lease_id"]) for item in settlements] + [row["lease_id"] for row in done]
    for row in rows:
        assert row["lease_id"] == leases[row["ordinal"] - 1]
    assert set(by_ordinal) >= set(range(1, len(settlements) + 1))
    return dict.fromkeys(range(1, len(leases) + 1), ("ok", "completed")) | by_ordinal


def every_verdict(api: Api, counted: bool) -> tuple[Node, list[Row], list[tuple[str, str | None]]]:
    """Claims in every condition, and what becomes of each when it is completed."""
    queue = api.queue()
    node = api.node(capacity={"cpu_milli": 10**6} if counted else {})
    claims = [api.running(queue, node, **NEEDS) for _ in range(7)]
    ok, stopped, cancelled, done, lost, last, goes_on = claims
    for claim in (stopped, cancelled):
        api.rows("cancel_lease", lease=claim["lease_id"])
    api.rows("release_lease", **token(cancelled))
    api.complete(done)
    api.rows("release_lease", **token(lost))
    foreign = api.running(api.queue(), **NEEDS)
    expected: list[tuple[Row, tuple[str, str | None]]] = [
        (goes_on | {"claim_token": goes_on["claim_token"] + 7}, ("bad_token", "claimed")),
        (ok, ("ok", "completed")),
        (stopped, ("ok", "completed")),
        (foreign, ("bad_token", "claimed")),
        (cancelled, ("cancelled", "cancelled")),
        (done, ("finished", "completed")),
        (ok, ("finished", "completed")),
        (lost, ("lost", "pending")),
        (ok | {"lease_id": NOBODY}, ("lost", None)),
        (last, ("ok", "completed")),
    ]
    return node, [claim for claim, _ in expected], [verdict for _, verdict in expected]


@pytest.mark.parametrize("counted", [False, True], ids=["not counted", "counted"])
@pytest.mark.parametrize("way", ["lists", "json", "both"])
def test_verdicts(api: Api, way: str, counted: bool) -> None:
    node, claims, expected = every_verdict(api, counted)
    if way == "lists":
        verdicts = settle(api, node, [], claims)
    elif way == "json":
        verdicts = settle(api, node, [settlement(claim) for claim in claims])
    else:
        other = [api.running(api.queue(), node, **NEEDS) for _ in range(3)]
        settlements = [
            settlement(other[0], "fail", error={"n": 1}, retry=False),
            settlement(other[1], "release"),
            settlement(other[2], result={"n": 2}),
        ]
        expected = [("ok", "failed"), ("ok", "pending"), ("ok", "completed"), *expected]
        verdicts = settle(api, node, settlements, claims)
    assert [verdicts[n + 1] for n in range(len(expected))] == expected
    assert api.used(node)["used"].get("cpu_milli", 0) == (10 if counted else 0)  # one goes on


@pytest.mark.parametrize("counted", [False, True], ids=["not counted", "counted"])
@pytest.mark.parametrize("size", [1, 2, 30])
@pytest.mark.parametrize("as_lists", [False, True], ids=["json", "lists"])
def test_what_is_written(api: Api, queue: str, as_lists: bool, counted: bool, size: int) -> None:
    """The same as complete_lease writes."""
    node = api.node(capacity={"cpu_milli": 10**6} if counted else {})
    claims = [api.running(queue, node, **NEEDS) for _ in range(size)]
    one = api.running(queue, node, **NEEDS)
    more: Row = {} if as_lists else {"result": {"n": 1}}
    api.rows("complete_lease", **token(one), **more)
    settlements = [] if as_lists else [settlement(claim, **more) for claim in reversed(claims)]
    verdicts = settle(api, node, settlements, claims if as_lists else [])
    assert set(verdicts.values()) == {("ok", "completed")}
    own = {"lease_id", "claim_token", "position", "created_at", "available_at", "claimed_at"}
    expected = {k: v for k, v in api.lease(one["lease_id"]).items() if k not in own}
    for lease, claim in ((api.lease(claim["lease_id"]), claim) for claim in claims):
        assert lease["claim_token"] == claim["claim_token"]
        assert {k: v for k, v in lease.items() if k not in own} == expected
    assert finished(api, queue) == {c["lease_id"]: "completed" for c in [*claims, one]}


def test_one_claim_many_times(api: Api, queue: str, node: Node) -> None:
    """Done once; the first mention counts, and p_settle comes first. Ids may be in capitals."""
    again = dict.fromkeys((2, 3, 4), ("finished", "completed"))
    claim = api.running(queue, node)
    capitals = {"lease_id": str(claim["lease_id"]).upper()}
    written = [settlement(claim) | capitals, *[settlement(claim)] * 3]
    assert settle(api, node, written) == {1: ("ok", "completed")} | again
    claim = api.running(queue, node)
    assert settle(api, node, [], [claim] * 4) == {1: ("ok", "completed")} | again
    claim = api.running(queue, node)
    capitals = {"lease_id": str(claim["lease_id"]).upper()}
    verdicts = settle(api, node, [settlement(claim, result={"n": 1}) | capitals], [claim])
    assert verdicts == {1: ("ok", "completed"), 2: ("finished", "completed")}
    assert api.lease(claim["lease_id"])["result"] == {"n": 1}


def test_lists_that_do_not_match(api: Api, node: Node) -> None:
    claim = api.running(api.queue(), node)
    for field, wrong in (
        ("p_completed", {"completed_tokens": []}),
        ("p_completed", {"completed": [None]}),
        ("p_completed_tokens", {"completed_tokens": [None]}),
    ):
        given = {"settle": [], "queues": [api.queue()], **node.who, **completed(claim), **wrong}
        assert api.refused("QHA01", "settle_and_claim", **given).field == field
    assert api.state(claim["lease_id"]) == "claimed"


def test_every_end_is_on_record_once(api: Api, queue: str, node: Node) -> None:
    """Leases that end, come back and end again are found by their last end alone."""
    claims = [api.running(queue, node) for _ in range(4)]
    ends = ["complete", "fail", "fail", "complete"]
    for claim, outcome in zip(claims, ends, strict=True):
        more = {"retry": False} if outcome == "fail" else {}
        settle(api, node, [settlement(claim, outcome, **more)])
    waiting = api.spawn(queue)
    api.rows("cancel_lease", lease=waiting)
    late = api.spawn(queue, deadline="2020-01-01T00:00:00Z")
    api.rows("reap")
    states = ["completed", "failed", "failed", "completed"]
    leases = [claim["lease_id"] for claim in claims]
    expected = dict(zip(leases, states, strict=True)) | {waiting: "cancelled", late: "failed"}
    assert finished(api, queue) == expected
    for lease in (leases[1], waiting):
        api.rows("requeue_lease", lease=lease)
        del expected[lease]
    assert finished(api, queue) == expected
    for claim in api.claim(node, queue, qty=2):
        api.complete(claim)
        expected[claim["lease_id"]] = "completed"
    assert finished(api, queue) == expected


def finished(api: Api, queue: str) -> dict[UUID, str]:
    """What the record of finished leases says of a queue, which get_lease must confirm."""
    rows = api.conn.execute(
        "select f.lease_id, f.state, f.finished_at from hwqueue.outcome f"
        " join hwqueue.queue q using (queue_id) where q.name = %s",
        [queue],
    ).fetchall()
    assert len({lease for lease, *_ in rows}) == len(rows)
    for lease, state, at in rows:
        row = api.lease(lease)
        assert (row["state"], row["finished_at"]) == (state, at)
    return {lease: state for lease, state, _ in rows}
