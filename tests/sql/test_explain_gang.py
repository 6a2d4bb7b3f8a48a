"""explain_gang: what is in the way of a gang, and the ways out; the rooms that it reads."""

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, Gang, gpus, later, reap, spawn, start
from tests.sql.isolation_support import CPU, asking, cores, devices
from tests.sql.test_roles import FILM, GAMES, only

_OTHER_ZONE = {"label": "zone", "op": "in", "values": ["nowhere"]}


def explained(api: Api, gang_id: UUID) -> Row:
    return api.row("explain_gang", gang=gang_id)


def forecast(api: Api, queue: str, count: int, member: Row | None = None, **options: Any) -> Row:
    """What would become of a gang of equal members; nothing is written."""
    members = [{"task": "train", "count": count, "options": member or {}}]
    with api.unchanged():
        return api.row("what_if_gang", queue=queue, members=Jsonb(members), options=options)


def ways(found: Row) -> dict[str, Row]:
    return {way["way"]: way for way in found["ways"]}


def test_what_is_in_the_way_and_the_ways_out(api: Api, racks: list[Node], clock: Clock) -> None:
    """Rack 1 has two GPUs, rack 2 three, of which one is in use."""
    clock.freeze()
    queue = api.queue(earmarks=0)
    held = api.running(queue, racks[2], **GPU)
    clock.advance(timedelta(seconds=5))
    gang_id = spawn(api, queue, 3, GPU, together="rack")
    reap(api)
    with api.conn.transaction():
        api.conn.execute("set transaction read only")  # no row of its own is needed
        found = explained(api, gang_id)
    assert found["headline"] == ("no rack has room for all 3; rack 2 has room for 2; the next try is in 1 s")
    assert (found["code"], found["permanent"]) == ("insufficient_capacity", False)
    assert (found["size"], found["waiting"], found["place_count"]) == (3, 3, 2)
    [kind] = found["kinds"]
    assert (kind["task"], kind["members"], kind["nodes"], kind["room"]) == ("train", 3, 5, 3)
    places = {place["place"]: place for place in found["places"]}
    assert [(name, each["room"], each["emptied"]) for name, each in places.items()] == [
        ("rack 2", 2, 3),
        ("rack 1", 2, 2),
    ]
    assert places["rack 2"]["in_the_way"] == [racks[2].name]
    [claim] = places["rack 2"]["claims"]
    assert (claim["lease_id"], claim["node"]) == (str(held["lease_id"]), racks[2].name)
    assert (claim["holds"], places["rack 1"]["claims"]) == ("1 GPU", [])
    assert {name: way["words"] for name, way in ways(found).items()} == {
        "anywhere": "anywhere all have room now",
        "smaller": "2 of 3 have room now: rack 2",
        "empty": f"rack 2 has room for all once {racks[2].name} is empty",
        "stop": f"rack 2 has room for all once lease {held['lease_id']} is stopped",
        "wait": "when rack 2 has room for all is not known: "
        f"lease {held['lease_id']} on {racks[2].name} has no max_run",
    }
    for way, count in (("anywhere", 3), ("smaller", 2)):
        asked = {option: ways(found)[way][option] for option in ("together", "same")}
        assert forecast(api, queue, count, GPU, **asked)["code"] == "ready"


def test_what_an_earmarked_one_waits_for(api: Api, queue: str, racks: list[Node]) -> None:
    held = api.running(queue, racks[2], **GPU)
    gang_id = spawn(api, queue, 3, GPU, together="rack")
    reap(api)
    found = explained(api, gang_id)
    assert (found["code"], found["permanent"], found["waiting"]) == ("earmarked", False, 0)
    assert found["headline"] == "room is kept for all of them; of 3 nodes 2 have it free by now"
    [place] = found["places"]
    assert (place["place"], place["nodes"], place["room"], place["emptied"]) == ("rack 2", 3, 2, 3)
    assert place["in_the_way"] == [racks[2].name]
    assert [claim["lease_id"] for claim in place["claims"]] == [str(held["lease_id"])]


