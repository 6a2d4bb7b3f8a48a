"""A lease that moves to another queue, beside claims, pauses, spawns and other moves."""

from uuid import UUID

import psycopg
import pytest

from tests.direct import Direct
from tests.races.cluster import OTHER, QUEUE, Node, register
from tests.races.interleave import TIMEOUT, Actors, Meet
from tests.sql.api import refusing

HERE, THERE, ELSEWHERE = QUEUE, OTHER, "elsewhere"
KEYED = {"unique": {"key": "k", "on_conflict": "replace"}}
TO_THERE = {"queue": THERE}


@pytest.fixture
def node(direct: Direct) -> Node:
    """A node, and a third queue."""
    direct.create_queue(ELSEWHERE)
    return register(direct)


@pytest.fixture
def lease(direct: Direct, node: Node) -> UUID:
    """A lease that waits in the first of them, with a unique key."""
    found: UUID = direct.spawn(HERE, KEYED)["lease_id"]
    return found


def moved(direct: Direct) -> tuple[list[UUID], list[UUID]]:
    """Move all from here to there; which did, and which were skipped."""
    row = direct.row("update_leases", filter={"queue": HERE}, changes=TO_THERE)
    return row["changed"], row["skipped"]


def test_no_claim_gets_it_on_the_way(actor: Actors, node: Node, lease: UUID) -> None:
    mover, worker = actor().begin(), actor()
    mover.direct.update(lease, TO_THERE)
    for queue in (HERE, THERE):
        assert worker.direct.claim(queue, *node) == []
    assert worker.direct.claim_any([HERE, THERE], *node) == []
    mover.commit()
    assert worker.direct.claim(HERE, *node) == []
    [claim] = worker.direct.claim_any([HERE, THERE], *node)
    assert claim["lease_id"] == lease


@pytest.mark.parametrize("kept", [True, False], ids=["claimed", "not claimed"])
def test_a_claim_comes_first(direct: Direct, actor: Actors, node: Node, lease: UUID, kept: bool) -> None:
    worker, mover = actor().begin(), actor()
    assert len(worker.direct.claim(HERE, *node)) == 1
    late = mover.parked(lambda d: d.update(lease, TO_THERE), behind=worker)
    if kept:
        worker.commit()
        error = late.exception(TIMEOUT)
        assert isinstance(error, psycopg.Error)
        assert error.sqlstate == "QHL07"
    else:
        worker.rollback()
        assert late.result(TIMEOUT) == "pending"
    assert direct.lease(lease)["queue"] == (HERE if kept else THERE)


def test_a_claim_passes_by_a_page_that_moves(direct: Direct, actor: Actors, node: Node, lease: UUID) -> None:
    other = direct.spawn(HERE)["lease_id"]
    worker, mover = actor().begin(), actor()
    [claim] = worker.direct.claim(HERE, *node)
    assert claim["lease_id"] == lease
    assert moved(mover.direct) == ([other], [lease])
    worker.commit()


@pytest.mark.parametrize("case", [(q, first) for q in (HERE, THERE) for first in (True, False)])
def test_a_pause_beside_it(
    direct: Direct, actor: Actors, node: Node, lease: UUID, case: tuple[str, bool]
) -> None:
    """Neither waits for the other; the queue where the lease is then decides."""
    queue, pause_first = case
    mover, operator = actor(), actor()
    first, second = (operator, mover) if pause_first else (mover, operator)
    for one in (first, second):
        one.begin()
        if one is mover:
            one.direct.update(lease, TO_THERE)
        else:
            one.direct.rows("pause_queue", queue=queue)
    second.commit()
    first.commit()
    found = direct.claim_any([HERE, THERE], *node)
    assert [row["lease_id"] for row in found] == ([lease] if queue == HERE else [])


def test_of_two_moves_the_second_goes_on_from_the_first(direct: Direct, meet: Meet, lease: UUID) -> None:
    _, late = meet(lambda d: d.update(lease, TO_THERE), lambda d: d.update(lease, {"queue": ELSEWHERE}))
    assert late.result(TIMEOUT) == "pending"
    keys = direct.conn.execute(
        "select q.name from hwqueue.idempotency i join hwqueue.queue q using (queue_id)"
    ).fetchall()
    assert (direct.lease(lease)["queue"], keys) == (ELSEWHERE, [(ELSEWHERE,)])


def test_a_spawn_that_holds_its_key(actor: Actors, lease: UUID) -> None:
    """The spawn waits for the entry, so the move must not wait for the key."""
    producer, mover = actor().begin(), actor()
    producer.conn.execute("select 1 from hwqueue.idempotency for update")
    with refusing("QHT02"):
        mover.direct.update(lease, TO_THERE)
    assert moved(mover.direct) == ([], [lease])
    assert producer.direct.spawn(HERE, KEYED)["lease_id"] == lease
    producer.commit()
    assert moved(mover.direct) == ([lease], [])


@pytest.mark.parametrize("kept", [True, False], ids=["moved", "not moved"])
def test_a_spawn_there_waits_for_the_key(meet: Meet, lease: UUID, kept: bool) -> None:
    keyed = {"unique": {"key": "k"}}
    _, late = meet(lambda d: d.update(lease, TO_THERE), lambda d: d.spawn(THERE, keyed), commits=kept)
    assert (late.result(TIMEOUT)["lease_id"] == lease) is kept


def test_two_that_swap_a_key_leave_both(direct: Direct, actor: Actors, lease: UUID) -> None:
    """Each finds the other's lease with the key, and waits for nothing."""
    other = direct.spawn(THERE, KEYED)["lease_id"]
    one, two = actor().begin(), actor().begin()
    assert moved(one.direct) == ([], [lease])
    row = two.direct.row("update_leases", filter={"queue": THERE}, changes={"queue": HERE})
    assert (row["changed"], row["skipped"]) == ([], [other])
    one.commit()
    two.commit()


@pytest.mark.parametrize("call", ["update_leases", "requeue_leases"])
def test_a_page_waits_for_a_new_key_before_it_holds_others(
    direct: Direct, actor: Actors, lease: UUID, call: str
) -> None:
    """A spawn has written the new one, and takes one that was there: neither waits for the other."""
    first = {"unique": {"key": "a"}}
    other = direct.spawn(HERE, first)["lease_id"]
    there, more, filtered = THERE, {"changes": TO_THERE}, {"queue": HERE, "state": "pending"}
    if call == "requeue_leases":
        direct.row("cancel_leases", filter={"queue": HERE})
        direct.conn.execute("delete from hwqueue.idempotency where lease_id = %s", [lease])
        there, more, filtered = HERE, {}, {"queue": HERE, "state": "cancelled"}
    else:
        direct.cancel(direct.spawn(THERE, first)["lease_id"])
    producer, operator = actor().begin(), actor()
    producer.direct.spawn(there, KEYED)
    page = operator.parked(lambda d: d.row(call, filter=filtered, **more), behind=producer)
    assert producer.direct.spawn(there, first)["created"]
    producer.rollback()
    assert set(page.result(TIMEOUT)["changed"]) == {lease, other}
