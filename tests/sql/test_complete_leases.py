"""complete_lease and complete_leases: claims are done, one or many in one call."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.numeric import Int8

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, token
from tests.sql.test_plain_batches import NEEDS, every_verdict, finished

ONE = Int8(1)


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


@pytest.mark.parametrize("counted", [False, True], ids=["not counted", "counted"])
def test_verdicts(api: Api, counted: bool) -> None:
    """A token is enough: whose claim it is does not matter, as in complete_lease."""
    node, claims, expected = every_verdict(api, counted)
    foreign = expected.index(("bad_token", "claimed"), 1)
    expected[foreign] = ("ok", "completed")
    left = {n: verdict for n, verdict in enumerate(expected, 1) if verdict[0] != "ok"}
    assert complete(api, claims) == left
    assert api.used(node)["used"].get("cpu_milli", 0) == (10 if counted else 0)  # one goes on


@pytest.mark.parametrize("counted", [False, True], ids=["not counted", "counted"])
@pytest.mark.parametrize("size", [0, 1, 2, 30])
def test_what_is_written(api: Api, queue: str, counted: bool, size: int) -> None:
    """The same as complete_lease writes, on however many nodes."""
    nodes = [api.node(capacity={"cpu_milli": 10**6} if counted else {}) for _ in range(3)]
    claims = [api.running(queue, nodes[n % 3], **NEEDS) for n in range(size)]
    one = api.running(queue, nodes[0], **NEEDS)
    api.complete(one)
    assert complete(api, claims[::-1]) == {}
    own = {"lease_id", "claim_token", "position", "created_at", "available_at", "claimed_at"}
    own.add("node_id")
    expected = {k: v for k, v in api.lease(one["lease_id"]).items() if k not in own}
    for claim in claims:
        lease = api.lease(claim["lease_id"])
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