def test_one_level_wider_and_without_same(api: Api, queue: str, racks: list[Node]) -> None:
    for number in range(2):
        api.node(rack=7, gpus=gpus(1), labels={"model": f"m{number}"})
    asked = {"placement": {**GPU["placement"], "require": [{"rack": 7}]}}
    found = ways(forecast(api, queue, 2, asked, together="node"))
    assert (found["wider"]["together"], found["wider"]["place"]) == (["node", "rack"], "rack 7")
    assert found["wider"]["words"] == "in one rack all have room now"
    assert "anywhere" not in found
    alike = ways(forecast(api, queue, 2, asked, together="rack", same=["model"]))
    assert list(alike) == ["without_same"]
    assert (alike["without_same"]["place"], alike["without_same"]["same"]) == ("rack 7", [])
    both = ways(forecast(api, queue, 2, asked, together="node", same=["model"]))
    assert list(both) == ["without_both"]


def test_no_place_that_is_large_enough(api: Api, queue: str, racks: list[Node]) -> None:
    found = forecast(api, queue, 4, GPU, together="rack")
    assert found["permanent"]
    assert found["headline"] == (
        "no rack has room for all 4; rack 2 has room for 3; even empty it would be 3 at most"
    )
    assert ways(found).keys() == {"anywhere", "smaller"}
    assert forecast(api, queue, 5, GPU)["headline"] == "the fleet has room for all 5 now"
    assert forecast(api, queue, 6, GPU)["headline"].startswith("the fleet has room for 5 of 6; ")


def test_members_that_no_node_may_run(api: Api, queue: str, racks: list[Node]) -> None:
    members = [
        {"task": "lead", "options": {"placement": {"require": [_OTHER_ZONE]}}},
        {"task": "train", "count": 2, "options": GPU},
    ]
    found = api.row("what_if_gang", queue=queue, members=Jsonb(members), options={})
    assert (found["code"], found["ways"]) == ("label_missing", [])
    assert found["headline"].startswith("lead, 1 of 3: no live node can run it: ")
    kinds = {kind["task"]: kind for kind in found["kinds"]}
    assert (kinds["lead"]["nodes"], kinds["train"]["blocker"]) == (0, None)
    nowhere = forecast(api, queue, 2, GPU, together="label:zone", same=["model"])
    assert (nowhere["code"], nowhere["permanent"]) == ("no_place", True)
    has = 'no node that may run its members has label "zone" and label "model"'
    assert nowhere["headline"] == has
    nowhere = forecast(api, queue, 2, GPU, together="rack", same=["model"])
    assert nowhere["headline"] == 'no node that may run its members has a rack and label "model"'


def test_what_has_room_is_reserved(api: Api, queue: str, racks: list[Node]) -> None:
    """By the same functions: what is said to fit starts, in the place that is named."""
    found = forecast(api, queue, 2, GPU, together="rack")
    assert (found["headline"], found["places"][0]["place"]) == ("rack 1 has room for all 2 now", "rack 1")
    gang_id = spawn(api, queue, 2, GPU, together="rack")
    headline = explained(api, gang_id)["headline"]
    assert headline == "rack 1 has room for all 2; the next try is at the next reap"
    api.rows("pause_queue", queue=queue)
    assert explained(api, gang_id)["code"] == "queue_paused"
    api.rows("resume_queue", queue=queue)
    reap(api)
    reserved = explained(api, gang_id)
    assert (reserved["code"], reserved["waiting"], reserved["places"]) == ("reserved", 0, [])
    assert reserved["headline"].startswith("2 members are reserved in rack 1 and not fetched: the")
    api.claim(racks[0], queue)
    assert explained(api, gang_id)["headline"].startswith("1 member runs in rack 1, 1 is reserved")
    start(api, racks, queue)
    reap(api)
    assert explained(api, gang_id)["headline"] == "2 members run in rack 1"


def test_a_tenant_is_not_told_what_others_run(api: Api, queue: str, racks: list[Node]) -> None:
    own = api.running(queue, racks[0], tenant="film", **GPU)
    api.running(queue, racks[1], tenant="games", **GPU)
    api.conn.execute("set hwqueue.tenant = 'film'")
    member = {"placement": {**GPU["placement"], "require": [{"rack": 1}]}, "tenant": "film"}
    [place] = forecast(api, queue, 2, member)["places"]
    assert [claim["lease_id"] for claim in place["claims"]] == [str(own["lease_id"])]
    assert place["others"] == 1
    other = {"placement": {"require": [_OTHER_ZONE]}, "tenant": "film"}
    assert forecast(api, queue, 2, other)["headline"] == "train, 2 of 2: no live node may run it"
    api.conn.execute("reset hwqueue.tenant")


