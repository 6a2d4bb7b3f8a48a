"""Claims are done: one, many in one call, and in the batch of a worker, as lists and in p_settle."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.numeric import Int8

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, completed, settlement, token

ONE = Int8(1)
NOTHING: list[Row] = []
NEEDS = {"placement": {"resources": {"cpu_milli": 10}}}
counting = pytest.mark.parametrize("counted", [False, True], ids=["not counted", "counted"])


def thorough(way: str) -> Any:
    """One of several ways that is left to the thorough tests."""
    return pytest.param(way, marks=pytest.mark.thorough)


def complete(api: Api, claims: list[Row]) -> dict[int, tuple[str, str | None]]:
    """What was not completed: the verdict and the state by place in the list."""
    rows = api.rows(
        "complete_leases",
        lease_ids=[claim["lease_id"] for claim in claims],
        tokens=[Int8(claim["claim_token"]) for claim in claims],
    )
    for row in rows:
        assert row["lease_id"] == claims[row["ordinal"] - 1]["lease_id"]
    return {row["ordinal"]: (row["verdict"], row["state"]) for row in rows}


def settle(
    api: Api, node: Node, settlements: list[Row], done: list[Row] = NOTHING
) -> dict[int, tuple[str, str | None]]:
    """Settle only: the verdict and the state by ordinal; `done` goes as lists."""
    rows = api.rows(
        "settle_and_claim", **node.who, **completed(*done), settle=settlements, queues=[api.queue()], qty=0
    )
    assert {row["kind"] for row in rows} <= {"settled"}
    by_ordinal: dict[int, tuple[str, str | None]]
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


def test_it_is_done(api: Api, node: Node, clock: Clock) -> None:
    claim = api.running(api.queue(), node)
    claimed_at = clock.now()
    clock.advance(timedelta(seconds=7))
    assert api.value("complete_lease", **token(claim)) == "completed"
    lease = api.lease(claim["lease_id"])
    expected = {
        "state": "completed",
        "attempt": 1,
        "claim_token": claim["claim_token"],
        "node_id": node.node_id,
        "claimed_at": claimed_at,
        "finished_at": clock.now(),
        "expires_at": None,
        "result": None,
        "error": None,
        "attempts": [],
    }
    assert {key: lease[key] for key in expected} == expected


def test_results_are_kept(api: Api) -> None:
    """As large as allowed, too."""
    results: list[Any] = [{"rows": 7}, [1, 2], "x" * 98, 0, False, {}]
    for result in results:
        claim = api.running(api.queue(max_result_bytes=100))
        assert api.value("complete_lease", **token(claim), result=result) == "completed"
        assert api.lease(claim["lease_id"])["result"] == result


def test_before_a_cancellation_has_taken_effect_it_wins(api: Api) -> None:
    claim = api.running(api.queue())
    assert api.value("cancel_lease", lease=claim["lease_id"]) == "claimed"
    assert api.value("complete_lease", **token(claim), result=1) == "completed"
    assert api.lease(claim["lease_id"])["result"] == 1


@counting
@pytest.mark.parametrize("way", ["complete_leases", *map(thorough, ("lists", "json", "both"))])
def test_verdicts(api: Api, way: str, counted: bool) -> None:
    """For complete_leases a token is enough: whose claim it is does not matter, as in complete_lease."""
    node, claims, expected = every_verdict(api, counted)
    verdicts: dict[int, tuple[str, str | None]]
    if way == "complete_leases":
        expected[expected.index(("bad_token", "claimed"), 1)] = ("ok", "completed")
        verdicts = dict.fromkeys(range(1, len(claims) + 1), ("ok", "completed")) | complete(api, claims)
    elif way == "lists":
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


@counting
@pytest.mark.parametrize("size", [0, 1, 2, 30])
@pytest.mark.parametrize("way", ["complete_leases", *map(thorough, ("lists", "json"))])
def test_what_is_written(api: Api, queue: str, way: str, counted: bool, size: int) -> None:
    """The same as complete_lease writes; by complete_leases on however many nodes."""
    nodes = [api.node(capacity={"cpu_milli": 10**6} if counted else {}) for _ in range(3)]
    on = nodes if way == "complete_leases" else nodes[:1]
    claims = [api.running(queue, on[n % len(on)], **NEEDS) for n in range(size)]
    one = api.running(queue, nodes[0], **NEEDS)
    more: Row = {"result": {"n": 1}} if way == "json" else {}
    api.rows("complete_lease", **token(one), **more)
    if way == "complete_leases":
        assert complete(api, claims[::-1]) == {}
    else:
        settlements = [settlement(claim, **more) for claim in reversed(claims)]
        given = (settlements, NOTHING) if way == "json" else (NOTHING, claims)
        assert set(settle(api, nodes[0], *given).values()) <= {("ok", "completed")}
    own = {"lease_id", "claim_token", "position", "created_at", "available_at", "claimed_at", "node_id"}
    expected = {k: v for k, v in api.lease(one["lease_id"]).items() if k not in own}
    for claim in claims:
        lease = api.lease(claim["lease_id"])
        assert lease["claim_token"] == claim["claim_token"]
        assert lease["node_id"] in [node.node_id for node in on]
        assert {k: v for k, v in lease.items() if k not in own} == expected
    assert finished(api, queue) == {c["lease_id"]: "completed" for c in [*claims, one]}
    assert [api.used(node)["used"].get("cpu_milli", 0) for node in nodes] == [0, 0, 0]


def test_one_claim_many_times(api: Api) -> None:
    """Done once; the first mention counts. What is left is told in the order given."""
    claim = api.running(api.queue())
    done = ("finished", "completed")
    assert complete(api, [claim] * 3) == {2: done, 3: done}
    claims = [claim, *(api.running(api.queue()) for _ in range(3))]
    complete(api, claims)
    assert list(complete(api, claims[::-1])) == [1, 2, 3, 4]


def test_counted_and_uncounted_together(api: Api, queue: str) -> None:
    counted, free = api.node(capacity={"cpu_milli": 100}), api.node()
    claims = [api.running(queue, node, **NEEDS) for node in (counted, free, counted, free)]
    gone = {"lease_id": NOBODY, "claim_token": 1}
    assert complete(api, [*claims, gone]) == {5: ("lost", None)}
    assert api.used(counted)["used"].get("cpu_milli", 0) == 0


@pytest.mark.parametrize(
    ("leases", "tokens", "field"),
    [
        ([NOBODY], [], "p_lease_ids"),
        ([], [ONE], "p_lease_ids"),
        ([NOBODY, None], [ONE, ONE], "p_lease_ids"),
        ([NOBODY], [None], "p_tokens"),
        (None, [ONE], "p_lease_ids"),
        ([NOBODY], None, "p_lease_ids"),
        ([[NOBODY]], [[ONE]], "p_lease_ids"),
        ([NOBODY] * 1_001, [ONE] * 1_001, "p_lease_ids"),
    ],
    ids=["no token", "no lease", "null lease", "null token", "nulls", "no tokens", "2d", "too many"],
)
@pytest.mark.thorough
def test_lists_that_do_not_match(api: Api, leases: Any, tokens: Any, field: str) -> None:
    assert api.fault("complete_leases", lease_ids=leases, tokens=tokens) == field


@pytest.mark.thorough
def test_one_claim_many_times_in_a_batch(api: Api, queue: str, node: Node) -> None:
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


@pytest.mark.thorough
def test_lists_of_a_batch_that_do_not_match(api: Api, node: Node) -> None:
    claim = api.running(api.queue(), node)
    for field, wrong in (
        ("p_completed", {"completed_tokens": []}),
        ("p_completed", {"completed": [None]}),
        ("p_completed_tokens", {"completed_tokens": [None]}),
    ):
        given = {"settle": [], "queues": [api.queue()], **node.who, **completed(claim), **wrong}
        assert api.refused("QHA01", "settle_and_claim", **given).field == field
    assert api.state(claim["lease_id"]) == "claimed"


@pytest.mark.thorough
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
