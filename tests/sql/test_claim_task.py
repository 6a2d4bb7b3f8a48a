"""claim_task: what a node gets and when it gets nothing; order and capacity have other files."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, Node, token
from tests.sql.warm import WarmApi


@pytest.fixture(
    params=[
        pytest.param("cold", marks=pytest.mark.thorough),
        "warm",
        pytest.param("marked", marks=pytest.mark.thorough),
    ]
)
def api(request: pytest.FixtureRequest, conn: psycopg.Connection) -> Api:
    """Nodes at their first claim, and such as have claimed before; from where a mark is, too."""
    if request.param == "marked":
        request.getfixturevalue("eager_marks")
    return Api(conn) if request.param == "cold" else WarmApi(conn)


def test_the_row(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    assert api.claim(node, queue) == []
    lease = api.spawn(queue, "resize", {"n": 1}, headers={"h": 2})
    [claim] = api.claim(node, queue)
    assert claim == {
        "lease_id": lease,
        "claim_token": claim["claim_token"],
        "attempt": 1,
        "queue": queue,
        "task_name": "resize",
        "params": {"n": 1},
        "headers": {"h": 2},
        "score": 0,
        "expires_at": clock.now() + timedelta(seconds=60),
        "assignment": None,
    }
    assert api.state(lease) == "claimed"


def test_as_many_as_asked_for(api: Api, queue: str, node: Node) -> None:
    leases = [api.spawn(queue) for _ in range(30)]
    assert api.claimed(node, queue, qty=7) == leases[:7]
    assert api.claimed(node, queue, qty=1000) == leases[7:]
    assert api.claim(node, queue, qty=10) == []


def test_only_tasks_that_it_has_handlers_for(api: Api, queue: str, node: Node) -> None:
    leases = {task: api.spawn(queue, task) for task in "abc"}
    assert api.claimed(node, queue, qty=5, tasks=["c", "nobody"]) == [leases["c"]]
    assert api.claimed(node, queue, qty=5, tasks=[]) == []
    assert api.claimed(node, queue, qty=5) == [leases["a"], leases["b"]]
    for _ in range(4):  # of tasks that the node has run before, too
        for task in "ab":
            api.spawn(queue, task)
        api.complete(*api.claim(node, queue, qty=2))
    other, asked = api.spawn(queue, "b"), api.spawn(queue, "a")  # the other one is older
    assert api.claimed(node, queue, tasks=["a", "nobody"]) == [asked]
    assert api.claimed(node, queue, tasks=["a", "nobody"]) == []
    assert api.claimed(node, queue) == [other]


def test_several_queues(api: Api) -> None:
    """One order over all of them; a queue named twice is one queue. At last all classes are known."""
    one, two, node = api.queue(claim_timeout=60), api.queue(claim_timeout=120), api.node()
    for queues in ([one, two, one], [one, two], [two, one]):
        leases = [api.spawn(queue) for queue in queues]
        rows = api.claim(node, one, two, *queues[2:], qty=5)
        assert [row["lease_id"] for row in rows] == leases
        assert [row["queue"] for row in rows] == queues
        times = {row["queue"]: row["expires_at"] for row in rows}
        assert times[two] - times[one] == timedelta(seconds=60)


def test_a_timeout_of_the_call(api: Api, clock: Clock) -> None:
    """It stands in for the queue's, not for the lease's own; heartbeats extend by it."""
    queue, node = api.queue(claim_timeout=60), api.node()
    api.spawn(queue)
    api.spawn(queue, claim_timeout=300)
    rows = api.claim(node, queue, qty=2, claim_timeout=timedelta(seconds=10))
    spans = [row["expires_at"] - clock.now() for row in rows]
    assert spans == [timedelta(seconds=10), timedelta(seconds=300)]


def test_due_leases_are_promoted_on_the_way(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """A claim promotes a bounded number."""
    late, soon = api.spawn(queue, delay=20), api.spawn(queue, delay=10)
    clock.advance(timedelta(seconds=10))
    assert api.claimed(node, queue, qty=5) == [soon]
    clock.advance(timedelta(seconds=10))
    assert api.claimed(node, queue, qty=5) == [late]
    batch = [{"task": "t", "options": {"delay": 1}}] * 100
    api.rows("spawn_leases", queue=queue, leases=batch)
    clock.advance(timedelta(seconds=1))
    assert len(api.claim(node, queue)) == 1
    row = api.listed(queue)
    assert 1 <= row["pending"] < 50
    assert row["pending"] + row["scheduled"] == 99


def test_until_its_deadline_and_not_after_it(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """Even while nobody has reaped it."""
    deadline = (clock.now() + timedelta(minutes=1)).isoformat()
    in_time, late, other = (api.spawn(queue, deadline=at) for at in (deadline, deadline, None))
    clock.advance(timedelta(seconds=59))
    assert api.claimed(node, queue) == [in_time]
    clock.advance(timedelta(seconds=1))
    assert api.claimed(node, queue, qty=5) == [other]
    assert api.state(late) == "pending"


def test_a_claim_is_a_sign_of_life(api: Api, clock: Clock) -> None:
    """One that gets nothing is, too; a node that was silent may claim."""
    queue, node = api.queue(), api.node(heartbeat_timeout=45)
    for silence, work in ((timedelta(seconds=40), 0), (timedelta(hours=1), 1)):
        clock.advance(silence)
        leases = [api.spawn(queue) for _ in range(work)]
        assert api.claimed(node, queue) == leases
        assert (api.used(node)["live"], api.used(node)["seen_at"]) == (True, clock.now())


def test_tokens_rise_with_every_grant(api: Api, queue: str, node: Node) -> None:
    claim = api.running(queue, node)
    tokens = [claim["claim_token"]]
    for _ in range(3):
        api.rows("release_lease", **token(claim))
        [claim] = api.claim(node, queue)
        tokens.append(claim["claim_token"])
    assert tokens == [tokens[0] + n for n in (0, 3, 5, 7)]


@pytest.mark.thorough
def test_who_may_not_ask(api: Api, queue: str, node: Node) -> None:
    """Nor for a queue that does not exist, though another one beside it does."""
    api.spawn(queue)
    for epoch in (0, 2, -1, 2**60, None):
        refusal = api.refused("QHN03", "claim_task", queues=[queue], node=node.node_id, epoch=epoch)
        assert refusal.detail["node_epoch"] == 1
    for unknown in (NOBODY, None):
        refusal = api.refused("QHN01", "claim_task", queues=[queue], node=unknown, epoch=1)
        assert refusal.detail.get("node_id") == (str(unknown) if unknown else None)
    refusal = api.refused("QHQ01", "claim_task", queues=[queue, "nowhere"], **node.who)
    assert refusal.detail["queue"] == "nowhere"


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("p_queues", {"queues": None}),
        ("p_queues", {"queues": []}),
        ("p_queues", {"queues": ["a", None]}),
        ("p_queues", {"queues": [["a"], ["b"]]}),
        ("p_queues", {"queues": [["a", "b"]]}),
        ("p_queues", {"queues": ["a"] * 1001}),
        ("p_qty", {"qty": 0}),
        ("p_qty", {"qty": -1}),
        ("p_qty", {"qty": 1001}),
        ("p_qty", {"qty": None}),
        ("p_claim_timeout", {"claim_timeout": timedelta(0)}),
        ("p_claim_timeout", {"claim_timeout": timedelta(seconds=-1)}),
        ("p_claim_timeout", {"claim_timeout": timedelta(days=3651)}),
    ],
)
@pytest.mark.thorough
def test_bad_arguments(api: Api, field: str, bad: dict[str, Any]) -> None:
    arguments = {"queues": [api.queue()]} | api.node().who | bad
    assert api.fault("claim_task", **arguments) == field