@pytest.mark.thorough
def test_a_forecast_refuses_what_a_spawn_refuses(api: Api, queue: str) -> None:
    odd = {"placement": {"require": 7}}
    refused: list[tuple[list[Row], Row, str]] = [
        ([{"task": "a"}], {}, "QHA01"),
        ([{"task": "a", "count": 2}], {"together": "zone"}, "QHA01"),
        ([{"task": "a", "count": 2, "options": odd}], {}, "QHC03"),
        ([{"task": "a"}, {"task": "b", "options": {"tenant": "x"}}], {}, "QHA01"),
    ]
    for members, options, code in refused:
        asked = {"queue": queue, "members": Jsonb(members), "options": options}
        refusal = api.refused(code, "what_if_gang", **asked)
        assert refusal.field == api.refused(code, "spawn_gang", **asked).field


def test_a_page_goes_on_behind_the_last_gang(api: Api, queue: str, racks: list[Node]) -> None:
    """Gangs of one transaction have one time: none of them falls between two pages."""
    with api.conn.transaction():
        spawned = {spawn(api, queue, 2, GPU) for _ in range(3)}
    found: list[UUID] = []
    last: Row = {}
    while rows := api.rows("list_gangs", limit=1, **last):
        if rows[0]["gang_id"] in spawned:
            found.append(rows[0]["gang_id"])
        last = {"before": rows[0]["created_at"], "before_gang": rows[0]["gang_id"]}
    assert set(found) == spawned
    assert len(found) == 3
    for gang_id in spawned:
        api.rows("cancel_gang", gang=gang_id)


TWO_GPUS: Row = {"placement": {"resources": {"gpu": 2}}}


def in_rack(rack: int) -> Row:
    return {"placement": GPU["placement"] | {"require": [{"rack": rack}]}}


def named(way: Row) -> set[str]:
    return {claim["lease_id"] for claim in way["claims"]}


def test_few_stop_the_least_urgent_and_youngest_first(api: Api, racks: list[Node], clock: Clock) -> None:
    """And no lease that leaves nothing which the gang needs; then the gang starts."""
    clock.freeze()
    queue = api.queue(earmarks=0)
    pair, idle, urgent, older, younger = (api.node(rack=9, gpus=gpus(2)) for _ in range(5))
    for _ in range(2):
        api.running(queue, pair, **GPU)
    api.running(queue, urgent, priority=5, **TWO_GPUS)
    held = []
    for node in (older, younger):
        clock.advance(timedelta(seconds=1))
        held.append(api.running(queue, node, **TWO_GPUS))
    clock.advance(timedelta(seconds=1))
    api.running(queue, younger)  # needs no device
    job = Gang(api, racks, 2, TWO_GPUS, queue=queue, together="rack")
    reap(api)
    assert job.state == "waiting"
    stop = job.ways["stop"]
    assert named(stop) == {str(held[1]["lease_id"])}
    assert (stop["place"], stop["members"]) == ("rack 9", 2)
    assert stop["words"] == f"rack 9 has room for all once lease {held[1]['lease_id']} is stopped"
    api.rows("release_lease", **token(held[1]))
    later(api, clock, [idle, younger])
    assert job.state == "reserved"


def test_kinds_that_share_a_node_do_not_share_its_room(api: Api, racks: list[Node]) -> None:
    """Either kind alone would have room when one of the two leases has stopped."""
    queue, node = api.queue(earmarks=0), api.node(rack=9, gpus=gpus(2))

    def ways(rack: int) -> dict[str, Row]:
        members = [{"task": task, "options": in_rack(rack)} for task in ("lead", "train")]
        asked = {"queue": queue, "members": Jsonb(members), "options": {"together": "node"}}
        return {way["way"]: way for way in api.row("what_if_gang", **asked)["ways"]}

    held = {str(api.running(queue, node, **GPU)["lease_id"]) for _ in range(2)}
    stop = ways(9)["stop"]
    assert named(stop) == held
    assert stop["words"].endswith(" are stopped")
    api.running(queue, api.node(rack=8, gpus=gpus(1)), max_run="1 hour", **GPU)
    found = ways(8)
    assert "stop" not in found
    # one kind of them could be too many, too, for the nodes and claims that are looked at
    assert found["wait"]["words"].endswith(
        "kinds of its members share nodes there, or more is in the way than is looked at"
    )


