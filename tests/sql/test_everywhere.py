"""Everywhere tasks: one lease on each node that suits them, on those that come later, too."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.patience import NO_BUDGET
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, gpus

SECOND = timedelta(seconds=1)


class Fleet:
    """Nodes with a label of the test's own, and everywhere tasks that ask for it."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self.api, self.clock, self.queue = api, clock, api.queue()

    def node(self, node_id: UUID | None = None, **spec: Any) -> Node:
        """Register a node that suits; as often as one likes."""
        return self.api.node(node_id, **{"labels": {"of": self.queue}} | spec)

    def spawn(self, **options: Any) -> UUID:
        """Spawn an everywhere task; its id."""
        row = self.api.row("spawn_everywhere", **self.call(**options))
        found = row["everywhere_id"]
        assert row["created"]
        assert isinstance(found, UUID)
        return found

    def call(self, **options: Any) -> Row:
        """What spawn_everywhere is called with."""
        options = {"affinity_tags": {"of": self.queue}} | options
        return {"queue": self.queue, "task": "agent", "options": options}

    def leases(self, everywhere: UUID) -> dict[str, Row]:
        """Its leases by the node's name."""
        found = self.api.row("get_everywhere", everywhere=everywhere)["leases"]
        return {lease["node"]: lease for lease in found}

    def states(self, everywhere: UUID) -> list[str]:
        return [lease["state"] for lease in self.leases(everywhere).values()]

    def reap(self, after: timedelta = timedelta(0)) -> None:
        """Reap, so much later."""
        self.clock.advance(after)
        self.api.reap()

    def sound(self) -> bool:
        return self.api.sound()


@pytest.fixture
def fleet(api: Api, clock: Clock) -> Iterator[Fleet]:
    """A fleet in which all holds after the test, and whose everywhere tasks are then over."""
    api.conn.execute(NO_BUDGET)
    made = Fleet(api, clock)
    yield made
    assert made.sound()
    for row in api.rows("list_everywhere", limit=1000):
        api.value("stop_everywhere", everywhere=row["everywhere_id"], running="stop")
    made.reap()


def test_each_node_that_suits_has_one_and_nobody_else(fleet: Fleet, api: Api) -> None:
    nodes, other = [fleet.node(), fleet.node()], api.node()
    row = api.row("spawn_everywhere", **fleet.call(headers={"mine": 1}))
    assert (row["created"], row["nodes"]) == (True, 2)
    fleet.reap()
    assert fleet.states(row["everywhere_id"]) == ["reserved", "reserved"]
    assert api.claimed(other, fleet.queue, qty=9) == []
    claims = [api.claim(node, fleet.queue, qty=9) for node in nodes]
    assert [len(found) for found in claims] == [1, 1]
    leases = fleet.leases(row["everywhere_id"])
    for node, [claim] in zip(nodes, claims, strict=True):
        assert leases[node.name]["lease_id"] == str(claim["lease_id"])
        assert claim["headers"] == {"mine": 1, "everywhere_id": str(row["everywhere_id"])}
    classes = {api.row("explain_lease", lease=claim["lease_id"])["class_id"] for [claim] in claims}
    assert len(classes) == 1
    fleet.reap()
    found = api.row("get_everywhere", everywhere=row["everywhere_id"])
    assert (found["state"], found["nodes"], found["running"]) == ("active", 2, 2)
    assert [api.claimed(node, fleet.queue) for node in nodes] == [[], []]


def test_a_node_that_comes_later_gets_it_before_other_work(fleet: Fleet, api: Api) -> None:
    """Nobody has to reap for it, and its only slot is booked when it asks for the first time."""
    everywhere = fleet.spawn()
    api.spawn(fleet.queue, priority=9)
    node = fleet.node(slots=1)
    [claim] = api.claim(node, fleet.queue, qty=5)
    assert fleet.leases(everywhere)[node.name]["lease_id"] == str(claim["lease_id"])


