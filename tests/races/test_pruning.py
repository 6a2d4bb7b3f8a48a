"""Two prunes at once: neither waits, nothing is removed twice, nothing is left out for good."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.flows import broken
from tests.races.cluster import QUEUE, Node, completed, prune, register, set_policy
from tests.races.interleave import TIMEOUT, Actors, Meet
from tests.races.terms import lease, place, publish, spread
from tests.sql.api import refusing

DAY = timedelta(days=1)
PRUNE = "select leases from hwqueue.prune(p_limit => %s)"
REGULAR = "select leases from hwqueue.prune(p_limit => %s, p_unless_within => '10 s')"
LOOK = "select hwqueue.refresh_fleet_cache(class_id, hwqueue.clock()) from hwqueue.placement_class"
REMEMBERED = "select (select count(*) from hwqueue.spread_floor), (select count(*) from hwqueue.class_range)"
CLASSES = "select count(*) from hwqueue.placement_class"
FIND_OUT = (
    "select hwqueue.cache_class_fleets(array_agg(class_id), hwqueue.clock()) from hwqueue.placement_class"
)
DELETE_CLASSES = "select hwqueue.delete_classes(array_agg(class_id), 10) from hwqueue.placement_class"


@pytest.mark.parametrize("commits", [True, False])
def test_beside_an_open_prune(direct: Direct, actor: Actors, node: Node, clock: Clock, commits: bool) -> None:
    set_policy(direct, retain_completed=1)
    for number in range(4):
        completed(direct, node, {"labels": {str(number): "n"}})
    clock.advance(DAY)
    sleeper, other = actor().begin(), actor()
    assert sleeper.conn.execute(PRUNE, [2]).fetchall() == [(2,)]
    assert other.conn.execute(PRUNE, [10]).fetchall() == [(2,)]
    sleeper.end(commits)
    left = 0 if commits else 2
    assert other.conn.execute(PRUNE, [10]).fetchall() == [(left,)]
    prune(direct)
    assert direct.conn.execute(CLASSES).fetchall() == [(0,)]


def test_a_lease_is_pruned_while_it_is_read(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """The reader has found the lease, and waits for a table when it goes: an error, not nothing."""
    set_policy(direct, retain_completed=1)
    lease = completed(direct, node)
    clock.advance(DAY)
    pruner, reader = actor().begin(), actor()
    assert pruner.conn.execute(PRUNE, [10]).fetchall() == [(1,)]
    pruner.conn.execute("lock table hwqueue.attempt in access exclusive mode")
    reading = reader.parked(
        lambda d: d.conn.execute("select state from hwqueue.get_lease(%s)", [lease]).fetchall()
    )
    pruner.commit()
    with refusing("QHL04"):
        reading.result(TIMEOUT)


def test_one_of_many_prunes_at_a_time(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """While one is at it the others have nothing to do, unless it takes very long."""
    set_policy(direct, retain_completed=1)
    for _ in range(4):
        completed(direct, node)
    clock.advance(DAY)
    sleeper, other = actor(), actor()
    assert other.conn.execute(REGULAR, [1]).fetchall() == [(1,)]
    clock.advance(timedelta(seconds=10))
    sleeper.begin()
    assert sleeper.conn.execute(REGULAR, [1]).fetchall() == [(1,)]
    assert other.conn.execute(REGULAR, [10]).fetchall() == [(0,)]
    clock.advance(timedelta(minutes=2))
    assert other.conn.execute(REGULAR, [10]).fetchall() == [(2,)]
    sleeper.commit()
    assert other.conn.execute(REGULAR, [10]).fetchall() == [(0,)]


def test_a_lease_runs_as_a_class_that_it_has_no_more(direct: Direct, node: Node, clock: Clock) -> None:
    """It got one of its own while it ran: the other one stays until it has run."""
    set_policy(direct, claim_timeout="1 day")
    named = direct.spawn(QUEUE, lease("web"))["lease_id"]
    [claim] = direct.claim(QUEUE, *node)
    direct.spawn(QUEUE, {"placement": {"require": [{"lease": str(named), "away": True}]}})
    publish(direct)
    clock.advance(timedelta(hours=2))
    prune(direct)
    assert broken(direct) == []
    direct.complete(named, claim["claim_token"])
    [(classes,)] = direct.conn.execute(CLASSES).fetchall()
    prune(direct)
    assert direct.conn.execute(CLASSES).fetchall() == [(classes - 1,)]


def test_beside_an_open_look_at_the_fleet(direct: Direct, actor: Actors) -> None:
    """What is remembered for what is gone now is held: prune does not wait, and comes back."""
    place(direct, 1, 1)
    direct.spawn(QUEUE, lease("web", spread("web", max_skew=1)))
    direct.spawn(QUEUE, {"placement": {"prefer": [{"weight": 1, "when": {"rack": 2}}]}})
    publish(direct)
    direct.conn.execute(LOOK)
    sleeper, other = actor().begin(), actor()
    sleeper.conn.execute(LOOK)
    other.conn.execute("delete from hwqueue.lease")
    other.conn.execute("delete from hwqueue.ready")
    other.conn.execute(DELETE_CLASSES)
    other.conn.execute("select hwqueue.prune_terms(10)")
    assert other.conn.execute(PRUNE, [10]).fetchall() == [(0,)]
    sleeper.commit()
    other.conn.execute(PRUNE, [10])
    assert other.conn.execute(REMEMBERED).fetchall() == [(0, 0)]


def test_beside_an_open_reap(direct: Direct, actor: Actors) -> None:
    """What it has found out of a class is held: prune leaves the class, and comes back."""
    register(direct)
    direct.spawn(QUEUE)
    direct.conn.execute("select hwqueue.reap()")
    sleeper, other = actor().begin(), actor()
    sleeper.conn.execute(FIND_OUT)
    other.conn.execute("delete from hwqueue.lease")
    other.conn.execute("delete from hwqueue.ready")
    assert other.conn.execute(DELETE_CLASSES).fetchall() == [(0,)]
    sleeper.commit()
    assert other.conn.execute(DELETE_CLASSES).fetchall() == [(1,)]
    assert direct.conn.execute("select from hwqueue.class_fleet").rowcount == 0


def test_a_class_that_stays_is_still_told_of(direct: Direct, actor: Actors, node: Node) -> None:
    """What was judged of it is held: the event that no node may run it is not told again."""
    direct.spawn(QUEUE)
    direct.claim(QUEUE, *node)
    direct.conn.execute("select hwqueue.reap()")
    direct.conn.execute("update hwqueue.class_fleet set reported_at = hwqueue.clock()")
    sleeper, other = actor().begin(), actor()
    held = sleeper.conn.execute("select from hwqueue.eligibility for update").rowcount
    assert held == 1
    assert other.conn.execute(DELETE_CLASSES).fetchall() == [(0,)]
    told = other.conn.execute("select reported_at is not null from hwqueue.class_fleet").fetchall()
    assert told == [(True,)]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("placement", [{}, {"require": [{"label": "nowhere", "op": "exists"}]}])
def test_reap_beside_an_open_prune(
    direct: Direct, actor: Actors, clock: Clock, commits: bool, *, placement: dict[str, Any]
) -> None:
    """Nothing is found out or told of a class that is being pruned, and reap does not wait."""
    register(direct)
    direct.spawn(QUEUE, {"placement": placement})
    direct.conn.execute("select hwqueue.reap()")
    direct.conn.execute("delete from hwqueue.lease")
    direct.conn.execute("delete from hwqueue.ready")
    sleeper, other = actor().begin(), actor()
    assert sleeper.conn.execute(DELETE_CLASSES).fetchall() == [(1,)]
    direct.conn.execute("select hwqueue.cordon_node(node_id) from hwqueue.node")
    for _ in range(2):  # the node is another one, and then it stays as it is
        clock.advance(timedelta(seconds=11))
        other.conn.execute("select hwqueue.reap()")
    sleeper.end(commits)
    clock.advance(timedelta(seconds=11))
    other.conn.execute("select hwqueue.reap()")
    left = 0 if commits else 1
    assert direct.conn.execute("select from hwqueue.class_fleet").rowcount == left
    assert direct.conn.execute("select from hwqueue.class_fleet where reported_at is not null").rowcount == 0


@pytest.mark.parametrize("commits", [True, False])
def test_a_node_registers_while_its_rows_are_deleted(
    direct: Direct, meet: Meet, clock: Clock, commits: bool
) -> None:
    """It waits, and gets an epoch above the one that is deleted."""
    node, epoch = register(direct)
    spec = {"name": "again", "instance_id": "later"}
    direct.conn.execute("select hwqueue.deregister_node(%s)", [node])
    clock.advance(31 * DAY)
    pruned, registering = meet(lambda d: d.row("prune"), lambda d: d.register(node, spec), commits=commits)
    assert pruned["nodes"] == 1
    assert registering.result(TIMEOUT) > epoch


def test_prune_passes_by_a_node_that_registers(direct: Direct, actor: Actors, clock: Clock) -> None:
    """It waits for no worker, and the node is there."""
    node, epoch = register(direct)
    spec = {"name": "again", "instance_id": "later"}
    direct.conn.execute("select hwqueue.deregister_node(%s)", [node])
    clock.advance(31 * DAY)
    worker, other = actor().begin(), actor()
    assert worker.conn.execute("select hwqueue.is_known_node(%s)", [node]).fetchall() == [(True,)]
    assert other.conn.execute("select nodes from hwqueue.prune()").fetchall() == [(0,)]
    assert worker.direct.register(node, spec) > epoch
    worker.commit()
    assert other.conn.execute("select nodes from hwqueue.prune()").fetchall() == [(0,)]


_PAUSE = "select hwqueue.pause_queue(%s)"
_PRUNE = "select hwqueue.prune(p_unless_within => '0')"


def test_one_is_committed_while_prune_waits(direct: Direct, meet: Meet, clock: Clock) -> None:
    """It came into a day of long ago, since nobody pruned for two weeks: it stays."""
    clock.advance(timedelta(days=16))
    _, pruned = meet(lambda d: d.conn.execute(_PAUSE, [QUEUE]), lambda d: d.conn.execute(_PRUNE))
    pruned.result(TIMEOUT)
    codes = direct.conn.execute("select code from hwqueue.list_events()").fetchall()
    assert ("queue_paused",) in codes
