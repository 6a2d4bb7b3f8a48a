"""What users report of other gang schedulers does not happen, and what gangs.md says besides."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.test_gangs import GPU, gang, gpus, leases, nodes, reap, spawn, start

PAST_BACK_OFF = timedelta(seconds=20)


@pytest.fixture
def machines(api: Api) -> list[Node]:
    """Five nodes with a GPU each; no other nodes and gangs."""
    for row in api.rows("list_gangs", limit=1000):
        api.rows("cancel_gang", gang=row["gang_id"])
    reap(api)
    for row in api.rows("list_nodes"):
        api.rows("deregister_node", node=row["node_id"])
    return [api.node(gpus=gpus(1)) for _ in range(5)]


def advance(api: Api, clock: Clock, machines: list[Node]) -> None:
    """Let a gang's back-off pass; the nodes stay alive."""
    clock.advance(PAST_BACK_OFF)
    for node in machines:
        api.rows("heartbeat_node", **node.who, claims=Jsonb([]))


def test_of_two_gangs_one_starts_and_the_other_holds_nothing(
    api: Api, machines: list[Node], clock: Clock
) -> None:
    """Three and three members, five GPUs: a scheduler that grants one by one can block both."""
    queue = api.queue(earmarks=0)
    first, second = spawn(api, queue, 3, GPU), spawn(api, queue, 3, GPU)
    claims = start(api, machines, queue)
    assert {claim["lease_id"] for claim in claims} == set(leases(api, first))
    assert (gang(api, second)["state"], nodes(api, second)) == ("waiting", {None})
    for claim in claims:
        api.rows("complete_lease", **token(claim))
    advance(api, clock, machines)
    assert {claim["lease_id"] for claim in start(api, machines, queue)} == set(leases(api, second))


@pytest.mark.parametrize("needs", [(30, 50), (50, 30)])
def test_the_larger_member_is_placed_first(api: Api, machines: list[Node], needs: tuple[int, int]) -> None:
    """Nodes with 53 and 31 CPUs: the member that needs 30 must leave the large one alone."""
    queue = api.queue()
    for node in machines:  # they count no CPUs: anything would fit there
        api.rows("deregister_node", node=node.node_id)
    for size in (53, 31):
        api.node(capacity={"cpu_milli": 1000 * size})
    members: list[dict[str, Any]] = [
        {"task": "train", "options": {"placement": {"resources": {"cpu_milli": 1000 * need}}}}
        for need in needs
    ]
    [row, _] = api.rows("spawn_gang", queue=queue, members=Jsonb(members))
    reap(api)
    assert gang(api, row["gang_id"])["state"] == "reserved"


def test_assembling_that_is_rolled_back_leaves_nothing(api: Api, machines: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU)
    with api.conn.transaction(force_rollback=True):
        reap(api)
        assert gang(api, gang_id)["state"] == "reserved"
    assert (gang(api, gang_id)["state"], nodes(api, gang_id)) == ("waiting", {None})
    assert [api.claimed(node, queue) for node in machines] == [[]] * 5
    assert len(start(api, machines, queue)) == 3


def test_back_off_while_there_is_no_room(api: Api, machines: list[Node], clock: Clock) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 6, GPU)
    waits = []
    for _ in range(6):
        api.rows("reap")
        found = gang(api, gang_id)
        waits.append((found["next_try_at"] - clock.now()).total_seconds())
        clock.advance(timedelta(seconds=waits[-1]))
        for node in machines:
            api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    assert waits == [1, 2, 4, 8, 15, 15]
    assert found["tries"] == 6


def test_a_paused_queue_starts_no_gang(api: Api, machines: list[Node], clock: Clock) -> None:
    queue = api.queue()
    reserved = spawn(api, queue, 2, GPU)
    reap(api)
    api.rows("pause_queue", queue=queue)
    waiting = spawn(api, queue, 2, GPU)
    assert start(api, machines, queue) == []
    assert (gang(api, reserved)["state"], gang(api, waiting)["state"]) == ("reserved", "waiting")
    clock.advance(timedelta(seconds=31))
    advance(api, clock, machines)
    reap(api)
    assert {gang(api, gang_id)["state"] for gang_id in (reserved, waiting)} == {"waiting"}
    api.rows("resume_queue", queue=queue)
    advance(api, clock, machines)
    assert len(start(api, machines, queue)) == 4


