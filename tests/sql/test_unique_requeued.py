"""Requeued leases and the option unique: the key comes back if no other lease has it."""

from datetime import timedelta
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api

OPEN = {"key": "k"}
HOUR = {"key": "k", "while": 3600}


def ended(api: Api, queue: str, **unique: object) -> UUID:
    """A cancelled lease that was spawned with the key."""
    lease = api.spawn(queue, unique=unique or OPEN)
    api.rows("cancel_lease", lease=lease)
    return lease


def test_it_gets_its_key_back(api: Api) -> None:
    """An idempotency key was never lost."""
    queue = api.queue()
    first, second = ended(api, queue), ended(api, queue)
    assert second != first
    assert api.value("requeue_lease", lease=first) == "pending"
    assert api.spawn(queue, unique=OPEN) == first
    lease = api.spawn(queue, idempotency_key="i")
    api.rows("cancel_lease", lease=lease)
    assert api.value("requeue_lease", lease=lease) == "pending"
    assert api.spawn(queue, idempotency_key="i") == lease


def test_not_while_another_lease_is_open(api: Api) -> None:
    queue = api.queue()
    first = ended(api, queue)
    holder = api.spawn(queue, unique=OPEN)
    refusal = api.refused("QHT02", "requeue_lease", lease=first)
    assert refusal.detail == {"key": "k", "lease_id": str(holder), "requeued": str(first)}
    assert api.state(first) == "cancelled"
    api.rows("cancel_lease", lease=holder)
    assert api.value("requeue_lease", lease=first) == "pending"
    refusal = api.refused("QHT02", "requeue_lease", lease=holder)
    assert refusal.detail["lease_id"] == str(first)


def test_not_within_the_span_of_another(api: Api, clock: Clock) -> None:
    queue = api.queue()
    first = ended(api, queue, **HOUR)
    clock.advance(timedelta(hours=2))
    holder = ended(api, queue, **HOUR)
    assert api.refused("QHT02", "requeue_lease", lease=first).detail["lease_id"] == str(holder)
    assert api.value("requeue_lease", lease=holder) == "pending"  # its own span
    clock.advance(timedelta(hours=2))
    assert api.value("requeue_lease", lease=first) == "pending"


def test_a_key_that_went_with_its_holder_is_made_again(api: Api) -> None:
    queue = api.queue()
    first, holder = ended(api, queue), ended(api, queue)
    api.rows("delete_leases", filter={"queue": queue, "state": "cancelled"}, limit=10000)
    again, holder = ended(api, queue), ended(api, queue)
    api.conn.execute("select hwqueue.remove_leases(array[%s::uuid])", [holder])
    assert api.value("requeue_lease", lease=again) == "pending"
    assert api.spawn(queue, unique=OPEN) == again
    assert first not in (again, holder)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_page_skips_leases_whose_key_is_taken(api: Api, is_open: bool) -> None:
    queue = api.queue()
    first, second = ended(api, queue), ended(api, queue)
    holder = api.spawn(queue, unique=OPEN)
    if not is_open:
        api.conn.execute("select hwqueue.cancel_lease(%s)", [holder])
        api.conn.execute("select hwqueue.remove_leases(array[%s::uuid])", [holder])
    free, plain = ended(api, queue, key="other"), api.spawn(queue)
    api.rows("cancel_lease", lease=plain)
    page = api.row("requeue_leases", filter={"queue": queue, "state": "cancelled"})
    changed, skipped = set(page["changed"]), set(page["skipped"])
    assert {free, plain} <= changed
    assert changed | skipped == {first, second, free, plain}
    keyed = changed - {free, plain}  # one of the two, if nobody has the key
    assert len(keyed) == (0 if is_open else 1)
    assert {lease for lease in changed | skipped if api.state(lease) == "pending"} == changed
    assert api.spawn(queue, unique=OPEN) in ([holder] if is_open else keyed)


def test_of_one_key_the_lease_that_holds_it_is_requeued(api: Api) -> None:
    queue = api.queue()
    first, holder = ended(api, queue), ended(api, queue)
    page = api.row("requeue_leases", filter={"queue": queue, "state": "cancelled"})
    assert (page["changed"], page["skipped"]) == ([holder], [first])


def test_requeue_failed_leaves_and_does_not_count_them(api: Api) -> None:
    queue, node = api.queue(max_attempts=1), api.node()
    first = api.spawn(queue, unique=OPEN)
    [claim] = api.claim(node, queue)
    api.rows("fail_lease", lease=first, token=claim["claim_token"], error={})
    holder = api.spawn(queue, unique=OPEN)
    assert api.value("requeue_failed", queue=queue) == 0
    api.rows("cancel_lease", lease=holder)
    assert api.value("requeue_failed", queue=queue) == 1
    assert api.state(first) == "pending"
