"""Gangs: spawned, assembled, listed: members start together or not at all."""

from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb
from psycopg.types.numeric import Int8

from hwqueue.testing import Clock
from tests.calls import Row
from tests.patience import looks
from tests.sql.api import Api, Node, token

GPU: Row = {"placement": {"resources": {"gpu": 1}}}


def gpus(count: int) -> list[Row]:
    return [{"resource_id": str(uuid4())} for _ in range(count)]


@pytest.fixture
def racks(api: Api) -> list[Node]:
    """Two nodes with a GPU in rack 1, three in rack 2; no other nodes and gangs."""
    for row in api.rows("list_gangs", limit=1000):
        api.rows("cancel_gang", gang=row["gang_id"])
    reap(api)
    for row in api.rows("list_nodes"):
        api.rows("deregister_node", node=row["node_id"])
    return [api.node(rack=rack, gpus=gpus(1)) for rack in (1, 1, 2, 2, 2)]


def spawn(api: Api, queue: str, count: int, /, member: Row | None = None, **options: Any) -> UUID:
    """Spawn a gang of equal members; its id."""
    members = [{"task": "train", "count": count, "options": member or {}}]
    rows = api.rows("spawn_gang", queue=queue, members=Jsonb(members), options=options)
    assert [row["ordinal"] for row in rows] == list(range(count))
    gang_id = rows[0]["gang_id"]
    assert isinstance(gang_id, UUID)
    return gang_id


def gang(api: Api, gang_id: UUID) -> Row:
    return api.row("get_gang", gang=gang_id)


def leases(api: Api, gang_id: UUID) -> list[UUID]:
    return [UUID(member["lease_id"]) for member in gang(api, gang_id)["members"]]


def nodes(api: Api, gang_id: UUID) -> set[str | None]:
    return {member.get("node") for member in gang(api, gang_id)["members"]}


def reap(api: Api) -> None:
    """As upkeep does about once a second; several times, since changes make others."""
    for _ in range(4):
        api.rows("reap")


def test_members_start_together(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)
    assert api.claimed(racks[0], queue) == []  # nobody has reserved room yet
    reap(api)
    assert gang(api, gang_id)["state"] == "reserved"
    claims = [claim for node in racks for claim in api.claim(node, queue)]
    assert sorted(claim["lease_id"] for claim in claims) == sorted(leases(api, gang_id))
    assert all(claim["assignment"]["gpus"] for claim in claims)
    assert [claim["headers"]["gang_size"] for claim in claims] == [2, 2]
    assert {claim["headers"]["gang_rank"] for claim in claims} == {0, 1}
    reap(api)
    assert gang(api, gang_id)["state"] == "running"
    for claim in claims:
        api.rows("complete_lease", **token(claim))
    reap(api)
    assert gang(api, gang_id)["state"] == "completed"
    assert api.rows("verify_invariants") == []