@pytest.mark.usefixtures("machines")
def test_a_deadline_that_passes_ends_the_gang(api: Api, clock: Clock) -> None:
    queue = api.queue()
    deadline: Row = {"deadline": (clock.now() + timedelta(seconds=5)).isoformat()}
    members: list[dict[str, Any]] = [
        {"task": "train", "options": GPU | deadline},
        {"task": "train", "count": 8, "options": GPU},
    ]
    [row, *others] = api.rows("spawn_gang", queue=queue, members=Jsonb(members))
    clock.advance(timedelta(seconds=6))
    reap(api)
    assert gang(api, row["gang_id"])["state"] == "failed"
    assert {api.state(other["lease_id"]) for other in others} == {"cancelled"}


def test_a_requeued_member_opens_its_gang_again(api: Api, machines: list[Node], clock: Clock) -> None:
    """Alone, where the others have completed."""
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, max_attempts=1)
    first, second = start(api, machines, queue)
    api.rows("complete_lease", **token(second))
    api.rows("fail_lease", **token(first), error={"message": "no"})
    reap(api)
    assert gang(api, gang_id)["state"] == "failed"
    api.rows("requeue_lease", lease=first["lease_id"])
    reap(api)
    assert gang(api, gang_id)["state"] == "waiting"
    advance(api, clock, machines)
    [again] = start(api, machines, queue)
    assert again["lease_id"] == first["lease_id"]
    assert api.row("gang_status", **token(again))["ready"] is True
    api.rows("complete_lease", **token(again))
    reap(api)
    assert gang(api, gang_id)["state"] == "completed"


def test_all_that_ended_are_requeued_together(api: Api, machines: list[Node], clock: Clock) -> None:
    """One alone is cancelled again, since another one is."""
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)
    api.rows("cancel_gang", gang=gang_id)
    reap(api)
    first, second = leases(api, gang_id)
    api.rows("requeue_lease", lease=first)
    reap(api)
    assert api.state(first) == "cancelled"
    with api.conn.transaction():
        for lease in (first, second):
            api.rows("requeue_lease", lease=lease)
    reap(api)
    advance(api, clock, machines)
    assert len(start(api, machines, queue)) == 2


def test_room_is_counted_by_node_and_not_in_sum(api: Api, machines: list[Node]) -> None:
    """Five nodes with 6 CPUs: in sum enough for six members of 4 CPUs, but each takes only one."""
    queue = api.queue()
    for node in machines:
        api.rows("deregister_node", node=node.node_id)
    for _ in range(5):
        api.node(rack=1, capacity={"cpu_milli": 6000})
    member = {"placement": {"resources": {"cpu_milli": 4000}}}
    six, five = (spawn(api, queue, count, member, together="rack") for count in (6, 5))
    reap(api)
    assert (gang(api, six)["state"], nodes(api, six)) == ("waiting", {None})
    assert gang(api, five)["state"] == "reserved"


@pytest.mark.usefixtures("machines")
def test_a_reservation_leaves_the_rest_of_its_node(api: Api) -> None:
    """One of two GPUs: a single lease takes the other one, though the member is not fetched yet."""
    queue, other = api.queue(), api.queue()
    large = [api.node(capacity={"cpu_milli": 1000}, gpus=gpus(2), rack=1) for _ in range(2)]
    member = {"placement": {"resources": {"cpu_milli": 1000, "gpu": 1}}}
    gang_id = spawn(api, queue, 2, member, together="rack")
    reap(api)
    assert nodes(api, gang_id) == {node.name for node in large}
    for node in large:
        single = api.spawn(other, **GPU)
        assert api.claimed(node, other) == [single]
        assert len(api.claimed(node, queue)) == 1


def test_a_gang_that_starts_again_holds_no_part(api: Api, machines: list[Node], clock: Clock) -> None:
    """It ran before, with `replace`, but its members wait for each other as at the first start."""
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU, on_lost="replace", hold="10 s")
    claims = start(api, machines, queue)
    reap(api)
    assert gang(api, gang_id)["state"] == "running"
    for claim in claims:
        api.rows("fail_lease", **token(claim), error={"message": "no"})
    reap(api)
    assert gang(api, gang_id)["started_at"] is None
    advance(api, clock, machines)
    reap(api)
    claim = next(claim for node in machines for claim in api.claim(node, queue))
    clock.advance(timedelta(seconds=11))
    reap(api)
    assert gang(api, gang_id)["state"] == "stopping"
    assert api.lease(claim["lease_id"])["stop_reason"] == "preempted"
    assert api.rows("verify_invariants") == []