def test_a_full_node_keeps_what_becomes_free(fleet: Fleet, api: Api) -> None:
    """One that could never hold it has none."""
    node = fleet.node(gpus=gpus(1))
    fleet.node()
    fleet.node(queues=["elsewhere"], gpus=gpus(1))
    held = api.running(fleet.queue, node, **GPU)
    everywhere = fleet.spawn(**GPU)
    fleet.reap()
    assert list(fleet.leases(everywhere)) == [node.name]
    lease = fleet.leases(everywhere)[node.name]
    assert (lease["state"], lease["reason"]) == ("earmarked", "insufficient_capacity")
    told = api.row("explain_lease", lease=lease["lease_id"])["headline"]
    assert node.name in told
    assert "what becomes free there goes to it" in told
    other = api.spawn(fleet.queue, **GPU)
    api.complete(held)
    assert api.claimed(node, fleet.queue) == []
    fleet.reap(SECOND)
    [claim] = api.claim(node, fleet.queue, qty=5)
    assert str(claim["lease_id"]) == lease["lease_id"]
    assert claim["assignment"]["gpus"]
    assert api.state(other) == "pending"


def test_no_room_is_kept_for_what_others_of_its_kind_never_give_up(fleet: Fleet, api: Api) -> None:
    node = fleet.node(gpus=gpus(2))
    fleet.spawn(**GPU)
    fleet.reap()
    assert len(api.claim(node, fleet.queue)) == 1
    both = fleet.spawn(placement={"resources": {"gpu": 2}})
    fleet.reap()
    assert fleet.states(both) == ["waiting"]
    assert len(api.claimed(node, api.queue())) == 0
    assert api.running(fleet.queue, node, **GPU)["assignment"]["gpus"]


def test_always_starts_again(fleet: Fleet, api: Api) -> None:
    """A second after a completion; after failures with the delays of the retry policy."""
    retry = {"kind": "exponential", "base": 10, "factor": 2, "jitter": 0}
    everywhere, node = fleet.spawn(max_attempts=1, retry=retry), fleet.node()
    [first] = api.claim(node, fleet.queue)
    api.complete(first)
    fleet.reap()
    assert fleet.states(everywhere) == ["completed"]
    fleet.reap(SECOND)
    [second] = api.claim(node, fleet.queue)
    assert second["lease_id"] != first["lease_id"]
    for delay in (10, 20):
        [claim] = [second] if delay == 10 else api.claim(node, fleet.queue)
        api.rows("fail_lease", **token(claim), error={"message": "no"})
        fleet.reap()
        fleet.reap(delay * SECOND - SECOND)
        api.rows("heartbeat_node", **node.who, claims=[])
        assert api.claim(node, fleet.queue) == []
        fleet.reap(SECOND)
    lease = fleet.leases(everywhere)[node.name]
    assert (lease["state"], lease["starts"], lease["failures"]) == ("reserved", 4, 2)


def test_once_is_once_for_each_node(fleet: Fleet, api: Api) -> None:
    everywhere, node = fleet.spawn(mode="once"), fleet.node()
    [claim] = api.claim(node, fleet.queue)
    api.complete(claim)
    fleet.reap(SECOND)
    again = fleet.node(node.node_id, name=node.name, instance_id="second")
    fleet.reap(SECOND)
    assert api.claimed(again, fleet.queue) == []
    assert fleet.states(everywhere) == ["completed"]
    later = fleet.node()
    assert len(api.claim(later, fleet.queue)) == 1
    assert api.row("get_everywhere", everywhere=everywhere)["completed"] == 1


def test_a_retry_waits_for_its_delay_and_its_node(fleet: Fleet, api: Api) -> None:
    retry = {"kind": "fixed", "base": 10, "jitter": 0}
    everywhere, node = fleet.spawn(max_attempts=2, retry=retry), fleet.node()
    [first] = api.claim(node, fleet.queue)
    assert api.value("fail_lease", **token(first), error={}) == "scheduled"
    fleet.reap()
    told = api.row("explain_lease", lease=first["lease_id"])["headline"]
    assert told.endswith("it starts again in 10 s")
    other = fleet.node()
    assert len(api.claim(other, fleet.queue, qty=9)) == 1  # its own
    assert fleet.states(everywhere).count("waiting") == 1
    fleet.reap(9 * SECOND)
    assert api.claim(node, fleet.queue) == []
    fleet.reap(SECOND)
    [second] = api.claim(node, fleet.queue)
    assert (second["lease_id"], second["attempt"]) == (first["lease_id"], 2)


