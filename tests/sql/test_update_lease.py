"""update_lease: what a waiting lease asks is changed, its queue included."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, Node, token
from tests.sql.test_roles import FILM, GAMES, only, refused
from tests.sql.test_terms import granted_in_time, settle_terms


def test_placement(api: Api) -> None:
    """All of it anew, the shorthands of its spawn included; seen by the next claim."""
    queue, node = api.queue(), api.node(labels={"zone": "a"})
    lease = api.spawn(queue, affinity_tags={"zone": "b"})
    assert api.claim(node, queue) == []
    changes = {"placement": {"require": [{"tags": {"zone": "a"}}]}}
    assert api.value("update_lease", lease=lease, changes=changes) == "pending"
    assert api.claimed(node, queue) == [lease]


def test_labels(api: Api) -> None:
    lease = api.spawn(api.queue(), labels={"app": "a"}, tenant="t", affinity_tags={"x": 1})
    before = api.lease(lease)
    api.rows("update_lease", lease=lease, changes={"labels": {"app": "b"}})
    assert api.lease(lease) == before | {"labels": {"app": "b"}}
    api.rows("update_lease", lease=lease, changes={"labels": None, "placement": None})
    assert api.lease(lease) == before | {"labels": {}, "placement": {}}


def test_priority_and_a_fresh_place_in_line(api: Api, queue: str) -> None:
    first, second, third = (api.spawn(queue, priority=priority) for priority in (3, 2, 2))
    api.rows("update_lease", lease=third, changes={"priority": 4})
    assert api.lease(third)["priority"] == 4
    api.rows("update_lease", lease=second, changes={"priority": 3})
    api.rows("update_lease", lease=first, changes={"labels": {}})
    assert api.claimed(api.node(), queue, qty=3) == [third, second, first]


def test_later_and_sooner(api: Api, queue: str, node: Node, clock: Clock) -> None:
    lease = api.spawn(queue)
    later = clock.now() + timedelta(hours=1)
    changes: dict[str, Any] = {"available_at": later.isoformat()}
    assert api.value("update_lease", lease=lease, changes=changes) == "scheduled"
    assert api.lease(lease)["available_at"] == later
    assert api.claim(node, queue) == []
    changes = {"available_at": clock.now().isoformat()}
    assert api.value("update_lease", lease=lease, changes=changes) == "pending"
    assert api.claimed(node, queue) == [lease]


def test_deadline(api: Api, clock: Clock) -> None:
    soon = (clock.now() + timedelta(minutes=1)).isoformat()
    given, taken = api.spawn(api.queue()), api.spawn(api.queue(), deadline=soon)
    api.rows("update_lease", lease=given, changes={"deadline": soon})
    api.rows("update_lease", lease=taken, changes={"deadline": None})
    api.reap_after(clock, timedelta(minutes=2))
    assert (api.state(given), api.state(taken)) == ("failed", "pending")


def test_attempts_and_tokens_go_on(api: Api) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 60}), api.node()
    old = api.running(queue, node)
    api.rows("fail_lease", **token(old), error={"n": 1})
    changes = {"priority": 1, "available_at": "2020-01-01T00:00:00Z"}
    api.rows("update_lease", lease=old["lease_id"], changes=changes)
    [new] = api.claim(node, queue)
    assert new["attempt"] == 2
    assert new["claim_token"] > old["claim_token"]


def test_nothing_to_change(api: Api) -> None:
    lease = api.spawn(api.queue(), delay=60)
    before = api.lease(lease)
    assert api.value("update_lease", lease=lease, changes={}) == "scheduled"
    assert api.lease(lease) == before


def test_not_while_claimed_nor_when_finished(api: Api) -> None:
    claim = api.running(api.queue())
    call = {"lease": claim["lease_id"], "changes": {"priority": 1}}
    refusal = api.refused("QHL07", "update_lease", **call)
    assert refusal.detail == {"lease_id": str(claim["lease_id"]), "state": "claimed"}
    api.complete(claim)
    assert api.refused("QHL03", "update_lease", **call).detail["state"] == "completed"
    api.refused("QHL04", "update_lease", lease=NOBODY, changes={})


@pytest.mark.parametrize(
    ("code", "field", "changes"),
    [
        ("QHA01", "changes", None),
        ("QHA01", "changes", []),
        ("QHA01", "changes.params", {"params": {}}),
        ("QHA01", "changes.priority", {"priority": 40000}),
        ("QHA01", "changes.labels.app", {"labels": {"app": 1}}),
        ("QHA01", "changes.available_at", {"available_at": "2030-01-01 00:00"}),
        ("QHA01", "changes.deadline", {"deadline": 7}),
        ("QHC03", "changes.placement.require", {"placement": {"require": 1}}),
        (
            "QHC04",
            "changes.placement.resources.gpu_milli",
            {"placement": {"resources": {"gpu": 1, "gpu_milli": 1}}},
        ),
    ],
)
@pytest.mark.thorough
def test_bad_changes(api: Api, code: str, field: str, changes: Any) -> None:
    lease = api.spawn(api.queue())
    assert api.refused(code, "update_lease", lease=lease, changes=changes).field == field


LARGE = {"text": "x" * 200}
UNIQUE: dict[str, Any] = {"unique": {"key": "k"}}
KEYS: list[dict[str, Any]] = [{"idempotency_key": "k"}, UNIQUE]


def move(api: Api, lease: UUID, queue: str) -> str:
    return str(api.value("update_lease", lease=lease, changes={"queue": queue}))


def move_all(api: Api, origin: str, queue: str) -> tuple[set[UUID], set[UUID]]:
    """Move all that waits in a queue; which moved, and which were skipped."""
    row = api.row("update_leases", filter={"queue": origin}, changes={"queue": queue})
    return set(row["changed"]), set(row["skipped"])


def test_a_pending_lease_is_claimed_there(api: Api) -> None:
    """And the event names both queues; a move to the queue that it is in changes nothing."""
    origin, queue, node = api.queue(), api.queue(ageing_step=60), api.node()
    first = api.spawn(queue)
    lease = api.spawn(origin, labels={"app": "a"}, priority=3, idempotency_key="k")
    before = api.lease(lease)
    for _ in range(2):
        assert move(api, lease, queue) == "pending"
        assert api.lease(lease) == before | {"queue": queue}
        assert api.spawn(queue, labels={"app": "a"}, priority=3, idempotency_key="k") == lease
    _, event = api.rows("list_events", filter={"lease": str(lease), "code": "lease_updated"})
    assert (event["queue"], event["detail"]["from_queue"]) == (queue, origin)
    assert event["message"] == "changed: queue"
    assert api.claim(node, origin) == []
    assert api.claimed(node, queue, qty=2) == [lease, first]
    assert api.rows("verify_invariants") == []


def test_the_policy_is_that_of_the_new_queue(api: Api, clock: Clock) -> None:
    """Tokens go on there."""
    retry = {"kind": "fixed", "base": 60, "jitter": 0}
    origin, queue = api.queue(max_attempts=9), api.queue(max_attempts=2, claim_timeout=7)
    api.rows("set_queue_policy", queue=queue, policy={"retain_completed": 0, "retry": retry})
    old = api.running(origin)
    lease = old["lease_id"]
    api.rows("release_lease", **token(old))
    move(api, lease, queue)
    assert api.lease(lease)["max_attempts"] == 2
    [claim] = api.claim(api.node(), queue)
    assert claim["claim_token"] > old["claim_token"]
    assert claim["expires_at"] == clock.now() + timedelta(seconds=7)
    assert api.value("fail_lease", **token(claim), error={}) == "scheduled"
    assert api.lease(lease)["available_at"] == clock.now() + timedelta(minutes=1)
    clock.advance(timedelta(minutes=1))
    [claim] = api.claim(api.node(), queue)
    api.complete(claim)
    api.refused("QHL04", "get_lease", lease=lease)


def test_it_ages_there_since_it_was_spawned(api: Api, clock: Clock) -> None:
    """Its patience goes on as well, by the new queue."""
    origin, queue = api.queue(), api.queue(ageing_step=60)
    old = api.spawn(origin)
    clock.advance(timedelta(minutes=10))
    young = api.spawn(queue, priority=5)
    younger = api.spawn(queue, priority=15)
    move(api, old, queue)
    assert api.claimed(api.node(), queue, qty=3) == [younger, old, young]
    _, second = (api.node(rack=rack) for rack in (1, 2))
    origin, queue = api.queue(patience=1), api.queue(patience=5)
    lease = api.spawn(origin, placement={"prefer": [{"when": {"rack": 1}}]})
    clock.advance(timedelta(seconds=4))
    move(api, lease, queue)
    assert api.claimed(second, queue) == []
    clock.advance(timedelta(seconds=1))
    assert api.claimed(second, queue) == [lease]


def test_too_large_for_the_new_queue(api: Api) -> None:
    origin, queue = api.queue(), api.queue(max_params_bytes=100)
    large, small = api.spawn(origin, "t", LARGE), api.spawn(origin, "t", {})
    found = api.refused("QHA01", "update_lease", lease=large, changes={"queue": queue})
    assert (found.field, found.detail["limit"]) == ("params", 100)
    assert move_all(api, origin, queue) == ({small}, {large})
    assert api.lease(large)["queue"] == origin


@pytest.mark.parametrize("key", KEYS, ids=["idempotency key", "unique"])
@pytest.mark.parametrize("together", [False, True], ids=["one", "all"])
def test_its_key_goes_along(api: Api, key: dict[str, Any], together: bool) -> None:
    origin, queue = api.queue(), api.queue()
    lease = api.spawn(origin, **key)
    if together:
        assert move_all(api, origin, queue) == ({lease}, set())
    else:
        move(api, lease, queue)
    assert api.spawn(queue, **key) == lease
    assert api.spawn(origin, **key) != lease
    api.rows("cancel_lease", lease=lease)
    api.rows("delete_leases", filter={"queue": queue})
    kept = api.conn.execute("select 1 from hwqueue.idempotency where lease_id = %s", [lease])
    assert kept.fetchall() == []


@pytest.mark.parametrize("key", KEYS, ids=["idempotency key", "unique"])
def test_a_key_that_another_lease_has_there(api: Api, key: dict[str, Any]) -> None:
    origin, queue = api.queue(), api.queue()
    lease, free, holder = api.spawn(origin, **key), api.spawn(origin), api.spawn(queue, **key)
    found = api.refused("QHT02", "update_lease", lease=lease, changes={"queue": queue})
    assert found.detail["lease_id"] == str(holder)
    assert found.field == "changes.queue"
    assert move_all(api, origin, queue) == ({free}, {lease})
    assert (api.spawn(origin, **key), api.spawn(queue, **key)) == (lease, holder)


def test_an_ended_lease_frees_a_unique_key_there_and_keeps_an_idempotency_key(api: Api) -> None:
    origin, queue = api.queue(), api.queue()
    lease, ended = api.spawn(origin, **UNIQUE), api.spawn(queue, **UNIQUE)
    api.rows("cancel_lease", lease=ended)
    assert move(api, lease, queue) == "pending"
    assert api.spawn(queue, **UNIQUE) == lease
    assert api.spawn(origin, **UNIQUE) != lease
    lease, ended = (api.spawn(q, idempotency_key="i") for q in (origin, queue))
    api.rows("cancel_lease", lease=ended)
    api.refused("QHT02", "update_lease", lease=lease, changes={"queue": queue})


def test_one_that_lost_its_unique_key_takes_none_along(api: Api, clock: Clock) -> None:
    """Its key was for an hour, and another lease has it by now."""
    origin, queue = api.queue(), api.queue()
    hour = {"unique": {"key": "k", "while": 3600}}
    old = api.spawn(origin, **hour)
    clock.advance(timedelta(hours=2))
    holder = api.spawn(origin, **hour)
    move(api, old, queue)
    assert api.spawn(origin, **hour) == holder
    assert api.spawn(queue, **hour) != old


def test_terms_select_it_by_its_new_queue(api: Api) -> None:
    """It keeps away from its task: that is now the other queue's."""
    origin, queue, node = api.queue(), api.queue(), api.node(rack=1)
    alone = {"require": [{"leases": {"same": "task"}, "domain": "rack", "away": True}]}
    running, waiting = api.spawn(queue, "t"), api.spawn(origin, "t", placement=alone)
    assert api.claimed(node, queue) == [running]
    move(api, waiting, queue)
    settle_terms(api)
    assert api.claim(node, queue) == []
    move(api, waiting, origin)
    assert granted_in_time(api, node, origin, waiting)