def lose(api: Api, gang_id: UUID, kept: set[str | None]) -> None:
    """A member on another node than these fails, and its node takes no work any more."""
    [lost] = [member for member in gang(api, gang_id)["members"] if member["node"] not in kept][:1]
    lease = api.lease(UUID(lost["lease_id"]))
    api.rows("cordon_node", node=lease["node_id"])
    api.rows("fail_lease", **token(lease), error={"message": "no"})
    reap(api)


@pytest.mark.parametrize("priority", [0, 9], ids=["later", "first"])
def test_a_gang_that_runs_on_and_one_that_is_earmarked(
    api: Api, machines: list[Node], clock: Clock, priority: int
) -> None:
    """Each waits for the other: one for a free node, the other for a node where members run."""
    clock.freeze()
    queue = api.queue()
    runs = spawn(api, queue, 2, GPU, on_lost="replace")
    start(api, machines, queue)
    reap(api)
    waits = spawn(api, queue, 4, GPU | {"priority": priority})
    reap(api)
    assert gang(api, waits)["state"] == "earmarked"
    lose(api, runs, nodes(api, waits))
    assert [gang(api, one)["state"] for one in (runs, waits)] == ["reserved", "waiting"]
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize(
    ("priority", "states"), [(0, ["reserved", "waiting"]), (9, ["waiting", "earmarked"])]
)
def test_what_is_kept_for_a_gang_that_comes_later(
    api: Api, machines: list[Node], clock: Clock, priority: int, states: list[str]
) -> None:
    """It waits for a node where neither runs: then their order decides."""
    clock.freeze()
    queue, zone = api.queue(), {"label": "zone", "op": "in", "values": ["b"]}
    for node in machines[2:]:
        api.rows("deregister_node", node=node.node_id)
    runs = spawn(api, queue, 2, GPU, on_lost="replace")
    start(api, machines[:2], queue)
    busy, _free = (api.node(gpus=gpus(1), labels={"zone": "b"}) for _ in range(2))
    api.running(queue, busy, **GPU)
    there = {"priority": priority, "placement": GPU["placement"] | {"require": [zone]}}
    waits = spawn(api, queue, 2, there)
    reap(api)
    assert gang(api, waits)["state"] == "earmarked"
    lose(api, runs, set())
    assert [gang(api, one)["state"] for one in (runs, waits)] == states
    assert api.rows("verify_invariants") == []


def test_it_is_shown_as_its_members_are(api: Api, machines: list[Node]) -> None:
    """Before upkeep has looked: they run, they have completed."""
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)

    def seen() -> tuple[str, bool]:
        [listed] = [row for row in api.rows("list_gangs") if row["gang_id"] == gang_id]
        found = gang(api, gang_id)
        told = api.row("explain_gang", gang=gang_id)
        assert {listed["state"], told["state"]} == {found["state"]}
        assert listed["finished_at"] == found["finished_at"]
        return found["state"], found["finished_at"] is not None

    claims = start(api, machines, queue)
    assert seen() == ("running", False)
    assert api.rows("list_gangs", state="reserved") == []
    for claim in claims:
        api.rows("complete_lease", **token(claim))
    assert seen() == ("completed", True)
    reap(api)
    assert seen() == ("completed", True)


def test_one_that_failed_says_what_its_member_said(api: Api, machines: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, {**GPU, "max_attempts": 1})
    claims = start(api, machines, queue)
    error = {"type": "BadParams", "message": "epochs: missing"}
    api.rows("fail_lease", **token(claims[0]), error=Jsonb(error))
    reap(api)
    api.rows("release_lease", **token(claims[1]))
    rank = leases(api, gang_id).index(claims[0]["lease_id"])
    for state in ("cancelling", "failed"):
        found = gang(api, gang_id)
        said = f"rank {rank} failed: BadParams: epochs: missing"
        assert (found["state"], found["reason"]) == (state, said)
        reap(api)