@pytest.mark.parametrize("choice", ["keep", "stop"])
def test_a_node_that_suits_no_more(fleet: Fleet, api: Api, choice: str) -> None:
    """What waits there is cancelled; what runs goes on, or is asked to stop. And back again."""
    everywhere, nodes = fleet.spawn(on_unmatched=choice), [fleet.node(), fleet.node()]
    fleet.reap()
    [claim] = api.claim(nodes[0], fleet.queue)
    waiting = UUID(fleet.leases(everywhere)[nodes[1].name]["lease_id"])
    for node in nodes:
        fleet.node(node.node_id, name=node.name, labels={})
    fleet.reap()
    assert api.state(waiting) == "cancelled"
    assert api.lease(waiting)["error"]["reason"] == "node_unmatched"
    assert list(fleet.leases(everywhere)) == [nodes[0].name]
    assert api.verdicts(nodes[0], claim) == ["preempted" if choice == "stop" else "ok"]
    api.complete(claim)
    fleet.reap(SECOND)
    assert fleet.leases(everywhere) == {}
    fleet.node(nodes[1].node_id, name=nodes[1].name)
    [again] = api.claim(nodes[1], fleet.queue)
    assert again["lease_id"] != waiting


def test_cordoned_nodes(fleet: Fleet, api: Api) -> None:
    """Have none, but where it is asked for; drained ones never."""
    node = fleet.node()
    api.rows("cordon_node", node=node.node_id)
    usual, eager = fleet.spawn(), fleet.spawn(on_cordoned=True)
    fleet.reap()
    assert (fleet.states(usual), fleet.states(eager)) == ([], ["reserved"])
    assert len(api.claim(node, fleet.queue, qty=9)) == 1
    api.rows("drain_node", node=node.node_id, deadline=SECOND)
    [lease] = fleet.leases(eager).values()
    api.complete(api.lease(lease["lease_id"]))
    fleet.reap(SECOND)
    assert api.claim(node, fleet.queue) == []
    api.rows("uncordon_node", node=node.node_id)
    fleet.reap(SECOND)
    assert (fleet.states(usual), fleet.states(eager)) == (["reserved"], ["reserved"])


def test_a_reservation_ends_with_its_node_and_with_a_cordon(fleet: Fleet, api: Api) -> None:
    everywhere, nodes = fleet.spawn(), [fleet.node(), fleet.node()]
    for _ in range(4):  # longer than a reservation lasts by itself
        api.rows("heartbeat_node", **nodes[0].who, claims=[])
        fleet.reap(20 * SECOND)
    leases = fleet.leases(everywhere)
    assert [leases[node.name]["state"] for node in nodes] == ["reserved", "waiting"]
    assert leases[nodes[1].name]["reason"] == "node_unavailable"
    api.rows("cordon_node", node=nodes[0].node_id)
    fleet.reap(20 * SECOND)
    assert set(fleet.states(everywhere)) == {"waiting"}


def test_a_node_that_dies_and_comes_back_has_the_same_one(fleet: Fleet, api: Api) -> None:
    everywhere, node = fleet.spawn(), fleet.node()
    other = fleet.node()
    [claim] = api.claim(node, fleet.queue)
    assert len(api.claim(other, fleet.queue)) == 1
    fleet.reap(timedelta(minutes=10))
    assert fleet.leases(everywhere)[node.name]["state"] == "waiting"
    api.rows("heartbeat_node", **other.who, claims=[])
    assert api.claim(other, fleet.queue, qty=9) == []
    again = fleet.node(node.node_id, name=node.name, instance_id="second")
    [found] = api.claim(again, fleet.queue, qty=9)
    assert (found["lease_id"], found["attempt"]) == (claim["lease_id"], 2)
    fleet.reap(SECOND)
    assert api.claim(again, fleet.queue, qty=9) == []


