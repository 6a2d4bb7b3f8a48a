"""Gangs whose members fail, are lost or are cancelled: what becomes of the others.

What users report of other gang schedulers does not happen.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.patience import looks
from tests.sql.api import Api, Node, beat, token
from tests.sql.gangs import GPU, Gang, clear, gang, gpus, later, reap


def test_of_two_gangs_one_starts_and_the_other_holds_nothing(
    api: Api, racks: list[Node], clock: Clock
) -> None:
    """Three and three members, five GPUs: a scheduler that grants one by one can block both."""
    queue = api.queue(earmarks=0)
    first, second = (Gang(api, racks, 3, queue=queue) for _ in range(2))
    claims = first.start()
    assert {claim["lease_id"] for claim in claims} == set(first.leases)
    assert (second.state, second.on) == ("waiting", {None})
    first.complete(*claims)
    later(api, clock, racks)
    assert {claim["lease_id"] for claim in second.start()} == set(second.leases)


@pytest.mark.parametrize("needs", [(30, 50), (50, 30)])
def test_the_larger_member_is_placed_first(api: Api, needs: tuple[int, int]) -> None:
    """Nodes with 53 and 31 CPUs: the member that needs 30 must leave the large one alone."""
    clear(api)
    for size in (53, 31):
        api.node(capacity={"cpu_milli": 1000 * size})
    members: list[dict[str, Any]] = [
        {"task": "train", "options": {"placement": {"resources": {"cpu_milli": 1000 * need}}}}
        for need in needs
    ]
    [row, _] = api.rows("spawn_gang", queue=api.queue(), members=Jsonb(members))
    reap(api)
    assert gang(api, row["gang_id"])["state"] == "reserved"


def test_assembling_that_is_rolled_back_leaves_nothing(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 3)
    with api.conn.transaction(force_rollback=True):
        reap(api)
        assert job.state == "reserved"
    assert (job.state, job.on) == ("waiting", {None})
    assert [api.claimed(node, job.queue) for node in racks] == [[]] * 5
    assert len(job.start()) == 3


def test_back_off_while_there_is_no_room(api: Api, racks: list[Node], clock: Clock) -> None:
    job = Gang(api, racks, 6)
    waits = []
    for _ in range(6):
        api.rows("reap")
        next_try_at, tries = job.now("next_try_at", "tries")
        waits.append((next_try_at - clock.now()).total_seconds())
        clock.advance(timedelta(seconds=waits[-1]))
        for node in racks:
            api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    assert (waits, tries) == ([1, 2, 4, 8, 15, 15], 6)


def test_a_paused_queue_starts_no_gang(api: Api, racks: list[Node], clock: Clock) -> None:
    reserved = Gang(api, racks, 2)
    reap(api)
    api.rows("pause_queue", queue=reserved.queue)
    waiting = Gang(api, racks, 2, queue=reserved.queue)
    assert waiting.start() == []
    assert (reserved.state, waiting.state) == ("reserved", "waiting")
    later(api, clock, racks, 51)
    assert (reserved.state, waiting.state) == ("waiting", "waiting")
    api.rows("resume_queue", queue=reserved.queue)
    later(api, clock, racks)
    assert len(waiting.start()) == 4


def test_a_requeued_member_opens_its_gang_again(api: Api, racks: list[Node], clock: Clock) -> None:
    """Alone, where the others have completed."""
    job = Gang(api, racks, 2, max_attempts=1)
    first, second = job.start()
    api.complete(second)
    job.fail(first)
    assert job.state == "failed"
    api.rows("requeue_lease", lease=first["lease_id"])
    reap(api)
    assert job.state == "waiting"
    later(api, clock, racks)
    [again] = job.start()
    assert again["lease_id"] == first["lease_id"]
    assert job.ready([again]) == {True}
    job.complete(again)
    assert job.state == "completed"


def test_all_that_ended_are_requeued_together(api: Api, racks: list[Node], clock: Clock) -> None:
    """One alone is cancelled again, since another one is."""
    job = Gang(api, racks, 2)
    job.cancel()
    first, second = job.leases
    api.rows("requeue_lease", lease=first)
    reap(api)
    assert api.state(first) == "cancelled"
    with api.conn.transaction():
        for lease in (first, second):
            api.rows("requeue_lease", lease=lease)
    reap(api)
    later(api, clock, racks)
    assert len(job.start()) == 2


def test_room_is_counted_by_node_and_not_in_sum(api: Api) -> None:
    """Five nodes with 6 CPUs: in sum enough for six members of 4 CPUs, but each takes only one."""
    clear(api)
    machines = [api.node(rack=1, capacity={"cpu_milli": 6000}) for _ in range(5)]
    member, queue = {"placement": {"resources": {"cpu_milli": 4000}}}, api.queue()
    six, five = (Gang(api, machines, size, member, queue=queue, together="rack") for size in (6, 5))
    reap(api)
    assert (six.state, six.on) == ("waiting", {None})
    assert five.state == "reserved"


def test_a_reservation_leaves_the_rest_of_its_node(api: Api, racks: list[Node]) -> None:
    """One of two GPUs: a single lease takes the other one, though the member is not fetched yet."""
    other = api.queue()
    large = [api.node(capacity={"cpu_milli": 1000}, gpus=gpus(2), rack=9) for _ in range(2)]
    member = {"placement": {"resources": {"cpu_milli": 1000, "gpu": 1}, "require": [{"rack": 9}]}}
    job = Gang(api, large, 2, member, together="rack")
    reap(api)
    assert job.on == {node.name for node in large}
    for node in large:
        single = api.spawn(other, **GPU)
        assert api.claimed(node, other) == [single]
        assert len(api.claimed(node, job.queue)) == 1


def test_a_gang_that_starts_again_holds_no_part(api: Api, racks: list[Node], clock: Clock) -> None:
    """It ran before, with `replace`, but its members wait for each other as at the first start."""
    job = Gang(api, racks, 3, on_lost="replace", hold="10 s")
    claims = job.run()
    assert job.state == "running"
    job.fail(*claims)
    assert job.now("started_at") == (None,)
    later(api, clock, racks)
    claim = next(claim for node in racks for claim in api.claim(node, job.queue))
    clock.advance(timedelta(seconds=11))
    reap(api)
    assert job.state == "stopping"
    assert api.lease(claim["lease_id"])["stop_reason"] == "preempted"


def lose(job: Gang, kept: set[str | None]) -> None:
    """A member on another node than these fails, and its node takes no work any more."""
    [members] = job.now("members")
    [lost] = [member for member in members if member["node"] not in kept][:1]
    lease = job.api.lease(UUID(lost["lease_id"]))
    job.api.rows("cordon_node", node=lease["node_id"])
    job.fail(lease)


@pytest.mark.parametrize("priority", [0, 9], ids=["later", "first"])
def test_a_gang_that_runs_on_and_one_that_is_earmarked(
    api: Api, racks: list[Node], clock: Clock, priority: int
) -> None:
    """Each waits for the other: one for a free node, the other for a node where members run."""
    clock.freeze()
    runs = Gang(api, racks, 2, on_lost="replace")
    runs.run()
    waits = Gang(api, racks, 4, GPU | {"priority": priority}, queue=runs.queue)
    reap(api)
    assert waits.state == "earmarked"
    lose(runs, waits.on)
    assert (runs.state, waits.state) == ("reserved", "waiting")


@pytest.mark.parametrize(
    ("priority", "states"), [(0, ("reserved", "waiting")), (9, ("waiting", "earmarked"))]
)
def test_what_is_kept_for_a_gang_that_comes_later(
    api: Api, racks: list[Node], clock: Clock, priority: int, states: tuple[str, str]
) -> None:
    """It waits for a node where neither runs: then their order decides."""
    clock.freeze()
    zone = {"label": "zone", "op": "in", "values": ["b"]}
    for node in racks[2:]:
        api.rows("deregister_node", node=node.node_id)
    runs = Gang(api, racks[:2], 2, on_lost="replace")
    runs.run()
    busy, _free = (api.node(gpus=gpus(1), labels={"zone": "b"}) for _ in range(2))
    api.running(runs.queue, busy, **GPU)
    there = {"priority": priority, "placement": GPU["placement"] | {"require": [zone]}}
    waits = Gang(api, racks, 2, there, queue=runs.queue)
    reap(api)
    assert waits.state == "earmarked"
    lose(runs, set())
    assert (runs.state, waits.state) == states


def test_it_is_shown_as_its_members_are(api: Api, racks: list[Node]) -> None:
    """Before upkeep has looked: they run, they have completed."""
    job = Gang(api, racks, 2)

    def seen() -> tuple[str, bool]:
        [listed] = [row for row in api.rows("list_gangs") if row["gang_id"] == job.id]
        state, finished_at = job.now("state", "finished_at")
        assert {listed["state"], job.explained["state"]} == {state}
        assert listed["finished_at"] == finished_at
        return state, finished_at is not None

    claims = job.start()
    assert seen() == ("running", False)
    assert api.rows("list_gangs", state="reserved") == []
    api.complete(*claims)
    assert seen() == ("completed", True)
    reap(api)
    assert seen() == ("completed", True)


def test_a_reservation_that_is_not_fetched(api: Api, racks: list[Node], clock: Clock) -> None:
    """What the others hold is given up with it, and no attempt is used up."""
    job = Gang(api, racks, 2, together="rack", hold="10 s")
    [claim] = job.start(racks[:1])
    clock.advance(timedelta(seconds=11))
    reap(api)
    assert job.state == "stopping"
    [verdict] = api.rows("heartbeat_node", **racks[0].who, claims=beat(claim))
    assert verdict["verdict"] == "preempted"
    job.release(claim)
    assert job.now("state", "losses") == ("waiting", 1)
    later(api, clock, racks, 2)
    assert job.state == "reserved"
    claims = {again["lease_id"]: again for again in job.start()}
    assert {again["attempt"] for again in claims.values()} == {1}
    assert claims[claim["lease_id"]]["claim_token"] > claim["claim_token"]


def test_one_that_fails_stops_the_others(api: Api, racks: list[Node], clock: Clock) -> None:
    job = Gang(api, racks, 2)
    first, second = job.start()
    assert api.value("fail_lease", **token(first), error={"message": "no"}) == "scheduled"
    reap(api)
    assert job.state == "stopping"
    assert api.lease(second["lease_id"])["stop_reason"] == "preempted"
    job.release(second)
    clock.advance(timedelta(seconds=2))
    assert {c["lease_id"]: c["attempt"] for c in job.start()} == {first["lease_id"]: 2, second["lease_id"]: 1}


def test_one_that_fails_for_good_ends_the_gang(api: Api, racks: list[Node]) -> None:
    """Which says what its member said."""
    job = Gang(api, racks, 2, max_attempts=1)
    first, second = job.start()
    error = {"type": "BadParams", "message": "epochs: missing"}
    api.rows("fail_lease", **token(first), error=error)
    reap(api)
    rank = job.leases.index(first["lease_id"])
    said = f"rank {rank} failed: BadParams: epochs: missing"
    assert job.now("state", "reason") == ("cancelling", said)
    job.release(second)
    assert job.now("state", "reason") == ("failed", said)
    assert api.state(second["lease_id"]) == "cancelled"
    assert api.lease(second["lease_id"])["error"]["reason"] == "gang_incomplete"


def test_a_lost_member_is_replaced(api: Api, racks: list[Node], clock: Clock) -> None:
    job = Gang(api, racks, 2, on_lost="replace", together="rack")
    first, second = job.run(racks[2:] + racks[:2])
    place = job.place
    job.fail(first)
    assert api.lease(second["lease_id"])["stop_reason"] is None
    clock.advance(timedelta(seconds=2))
    [again] = job.run()
    assert again["lease_id"] == first["lease_id"]
    assert job.now("state", "place") == ("running", place)


def test_room_for_the_first_lost_member_is_reserved_at_once(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 3, on_lost="replace", together="rack")
    [first, *_others] = job.run()
    single = api.spawn(job.queue, placement=GPU["placement"] | {"require": [{"rack": 2}]})
    job.fail(first)  # before any claim, and before time has passed
    assert job.state == "reserved"
    [again] = job.start(racks[2:])
    assert (again["lease_id"], api.lease(single)["state"]) == (first["lease_id"], "pending")


def test_a_place_that_all_have_left_binds_nobody(api: Api, racks: list[Node], clock: Clock) -> None:
    """They are lost one after the other, while the gang waits for those that went before."""
    job = Gang(api, racks, 3, on_lost="replace", together="rack")
    claims = job.run()
    others = [api.node(rack=3, gpus=gpus(1)) for _ in range(3)]
    for node, claim in zip(racks[2:], claims, strict=True):
        assert job.place == "rack 2"
        api.rows("cordon_node", node=node.node_id)
        job.fail(claim)
    later(api, clock, others)
    assert job.now("state", "place") == ("reserved", "rack 3")


def test_cancel_a_gang_that_waits(api: Api, racks: list[Node], clock: Clock) -> None:
    """Or a member of it, which ends it as well; it goes with its leases."""
    job, other = Gang(api, racks, 9), Gang(api, racks, 9)
    assert api.value("cancel_gang", gang=job.id, reason="not needed") == "cancelling"
    api.rows("cancel_lease", lease=other.leases[3])
    reap(api)
    for each in (job, other):
        assert each.state == "cancelled"
        assert {api.state(lease) for lease in each.leases} == {"cancelled"}
    assert api.value("cancel_gang", gang=job.id) == "cancelled"
    assert api.rows("verify_invariants") == []
    clock.advance(timedelta(days=60))
    for _ in range(3):
        api.rows("prune")
    api.refused("QHG01", "get_gang", gang=job.id)


def test_cancel_a_gang_that_is_reserved(api: Api, racks: list[Node]) -> None:
    """And has begun to run; and one member after the other: no attempt is used up."""
    job = Gang(api, racks, 2, together="rack")
    [claim] = job.start(racks[:1])
    job.cancel()
    job.release(claim)
    assert job.state == "cancelled"
    job = Gang(api, racks, 2)
    reap(api)
    for lease in job.leases:
        api.rows("cancel_lease", lease=lease)
    assert [api.claimed(node, job.queue) for node in racks] == [[]] * 5
    reap(api)
    ended = [api.lease(lease) for lease in job.leases]
    assert [(one["state"], one["attempt"]) for one in ended] == [("cancelled", 0)] * 2


@pytest.mark.parametrize("change", ["cordoned", "another instance"])
def test_a_node_that_changes_before_it_has_fetched(api: Api, racks: list[Node], change: str) -> None:
    """The gang gives up, and goes elsewhere; no attempt is used up."""
    job, node = Gang(api, racks, 2, together="rack"), racks[0]
    reap(api)
    if change == "cordoned":
        api.rows("cordon_node", node=node.node_id)
        assert api.claimed(node, job.queue) == []
    else:
        api.node(node.node_id, name=node.name, rack=1, gpus=gpus(1), instance_id="second")
    reap(api)
    assert job.state == "waiting"
    assert {api.lease(lease)["attempt"] for lease in job.leases} == {0}


def test_a_deadline_that_has_passed(api: Api, racks: list[Node], clock: Clock) -> None:
    """It ends the gang, whether all members have it or one."""
    deadline: Row = {"deadline": (clock.now() + timedelta(seconds=5)).isoformat()}
    job = Gang(api, racks, 9, **deadline)
    members: list[Row] = [
        {"task": "train", "options": GPU | deadline},
        {"task": "train", "count": 8, "options": GPU},
    ]
    [row, *others] = api.rows("spawn_gang", queue=job.queue, members=Jsonb(members))
    clock.advance(timedelta(seconds=6))
    reap(api)
    assert job.now("state", "reason") == ("failed", "deadline_exceeded")
    assert {api.state(lease) for lease in job.leases} == {"failed"}
    assert gang(api, row["gang_id"])["state"] == "failed"
    assert {api.state(other["lease_id"]) for other in others} == {"cancelled"}


def test_a_deadline_is_that_of_a_second_start_too(api: Api, racks: list[Node], clock: Clock) -> None:
    """A gang that runs is not bothered by it, until a member is lost."""
    until = (clock.now() + timedelta(seconds=5)).isoformat()
    job = Gang(api, racks, 2, deadline=until)
    first, second = job.run()
    clock.advance(timedelta(seconds=6))
    reap(api)
    assert job.state == "running"
    job.fail(first)
    assert job.now("state", "reason") == ("cancelling", "deadline_exceeded")
    job.release(second)
    assert job.now("state", "reason") == ("failed", "deadline_exceeded")


def test_a_gang_goes_though_those_before_it_are_kept(api: Api, racks: list[Node], clock: Clock) -> None:
    kept = Gang(api, racks, 9, queue=api.queue(retain_completed=timedelta(days=900).total_seconds()))
    for each in (kept, job := Gang(api, racks, 9)):
        api.value("cancel_gang", gang=each.id)
        reap(api)
    clock.advance(timedelta(days=60))
    for _ in looks():
        api.rows("prune", limit=1)
        if api.conn.execute("select from hwqueue.lease where team_id = %s", [job.id]).rowcount == 0:
            break
    api.refused("QHG01", "get_gang", gang=job.id)
    assert kept.state == "cancelled"


def test_a_dropped_queue_takes_its_gangs_along(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 2)
    api.rows("drop_queue", queue=job.queue, force=True)
    reap(api)
    assert job.state == "waiting"
    for _ in looks():
        api.rows("prune")
        if api.conn.execute("select from hwqueue.gang where gang_id = %s", [job.id]).rowcount == 0:
            break
    api.refused("QHG01", "get_gang", gang=job.id)


def test_when_it_started(api: Api, racks: list[Node], clock: Clock) -> None:
    """Also of a gang that has ended before anybody looked."""
    job = Gang(api, racks, 2)
    claims, started = job.start(), clock.now()
    clock.advance(timedelta(seconds=5))
    job.complete(*claims)
    assert job.now("state", "started_at", "place") == ("completed", started, None)
