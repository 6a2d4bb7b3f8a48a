"""Gangs: spawned, assembled, listed: members start together or not at all, here or there."""

from datetime import timedelta
from typing import Any, LiteralString
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb
from psycopg.types.numeric import Int8

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow
from tests.flows import gang as gang_step
from tests.patience import looks
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, Gang, gang, gpus, later, reap
from tests.sql.test_roles import FILM, GAMES, only, refused


def test_members_start_together(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 2)
    assert api.claimed(racks[0], job.queue) == []  # nobody has reserved room yet
    reap(api)
    assert job.state == "reserved"
    claims = job.start()
    assert sorted(claim["lease_id"] for claim in claims) == sorted(job.leases)
    assert all(claim["assignment"]["gpus"] for claim in claims)
    assert [claim["headers"]["gang_size"] for claim in claims] == [2, 2]
    assert {claim["headers"]["gang_rank"] for claim in claims} == {0, 1}
    reap(api)
    assert job.state == "running"
    job.complete(*claims)
    assert job.state == "completed"


def test_no_room_for_all_is_room_for_none(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    held = [api.running(queue, node, **GPU) for node in racks[:3]]
    job = Gang(api, racks, 3, queue=queue)
    reap(api)
    assert job.now("state", "reason") == ("waiting", "insufficient_capacity")
    other = api.spawn(queue, **GPU)
    assert api.claimed(racks[3], queue) == [other]  # a gang that waits holds nothing
    for claim in (*held[:2], api.lease(other)):
        api.complete(claim)


def test_together_in_the_tightest_rack(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    for size, together, place in (
        (4, ["rack", "node"], None),  # nor at the next level
        (2, "rack", "rack 1"),
        (3, ["rack"], "rack 2"),
        (2, "rack", None),
    ):
        job = Gang(api, racks, size, queue=queue, together=together)
        reap(api)
        assert job.now("state", "place") == ("reserved" if place else "waiting", place)


def test_nodes_alike(api: Api, racks: list[Node]) -> None:
    for model in ("A100", "H100", "H100"):
        api.node(labels={"model": model}, gpus=gpus(1))
    job = Gang(api, racks, 2, same=["model"])
    reap(api)
    [members] = job.now("members")
    assert {member["labels"]["model"] for member in members} == {"H100"}


def test_several_members_on_a_node(api: Api, racks: list[Node]) -> None:
    big = api.node(gpus=gpus(4), labels={"big": True})
    job = Gang(api, [big], 4, together="node")
    assert len(job.start()) == 4
    assert job.on == {big.name}


def test_members_of_several_kinds(api: Api, racks: list[Node]) -> None:
    queue, head = api.queue(), api.node(labels={"head": True})
    members = [
        {"task": "lead", "options": {"affinity_tags": {"head": True}}},
        {"task": "train", "count": 2, "options": GPU},
    ]
    [lead, *others] = api.rows("spawn_gang", queue=queue, members=Jsonb(members))
    reap(api)
    assert api.claimed(head, queue) == [lead["lease_id"]]
    taken = [lease for node in racks for lease in api.claimed(node, queue)]
    assert sorted(taken) == sorted(row["lease_id"] for row in others)


def test_what_is_reserved_nobody_else_gets(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 5)
    reap(api)
    api.spawn(job.queue, priority=9, **GPU)
    for node in racks:
        [claim] = api.claim(node, job.queue, qty=5)
        assert claim["headers"]["gang_size"] == 5


def test_the_barrier(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 2, together="rack")
    [first] = job.start(racks[:1])
    status = api.row("gang_status", **token(first))
    assert (status["ready"], status["retry_after"]) == (False, timedelta(seconds=0.2))
    [second] = api.claim(racks[1], job.queue)
    for claim in (first, second):
        status = api.row("gang_status", **token(claim))
        assert (status["ready"], status["gang_id"], status["size"]) == (True, job.id, 2)
        assert {m["node"] for m in status["members"]} == {racks[0].name, racks[1].name}


def test_a_changed_member_waits_for_its_gang_and_stays_in_its_queue(api: Api, racks: list[Node]) -> None:
    job, other = Gang(api, racks, 9), api.queue()
    lease = job.leases[0]
    assert api.value("update_lease", lease=lease, changes={"priority": 5}) == "scheduled"
    api.rows("update_lease", lease=lease, changes={"available_at": "2020-01-01T00:00:00Z"})
    assert api.claimed(racks[0], job.queue) == []
    refusal = api.refused("QHG03", "update_lease", lease=lease, changes={"queue": other})
    assert refusal.detail["gang_id"] == str(job.id)
    api.rows("update_leases", filter={"queue": job.queue}, changes={"queue": other})
    assert {api.lease(one)["queue"] for one in job.leases} == {job.queue}


def test_limits_about_other_leases_hold(api: Api, racks: list[Node], clock: Clock) -> None:
    """At most one in each rack: a gang of three finds no third rack."""
    web = {"labels": {"app": "web"}}
    rule = {"domain": "rack", "max_per_domain": 1, "select": web}
    member = {**web, "placement": {"resources": {"gpu": 1}, "spread": [rule]}}
    two, three = (Gang(api, racks, size, member) for size in (2, 3))
    for _ in looks():
        clock.advance(timedelta(seconds=1))
        reap(api)
        if two.state == "reserved" and three.now("tries") != (0,):
            break
    assert (two.state, three.state) == ("reserved", "waiting")
    assert {name in (racks[0].name, racks[1].name) for name in two.on} == {True, False}


def test_members_without_devices(api: Api, racks: list[Node]) -> None:
    """Nodes that count nothing: fetched while settling, and completed in one call."""
    plain = [api.node(labels={"plain": True}) for _ in range(2)]
    away = {"leases": {"labels": {"app": "x"}}, "domain": "node", "away": True}
    member = {"labels": {"app": "x"}, "affinity_tags": {"plain": True}, "placement": {"require": [away]}}
    job = Gang(api, plain, 2, member)
    for _ in looks():
        reap(api)
        if job.state == "reserved":
            break
    rows = [api.row("settle_and_claim", **node.who, settle=Jsonb([]), queues=[job.queue]) for node in plain]
    assert [row["kind"] for row in rows] == ["claimed", "claimed"]
    left = api.rows(
        "complete_leases",
        lease_ids=[row["lease_id"] for row in rows],
        tokens=[Int8(row["claim_token"]) for row in rows],
    )
    assert left == []
    reap(api)
    assert job.state == "completed"


def test_what_a_worker_does_not_serve_is_not_reserved_there(api: Api, racks: list[Node]) -> None:
    queue, member = api.queue(), {**GPU, "affinity_tags": {"big": True}}
    mute = api.node(gpus=gpus(2), tasks=["other"], labels={"big": True})
    slow = api.node(gpus=gpus(4), concurrency=2, labels={"big": True})
    three = Gang(api, racks, 3, member, queue=queue)
    reap(api)
    assert three.now("reason") == ("insufficient_capacity",)
    two = Gang(api, racks, 2, member, queue=queue)
    reap(api)
    assert two.on == {slow.name}
    assert api.claimed(mute, queue, tasks=["other"]) == []


def test_only_the_queues_and_tasks_that_are_asked_for(api: Api, racks: list[Node]) -> None:
    queue = Gang(api, racks, 2, together="rack").queue
    reap(api)
    assert api.claimed(racks[0], api.queue()) == []
    assert api.claimed(racks[0], queue, tasks=["other"]) == []
    api.rows("pause_queue", queue=queue)
    assert api.claimed(racks[0], queue) == []
    api.rows("resume_queue", queue=queue)
    assert len(api.claimed(racks[0], queue, tasks=["train"])) == 1


def test_gangs_of_other_tenants(api: Api, queue: str, racks: list[Node]) -> None:
    """They do not exist for a caller limited to one."""
    mine, others = (Gang(api, racks, 9, queue=queue, tenant=tenant) for tenant in (FILM, GAMES))
    with only(api, FILM):
        assert mine.now("tenant") == (FILM,)
        assert [r["gang_id"] for r in api.rows("list_gangs")] == [mine.id]
    for function in ("get_gang", "cancel_gang"):
        refused(api, "QHG01", function, gang=others.id)
    pair = {"queue": queue, "members": Jsonb(PAIR), "options": {"tenant": GAMES}}
    refused(api, "QHA03", "spawn_gang", **pair)


def test_the_list_and_what_verify_invariants_finds(api: Api, racks: list[Node]) -> None:
    waiting, reserved = Gang(api, racks, 9), Gang(api, racks, 2)
    reap(api)
    states = {row["gang_id"]: row["state"] for row in api.rows("list_gangs")}
    assert (states[waiting.id], states[reserved.id]) == ("waiting", "reserved")
    assert [r["gang_id"] for r in api.rows("list_gangs", state="waiting")] == [waiting.id]
    api.refused("QHA01", "list_gangs", state="sleeping")
    node = gang(api, reserved.id)["members"][0]["node_id"]
    breaks: list[tuple[str, LiteralString, Any]] = [
        ("gang_entry", "scheduled set held_by = 'place' where lease_id", waiting.leases[0]),
        ("gang_members", "gang set state = 'running' where gang_id", waiting.id),
        ("gang_reserved", "node_state set has_reserved = false where node_id", node),
    ]
    for rule, broken, about in breaks:
        with api.conn.transaction(force_rollback=True):
            api.conn.execute(f"update hwqueue.{broken} = %s", [about])
            assert rule in {row["rule"] for row in api.rows("verify_invariants")}


PAIR = [{"task": "a", "count": 2}]
TWO_TENANTS = [{"task": "a", "options": {"tenant": tenant}} for tenant in ("one", "two")]


@pytest.mark.parametrize(
    ("field", "members", "options"),
    [
        ("members", [{"task": "a"}], {}),
        ("members", [], {}),
        ("members[0].count", [{"task": "a", "count": 0}], {}),
        ("members", [{"task": "a", "count": 600}, {"task": "b", "count": 600}], {}),
        ("members[0].options.delay", [{"task": "a", "count": 2, "options": {"delay": 1}}], {}),
        ("options.tenant", TWO_TENANTS, {}),
        ("options.together", PAIR, {"together": "zone"}),
        ("options.together", PAIR, {"together": [None]}),
        ("options.together", PAIR, {"together": "fleet"}),
        ("options.together", PAIR, {"together": ["fleet"]}),
        ("options.together", PAIR, {"together": ["rack", "fleet", "node"]}),
        ("options.on_lost", PAIR, {"on_lost": "weep"}),
        ("options.hold", PAIR, {"hold": 0}),
        ("options.size", PAIR, {"size": 2}),
    ],
)
@pytest.mark.thorough
def test_bad_gangs(api: Api, queue: str, field: str, members: Any, options: Row) -> None:
    refusal = api.refused("QHA01", "spawn_gang", queue=queue, members=Jsonb(members), options=options)
    assert refusal.field == field


def test_why_a_member_waits(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 4, together=["rack", "label:zone"])

    def said() -> str:
        headline = str(api.row("explain_lease", lease=job.leases[0])["headline"])
        return headline.removeprefix(f"waits for gang {job.id} of 4: ")

    assert said() == "upkeep looks for room about once a second"
    reap(api)
    assert said() == "no rack and no label:zone has room for all of them"
    api.rows("cancel_gang", gang=job.id)
    assert said() == "it is being cancelled"


def test_members_that_few_nodes_suit_come_first(api: Api, racks: list[Node]) -> None:
    """The other one fits on both nodes, and must not take the only one for the first."""
    for head in (True, False):
        api.node(labels={"head": head, "pair": True}, capacity={"cpu_milli": 1000})
    pair = {"affinity_tags": {"pair": True}, "placement": {"resources": {"cpu_milli": 1000}}}
    lead = pair | {"affinity_tags": {"pair": True, "head": True}}
    members = [{"task": "any", "options": pair}, {"task": "lead", "options": lead}]
    [row, *_] = api.rows("spawn_gang", queue=api.queue(), members=Jsonb(members))
    reap(api)
    assert gang(api, row["gang_id"])["state"] == "reserved"


def test_an_own_id_is_taken_once(api: Api) -> None:
    """One that nobody has is of no gang."""
    asked = {"queue": api.queue(), "members": Jsonb(PAIR), "options": {"gang_id": str(uuid4())}}
    api.rows("spawn_gang", **asked)
    assert api.refused("QHG02", "spawn_gang", **asked).field == "options.gang_id"
    for function in ("get_gang", "cancel_gang"):
        api.refused("QHG01", function, gang=uuid4())
    api.refused("QHG01", "gang_status", **token(api.running(api.queue())))


def test_members_count_for_terms_that_were_there_before_them(api: Api, racks: list[Node]) -> None:
    """No claim has looked at the class of the members when upkeep reserves room for them."""
    queue, app = api.queue(), f"app-{uuid4()}"
    away = {"leases": {"labels": {"app": app}}, "domain": "rack", "away": True}
    api.spawn(queue, placement={"require": [away]})
    holder = api.claim_published(racks[0], queue)
    job = Gang(api, racks, 2, GPU | {"labels": {"app": app}}, queue=queue, together="rack")
    reap(api)
    assert job.place == "rack 2"  # though they fit tighter in rack 1
    api.complete(holder)


RACK_ELSE_ANYWHERE = ["rack", "fleet"]


def test_a_rack_that_has_room_comes_first(api: Api, racks: list[Node], clock: Clock) -> None:
    """Rack 2 has three GPUs; when one of them is in use no rack has as many."""
    queue = api.queue(earmarks=0)
    held = api.running(queue, racks[2], **GPU)
    wide, narrow = (Gang(api, racks, size, queue=queue, together=RACK_ELSE_ANYWHERE) for size in (3, 2))
    reap(api)
    assert (wide.place, narrow.place) == ("fleet", None)
    wide.cancel()
    api.complete(held)
    later(api, clock, racks)
    assert narrow.place == "rack 1"


@pytest.mark.parametrize(
    ("needed", "place", "told", "members"),
    [
        (3, "rack 2", "rack 2, where the others run, has no room for one more", "cccsss"),
        (4, "fleet", "no node has room for one more", "ccccrs"),
    ],
)
def test_where_others_join(
    api: Api, racks: list[Node], clock: Clock, *, needed: int, place: str, told: str, members: str
) -> None:
    """Rack 1 has room, but not for one whose others run in rack 2; in the fleet they join anywhere.

    And that becomes no gang of the rack in which one of them gets room.
    """
    held = api.running(api.queue(), racks[0], **GPU)
    job = Gang(api, racks, 6, min_size=needed, together=RACK_ELSE_ANYWHERE)
    job.run()
    assert job.now("state", "missing", "place") == ("running", 6 - needed, place)
    assert api.row("explain_lease", lease=job.leases[-1])["headline"].endswith(told)
    if place == "fleet":
        assert "of the next one: the fleet has room for 0 of 1" in job.explained["headline"]
    api.complete(held)
    later(api, clock, racks)
    assert (job.members, job.place) == (members, place)


def test_no_rack_is_kept_for_one_that_may_be_anywhere(api: Api, queue: str, racks: list[Node]) -> None:
    """Rack 2 is full and large enough; the fleet has a GPU that is free, and waits for two."""
    held = {node.name: api.running(queue, node, **GPU) for node in racks[1:]}
    job = Gang(api, racks, 3, queue=queue, together=RACK_ELSE_ANYWHERE)
    reap(api)
    assert job.now("state", "place") == ("earmarked", "fleet")
    kept = job.on
    assert racks[0].name in kept
    [place] = job.explained["places"]
    assert (place["place"], place["words"], place["room"]) == ("fleet", "the fleet", 1)
    job.complete(*(claim for name, claim in held.items() if name in kept))
    assert (job.state, job.on) == ("reserved", kept)


def test_what_is_told_of_it(api: Api, racks: list[Node]) -> None:
    """That neither has room, and no way out that it has taken already."""
    queue = api.queue(earmarks=0)
    api.running(queue, racks[2], **GPU)
    job = Gang(api, racks, 5, queue=queue, together=RACK_ELSE_ANYWHERE)
    reap(api)
    assert job.explained["headline"].startswith(
        "no rack, nor the fleet, has room for all 5; the fleet has room for 4; "
    )
    assert list(job.ways) == ["smaller", "empty", "stop", "wait"]
    assert job.ways["smaller"]["words"] == "4 of 5 have room now: the fleet"
    alike = Gang(api, racks, 2, queue=queue, together=RACK_ELSE_ANYWHERE, same=["model"])
    assert alike.explained["headline"].startswith('no node that may run its members has label "model"')


def test_a_step_of_a_run(api: Api, racks: list[Node]) -> None:
    flow = Flow(api, [gang_step("train", 4, together=RACK_ELSE_ANYWHERE, **GPU)])
    reap(api)
    found = gang(api, flow.steps()["train"]["gang_id"])
    assert (found["state"], found["place"]) == ("reserved", "fleet")