def test_when_enough_of_what_runs_is_over(api: Api, racks: list[Node], clock: Clock) -> None:
    """The first ends that are enough count, whatever goes on beside."""
    clock.freeze()
    queue = api.queue(earmarks=0)
    for node, hours in zip(racks[2:], (3, 2, 5), strict=True):
        api.running(queue, node, max_run=f"{hours} hours", **GPU)
    for size, hours in ((2, 3), (3, 5)):
        job = Gang(api, racks, size, in_rack(2), queue=queue)
        reap(api)
        wait, until = job.ways["wait"], clock.now() + timedelta(hours=hours)
        assert datetime.fromisoformat(wait["until"]) == until
        assert wait["words"] == (
            f"the fleet has room for all by {until:%Y-%m-%d %H:%M:%S} UTC, unless other leases take it"
        )


def test_what_has_to_end_for_a_gang_that_is_earmarked(api: Api, queue: str, racks: list[Node]) -> None:
    """Not what runs on the same node beside the room that is kept."""
    big, idle = (api.node(rack=9, gpus=gpus(2), concurrency=4) for _ in range(2))
    held = [api.running(queue, big, max_run="1 hour", **GPU) for _ in range(2)]
    api.running(queue, big, max_run="2 hours")
    job = Gang(api, racks, 2, TWO_GPUS, queue=queue, together="rack")
    reap(api)
    assert job.now("state", "place") == ("earmarked", "rack 9")
    told = job.ways
    assert named(told["stop"]) == {str(claim["lease_id"]) for claim in held}
    assert told["wait"]["words"].endswith(" UTC")
    endless = api.running(queue, racks[2], **GPU)
    other = Gang(api, racks, 3, in_rack(2), queue=queue, together="rack")
    reap(api)
    assert other.place == "rack 2"
    assert other.ways["wait"]["until"] is None
    assert named(other.ways["stop"]) == {str(endless["lease_id"])}
    api.complete(*held)
    assert job.ways == {}  # the next reap reserves it on big and on idle
    reap(api)
    assert (job.state, job.on) == ("reserved", {big.name, idle.name})