def test_out_of_a_paused_or_dropped_queue_and_into_a_paused_one(api: Api) -> None:
    origin, dropped, queue, node = api.queue(), api.queue(), api.queue(), api.node()
    leases = [api.spawn(origin), api.spawn(dropped)]
    api.rows("pause_queue", queue=origin)
    api.rows("drop_queue", queue=dropped, force=True)
    for lease in leases:
        move(api, lease, queue)
    api.rows("pause_queue", queue=queue)
    assert api.claim(node, origin, queue) == []
    api.rows("resume_queue", queue=queue)
    assert api.claimed(node, origin, queue, qty=2) == leases


def test_a_scheduled_lease_stays_scheduled(api: Api, clock: Clock) -> None:
    """With each change beside the queue."""
    origin, queue, node = api.queue(), api.queue(), api.node()
    lease, pending = api.spawn(origin, delay=60), api.spawn(origin)
    assert move(api, lease, queue) == "scheduled"
    later = clock.now() + timedelta(hours=1)
    changes: dict[str, Any] = {"priority": 4, "labels": {"a": "b"}}
    said = changes | {"queue": queue, "available_at": later.isoformat()}
    assert api.value("update_lease", lease=pending, changes=said) == "scheduled"
    assert api.lease(pending).items() >= (changes | {"queue": queue, "available_at": later}).items()
    [row] = [row for row in api.rows("list_queues") if row["queue"] == queue]
    assert row["scheduled"] == 2
    clock.advance(timedelta(minutes=2))
    assert (api.claimed(node, origin), api.claimed(node, queue)) == ([], [lease])


