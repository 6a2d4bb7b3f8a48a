"""What upkeep remembers of classes and all nodes, and that it is read only as long as it holds."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node

pytestmark = pytest.mark.thorough

MINUTE = timedelta(minutes=1)
TAINT = {"key": "maintenance", "effect": "no_schedule"}
FORGET = ("delete from hwqueue.class_fleet", "delete from hwqueue.class_mask")
REMEMBERED = "select count(*) from hwqueue.class_mask where digest = %s"
DIGEST = "select (hwqueue.scan_nodes(hwqueue.clock())).digest"
FIND_OUT = (
    "select hwqueue.cache_class_fleets(array_agg(class_id), hwqueue.clock()) from hwqueue.placement_class"
)
ASKED: list[Row] = [
    {},
    {"require": [{"label": "gpu", "op": "in", "values": ["A100"]}]},
    {"require": [{"label": "gpu", "op": "not_in", "values": ["A100"]}]},
    {"require": [{"trust": "acme"}]},
    {"resources": {"cpu_milli": 3000}},
    {"resources": {"gpu": 1}},
    {"tolerate": [{"key": "maintenance", "op": "exists"}], "resources": {"cpu_milli": 1}},
    {"require": [{"label": "nowhere", "op": "exists"}]},
]


@pytest.fixture(autouse=True)
def _own_fleet(api: Api) -> Iterator[None]:
    """Nodes are counted: no test sees those of another."""
    yield
    api.leave_all()


class World:
    """Three nodes and a class of each placement."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self.api, self.clock, self.queue = api, clock, api.queue()
        self.first = api.node(labels={"gpu": "A100"}, capacity={"cpu_milli": 4000})
        self.second = api.node(labels={"gpu": "T4"}, capacity={"cpu_milli": 2000})
        self.third = api.node(capacity={"cpu_milli": 1000}, heartbeat_timeout=3600)
        for placement in ASKED:
            api.spawn(self.queue, placement=placement)

    def remember(self) -> None:
        """Let upkeep look at all classes."""
        while self.api.row("reap")["reaches"]:
            self.clock.advance(timedelta(seconds=11))

    def seen(self) -> list[Row]:
        """The pending classes, and again those that no node may run: by what is counted alone."""
        rows = self.api.rows("pending_reasons", queue=self.queue)
        unmatched = self.api.rows("pending_reasons", queue=self.queue, kind="no_match")
        return sorted(rows, key=lambda row: row["class_id"]) + unmatched

    def again(self, node: Node, **spec: Any) -> None:
        """Register a node anew, as something else."""
        self.api.node(node.node_id, **spec)


def registered(world: World) -> None:
    world.api.node(labels={"nowhere": 1}, capacity={"cpu_milli": 500})


def relabelled(world: World) -> None:
    world.again(world.second, labels={"gpu": "A100"}, capacity={"cpu_milli": 2000})


def smaller(world: World) -> None:
    world.again(world.first, labels={"gpu": "A100"}, capacity={"cpu_milli": 2500})


def with_gpus(world: World) -> None:
    world.again(world.second, labels={"gpu": "T4"}, gpus=[{"resource_id": str(UUID(int=7))}])


def deregistered(world: World) -> None:
    world.api.rows("deregister_node", node=world.first.node_id)


def cordoned(world: World) -> None:
    world.api.rows("cordon_node", node=world.first.node_id)


def tainted(world: World) -> None:
    world.api.rows("taint_node", node=world.first.node_id, taint=TAINT)


def attested(world: World) -> None:
    world.api.rows("attest_node", node=world.first.node_id, domain="acme")


def serving_another(world: World) -> None:
    spec = {"labels": {"gpu": "A100"}, "capacity": {"cpu_milli": 4000}}
    world.again(world.first, **spec, queues=["another"], tasks=["another"])


def silent(world: World) -> None:
    world.clock.advance(MINUTE)