def test_a_tenant_is_told_to_stop_its_own_alone(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    own = api.running(queue, racks[2], tenant=FILM, priority=9, **GPU)
    others = api.running(queue, racks[3], tenant=GAMES, **GPU)
    job, pair = (
        Gang(api, racks, size, member, queue=queue, together="rack", tenant=FILM)
        for size, member in ((3, GPU), (2, in_rack(2)))
    )
    reap(api)
    with only(api, FILM):
        assert "stop" not in job.ways
        assert named(pair.ways["stop"]) == {str(own["lease_id"])}
        reason = job.ways["wait"]["words"]
    known = f"lease {own['lease_id']} on {racks[2].name} has no max_run, nor has another one"
    assert reason.endswith(known)
    assert named(pair.ways["stop"]) == {str(others["lease_id"])}
    with only(api, FILM):
        api.complete(own)
        reason = job.ways["wait"]["words"]
    assert reason.endswith(": a lease of another tenant has no max_run")


PART = "partition_exclusive"
NODES = 48
TAINT: Row = {"key": "gone", "value": "yes", "effect": "no_schedule"}
BY_NODE = Path(__file__).with_name("rooms_by_node.sql")

# without those that name a node or a device: these are made for the nodes that there are
PLACEMENTS: list[Row] = [
    asking(),
    asking(cpu_milli=1500),
    asking(cpu_milli=700, memory_mib=300),
    asking(gpu=1),
    asking(gpu=2, cpu_milli=100),
    asking(gpu_milli=300),
    asking(gpu_milli=700, memory_mib=200),
    asking("whole_core", cpu_milli=1500),
    asking("strict_isolated", cpu_milli=2000),
    asking("best_effort", cpu_milli=500),
    asking(None, "shared", gpu_milli=100),
    asking(None, "device_exclusive", gpu=1),
    asking(None, PART, gpu=1),
    asking(None, PART, gpu=2),
    asking(license=2, cpu_milli=1),
    asking(license=1, seat=1, gpu=1),
    {"require": [{"label": "zone", "op": "in", "values": ["a"]}], "resources": {"gpu": 1}},
    {"require": [{"trust": "pci"}], "resources": {"cpu_milli": 1000}},
    {"tolerate": [{"key": "gone", "op": "exists"}], "resources": {"gpu": 1}},
]


def machine(draw: random.Random, number: int) -> Row:
    """What a node says of itself."""
    gpus = draw.choice(
        [
            [],
            devices(None),
            devices(*[None] * 4),
            devices(None, 0, 0, None),
            devices(None, 0, 0, None, 3, 3),
            [one for one in devices(None, 0, 0, None, 3) if "partitionable" not in one],
        ]
    )
    capacity: Row = {}
    if draw.random() < 0.7:
        capacity |= {"cpu_milli": draw.choice([2000, 4000]), "memory_mib": 1000}
    if draw.random() < 0.5:
        capacity |= {"license": draw.choice([1, 5]), "seat": 1}
    spec: Row = {
        "labels": {"zone": draw.choice("ab")},
        "gpus": gpus,
        "capacity": capacity,
        "gpu_exclusivity": ["session_exclusive", "device_exclusive", PART],
        "gpu_share_mode": draw.choice(["fractional", "fractional", "exclusive"]),
    }
    if draw.random() < 0.4:
        spec["cpu_isolation"] = CPU
        spec["cores"] = cores(*draw.choice([(2, 2), (4,), (1, 3)]))
        spec["default_cpu_isolation"] = draw.choice(["best_effort", "whole_core"])
    if draw.random() < 0.3:
        spec["slots"] = draw.choice([1, 3])
    if draw.random() < 0.2:
        spec["taints"] = [TAINT]
    if draw.random() < 0.6:
        spec["concurrency"] = draw.choice([1, 3])
    if number % 9 == 0:
        spec["tasks"] = ["another"]
    return spec


def use(conn: psycopg.Connection[Any], draw: random.Random, node: Node) -> None:
    """Put a load on the node, which may be more than it has: an earmark does that."""
    conn.execute(
        """
        update hwqueue.node_load u
        set claim_count = %(claims)s, cpu_used = %(cpu)s, memory_used = %(memory)s,
          gpu_used = array(
            select (%(each)s::int[])[1 + d %% 7] from generate_subscripts(u.gpu_used, 1) d),
          core_used = array(
            select (%(each)s::int[])[1 + d %% 5] from generate_subscripts(u.core_used, 1) d),
          custom_used = %(custom)s
        where u.node_id = %(node)s
        """,
        {
            "claims": draw.choice([0, 1, 2, 4]),
            "cpu": draw.choice([0, 0, 500, 2500, 4000, 9000]),
            "memory": draw.choice([0, 0, 300, 900, 2000]),
            "each": [draw.choice([0, 0, 300, 1000, 1000, 1300]) for _ in range(7)],
            "custom": Jsonb(draw.choice([{}, {"license": 1}, {"license": 4, "seat": 1}])),
            "node": node.node_id,
        },
    )


def fleet(api: Api, draw: random.Random) -> list[Node]:
    """Nodes of all kinds, some alike, some gone in each way."""
    conn = api.conn
    queue = api.queue()
    specs = [machine(draw, number) for number in range(NODES // 2)]
    made = [api.node(**spec) for spec in specs]
    for spec in specs:  # one more of each size
        ids = {one["resource_id"]: str(uuid4()) for one in spec["gpus"]}
        gpus = [
            {k: ids.get(v, v) if isinstance(v, str) else v for k, v in one.items()} for one in spec["gpus"]
        ]
        made.append(api.node(**spec | {"gpus": gpus}))
    for node in made:
        if draw.random() < 0.2:
            api.rows("attest_node", node=node.node_id, domain="pci")
        if draw.random() < 0.2:
            api.spawn(queue)
            api.claim(node, queue)
    for node in draw.sample(made, NODES // 2):
        use(conn, draw, node)
    for one, other in zip(made[::2], made[NODES // 2 :: 2], strict=False):
        conn.execute(LIKE, [other.node_id, one.node_id])
    conn.execute("delete from hwqueue.node_load u where u.node_id = %s", [made[3].node_id])
    api.rows("cordon_node", node=made[5].node_id)
    api.rows("deregister_node", node=made[6].node_id)
    conn.execute(
        "update hwqueue.node_state s set seen_at = s.seen_at - interval '1 day' where s.node_id = %s",
        [made[7].node_id],
    )
    return made


def classes(api: Api, nodes: list[Node]) -> list[int]:
    """A class for each placement, and some that name a node or a device."""
    queue = api.queue()
    gpus = devices(None, None)
    idle = api.node(gpus=gpus)
    [(used,)] = api.conn.execute(
        "select n.gpu_ids[1] from hwqueue.node n join hwqueue.node_load u using (node_id)"
        " where 0 < any (u.gpu_used) and n.gpu_parents = '{}' and n.node_id = any (%s)"
        " and n.deregistered_at is null limit 1",
        [[node.node_id for node in nodes]],
    ).fetchall()
    named: list[Row] = [
        {"require": [{"node": str(idle.node_id)}], "resources": {"cpu_milli": 10}},
        {"require": [{"resource": gpus[0]["resource_id"]}], "resources": {"gpu": 1}},
        {"require": [{"resource": gpus[1]["resource_id"]}], "resources": {"gpu_milli": 200}},
        {"require": [{"resource": str(used)}], "resources": {"gpu": 1}},
    ]
    leases = [api.spawn(queue, "train", placement=one) for one in [*PLACEMENTS, *named]]
    rows = api.conn.execute(
        "select distinct class_id from hwqueue.lease where lease_id = any (%s) order by 1", [leases]
    ).fetchall()
    assert len(rows) == len(leases)
    return [class_id for (class_id,) in rows]


# the load of another node of its size, but for the cores in use
LIKE = """
  update hwqueue.node_load u
  set claim_count = o.claim_count, cpu_used = o.cpu_used, memory_used = o.memory_used,
    gpu_used = o.gpu_used, custom_used = o.custom_used
  from hwqueue.node_load o
  where u.node_id = %s and o.node_id = %s
"""


def ours(api: Api, ids: list[int], which: str) -> dict[tuple[int, UUID], tuple[int, int | None]]:
    """By class and node, how many have room now, and would have if nothing ran there."""
    rows = api.conn.execute(
        """
        select a.ids[r.class_no], r.node_id, r.copies, r.emptied
        from (
          select array_agg(k order by k.class_id) as classes,
            array_agg(k.class_id order by k.class_id) as ids,
            array_agg(3 + k.class_id::int %% 3 order by k.class_id) as members
          from hwqueue.placement_class k where k.class_id = any (%s)) a
        cross join lateral unnest(
          hwqueue.gang_rooms(a.classes, a.members, %s, hwqueue.clock())) r
        """,
        [ids, which],
    ).fetchall()
    found = {(class_id, node): (copies, emptied) for class_id, node, copies, emptied in rows}
    assert len(found) == len(rows)
    return found


def by_node(api: Api, ids: list[int], function: LiteralString) -> dict[tuple[int, UUID], int]:
    """The same, of one of the functions that ask node by node."""
    rows = api.conn.execute(
        f"""
        select k.class_id, r.node_id, r.copies
        from hwqueue.placement_class k
        cross join lateral pg_temp.{function}(k, 3 + k.class_id::int %% 3, hwqueue.clock()) r
        where k.class_id = any (%s)
        """,
        [ids],
    ).fetchall()
    return {(class_id, node): copies for class_id, node, copies in rows}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.thorough
def test_all_at_once_is_as_node_by_node(api: Api, seed: int) -> None:
    api.conn.execute(BY_NODE.read_bytes())
    api.leave_all()
    draw = random.Random(seed)
    ids = classes(api, fleet(api, draw))
    # alone, a class leaves out the nodes that are too full for it
    for some in [ids, draw.sample(ids, 3), *([one] for one in draw.sample(ids, 6))]:
        now, emptied = by_node(api, some, "class_rooms"), by_node(api, some, "emptied_rooms")
        assert ours(api, some, "now") == {key: (copies, None) for key, copies in now.items()}
        both = {key: (now.get(key, 0), copies) for key, copies in emptied.items()}
        assert ours(api, some, "both") == both
        assert {key: found[1] for key, found in ours(api, some, "emptied").items()} == emptied
    everywhere = by_node(api, ids, "class_rooms")
    assert set(everywhere.values()) == {1, 2, 3, 4, 5}, "too few different answers"
    assert len(set(ids) - {key[0] for key in everywhere}) <= 1, "classes that have room nowhere"
