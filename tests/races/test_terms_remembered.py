"""What is remembered of the fleet for max_skew: what happens before, while and after a look."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import QUEUE, Node, node_spec, register, set_policy
from tests.races.interleave import TIMEOUT, Actors, interleave
from tests.races.terms import ids, lease, paused, place, publish, spread

IDS = [UUID(int=number) for number in (1, 2, 3)]
LEVEL = lease("web", spread("web", max_skew=1))
_LOOK = """
  select hwqueue.refresh_fleet_cache(c.class_id, hwqueue.clock()) from hwqueue.placement_class c
  where c.spread <> '[]'
"""
_PRUNE = "select hwqueue.prune()"
_NOTHING = "select count(*) from hwqueue.term_counter where leases = 0"
_ROWS = "select count(*) from hwqueue.term_counter group by place order by place"


def one_everywhere(direct: Direct) -> tuple[list[Node], list[Row]]:
    """Two racks, one lease of the kind in each, and more that wait; the nodes, what runs there."""
    nodes = [place(direct, 1, 1), place(direct, 2, 2)]
    direct.spawn_many(QUEUE, [LEVEL] * 6)
    publish(direct)
    return nodes, [direct.claim(QUEUE, *node)[0] for node in nodes]


def draw_ids(direct: Direct, stranger: Direct) -> None:
    """Give the transaction its id, and have a later one end: so a look takes it for an old one."""
    direct.conn.execute("select pg_current_xact_id()")
    stranger.conn.execute("select pg_current_xact_id()")


def complete(direct: Direct, claim: Row) -> None:
    """The work is done."""
    direct.complete(claim["lease_id"], claim["claim_token"])


def test_a_second_one_when_all_have_one(direct: Direct) -> None:
    """As long as no place has less, and then no third one."""
    (here, _there), _running = one_everywhere(direct)
    assert len(direct.claim(QUEUE, *here)) == 1
    assert direct.claim(QUEUE, *here) == []


def test_the_looker_ends_one_itself(direct: Direct, dsn: str) -> None:
    """A transaction that looks, and takes a lease away afterwards, does not know what it did."""
    (here, _there), (_mine, other) = one_everywhere(direct)
    with interleave(dsn) as actor, direct.conn.transaction():
        draw_ids(direct, actor().direct)
        direct.conn.execute(_LOOK)
        complete(direct, other)
    assert direct.claim(QUEUE, *here) == []


@pytest.mark.parametrize("commits", [True, False])
def test_one_ends_while_somebody_looks(direct: Direct, actor: Actors, commits: bool) -> None:
    """The settlement was open when the fleet was looked at: it counts once it is committed."""
    (here, _there), (_mine, other) = one_everywhere(direct)
    worker = actor().begin()
    complete(worker.direct, other)
    draw_ids(worker.direct, direct)
    direct.conn.execute(_LOOK)
    worker.end(commits)
    assert len(direct.claim(QUEUE, *here)) == (0 if commits else 1)


@pytest.mark.parametrize("commits", [True, False])
def test_a_look_that_is_older_than_what_ended(direct: Direct, actor: Actors, commits: bool) -> None:
    """Who looked first and commits last has not seen it, and says so."""
    (here, _there), (_mine, other) = one_everywhere(direct)
    looker = actor().begin()
    looker.conn.execute(_LOOK)
    complete(direct, other)
    looker.end(commits)
    assert direct.claim(QUEUE, *here) == []


def come(direct: Direct, there: Node) -> None:
    """A node in a rack where there was none."""
    del there
    place(direct, 3, 3)


def move(direct: Direct, there: Node) -> None:
    """With its lease a node moves to another rack; another node comes into the old one."""
    direct.register(there[0], node_spec(2, rack=1, labels={"zone": "1"}))
    place(direct, 3, 2)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("change", [come, move])
def test_the_fleet_changes_while_somebody_looks(
    direct: Direct, actor: Actors, change: Callable[[Direct, Node], None], commits: bool
) -> None:
    """An empty place counts from the moment its node is there."""
    (here, there), _running = one_everywhere(direct)
    operator = actor().begin()
    change(operator.direct, there)
    draw_ids(operator.direct, direct)
    direct.conn.execute(_LOOK)
    operator.end(commits)
    assert len(direct.claim(QUEUE, *here)) == (0 if commits else 1)


@pytest.mark.parametrize(
    ("seconds", "is_known", "comes"),
    [(60, True, "beats"), (120, False, "registers"), (0, True, "registers")],
    ids=["silent", "silent for long", "deregistered"],
)
def test_a_place_goes_and_comes_back(
    direct: Direct, clock: Clock, seconds: int, is_known: bool, comes: str
) -> None:
    """While its only node is silent, or has left, an empty place holds up nobody; then it does again."""
    nodes, running = one_everywhere(direct)
    empty = place(direct, 3, 3)
    if is_known:
        assert direct.claim(QUEUE, *nodes[0]) == []
    if seconds == 0:
        direct.deregister(empty[0])
    for _ in range(0, seconds, 30):
        clock.advance(timedelta(seconds=30))
        for node, claim in zip(nodes, running, strict=True):
            direct.heartbeat(*node, [claim])
    [second] = direct.claim(QUEUE, *nodes[0])
    complete(direct, second)
    if comes == "beats":
        direct.heartbeat(*empty, [])
    else:  # as it was
        direct.register(empty[0], node_spec(3, rack=3, labels={"zone": "3"}))
    assert direct.claim(QUEUE, *nodes[0]) == []


def test_what_nobody_asks_for_is_forgotten(direct: Direct, clock: Clock) -> None:
    """A fleet that was remembered for leases that are gone."""
    one_everywhere(direct)
    direct.conn.execute(_LOOK)
    for kept in (1, 0):
        direct.conn.execute("select hwqueue.prune()")
        [(left,)] = direct.conn.execute("select count(*) from hwqueue.spread_fleet").fetchall()
        assert left == kept
        clock.advance(timedelta(hours=2))


def test_what_a_dead_node_runs_is_not_there(direct: Direct, clock: Clock) -> None:
    """Its lease has not expired; its place, which lives, has none, also when that is remembered."""
    (here, _there), (mine, _other) = one_everywhere(direct)
    beside = place(direct, 3, 2)
    clock.advance(timedelta(seconds=40))
    direct.heartbeat(*here, [mine])
    direct.heartbeat(*beside, [])
    clock.advance(timedelta(seconds=10))
    for _look in range(3):
        assert direct.claim(QUEUE, *here) == []
    assert len(direct.claim(QUEUE, *beside)) == 1
    assert len(direct.claim(QUEUE, *here)) == 1


def test_a_claim_of_a_node_that_is_dead_when_it_is_committed(
    direct: Direct, actor: Actors, clock: Clock
) -> None:
    """Who looked before knows the node, though nothing seemed to run there."""
    here, there, beside = place(direct, 1, 1), place(direct, 2, 2), place(direct, 3, 2)
    direct.spawn_many(QUEUE, [LEVEL] * 6)
    publish(direct)
    [mine] = direct.claim(QUEUE, *here)
    late = actor().begin()
    assert len(late.direct.claim(QUEUE, *there)) == 1
    clock.advance(timedelta(seconds=40))
    direct.heartbeat(*here, [mine])
    direct.heartbeat(*beside, [])
    clock.advance(timedelta(seconds=10))
    assert direct.claim(QUEUE, *here) == []
    late.commit()
    for _look in range(3):
        assert direct.claim(QUEUE, *here) == []


def test_counts_that_have_come_to_nothing(direct: Direct) -> None:
    """They say since when, to who looked before, too; they go once all that is remembered knows of it."""
    (here, _there), (_mine, other) = one_everywhere(direct)
    direct.conn.execute(_LOOK)
    complete(direct, other)
    direct.conn.execute(_PRUNE)
    assert direct.conn.execute(_NOTHING).fetchall() == [(1,)]
    assert direct.claim(QUEUE, *here) == []
    direct.conn.execute(_LOOK)
    prune_until_nothing(direct)
    assert direct.claim(QUEUE, *here) == []


def test_counts_of_which_nothing_is_remembered(direct: Direct) -> None:
    """They go, too, when nobody has looked."""
    (_here, _there), (_mine, other) = one_everywhere(direct)
    complete(direct, other)
    direct.conn.execute("delete from hwqueue.spread_floor")
    prune_until_nothing(direct)


def prune_until_nothing(direct: Direct) -> None:
    """Prune until no count is left that has come to nothing; other sessions may hold that up."""
    for _ in looks():
        direct.conn.execute(_PRUNE)
        if direct.conn.execute(_NOTHING).fetchall() == [(0,)]:
            return
    raise AssertionError("some session on this server keeps a transaction open")


@pytest.mark.parametrize("later_id", [False, True])
def test_a_look_that_is_older_than_what_is_pruned(direct: Direct, actor: Actors, later_id: bool) -> None:
    """It is remembered last, whichever has the later id: it still finds what it does not know."""
    (here, _there), (_mine, other) = one_everywhere(direct)
    worker, looker = actor().begin(), actor()
    if later_id:
        complete(worker.direct, other)
    looker.begin(has_id=True)
    with paused(
        direct,
        looker,
        lambda d: d.conn.execute(_LOOK),
        at=("refresh_fleet_cache", "delete from hwqueue.spread_floor"),
    ) as looked:
        if not later_id:
            complete(worker.direct, other)
        worker.commit()
        direct.conn.execute(_LOOK)
        for _ in range(3):
            direct.conn.execute(_PRUNE)
    looked.result(TIMEOUT)
    looker.commit()
    assert direct.claim(QUEUE, *here) == []


def test_rows_of_one_place_become_one(direct: Direct, actor: Actors) -> None:
    """What was added beside a row that was held is added up, but not what is held now."""
    (here, _there), running = one_everywhere(direct)
    [second] = direct.claim(QUEUE, *here)
    worker = actor().begin()
    complete(worker.direct, running[0])
    complete(direct, second)
    direct.conn.execute(_PRUNE)
    assert direct.conn.execute(_ROWS).fetchall() == [(2,), (1,)]
    worker.commit()
    direct.conn.execute(_PRUNE)
    assert direct.conn.execute(_ROWS).fetchall() == [(1,), (1,)]


def test_nodes_that_do_not_count(direct: Direct) -> None:
    """What runs on nodes that the lease could not use anyway is not there."""
    ssd = [{"label": "disk", "op": "in", "values": ["ssd"]}]
    specs = [node_spec(n, rack=n, labels={"disk": "ssd"}) for n in (1, 2)] + [node_spec(3, rack=2)]
    nodes = [(node, direct.register(node, spec)) for node, spec in zip(IDS, specs, strict=True)]
    direct.spawn_many(QUEUE, [lease("web", {"require": ssd, **spread("web", max_skew=1)})] * 3)
    direct.spawn(QUEUE, lease("web"))
    publish(direct)
    assert len(direct.claim(QUEUE, *nodes[0])) == 1
    assert len(direct.claim(QUEUE, *nodes[2])) == 1
    assert direct.claim(QUEUE, *nodes[0]) == []
    assert len(direct.claim(QUEUE, *nodes[1])) == 1
    assert ids(direct.claim(QUEUE, *nodes[0])) != []


def test_a_heartbeat_that_is_committed_late(direct: Direct, actor: Actors, clock: Clock) -> None:
    """Its node was taken for dead meanwhile, and lives: its empty place holds up others again."""
    nodes, running = one_everywhere(direct)
    empty = place(direct, 3, 3)
    clock.advance(timedelta(seconds=40))
    late = actor().begin()
    late.direct.heartbeat(*empty, [])
    for node, claim in zip(nodes, running, strict=True):
        direct.heartbeat(*node, [claim])
    clock.advance(timedelta(seconds=10))
    [second] = direct.claim(QUEUE, *nodes[0])
    late.commit()
    complete(direct, second)
    assert direct.claim(QUEUE, *nodes[0]) == []


def test_a_better_node_comes_back_after_long(direct: Direct, clock: Clock) -> None:
    """By a heartbeat, and at once: what was remembered while it was silent holds no longer."""
    set_policy(direct, patience="1 hour")
    better, other = register(direct, 1, labels={"disk": "ssd"}), register(direct, 2)
    likes = {"placement": {"prefer": [{"weight": 100, "when": {"tags": {"disk": "ssd"}}}]}}
    clock.advance(timedelta(minutes=10))
    direct.heartbeat(*other, [])
    for _ in range(2):  # the first look may be remembered only by the second
        direct.spawn(QUEUE, likes)
        assert len(direct.claim(QUEUE, *other)) == 1
    direct.heartbeat(*better, [])
    direct.spawn(QUEUE, likes)
    assert direct.claim(QUEUE, *other) == []
    assert len(direct.claim(QUEUE, *better)) == 1


def test_a_better_node_proves_to_be_alive(direct: Direct, actor: Actors, clock: Clock) -> None:
    """A second later leases wait for it again."""
    set_policy(direct, patience="1 hour")
    better, other = register(direct, 1, labels={"disk": "ssd"}), register(direct, 2)
    likes = {"placement": {"prefer": [{"weight": 100, "when": {"tags": {"disk": "ssd"}}}]}}
    direct.spawn(QUEUE, likes)
    clock.advance(timedelta(seconds=40))
    late = actor().begin()
    late.direct.heartbeat(*better, [])
    direct.heartbeat(*other, [])
    clock.advance(timedelta(seconds=10))
    assert len(direct.claim(QUEUE, *other)) == 1
    late.commit()
    direct.spawn(QUEUE, likes)
    clock.advance(timedelta(seconds=2))
    assert direct.claim(QUEUE, *other) == []
    assert len(direct.claim(QUEUE, *better)) == 1
