"""Spawns wait on nobody, save for their own idempotency key."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import TASK
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register
from tests.races.interleave import TIMEOUT, Actors, Meet, sqlstate_of

NEW_CLASS = {
    "placement": {
        "require": [{"label": "zone", "op": "in", "values": ["a"]}],
        "prefer": [{"weight": 10, "when": {"tags": {"disk": "ssd"}}}],
        "resources": {"cpu_milli": 500},
    },
    "labels": {"app": "web"},
}
UNIQUE = {"unique": {"key": "report"}}


def test_an_open_spawn_of_a_new_class_holds_up_nobody(direct: Direct, actor: Actors) -> None:
    """Others spawn the very same class, spawn in bulk, claim and settle meanwhile."""
    node = register(direct, labels={"zone": "a"}, capacity={"cpu_milli": 4000})
    idle, other = actor().begin(), actor()
    unseen = idle.direct.spawn(QUEUE, NEW_CLASS)["lease_id"]
    same_class = other.direct.spawn(QUEUE, NEW_CLASS)["lease_id"]
    other.direct.spawn_many(QUEUE, [NEW_CLASS, {}, NEW_CLASS])
    claims = other.direct.claim(QUEUE, *node, qty=10)
    assert len(claims) == 4
    assert unseen not in {row["lease_id"] for row in claims}
    assert same_class in {row["lease_id"] for row in claims}
    for row in claims:
        other.direct.complete(row["lease_id"], row["claim_token"])
    other.direct.reap()
    idle.commit()
    late = other.direct.claim(QUEUE, *node, qty=10)
    assert [row["lease_id"] for row in late] == [unseen]


def test_two_open_spawns_of_one_new_class(direct: Direct, actor: Actors) -> None:
    """Neither waits for the other, in whatever order they commit, and both are claimable."""
    node = register(direct, labels={"zone": "a"})
    one, two, worker = actor().begin(), actor().begin(), actor()
    spawned = {side.direct.spawn(QUEUE, NEW_CLASS)["lease_id"] for side in (one, two)}
    two.commit()
    first = worker.direct.claim(QUEUE, *node)
    one.commit()
    second = worker.direct.claim(QUEUE, *node)
    assert {row["lease_id"] for row in first + second} == spawned


@pytest.mark.parametrize("first_commits", [True, False])
@pytest.mark.parametrize("which", ["idempotency key", "unique key", "unique key of one that has ended"])
def test_same_key_from_two_sessions(direct: Direct, meet: Meet, which: str, first_commits: bool) -> None:
    """The second waits for the first, and gets its lease, or makes one if that is undone."""
    options: dict[str, Any] = {"idempotency_key": "order-1"} if which == "idempotency key" else UNIQUE
    if which.endswith("ended"):  # the key is taken over, not inserted
        ended = direct.spawn(QUEUE, UNIQUE)["lease_id"]
        direct.cancel(ended)
    first, waiting = meet(
        lambda d: d.spawn(QUEUE, options), lambda d: d.spawn(QUEUE, options), commits=first_commits
    )
    assert first["created"]
    second = waiting.result(TIMEOUT)
    assert second["created"] is not first_commits
    assert (second["lease_id"] == first["lease_id"]) is first_commits


@pytest.mark.parametrize("first_commits", [True, False])
def test_same_id_from_two_sessions(direct: Direct, meet: Meet, node: Node, first_commits: bool) -> None:
    """The second waits for the first, and is refused, or goes through if that is undone."""
    lease = uuid4()
    options = {"lease_id": str(lease)}
    _, waiting = meet(
        lambda d: d.spawn(QUEUE, options), lambda d: d.spawn(QUEUE, options), commits=first_commits
    )
    if first_commits:
        assert sqlstate_of(waiting) == "QHL06"
    else:
        assert waiting.result(TIMEOUT)["created"]
    assert direct.states(QUEUE) == {lease: "pending"}
    assert [row["lease_id"] for row in direct.claim(QUEUE, *node, qty=5)] == [lease]


def test_batches_with_the_same_keys_do_not_deadlock(meet: Meet) -> None:
    """Keys are taken in sorted order, whatever the order in the batch."""
    batch = [{"idempotency_key": f"key-{number}"} for number in range(50)]
    first, waiting = meet(lambda d: d.spawn_many(QUEUE, batch), lambda d: d.spawn_many(QUEUE, batch[::-1]))
    second = waiting.result(TIMEOUT)
    assert not any(row["created"] for row in second)
    assert {row["lease_id"] for row in first} == {row["lease_id"] for row in second}


@pytest.mark.parametrize("how", ["spawn", "spawn_many"])
def test_a_spawn_beside_an_open_set_task_has_what_is_committed(
    direct: Direct, actor: Actors, how: str
) -> None:
    """It waits for nobody; the next one after the commit has the new defaults."""
    direct.value("set_task", task=TASK, defaults={"priority": 1})
    operator, producer = actor(), actor()

    def priority() -> int:
        found = getattr(producer.direct, how)(QUEUE, *([[{}]] if how == "spawn_many" else []))
        [row] = found if how == "spawn_many" else [found]
        return int(producer.direct.lease(row["lease_id"])["priority"])

    for function, more, before, after in (
        ("set_task", {"defaults": {"priority": 2}}, 1, 2),
        ("drop_task", {}, 2, 0),
        ("set_task", {"defaults": {"priority": 3}}, 0, 3),
    ):
        operator.begin()
        operator.direct.value(function, task=TASK, **more)
        assert priority() == before
        operator.commit()
        assert priority() == after


def test_a_spawn_that_is_open_holds_up_no_set_task(direct: Direct, actor: Actors) -> None:
    direct.value("set_task", task=TASK, defaults={"priority": 1})
    producer, operator = actor().begin(), actor()
    lease = producer.direct.spawn(QUEUE)["lease_id"]
    operator.direct.value("set_task", task=TASK, defaults={"priority": 2})
    producer.commit()
    assert operator.direct.lease(lease)["priority"] == 1


def test_a_unique_spawn_beside_a_settlement(direct: Direct, actor: Actors, node: Node) -> None:
    """It waits for nobody; the key is free once the settlement is committed."""
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    [claim] = direct.claim(QUEUE, *node)
    worker, producer = actor().begin(), actor()
    worker.direct.complete(first, claim["claim_token"])
    assert producer.direct.spawn(QUEUE, UNIQUE)["lease_id"] == first
    worker.commit()
    assert producer.direct.spawn(QUEUE, UNIQUE)["created"]


@pytest.mark.parametrize("claim_commits", [True, False])
def test_a_replacement_beside_a_claim(direct: Direct, meet: Meet, node: Node, claim_commits: bool) -> None:
    """It waits for the claim: what runs stays as it is, what waits again is changed."""
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    options = {"unique": {"key": "report", "on_conflict": "replace"}, "priority": 7}
    claims, waiting = meet(
        lambda d: d.claim(QUEUE, *node), lambda d: d.spawn(QUEUE, options), commits=claim_commits
    )
    assert len(claims) == 1
    found = waiting.result(TIMEOUT)
    assert (found["lease_id"], found["created"]) == (first, False)
    [row] = direct.conn.execute("select priority, state from hwqueue.get_lease(%s)", [first]).fetchall()
    assert row == ((0, "claimed") if claim_commits else (7, "pending"))


def test_a_claim_passes_by_a_replacement(direct: Direct, actor: Actors, node: Node) -> None:
    """A lease that an open transaction replaces is skipped, and claimed afterwards."""
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    options = {"unique": {"key": "report", "on_conflict": "replace"}, "labels": {"a": "b"}}
    producer, worker = actor().begin(), actor()
    producer.direct.spawn(QUEUE, options)
    assert worker.direct.claim(QUEUE, *node) == []
    producer.commit()
    assert [row["lease_id"] for row in worker.direct.claim(QUEUE, *node)] == [first]


def test_prune_passes_by_a_key_that_is_taken_over(direct: Direct, actor: Actors) -> None:
    """It waits for no producer, and leaves the key, which is then that of the new lease."""
    ended = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    direct.conn.execute("select hwqueue.cancel_lease(%s)", [ended])
    producer, operator = actor().begin(), actor()
    fresh = producer.direct.spawn(QUEUE, UNIQUE)["lease_id"]
    operator.direct.rows("delete_leases", filter={"queue": QUEUE})
    producer.commit()
    assert operator.direct.spawn(QUEUE, UNIQUE)["lease_id"] == fresh


@pytest.mark.parametrize("spawn_commits", [True, False])
def test_a_requeue_beside_a_spawn_that_takes_its_key(direct: Direct, meet: Meet, spawn_commits: bool) -> None:
    """It waits for the spawn: two are never open."""
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    direct.cancel(first)
    second, waiting = meet(
        lambda d: d.spawn(QUEUE, UNIQUE), lambda d: d.requeue(first), commits=spawn_commits
    )
    if spawn_commits:
        assert sqlstate_of(waiting) == "QHT02"
    else:
        assert waiting.result(TIMEOUT) == "pending"
    assert direct.spawn(QUEUE, UNIQUE)["lease_id"] == (second["lease_id"] if spawn_commits else first)
    assert sorted(direct.states(QUEUE).values()) == (
        ["cancelled", "pending"] if spawn_commits else ["pending"]
    )


@pytest.mark.parametrize("requeue_commits", [True, False])
def test_a_spawn_beside_a_requeue_of_its_keys_lease(
    direct: Direct, meet: Meet, requeue_commits: bool
) -> None:
    """It waits for the requeue, and then finds that lease open."""
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    direct.cancel(first)
    state, waiting = meet(
        lambda d: d.requeue(first), lambda d: d.spawn(QUEUE, UNIQUE), commits=requeue_commits
    )
    assert state == "pending"
    found = waiting.result(TIMEOUT)
    assert (found["lease_id"] == first) is requeue_commits
    assert found["created"] is not requeue_commits


def test_a_page_of_requeues_passes_by_a_key_that_is_held(direct: Direct, actor: Actors) -> None:
    """It waits for no producer: the lease is skipped."""
    keyed, plain = direct.spawn(QUEUE, UNIQUE)["lease_id"], direct.spawn(QUEUE)["lease_id"]
    direct.cancel(keyed)
    direct.cancel(plain)
    filtered = {"queue": QUEUE, "state": "cancelled"}
    producer, operator = actor().begin(), actor()
    producer.direct.spawn(QUEUE, UNIQUE)
    page = operator.direct.row("requeue_leases", filter=filtered)
    assert (page["changed"], page["skipped"]) == ([plain], [keyed])
    producer.rollback()
    page = operator.direct.row("requeue_leases", filter=filtered)
    assert (page["changed"], page["skipped"]) == ([keyed], [])
