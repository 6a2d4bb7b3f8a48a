"""When claims look for scheduled leases whose time has come; sql/claim/expire.sql."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, Node

SHORT = timedelta(milliseconds=20)  # several of them within one tenth of a second
TENTH = timedelta(milliseconds=100)
AWAY = {"leases": {"labels": {"app": "db"}}, "domain": "rack", "away": True}
NOTED = "select set_config('hwqueue.recent_due_scan', %s, false)"


def due_in(api: Api, clock: Clock, queue: str, wait: timedelta, **options: object) -> UUID:
    """A lease that falls due so soon."""
    return api.spawn(queue, available_at=(clock.now() + wait).isoformat(), **options)


def at_work(api: Api, clock: Clock) -> tuple[str, Node]:
    """A queue with work, and a node whose session has just looked for what is due."""
    clock.freeze(clock.now().replace(microsecond=0))
    queue, node = api.queue(), api.node()
    for _ in range(9):
        api.spawn(queue)
    assert api.claim(node, queue)
    return queue, node


@pytest.mark.parametrize(("call", "qty"), [("claim_task", 1), ("claim_task", 3), ("settle_and_claim", 1)])
def test_it_waits_for_the_next_tenth_of_a_second(api: Api, clock: Clock, call: str, qty: int) -> None:
    """A busy session goes on with what is ready, for so long and no longer."""
    queue, node = at_work(api, clock)
    urgent = due_in(api, clock, queue, SHORT, priority=5)
    clock.advance(2 * SHORT)
    assert urgent not in api.claimed(node, queue, qty=qty)
    clock.advance(TENTH)
    settle: dict[str, Any] = {"settle": []} if call == "settle_and_claim" else {}
    assert api.rows(call, **node.who, queues=[queue], qty=qty, **settle)[0]["lease_id"] == urgent


@pytest.mark.parametrize(("qty", "others"), [(1, 0), (3, 0), (3, 1)])
def test_a_claim_that_finds_nothing_else_looks(api: Api, clock: Clock, qty: int, others: int) -> None:
    queue, node = at_work(api, clock)
    assert len(api.claim(node, queue, qty=8)) == 8
    queues = [queue, *(api.queue() for _ in range(others))]
    for wait in (2 * SHORT, TENTH):
        due = due_in(api, clock, queue, SHORT)
        assert api.claim(node, *queues, qty=qty) == []
        clock.advance(wait)
        assert api.claimed(node, *queues, qty=qty) == [due]


def test_a_batch_that_finds_too_little_looks(api: Api, clock: Clock) -> None:
    queue, node = at_work(api, clock)
    due = due_in(api, clock, queue, SHORT)
    clock.advance(2 * SHORT)
    taken = api.claimed(node, queue, qty=20)
    assert (len(taken), taken[-1]) == (9, due)


def test_each_list_of_queues_is_looked_at(api: Api, clock: Clock) -> None:
    """That a session has looked says nothing about other queues."""
    queue, node = at_work(api, clock)
    other = api.queue()
    api.spawn(other)
    for asked in ([other], [queue, other]):
        urgent = due_in(api, clock, other, SHORT, priority=5)
        clock.advance(2 * SHORT)
        assert api.claim(node, queue)
        assert api.claimed(node, *asked) == [urgent]


@pytest.mark.parametrize("call", ["claim_task", "settle_and_claim"])
def test_a_queue_named_twice(api: Api, clock: Clock, call: str) -> None:
    """What is due there is made ready once."""
    queue, node = at_work(api, clock)
    assert len(api.claim(node, queue, qty=7)) == 7
    due = due_in(api, clock, queue, SHORT)
    clock.advance(TENTH)
    settle: dict[str, Any] = {"settle": []} if call == "settle_and_claim" else {}
    found = [api.rows(call, **node.who, queues=[queue, queue], **settle) for _ in range(3)]
    assert [len(rows) for rows in found] == [1, 1, 0]
    assert due in [rows[0]["lease_id"] for rows in found[:2]]
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize("kind", [{}, {"placement": {"require": [AWAY]}}], ids=["plain", "away"])
def test_the_best_of_what_falls_due_goes_first(api: Api, clock: Clock, kind: dict[str, Any]) -> None:
    """Whatever has just been seen of the queue, when there was nothing."""
    queue, _ = at_work(api, clock)
    late = api.node(rack=1)
    for _ in range(9):
        api.spawn(queue, **kind)
    api.settle_terms()
    while api.claim(late, queue, qty=20):
        pass
    clock.freeze(clock.now().replace(microsecond=0) + timedelta(seconds=1))
    assert api.claim(late, queue) == []
    plain = due_in(api, clock, queue, SHORT, **kind)
    urgent = due_in(api, clock, queue, SHORT, priority=5, **kind)
    clock.advance(2 * SHORT)
    assert api.claimed(late, queue) + api.claimed(late, queue) == [urgent, plain]


@pytest.mark.parametrize("note", ["", "infinity", "x" * 10_000])
def test_whatever_the_setting_says(api: Api, clock: Clock, note: str) -> None:
    """It is the session's own: at worst the session looks once more, or when nothing is ready."""
    queue, node = at_work(api, clock)
    urgent = due_in(api, clock, queue, SHORT, priority=5)
    clock.advance(2 * SHORT)
    api.conn.execute(NOTED, [note])
    assert api.claimed(node, queue) == [urgent]