def test_claimed_and_finished_leases_do_not_move_nor_any_to_no_queue(api: Api) -> None:
    origin, queue = api.queue(), api.queue()
    claim = api.running(origin)
    api.refused("QHL07", "update_lease", lease=claim["lease_id"], changes={"queue": queue})
    api.complete(claim)
    api.refused("QHL03", "update_lease", lease=claim["lease_id"], changes={"queue": queue})
    assert move_all(api, origin, queue) == (set(), set())
    lease, name = api.spawn(origin), "changes.queue"
    for code, field, bad in (("QHQ01", None, "nowhere"), ("QHA01", name, 7), ("QHA01", name, "")):
        changes = {"queue": bad}
        assert api.refused(code, "update_lease", lease=lease, changes=changes).field == field
        api.refused(code, "update_leases", filter={"queue": origin}, changes=changes)


def test_a_tenant_moves_its_own(api: Api) -> None:
    origin, queue = api.queue(), api.queue()
    own, theirs = (api.spawn(origin, tenant=tenant, **UNIQUE) for tenant in (FILM, GAMES))
    refused(api, "QHL04", "update_lease", lease=theirs, changes={"queue": queue})
    with only(api, FILM):
        assert move_all(api, origin, queue) == ({own}, set())
        assert api.spawn(queue, tenant=FILM, **UNIQUE) == own
    assert api.lease(theirs)["queue"] == origin
