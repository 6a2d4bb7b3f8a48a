"""Earmarks: room is kept for a gang until it is enough, and nobody else gets it meanwhile."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.counted import counting
from tests.flows import Flow
from tests.flows import gang as gang_step
from tests.patience import looks
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, gang, gpus, leases, nodes, reap, spawn, start

pytestmark = pytest.mark.usefixtures("sound")

PAIR: Row = {"placement": {"resources": {"gpu": 2}}}
_BOOKED = """
  select n.node_id, to_jsonb(n) as node, coalesce(jsonb_agg(c.assignment)
         filter (where c.assignment is not null), '[]') as assignments
  from hwqueue.node n
  left join hwqueue.claim c on c.node_id = n.node_id
  where n.deregistered_at is null group by n.node_id
"""


def leave(api: Api) -> None:
    """No gangs and nodes are there any more."""
    for row in api.rows("list_gangs", limit=1000):
        api.rows("cancel_gang", gang=row["gang_id"])
    reap(api)
    api.leave_all()


@pytest.fixture
def pairs(api: Api) -> list[Node]:
    """Three nodes with two GPUs each; no other nodes and gangs."""
    leave(api)
    return [api.node(gpus=gpus(2)) for _ in range(3)]


def filled(api: Api, queue: str, machines: list[Node]) -> list[Row]:
    """A lease with a GPU on each of them."""
    return [api.running(queue, node, **GPU) for node in machines]


def became(api: Api, gang_id: UUID) -> str:
    """The state of a gang after upkeep."""
    reap(api)
    return str(gang(api, gang_id)["state"])


def waiting(api: Api, queue: str, count: int, member: Row | None = None, **options: Any) -> UUID:
    """A gang for which room is earmarked."""
    gang_id = spawn(api, queue, count, member, **options)
    assert became(api, gang_id) == "earmarked"
    return gang_id


def earmarked(api: Api, queue: str, machines: list[Node], **options: Any) -> UUID:
    """A gang of two that waits for all GPUs of two of the machines."""
    gang_id = waiting(api, queue, 2, PAIR, **options)
    assert nodes(api, gang_id) <= {node.name for node in machines}
    return gang_id


@pytest.mark.parametrize(("policy", "starts"), [({}, True), ({"earmarks": 0}, False)])
@pytest.mark.thorough
def test_a_large_gang_starts_while_small_leases_never_stop_coming(
    api: Api, pairs: list[Node], clock: Clock, policy: Row, starts: bool
) -> None:
    """Each that ends is followed by another one: without earmarks no node is ever idle."""
    queue = api.queue(**policy)
    running = filled(api, queue, pairs) + filled(api, queue, pairs)
    gang_id = spawn(api, queue, 3, PAIR)
    started: list[Row] = []
    for _ in range(8):
        clock.advance(timedelta(seconds=1))
        api.complete(*running[:1])
        del running[:1]
        api.spawn(queue, **GPU)
        reap(api)
        found = [claim for node in pairs for claim in api.claim(node, queue)]
        started += [claim for claim in found if claim["task_name"] == "train"]
        running += [claim for claim in found if claim["task_name"] != "train"]
    assert {claim["lease_id"] for claim in started} == set(leases(api, gang_id) if starts else [])


def deficits(api: Api) -> dict[tuple[UUID, str], int]:
    """By how much what is booked on a node exceeds what it has, counted from claims."""
    found: dict[tuple[UUID, str], int] = {}
    cursor = api.conn.execute(_BOOKED)
    for node_id, node, assignments in cursor:
        for name in ("cpu_milli", "memory_mib"):
            used = sum(each.get(name, 0) for each in assignments)
            found[node_id, name] = max(0, used - (node[name] or used))
        for device in node["gpu_ids"]:
            used = sum(
                each["gpu_milli"]
                for each in assignments
                if any(gpu["resource_id"] == device for gpu in each.get("gpus", []))
            )
            found[node_id, device] = max(0, used - 1000)
    return found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.thorough
def test_no_claim_takes_what_is_earmarked(api: Api, pairs: list[Node], seed: int) -> None:
    """No claim by others raises what an earmarked node has too little of, whatever it asks for."""
    chance, queue = random.Random(seed), api.queue()
    api.leave_all()
    size = {"cpu_milli": 8000, "memory_mib": 8000}
    machines = [api.node(capacity=size, gpus=gpus(2)) for _ in range(3)]
    running = []
    for node in machines:
        for _ in range(2):
            needs = {"cpu_milli": 2000, "memory_mib": 3000, "gpu_milli": 600}
            running.append(api.running(queue, node, placement={"resources": needs}))
    whole = {"cpu_milli": 7000, "memory_mib": 4000, "gpu": 2}
    gang_id = waiting(api, queue, 2, {"placement": {"resources": whole}})
    before = deficits(api)
    assert any(before.values())
    for _ in range(30):
        needs = {"cpu_milli": chance.randrange(0, 4000, 500)}
        needs |= {"memory_mib": chance.randrange(0, 4000, 500)}
        needs |= chance.choice([{}, {"gpu": 1}, {"gpu_milli": 400}])
        api.spawn(queue, placement={"resources": needs})
        if running and chance.random() < 0.3:
            api.complete(running.pop(chance.randrange(len(running))))
            before = deficits(api)
        for node in machines:
            running += api.claim(node, queue, qty=2)
            after = deficits(api)
            assert all(after[key] <= before[key] for key in after), (before, after)
    assert gang(api, gang_id)["state"] == "earmarked"
    api.complete(*running)
    assert became(api, gang_id) == "reserved"


@pytest.mark.parametrize("each", [1, 2])
def test_idle_devices_are_taken_first(api: Api, pairs: list[Node], each: int) -> None:
    """It waits for one of two leases; what the other one leaves is free for all."""
    queue, wide = api.queue(), api.node(gpus=gpus(1 + 2 * each), labels={"wide": True})
    wished = {"affinity_tags": {"wide": True}, **GPU}
    first, second = (api.running(queue, wide, **wished) for _ in range(2))
    gang_id = waiting(api, queue, 2, wished | {"placement": {"resources": {"gpu": each}}})
    kept = """select jsonb_array_elements(assignment -> 'gpus') ->> 'resource_id'
              from hwqueue.claim where team_id = %s"""
    held = [claim["assignment"]["gpus"][0]["resource_id"] for claim in (first, second)]
    [awaited] = {device for (device,) in api.conn.execute(kept, [gang_id])} & set(held)
    blocker, other = (first, second) if awaited == held[0] else (second, first)
    api.complete(other)
    again = api.spawn(queue, **wished)
    assert api.claimed(wide, queue) == [again]
    assert became(api, gang_id) == "earmarked"
    api.complete(blocker)
    reap(api)
    assert len(api.claimed(wide, queue, qty=5)) == 2


def test_it_is_not_fetched_before_all_have_room(api: Api, queue: str, pairs: list[Node]) -> None:
    claims = filled(api, queue, pairs)
    gang_id = earmarked(api, queue, pairs, hold="10 s")
    assert gang(api, gang_id)["next_try_at"] is None
    assert {member["earmarked"] for member in gang(api, gang_id)["members"]} == {True}
    assert [row["gang_id"] for row in api.rows("list_gangs", state="earmarked")] == [gang_id]
    api.complete(claims[0])
    reap(api)
    assert [api.claimed(node, queue) for node in pairs] == [[]] * 3
    api.complete(*claims[1:])
    assert [api.claimed(node, queue) for node in pairs] == [[]] * 3  # no tick has looked yet
    reap(api)
    found = gang(api, gang_id)
    assert found["state"] == "reserved"
    assert all(member["reserved_until"] for member in found["members"])
    assert len([claim for node in pairs for claim in api.claim(node, queue)]) == 2
    assert became(api, gang_id) == "running"


Happening = Callable[[Api, UUID, Row], object]  # with a node that it has room on, and the gang
GIVEN_UP: dict[str, tuple[Happening, str, str | None]] = {
    "cordoned": (lambda api, node, _: api.rows("cordon_node", node=node), "waiting", "node_changed"),
    "gone": (lambda api, node, _: api.rows("deregister_node", node=node), "waiting", None),
    "restarted": (lambda api, node, _: api.node(node, gpus=gpus(2), instance_id="second"), "waiting", None),
    "silent": (lambda api, *_: Clock(api.conn).advance(timedelta(hours=1)), "waiting", "node_changed"),
    "paused": (lambda api, _, it: api.rows("pause_queue", queue=it["queue"]), "waiting", "not_kept"),
    "switched off": (
        lambda api, _, it: api.rows("set_queue_policy", queue=it["queue"], policy={"earmarks": 0}),
        "waiting",
        "not_kept",
    ),
    "cancelled": (lambda api, _, it: api.rows("cancel_gang", gang=it["gang_id"]), "cancelled", None),
    "cancelled one": (
        lambda api, _, it: api.rows("cancel_lease", lease=it["members"][0]["lease_id"]),
        "cancelled",
        "rank 0 cancelled: cancelled",
    ),
}


@pytest.mark.parametrize("case", GIVEN_UP)
@pytest.mark.thorough
def test_it_is_given_up(api: Api, pairs: list[Node], case: str) -> None:
    """No node keeps room for it, and no attempt is used up."""
    happens, state, reason = GIVEN_UP[case]
    queue, other = api.queue(), api.queue()
    filled(api, other, pairs)
    gang_id = earmarked(api, queue, pairs)
    it = gang(api, gang_id)
    happens(api, UUID(it["members"][0]["node_id"]), it)
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == (state, reason)
    if state == "waiting":
        assert {api.lease(lease)["attempt"] for lease in leases(api, gang_id)} == {0}
    assert api.conn.execute("select from hwqueue.claim where is_earmark").rowcount == 0


def test_a_deadline_that_passes(api: Api, queue: str, pairs: list[Node], clock: Clock) -> None:
    filled(api, queue, pairs)
    until = (clock.now() + timedelta(seconds=5)).isoformat()
    gang_id = earmarked(api, queue, pairs, deadline=until)
    clock.advance(timedelta(seconds=6))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == ("failed", "deadline_exceeded")


def test_one_gang_of_a_set_of_nodes_at_a_time(api: Api, queue: str, pairs: list[Node]) -> None:
    """The next one in order follows when the first one has its room; others go elsewhere."""
    claims = filled(api, queue, pairs)
    first = earmarked(api, queue, pairs)
    second, late = (spawn(api, queue, 2, PAIR) for _ in range(2))
    reap(api)
    assert {gang(api, g)["reason"] for g in (second, late)} == {"behind_earmark"}
    apart = [api.node(gpus=gpus(2), labels={"apart": True}) for _ in range(2)]
    wished = {"affinity_tags": {"apart": True}, **PAIR}
    filled(api, api.queue(), apart)
    elsewhere = spawn(api, queue, 2, wished)
    small = spawn(api, queue, 2, {"affinity_tags": {"apart": True}, **GPU})
    assert became(api, small) == "reserved"
    assert gang(api, elsewhere)["reason"] == "behind_earmark"  # the first one could use these, too
    api.complete(*claims)
    assert became(api, first) == "reserved"
    assert [gang(api, g)["state"] for g in (second, late)] == ["earmarked", "waiting"]


def test_a_later_gang_does_not_come_first(api: Api, pairs: list[Node], clock: Clock) -> None:
    """Although the first one has failed, and is to be tried again in some seconds."""
    queue = api.queue(claim_timeout=3600)
    filled(api, queue, pairs)
    for node in pairs[:2]:
        api.rows("cordon_node", node=node.node_id)
    first = spawn(api, queue, 2, PAIR)
    reap(api)
    for _ in range(2):
        clock.advance(timedelta(seconds=10))
        reap(api)
    for node in pairs[:2]:
        api.rows("uncordon_node", node=node.node_id)
    second = spawn(api, queue, 2, PAIR)
    assert became(api, first) == "earmarked"
    found = gang(api, second)
    assert (found["state"], found["reason"]) == ("waiting", "behind_earmark")


def test_a_gang_that_is_to_start_later_is_not_tried_before(api: Api, queue: str, pairs: list[Node]) -> None:
    """It comes first in order, and a later one is earmarked meanwhile."""
    flow = Flow(api, [gang_step("train", 2, **PAIR)], options={"delay": "1 hour"})
    filled(api, queue, pairs)
    earmarked(api, queue, pairs)
    reap(api)
    assert gang(api, flow.steps()["train"]["gang_id"])["state"] == "waiting"


def test_a_gang_that_starts_again_is_earmarked(api: Api, queue: str, pairs: list[Node], clock: Clock) -> None:
    gang_id = spawn(api, queue, 2, PAIR)
    claims = start(api, pairs, queue)
    reap(api)
    for claim in claims:
        api.rows("release_lease", **token(claim))
    for node in pairs:
        api.spawn(queue, **GPU)
        api.claim(node, queue)
    reap(api)
    clock.advance(timedelta(seconds=3))
    assert became(api, gang_id) == "earmarked"


def test_a_gang_that_fits_no_idle_node(api: Api, queue: str, pairs: list[Node]) -> None:
    """Nothing is kept for it, neither before nor while another one is earmarked."""
    filled(api, queue, pairs)
    too_large = spawn(api, queue, 4, PAIR)
    reap(api)
    assert gang(api, too_large)["reason"] == "insufficient_capacity"
    earmarked(api, queue, pairs)
    again = spawn(api, queue, 4, PAIR)
    reap(api)
    assert gang(api, again)["reason"] == "insufficient_capacity"


def test_places_of_workers_are_kept_as_well(api: Api, queue: str, pairs: list[Node]) -> None:
    """Nodes that count nothing: a worker that takes one lease at a time."""
    api.leave_all()
    machines = [api.node(concurrency=1) for _ in range(2)]
    claims = [api.running(queue, node) for node in machines]
    gang_id = waiting(api, queue, 2)
    api.spawn(queue)
    api.complete(claims[0])
    assert api.claimed(machines[0], queue) == []
    api.complete(claims[1])
    rows = api.rows("settle_and_claim", **machines[1].who, settle=Jsonb([]), queues=[queue])
    assert rows == []
    reap(api)
    taken = [lease for node in machines for lease in api.claimed(node, queue)]
    assert sorted(taken) == sorted(leases(api, gang_id))


def test_terms_are_asked_again_when_there_is_room(api: Api, pairs: list[Node], clock: Clock) -> None:
    """What its members have to run beside has gone meanwhile."""
    queue, other = api.queue(), api.queue()
    home = [api.node(rack=7, gpus=gpus(2)) for _ in range(2)]
    base = api.running(other, api.node(rack=7), labels={"app": "base"})
    beside = {"leases": {"labels": {"app": "base"}}, "domain": "rack"}
    member = {"placement": {"resources": {"gpu": 2}, "require": [beside]}}
    claims = filled(api, queue, home)
    gang_id = spawn(api, queue, 2, member)
    for _ in looks():
        clock.advance(timedelta(seconds=1))
        reap(api)
        if gang(api, gang_id)["state"] == "earmarked":
            break
    api.complete(base, *claims)
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["losses"]) == ("waiting", 1)
    assert found["reason"] not in (None, "insufficient_capacity", "busy")


def test_what_is_said_of_it(api: Api, queue: str, pairs: list[Node]) -> None:
    filled(api, queue, pairs)
    waits = api.spawn(queue, **PAIR)
    gang_id = earmarked(api, queue, pairs)
    member = api.row("explain_lease", lease=leases(api, gang_id)[0])
    assert (member["code"], member["headline"]) == (
        "gang_earmarked",
        f"waits for gang {gang_id} of 2: room is kept for all of them; of 2 nodes 0 have it free by now",
    )
    plain = api.row("explain_lease", lease=waits)
    assert "; room is kept for a gang on 2 of them" in plain["headline"]
    assert "in use by running leases or kept for a gang" in str(plain["nearest"])


def test_a_claim_of_another_node_asks_nothing(api: Api, queue: str, pairs: list[Node]) -> None:
    """Without a reservation on the node no function about them is called."""
    api.spawn(queue, **GPU)
    with counting(api.conn) as calls:
        assert len(api.claim(pairs[0], queue)) == 1
    assert "claim_general" in calls
    assert not calls.keys() & {"fetch_reserved", "overbooked_nodes"}


@pytest.mark.parametrize(
    "broken",
    [
        "update hwqueue.claim set is_earmark = null where lease_id = %s",
        "update hwqueue.gang set state = 'reserved' where gang_id ="
        " (select team_id from hwqueue.claim where lease_id = %s)",
        "update hwqueue.claim set team_id = gen_random_uuid() where lease_id = %s",
    ],
)
def test_what_verify_invariants_finds(api: Api, pairs: list[Node], broken: LiteralString) -> None:
    queue, wide = api.queue(), api.node(gpus=gpus(4))
    filled(api, queue, [wide])
    gang_id = waiting(api, queue, 4, GPU, together="node")
    assert "gang_earmark" in {rule for rule, _ in api.breaks(broken, leases(api, gang_id)[0])}


def bounded(api: Api, queue: str, machines: list[Node], *seconds: int) -> list[Row]:
    """Leases on them that run as long at most."""
    return [
        api.running(queue, node, max_run=most, **GPU) for node, most in zip(machines, seconds, strict=True)
    ]


def test_when_it_starts_at_the_latest(api: Api, queue: str, pairs: list[Node], clock: Clock) -> None:
    """When the leases in the way end, which all of them say; until then nothing short is let in."""
    bounded(api, queue, pairs, 300, 600, 600)
    gang_id = earmarked(api, queue, pairs)
    reap(api)
    assert gang(api, gang_id)["starts_by"] == clock.now() + timedelta(seconds=600)
    kept = [node for node in pairs if node.name in nodes(api, gang_id)]
    api.spawn(queue, max_run=10, **GPU)
    assert [api.claimed(node, queue) for node in kept] == [[], []]


def test_nobody_knows_when_what_may_run_on_ends(api: Api, queue: str, pairs: list[Node]) -> None:
    bounded(api, queue, pairs[:2], 300, 300)
    api.running(queue, pairs[2], **GPU)
    assert gang(api, waiting(api, queue, 3, PAIR))["starts_by"] is None