def test_stopping(fleet: Fleet, api: Api) -> None:
    """Nodes get none any more; what runs goes on until a second call asks it to stop."""
    everywhere, nodes = fleet.spawn(), [fleet.node(), fleet.node()]
    fleet.reap()
    [claim] = api.claim(nodes[0], fleet.queue)
    assert api.value("stop_everywhere", everywhere=everywhere) == "stopping"
    fleet.reap()
    fleet.node()
    leases = fleet.leases(everywhere)
    assert [leases[node.name]["state"] for node in nodes] == ["running", "cancelled"]
    assert len(leases) == 2
    waiting = api.lease(UUID(leases[nodes[1].name]["lease_id"]))
    assert waiting["error"]["reason"] == "everywhere_stopped"
    assert api.value("stop_everywhere", everywhere=everywhere, running="stop") == "stopping"
    fleet.reap()
    assert api.verdicts(nodes[0], claim) == ["preempted"]
    api.rows("release_lease", **token(claim))
    fleet.reap()
    assert api.state(claim["lease_id"]) == "cancelled"
    assert api.value("stop_everywhere", everywhere=everywhere) == "stopped"
    assert [r["everywhere_id"] for r in api.rows("list_everywhere", state="stopped", limit=1)] == [everywhere]
    api.rows("delete_leases", filter={"queue": fleet.queue})
    api.rows("prune")
    api.refused("QHE01", "get_everywhere", everywhere=everywhere)


def test_one_whose_queue_is_dropped_stops(fleet: Fleet, api: Api) -> None:
    everywhere, node = fleet.spawn(), fleet.node()
    [claim] = api.claim(node, fleet.queue)
    api.rows("drop_queue", queue=fleet.queue, force=True)
    fleet.reap()
    assert api.row("get_everywhere", everywhere=everywhere)["state"] == "stopping"
    api.complete(claim)
    fleet.reap()
    assert api.row("get_everywhere", everywhere=everywhere)["state"] == "stopped"


@pytest.mark.thorough
def test_the_same_id_is_the_same_one(fleet: Fleet, api: Api) -> None:
    own = str(uuid4())
    assert fleet.spawn(everywhere_id=own) == UUID(own)
    again = api.row("spawn_everywhere", **fleet.call(everywhere_id=own))
    assert (again["created"], str(again["everywhere_id"])) == (False, own)
    refusal = api.refused("QHE02", "spawn_everywhere", **fleet.call(everywhere_id=own, priority=3))
    assert refusal.field == "options.everywhere_id"
    api.value("stop_everywhere", everywhere=own)
    refusal = api.refused("QHE02", "spawn_everywhere", **fleet.call(everywhere_id=own))
    assert "was stopped" in refusal.message


@pytest.mark.thorough
def test_what_is_refused(fleet: Fleet, api: Api) -> None:
    wrong = {"delay": 5, "mode": "often", "on_unmatched": "move", "on_cordoned": "yes", "everywhere_id": "7"}
    for option, value in wrong.items():
        assert api.fault("spawn_everywhere", **fleet.call(**{option: value})) == f"options.{option}"
    odd = fleet.call(retry={"kind": "odd"})
    assert api.fault("spawn_everywhere", **odd) == "options.retry.kind"
    everywhere = fleet.spawn()
    for function in ("get_everywhere", "stop_everywhere"):
        api.refused("QHE01", function, everywhere=uuid4())
    api.refused("QHA01", "stop_everywhere", everywhere=everywhere, running="maybe")
    api.refused("QHA01", "get_everywhere", everywhere=everywhere, limit=10001)
    api.refused("QHA01", "list_everywhere", state="running")


@pytest.mark.thorough
def test_leases_of_it_stay_in_their_queue(fleet: Fleet, api: Api) -> None:
    everywhere, node = fleet.spawn(**GPU), fleet.node(gpus=gpus(1))
    fleet.reap()
    api.rows("cordon_node", node=node.node_id)
    fleet.reap()
    lease = fleet.leases(everywhere)[node.name]["lease_id"]
    refusal = api.refused("QHG03", "update_lease", lease=lease, changes={"queue": api.queue()})
    assert "everywhere task" in refusal.message
    api.rows("update_lease", lease=lease, changes={"priority": 3})
    api.rows("uncordon_node", node=node.node_id)
    fleet.reap(20 * SECOND)
    assert api.claimed(node, fleet.queue) == [UUID(lease)]