def test_no_room_for_all_is_room_for_none(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    held = [api.running(queue, node, **GPU) for node in racks[:3]]
    gang_id = spawn(api, queue, 3, GPU)
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == ("waiting", "insufficient_capacity")
    other = api.spawn(queue, **GPU)
    assert api.claimed(racks[3], queue) == [other]  # a gang that waits holds nothing
    for claim in (*held[:2], api.lease(other)):
        api.rows("complete_lease", **token(claim))
    assert api.rows("verify_invariants") == []


def test_together_in_the_tightest_rack(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    first = spawn(api, queue, 2, GPU, together="rack")
    reap(api)
    assert gang(api, first)["place"] == "rack 1"
    second = spawn(api, queue, 3, GPU, together=["rack"])
    reap(api)
    assert gang(api, second)["place"] == "rack 2"
    third = spawn(api, queue, 2, GPU, together="rack")
    reap(api)
    assert gang(api, third)["state"] == "waiting"


def test_the_next_level_when_the_first_has_no_room(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 4, GPU, together=["rack", "node"])
    reap(api)
    assert gang(api, gang_id)["state"] == "waiting"
    wide = spawn(api, queue, 4, GPU)
    reap(api)
    assert gang(api, wide)["state"] == "reserved"


def test_nodes_alike(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    for model in ("A100", "H100", "H100"):
        api.node(labels={"model": model}, gpus=gpus(1))
    gang_id = spawn(api, queue, 2, GPU, same=["model"])
    reap(api)
    [place] = {member["labels"]["model"] for member in gang(api, gang_id)["members"]}
    assert place == "H100"


def test_several_members_on_a_node(api: Api, racks: list[Node]) -> None:
    queue, big = api.queue(), api.node(gpus=gpus(4), labels={"big": True})
    gang_id = spawn(api, queue, 4, GPU, together="node")
    reap(api)
    assert nodes(api, gang_id) == {big.name}
    assert len(api.claimed(big, queue, qty=10)) == 4
    assert api.rows("verify_invariants") == []


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
    queue = api.queue()
    spawn(api, queue, 5, GPU)
    reap(api)
    api.spawn(queue, priority=9, **GPU)
    for node in racks:
        [claim] = api.claim(node, queue, qty=5)
        assert claim["headers"]["gang_size"] == 5


def test_the_barrier(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, together="rack")
    reap(api)
    [first] = api.claim(racks[0], queue)
    status = api.row("gang_status", **token(first))
    assert (status["ready"], status["retry_after"]) == (False, timedelta(seconds=0.2))
    [second] = api.claim(racks[1], queue)
    for claim in (first, second):
        status = api.row("gang_status", **token(claim))
        assert (status["ready"], status["gang_id"], status["size"]) == (True, gang_id, 2)
        assert {m["node"] for m in status["members"]} == {racks[0].name, racks[1].name}


def start(api: Api, racks: list[Node], queue: str) -> list[Row]:
    """Claim what is reserved, wherever it is."""
    reap(api)
    return [claim for node in racks for claim in api.claim(node, queue, qty=10)]


def test_a_changed_member_still_waits_for_its_gang(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 9, GPU)
    [lease, *_] = leases(api, gang_id)
    assert api.value("update_lease", lease=lease, changes={"priority": 5}) == "scheduled"
    api.rows("update_lease", lease=lease, changes={"available_at": "2020-01-01T00:00:00Z"})
    assert api.claimed(racks[0], queue) == []


def test_limits_about_other_leases_hold(api: Api, racks: list[Node], clock: Clock) -> None:
    """At most one in each rack: a gang of three finds no third rack."""
    queue = api.queue()
    web = {"labels": {"app": "web"}}
    rule = {"domain": "rack", "max_per_domain": 1, "select": web}
    member = {**web, "placement": {"resources": {"gpu": 1}, "spread": [rule]}}
    two, three = spawn(api, queue, 2, member), spawn(api, queue, 3, member)
    for _ in looks():
        clock.advance(timedelta(seconds=1))
        reap(api)
        if gang(api, two)["state"] == "reserved" and gang(api, three)["tries"]:
            break
    assert gang(api, two)["state"] == "reserved"
    assert {m["node"] in (racks[0].name, racks[1].name) for m in gang(api, two)["members"]} == {
        True,
        False,
    }
    assert gang(api, three)["state"] == "waiting"
    assert api.rows("verify_invariants") == []


def test_members_without_devices(api: Api, racks: list[Node]) -> None:
    """Nodes that count nothing: fetched while settling, and completed in one call."""
    queue, plain = api.queue(), [api.node(labels={"plain": True}) for _ in range(2)]
    away = {"leases": {"labels": {"app": "x"}}, "domain": "node", "away": True}
    member = {
        "labels": {"app": "x"},
        "affinity_tags": {"plain": True},
        "placement": {"require": [away]},
    }
    gang_id = spawn(api, queue, 2, member)
    for _ in looks():
        reap(api)
        if gang(api, gang_id)["state"] == "reserved":
            break
    rows = [api.row("settle_and_claim", **node.who, settle=Jsonb([]), queues=[queue]) for node in plain]
    assert [row["kind"] for row in rows] == ["claimed", "claimed"]
    left = api.rows(
        "complete_leases",
        lease_ids=[row["lease_id"] for row in rows],
        tokens=[Int8(row["claim_token"]) for row in rows],
    )
    assert left == []
    reap(api)
    assert gang(api, gang_id)["state"] == "completed"
    assert api.rows("verify_invariants") == []


def test_what_a_worker_does_not_serve_is_not_reserved_there(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    mute = api.node(gpus=gpus(2), tasks=["other"], labels={"big": True})
    slow = api.node(gpus=gpus(4), concurrency=2, labels={"big": True})
    gang_id = spawn(api, queue, 3, {**GPU, "affinity_tags": {"big": True}})
    reap(api)
    assert gang(api, gang_id)["reason"] == "insufficient_capacity"
    two = spawn(api, queue, 2, {**GPU, "affinity_tags": {"big": True}})
    reap(api)
    assert nodes(api, two) == {slow.name}
    assert api.claimed(mute, queue, tasks=["other"]) == []


def test_only_the_queues_and_tasks_that_are_asked_for(api: Api, racks: list[Node]) -> None:
    queue, other = api.queue(), api.queue()
    spawn(api, queue, 2, GPU, together="rack")
    reap(api)
    assert api.claimed(racks[0], other) == []
    assert api.claimed(racks[0], queue, tasks=["other"]) == []
    api.rows("pause_queue", queue=queue)
    assert api.claimed(racks[0], queue) == []
    api.rows("resume_queue", queue=queue)
    assert len(api.claimed(racks[0], queue, tasks=["train"])) == 1


def test_the_list(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    first, second = spawn(api, queue, 9, GPU), spawn(api, queue, 2, GPU)
    reap(api)
    states = {row["gang_id"]: row["state"] for row in api.rows("list_gangs")}
    assert (states[first], states[second]) == ("waiting", "reserved")
    assert [r["gang_id"] for r in api.rows("list_gangs", state="waiting")] == [first]
    api.refused("QHA01", "list_gangs", state="sleeping")


def test_gangs_of_other_tenants(api: Api, racks: list[Node]) -> None:
    """They do not exist for a caller limited to one."""
    queue = api.queue()
    mine, others = (spawn(api, queue, 9, tenant=tenant) for tenant in ("mine", "theirs"))
    with api.conn.transaction():
        api.conn.execute("select set_config('hwqueue.tenant', 'mine', true)")
        assert gang(api, mine)["tenant"] == "mine"
        assert [r["gang_id"] for r in api.rows("list_gangs")] == [mine]
        for function in ("get_gang", "cancel_gang"):
            with pytest.raises(psycopg.Error) as caught, api.conn.transaction():
                api.rows(function, gang=others)
            assert caught.value.sqlstate == "QHG01"
        with pytest.raises(psycopg.Error) as caught, api.conn.transaction():
            spawn(api, queue, 2, tenant="theirs")
        assert caught.value.sqlstate == "QHA03"


def test_members_of_two_tenants(api: Api) -> None:
    members = [{"task": "a", "options": {"tenant": tenant}} for tenant in ("one", "two")]
    refusal = api.refused("QHA01", "spawn_gang", queue=api.queue(), members=Jsonb(members))
    assert refusal.field == "options.tenant"


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ("update hwqueue.scheduled set available_at = now() where lease_id = %s", "gang_entry"),
        ("update hwqueue.gang set state = 'running' where gang_id = %s", "gang_members"),
        ("update hwqueue.node_state set has_reserved = false where node_id = %s", "gang_reserved"),
    ],
)
def test_what_verify_invariants_finds(api: Api, racks: list[Node], broken: LiteralString, rule: str) -> None:
    queue = api.queue()
    waiting, reserved = spawn(api, queue, 9, GPU), spawn(api, queue, 2, GPU)
    reap(api)
    [lease, *_] = leases(api, waiting)
    node = gang(api, reserved)["members"][0]["node_id"]
    broken_id = {"gang_entry": lease, "gang_members": waiting, "gang_reserved": node}[rule]
    with api.conn.transaction(force_rollback=True):
        api.conn.execute(broken, [broken_id])
        found = {row["rule"] for row in api.rows("verify_invariants")}
    assert rule in found
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize(
    ("field", "members", "options"),
    [
        ("members", [{"task": "a"}], {}),
        ("members", [], {}),
        ("members[0].count", [{"task": "a", "count": 0}], {}),
        ("members", [{"task": "a", "count": 600}, {"task": "b", "count": 600}], {}),
        ("members[0].options.delay", [{"task": "a", "count": 2, "options": {"delay": 1}}], {}),
        ("options.together", [{"task": "a", "count": 2}], {"together": "zone"}),
        ("options.together", [{"task": "a", "count": 2}], {"together": [None]}),
        ("options.together", [{"task": "a", "count": 2}], {"together": "fleet"}),
        ("options.together", [{"task": "a", "count": 2}], {"together": ["fleet"]}),
        ("options.together", [{"task": "a", "count": 2}], {"together": ["rack", "fleet", "node"]}),
        ("options.on_lost", [{"task": "a", "count": 2}], {"on_lost": "weep"}),
        ("options.hold", [{"task": "a", "count": 2}], {"hold": 0}),
        ("options.size", [{"task": "a", "count": 2}], {"size": 2}),
    ],
)
@pytest.mark.thorough
def test_bad_gangs(api: Api, field: str, members: Any, options: Row) -> None:
    queue = api.queue()
    refusal = api.refused("QHA01", "spawn_gang", queue=queue, members=Jsonb(members), options=options)
    assert refusal.field == field


def test_why_a_member_waits(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 4, GPU, together=["rack", "label:zone"])
    [lease, *_] = leases(api, gang_id)

    def said() -> str:
        headline = api.row("explain_lease", lease=lease)["headline"]
        assert isinstance(headline, str)
        return headline

    assert said() == f"waits for gang {gang_id} of 4: upkeep looks for room about once a second"
    reap(api)
    assert said() == f"waits for gang {gang_id} of 4: no rack and no label:zone has room for all of them"
    api.rows("cancel_gang", gang=gang_id)
    assert said() == f"waits for gang {gang_id} of 4: it is being cancelled"


def test_members_that_few_nodes_suit_come_first(api: Api, racks: list[Node]) -> None:
    """The other one fits on both nodes, and must not take the only one for the first."""
    queue = api.queue()
    for head in (True, False):
        api.node(labels={"head": head, "pair": True}, capacity={"cpu_milli": 1000})
    pair = {"affinity_tags": {"pair": True}, "placement": {"resources": {"cpu_milli": 1000}}}
    lead = pair | {"affinity_tags": {"pair": True, "head": True}}
    members = [{"task": "any", "options": pair}, {"task": "lead", "options": lead}]
    [row, *_] = api.rows("spawn_gang", queue=queue, members=Jsonb(members))
    reap(api)
    assert gang(api, row["gang_id"])["state"] == "reserved"


def test_a_member_stays_in_its_queue(api: Api, racks: list[Node]) -> None:
    queue, other = api.queue(), api.queue()
    gang_id = spawn(api, queue, 9, GPU)
    [lease, *_] = leases(api, gang_id)
    refusal = api.refused("QHG03", "update_lease", lease=lease, changes={"queue": other})
    assert refusal.detail["gang_id"] == str(gang_id)
    api.rows("update_leases", filter={"queue": queue}, changes={"queue": other})
    assert {api.lease(one)["queue"] for one in leases(api, gang_id)} == {queue}


@pytest.mark.thorough
def test_unknown_gangs(api: Api) -> None:
    for function in ("get_gang", "cancel_gang"):
        api.refused("QHG01", function, gang=uuid4())
    api.refused("QHG01", "gang_status", **token(api.running(api.queue())))


def test_an_own_id_is_taken_once(api: Api) -> None:
    queue, gang_id = api.queue(), uuid4()
    spawn(api, queue, 2, gang_id=str(gang_id))
    members = [{"task": "train", "count": 2}]
    refusal = api.refused(
        "QHG02",
        "spawn_gang",
        queue=queue,
        members=Jsonb(members),
        options={"gang_id": str(gang_id)},
    )
    assert refusal.field == "options.gang_id"


def test_members_count_for_terms_that_were_there_before_them(api: Api, racks: list[Node]) -> None:
    """No claim has looked at the class of the members when upkeep reserves room for them."""
    queue, app = api.queue(), f"app-{uuid4()}"
    away = {"leases": {"labels": {"app": app}}, "domain": "rack", "away": True}
    api.spawn(queue, placement={"require": [away]})
    holder = api.claim_published(racks[0], queue)
    gang_id = spawn(api, queue, 2, GPU | {"labels": {"app": app}}, together="rack")
    reap(api)
    assert gang(api, gang_id)["place"] == "rack 2"  # though they fit tighter in rack 1
    assert api.rows("verify_invariants") == []
    api.rows("complete_lease", **token(holder))