def as_it_was(world: World) -> None:
    world.again(world.first, labels={"gpu": "A100"}, capacity={"cpu_milli": 4000})


CHANGES = [registered, relabelled, smaller, with_gpus, deregistered, cordoned, tainted, attested]
CHANGES += [serving_another, silent]
KEPT = [cordoned, silent, as_it_was]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_a_node_is_seen_at_once(
    api: Api, clock: Clock, conn: psycopg.Connection, change: Callable[[World], None]
) -> None:
    """With what upkeep has remembered before the views say what they say without."""
    world = World(api, clock)
    world.remember()
    before = world.seen()
    change(world)
    after = world.seen()
    assert facts(after) != facts(before)
    for statement in FORGET:
        conn.execute(statement.encode())
    assert world.seen() == after


def test_what_is_remembered_is_read(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """And says what is found out without it."""
    world = World(api, clock)
    found = world.seen()
    world.remember()
    assert world.seen() == found
    [digest] = conn.execute(DIGEST).fetchone() or [None]
    [remembered] = conn.execute(REMEMBERED, [digest]).fetchone() or [0]
    assert remembered >= len(ASKED)
    conn.execute("update hwqueue.class_mask set nodes = repeat('1', length(nodes))::varbit")
    assert {row["nodes_matching"] for row in world.seen()} == {len(api.rows("list_nodes"))}


@pytest.mark.parametrize("change", KEPT, ids=lambda change: change.__name__)
def test_what_a_change_leaves_as_it_was_is_still_read(
    api: Api, clock: Clock, conn: psycopg.Connection, change: Callable[[World], None]
) -> None:
    """Nodes fall silent all the time; which nodes suit a class is no other for that."""
    world = World(api, clock)
    world.remember()
    before = conn.execute(DIGEST).fetchone()
    change(world)
    assert conn.execute(DIGEST).fetchone() == before


def test_what_nothing_suits_any_more_is_found_out_again(
    api: Api, clock: Clock, conn: psycopg.Connection
) -> None:
    """And what is in the way of it then."""
    world = World(api, clock)
    world.remember()
    unmatched = "select count(*) from hwqueue.class_fleet where unmatched"
    [before] = conn.execute(unmatched).fetchone() or [0]
    api.rows("cordon_node", node=world.first.node_id)
    assert conn.execute(unmatched).fetchone() == (before,)
    clock.advance(timedelta(seconds=11))
    api.row("reap")
    [after] = conn.execute(unmatched).fetchone() or [0]
    assert after > before


def test_what_keeps_out_none_of_the_nodes_that_are_left_is_not_told(
    api: Api, clock: Clock, conn: psycopg.Connection
) -> None:
    """Two nodes lacked one label when upkeep looked; of the third alone something else is told."""
    world = World(api, clock)
    for node in (world.first, world.second, world.third):
        world.again(node, labels={"b" if node is not world.third else "a": "1"})
    api.rows("drop_queue", queue=world.queue, force=True)
    world.queue = api.queue()
    both = [{"label": label, "op": "exists"} for label in "ab"]
    api.spawn(world.queue, placement={"require": both})
    world.remember()
    [before, _] = world.seen()
    assert before["nodes_near"] == 2
    assert '"a"' in before["message"]
    for node in (world.first, world.second):
        api.rows("cordon_node", node=node.node_id)
    after = world.seen()
    assert (after[0]["nodes_near"], after[0]["code"]) == (1, "label_missing")
    assert '"b"' in after[0]["message"]
    part = "select expr ->> 'label' from hwqueue.class_mask where unmatched order by class_id desc"
    assert conn.execute(part).fetchone() == ("a",)
    clock.advance(timedelta(seconds=11))
    api.row("reap")  # upkeep looks again, too
    assert conn.execute(part).fetchone() == ("b",)
    for statement in FORGET:
        conn.execute(statement.encode())
    assert world.seen() == after


def test_attestations_that_expire(api: Api, clock: Clock) -> None:
    """Nothing is written then."""
    world = World(api, clock)
    until = clock.now() + 40 * MINUTE
    api.rows("attest_node", node=world.third.node_id, domain="acme", expires_at=until)
    clock.advance(MINUTE)  # the others are silent, the third one is live for an hour
    world.remember()
    assert sum(row["nodes_matching"] for row in world.seen()) > 0
    trusting = facts(world.seen())[3]
    clock.advance(45 * MINUTE)
    assert facts(world.seen())[3] != trusting


def test_a_share_is_of_all_nodes(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """Cordoned and silent ones as well: the order of claims must not change with them."""
    world = World(api, clock)
    cordoned(world)
    clock.advance(MINUTE)
    world.remember()
    rows = conn.execute(
        "select f.reach from hwqueue.class_fleet f"
        " join hwqueue.placement_class c using (class_id)"
        " join hwqueue.queue q using (queue_id) where q.name = %s order by class_id",
        [world.queue],
    ).fetchall()
    shares = [share for (share,) in rows]
    assert shares == pytest.approx([1, 1 / 3, 2 / 3, 0, 1 / 3, 0, 1, 0])


def test_classes_that_go_are_forgotten(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    world = World(api, clock)
    world.remember()
    api.rows("drop_queue", queue=world.queue, force=True)
    for _ in range(20):
        clock.advance(timedelta(days=1))
        api.rows("prune")
        api.rows("reap")
    orphans = (
        "select count(*) from {} f where not exists"
        " (select from hwqueue.placement_class c where c.class_id = f.class_id)"
    )
    for table in ("hwqueue.class_fleet", "hwqueue.class_mask"):
        assert conn.execute(orphans.format(table).encode()).fetchone() == (0,)


def test_what_is_left_of_a_class_that_went_is_forgotten(
    api: Api, clock: Clock, conn: psycopg.Connection
) -> None:
    """One that upkeep was about to write down while the class was pruned."""
    api.node()
    orphan = "insert into hwqueue.class_fleet (class_id, reach, looked_at, digest)"
    conn.execute(f"{orphan} values (999999999, 0, '-infinity', 1)".encode())
    World(api, clock).remember()
    assert conn.execute("select from hwqueue.class_fleet where class_id = 999999999").rowcount == 0


def test_what_costs_too_much_is_not_guessed(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """A cordoned node that meets what could be judged of a class may not meet the rest."""
    queue = api.queue()
    for number in range(60):
        api.node(labels={"host": f"h{number}"})
    spare = api.node(labels={"host": "spare", "gpu": "A100"})
    api.rows("cordon_node", node=spare.node_id)
    for number in range(90):
        patterns = [{"label": "host", "op": "regexp", "values": [f"^h{number}x{n}$"]} for n in range(4)]
        wanted = [{"label": "gpu", "op": "exists"}, *patterns]
        api.spawn(queue, placement={"require": wanted})
    for _ in range(2):
        found = api.rows("pending_reasons", queue=queue)
        assert {row["code"] for row in found} <= {"label_mismatch", "label_missing"}
        api.row("reap")
    clock.advance(timedelta(seconds=11))
    conn.execute("update hwqueue.node_state set seen_at = hwqueue.clock()")
    api.row("reap")
    doubtful = (
        "select from hwqueue.class_mask m"
        " join hwqueue.class_fleet f using (class_id)"
        " cross join hwqueue.scan_nodes(hwqueue.clock()) l"
        " where hwqueue.is_unmatched(m, l.live) is null"
    )
    assert conn.execute(doubtful.encode()).rowcount > 0
    assert conn.execute(f"{doubtful} and f.reported_at is not null".encode()).rowcount == 0


def facts(rows: list[Row]) -> list[tuple[Any, ...]]:
    """What a class's row says of nodes."""
    columns = ("nodes_matching", "nodes_free", "nodes_near", "code")
    return [tuple(row[column] for column in columns) for row in rows]
