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
REMEMBERED = "select count(*) from hwqueue.class_fleet where digest = %s"
DIGEST = "select (hwqueue.scan_nodes(hwqueue.clock())).digest"
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

    def forget(self) -> None:
        """Forget what upkeep has remembered."""
        self.api.conn.execute("delete from hwqueue.class_fleet")

    def seen(self) -> list[Row]:
        """The pending classes, and again those that no node may run: by what is counted alone."""
        rows = self.api.rows("pending_reasons", queue=self.queue)
        unmatched = self.api.rows("pending_reasons", queue=self.queue, kind="no_match")
        return sorted(rows, key=lambda row: row["class_id"]) + unmatched

    def again(self, node: Node, **spec: Any) -> None:
        """Register a node anew, as something else."""
        self.api.node(node.node_id, **spec)


@pytest.fixture
def world(api: Api, clock: Clock) -> World:
    """The three nodes and the classes."""
    return World(api, clock)


Change = Callable[[World], object]


def of_first(function: str, **arguments: Any) -> Change:
    """A call about the first node."""
    return lambda world: world.api.rows(function, node=world.first.node_id, **arguments)


A100 = {"labels": {"gpu": "A100"}, "capacity": {"cpu_milli": 4000}}
CHANGES: dict[str, Change] = {
    "registered": lambda w: w.api.node(labels={"nowhere": 1}, capacity={"cpu_milli": 500}),
    "relabelled": lambda w: w.again(w.second, **A100 | {"capacity": {"cpu_milli": 2000}}),
    "smaller": lambda w: w.again(w.first, **A100 | {"capacity": {"cpu_milli": 2500}}),
    "with gpus": lambda w: w.again(w.second, labels={"gpu": "T4"}, gpus=[{"resource_id": str(UUID(int=7))}]),
    "deregistered": of_first("deregister_node"),
    "cordoned": of_first("cordon_node"),
    "tainted": of_first("taint_node", taint={"key": "maintenance", "effect": "no_schedule"}),
    "attested": of_first("attest_node", domain="acme"),
    "serving another": lambda w: w.again(w.first, **A100, queues=["another"], tasks=["another"]),
    "silent": lambda w: w.clock.advance(MINUTE),
}
KEPT: dict[str, Change] = {
    "cordoned": CHANGES["cordoned"],
    "silent": CHANGES["silent"],
    "as it was": lambda w: w.again(w.first, **A100),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_node_is_seen_at_once(world: World, change: str) -> None:
    """With what upkeep has remembered before the views say what they say without."""
    world.remember()
    before = world.seen()
    CHANGES[change](world)
    after = world.seen()
    assert facts(after) != facts(before)
    world.forget()
    assert world.seen() == after


def test_what_is_remembered_is_read(api: Api, world: World) -> None:
    """And says what is found out without it."""
    found = world.seen()
    world.remember()
    assert world.seen() == found
    assert api.one(REMEMBERED, api.one(DIGEST)) >= len(ASKED)
    api.conn.execute("update hwqueue.class_fleet set nodes = repeat('1', length(nodes))::varbit")
    assert {row["nodes_matching"] for row in world.seen()} == {len(api.rows("list_nodes"))}


@pytest.mark.parametrize("change", KEPT)
def test_what_a_change_leaves_as_it_was_is_still_read(world: World, change: str) -> None:
    """Nodes fall silent all the time; which nodes suit a class is no other for that."""
    world.remember()
    before = world.api.one(DIGEST)
    KEPT[change](world)
    assert world.api.one(DIGEST) == before


def test_what_nothing_suits_any_more_is_found_out_again(api: Api, world: World) -> None:
    """And what is in the way of it then."""
    world.remember()
    unmatched = "select count(*) from hwqueue.class_fleet where unmatched"
    before = api.one(unmatched)
    api.rows("cordon_node", node=world.first.node_id)
    assert api.one(unmatched) == before
    world.clock.advance(timedelta(seconds=11))
    api.row("reap")
    assert api.one(unmatched) > before


def test_what_keeps_out_none_of_the_nodes_that_are_left_is_not_told(api: Api, world: World) -> None:
    """Two nodes lacked one label when upkeep looked; of the third alone something else is told."""
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
    part = "select expr ->> 'label' from hwqueue.class_fleet where unmatched order by class_id desc limit 1"
    assert api.one(part) == "a"
    world.clock.advance(timedelta(seconds=11))
    api.row("reap")  # upkeep looks again, too
    assert api.one(part) == "b"
    world.forget()
    assert world.seen() == after


def test_attestations_that_expire(api: Api, world: World) -> None:
    """Nothing is written then."""
    until = world.clock.now() + 40 * MINUTE
    api.rows("attest_node", node=world.third.node_id, domain="acme", expires_at=until)
    world.clock.advance(MINUTE)  # the others are silent, the third one is live for an hour
    world.remember()
    assert sum(row["nodes_matching"] for row in world.seen()) > 0
    trusting = facts(world.seen())[3]
    world.clock.advance(45 * MINUTE)
    assert facts(world.seen())[3] != trusting


def test_a_share_is_of_all_nodes(api: Api, world: World) -> None:
    """Cordoned and silent ones as well: the order of claims must not change with them."""
    CHANGES["cordoned"](world)
    world.clock.advance(MINUTE)
    world.remember()
    rows = api.conn.execute(
        "select f.reach from hwqueue.class_fleet f"
        " join hwqueue.placement_class c using (class_id)"
        " join hwqueue.queue q using (queue_id) where q.name = %s order by class_id",
        [world.queue],
    ).fetchall()
    shares = [share for (share,) in rows]
    assert shares == pytest.approx([1, 1 / 3, 2 / 3, 0, 1 / 3, 0, 1, 0])


def test_classes_that_go_are_forgotten(api: Api, world: World) -> None:
    """One that upkeep was about to write down while the class was pruned as well."""
    api.conn.execute(
        "insert into hwqueue.class_fleet (class_id, reach, looked_at, digest, unmatched, is_known, nodes)"
        " values (999999999, 0, '-infinity', 1, false, true, '')"
    )
    world.remember()
    assert api.conn.execute("select from hwqueue.class_fleet where class_id = 999999999").rowcount == 0
    api.rows("drop_queue", queue=world.queue, force=True)
    for _ in range(20):
        world.clock.advance(timedelta(days=1))
        api.rows("prune")
        api.rows("reap")
    orphans = (
        "select from hwqueue.class_fleet where class_id not in (select class_id from hwqueue.placement_class)"
    )
    assert api.conn.execute(orphans).rowcount == 0


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
        "select from hwqueue.class_fleet f"
        " join hwqueue.scan_nodes(hwqueue.clock()) l on l.digest = f.digest"
        " where hwqueue.is_unmatched(f, l) is null"
    )
    assert conn.execute(doubtful.encode()).rowcount > 0
    assert conn.execute(f"{doubtful} and f.reported_at is not null".encode()).rowcount == 0


def facts(rows: list[Row]) -> list[tuple[Any, ...]]:
    """What a class's row says of nodes."""
    columns = ("nodes_matching", "nodes_free", "nodes_near", "code")
    return [tuple(row[column] for column in columns) for row in rows]