@pytest.mark.thorough
def test_one_that_another_has_followed_is_not_run_again(fleet: Fleet, api: Api, dsn: str) -> None:
    everywhere, node = fleet.spawn(max_attempts=1, retry={"kind": "none"}), fleet.node()
    [claim] = api.claim(node, fleet.queue)
    api.rows("fail_lease", **token(claim), error={})
    fleet.reap()
    fleet.reap(10 * SECOND)
    assert fleet.leases(everywhere)[node.name]["starts"] == 2
    api.rows("requeue_lease", lease=claim["lease_id"])
    with psycopg.connect(dsn) as holder:
        holder.execute("select from hwqueue.scheduled where lease_id = %s for update", [claim["lease_id"]])
        fleet.reap()
    fleet.reap()
    assert api.lease(claim["lease_id"])["error"]["reason"] == "everywhere_replaced"
    assert len(api.claim(node, fleet.queue, qty=9)) == 1


def test_a_lease_that_failed_for_good_may_be_requeued(fleet: Fleet, api: Api) -> None:
    everywhere, node = fleet.spawn(mode="once", max_attempts=1), fleet.node()
    [claim] = api.claim(node, fleet.queue)
    api.rows("fail_lease", **token(claim), error={})
    fleet.reap()
    assert fleet.states(everywhere) == ["failed"]
    api.rows("requeue_lease", lease=claim["lease_id"])
    fleet.reap()
    assert api.claimed(node, fleet.queue) == [claim["lease_id"]]
    assert fleet.states(everywhere) == ["running"]


def test_a_worker_that_stops_leaves_although_room_is_booked(fleet: Fleet, api: Api) -> None:
    """And the class without leases stays, since a node that comes later needs it."""
    everywhere, node = fleet.spawn(), fleet.node()
    fleet.reap()
    assert fleet.states(everywhere) == ["reserved"]
    assert api.value("deregister_own_node", **node.who) is True
    fleet.reap()
    assert fleet.leases(everywhere) == {}
    api.rows("delete_leases", filter={"queue": fleet.queue})
    fleet.clock.advance(timedelta(hours=3))
    for _ in range(3):
        api.rows("prune", limit=100000)
    [claim] = api.claim(fleet.node(), fleet.queue)
    api.refused("QHG01", "gang_status", **token(claim))  # it is of no gang


def test_a_held_node_keeps_no_other_lease_waiting(fleet: Fleet, api: Api, clock: Clock, dsn: str) -> None:
    """Rooms that were not fetched are booked again when they are due, one a tick here."""
    everywhere = fleet.spawn()
    for _ in range(2):
        fleet.node()
        fleet.reap(SECOND)
    due = "select node_id, due_at from hwqueue.everywhere_node where everywhere_id = %s order by due_at"
    (first, _), (second, before) = api.conn.execute(due, [everywhere]).fetchall()
    clock.advance(timedelta(seconds=25))
    with psycopg.connect(dsn) as other:
        other.execute("select from hwqueue.node_state where node_id = %s for update", [first])
        api.rows("reap", limit=1)
    assert dict(api.conn.execute(due, [everywhere]).fetchall())[second] > before


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        ("everywhere_lease", "delete from hwqueue.everywhere_node where lease_id = %s"),
        (
            "everywhere_node",
            "update hwqueue.everywhere_node set node_id = gen_random_uuid() where lease_id = %s",
        ),
        ("reservation_expired", "update hwqueue.claim set expires_at = '2020-01-01' where lease_id = %s"),
    ],
)
@pytest.mark.thorough
def test_what_verify_invariants_finds(fleet: Fleet, api: Api, rule: str, planted: LiteralString) -> None:
    everywhere, node = fleet.spawn(), fleet.node()
    fleet.reap()
    lease = fleet.leases(everywhere)[node.name]["lease_id"]
    assert api.breaks(planted, lease) == {(rule, lease)}
