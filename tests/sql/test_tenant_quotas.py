"""What tenants may have: slots over all queues, shares, how much waits, and nodes of theirs."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import count, product
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.counted import counting
from tests.sql.api import Api, Node
from tests.sql.explained import explain
from tests.sql.placed import codes, reasons, verdict
from tests.sql.test_tenants_apart import limited

pytestmark = pytest.mark.usefixtures("sound")

SLOTS = "tenant slots"
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
NO_WAY = {"key": "maintenance", "effect": "no_schedule"}


_numbers = count(1)


@pytest.fixture(autouse=True)
def _rows(api: Api) -> Iterator[None]:
    """Nobody has one after the test."""
    yield
    for row in api.rows("list_tenants"):
        api.rows("drop_tenant", name=row["name"])


def fresh(name: str) -> str:
    """A tenant that no other test has."""
    return f"{name}-{next(_numbers)}"


@pytest.fixture
def lab() -> str:
    return fresh("lab")


@pytest.fixture
def film() -> str:
    return fresh("film")


def tenant(api: Api, name: str, **spec: Any) -> None:
    api.value("set_tenant", name=name, changes=spec)


def claimed(api: Api, node: Node, *queues: str, qty: int = 100) -> list[Row]:
    """What the node is granted once lanes have let through what they may."""
    api.reap()
    return api.claim(node, *queues, qty=qty)


def drained(api: Api, node: Node, *queues: str) -> list[int]:
    """Run all that waits, a claim after the other; how many ran at once."""
    counts = []
    while claims := claimed(api, node, *queues):
        counts.append(len(claims))
        api.complete(*claims)
    return counts


def lanes_of(api: Api, lease: UUID) -> list[str]:
    """The names of the limits that it passes, one after the other."""
    query = "select r.name from hwqueue.lease l cross join unnest(l.lanes) with ordinality i"
    order = "join hwqueue.limit_rule r using (limit_id) where lease_id = %s order by ordinality"
    return [name for (name,) in api.conn.execute(f"{query} {order}", [lease]).fetchall()]


def test_slots_are_of_all_queues(api: Api, node: Node, lab: str, film: str) -> None:
    """Whoever spawns, and however; a tenant without a row has as many as the row * says."""
    queues = [api.queue() for _ in range(3)]
    tenant(api, lab, slots=2)
    tenant(api, "*", slots=1)
    api.rows("define_workflow", spec={"name": "w", "steps": [{"name": "a", "queue": queues[2], "task": "t"}]})
    for name in (lab, film):
        api.spawn(queues[0], tenant=name)
        batch = [{"task": "t", "options": {"tenant": name}}, {"task": "t"}]
        api.rows("spawn_leases", queue=queues[1], leases=Jsonb(batch))
        api.rows("submit_workflow", workflow="w", options={"tenant": name})
    assert drained(api, node, *queues) == [2 + 1 + 2, 1 + 1, 1]
    [lane] = [row for row in api.rows("limit_lanes", name=SLOTS) if row["key"] == lab]
    assert (lane["used"], lane["most"]) == (0, 2)


def test_slots_come_after_the_key(api: Api, queue: str, node: Node, lab: str) -> None:
    """So a lease that waits for its key has no slot, and what waits for all has slots of its tenant alone."""
    names = [fresh("limit") for _ in range(3)]
    specs: list[Row] = [{"slots": 1, "by": "key"}, {"fair": True, "by": "tenant"}, {"slots": 9}]
    for name, spec in zip(names, specs, strict=True):
        api.rows("create_limit", name=name, spec=spec)
    tenant(api, lab, slots=2)
    limits = dict(zip(names, ["k", None, None], strict=True))
    leases = [api.spawn(queue, tenant=lab, limits=limits) for _ in range(2)]
    assert lanes_of(api, leases[0]) == [names[0], SLOTS, *names[1:]]
    other = api.spawn(queue, tenant=lab)
    claims = claimed(api, node, queue)
    assert {row["lease_id"] for row in claims} == {leases[0], other}
    held = "select cardinality(lanes) from hwqueue.claim where lease_id = %s"
    assert [api.one(held, lease) for lease in (leases[0], other)] == [3, 1]
    api.complete(*claims)
    assert [row["lease_id"] for row in claimed(api, node, queue)] == leases[1:]


def test_slots_are_changed_dropped_and_set_again(api: Api, queue: str, node: Node, lab: str) -> None:
    tenant(api, lab, slots=3)
    leases = [api.spawn(queue, tenant=lab) for _ in range(9)]
    assert "0 of 3 slots are in use" in explain(api, leases[0])["headline"]
    claims = claimed(api, node, queue)
    assert [row["lease_id"] for row in claims] == leases[:3]
    found = explain(api, leases[3])
    assert f"1st of 6 of tenant {lab} in limit tenant slots; 3 of 3 slots are in use" in found["headline"]
    tenant(api, lab, slots=1)
    api.reap()
    api.complete(*claims[:2])
    assert claimed(api, node, queue) == []  # one runs still
    api.complete(claims[2])
    [claim] = claimed(api, node, queue)
    tenant(api, lab, slots=2)
    [more] = claimed(api, node, queue)
    assert api.value("drop_tenant", name=lab)
    tenant(api, lab, slots=2)
    assert claimed(api, node, queue) == []
    tenant(api, lab, slots=None)
    rest = claimed(api, node, queue)
    assert [row["lease_id"] for row in rest] == leases[5:]
    late = api.spawn(queue, tenant=lab)
    assert lanes_of(api, late) == []
    api.complete(claim, more, *rest)
    assert [row["lease_id"] for row in claimed(api, node, queue)] == [late]


def test_slots_of_tenants_without_a_row(api: Api, queue: str, node: Node, lab: str) -> None:
    """They follow the row *, and a row of their own once there is one."""
    tenant(api, "*", slots=2)
    for _ in range(8):
        api.spawn(queue, tenant=lab)
    claims = claimed(api, node, queue)
    assert len(claims) == 2
    tenant(api, "*", slots=3)
    claims += claimed(api, node, queue)
    assert len(claims) == 3
    tenant(api, lab, slots=4)
    assert len(claimed(api, node, queue)) == 1
    assert api.value("drop_tenant", name=lab)
    api.reap()
    api.complete(*claims[:2])
    assert len(claimed(api, node, queue)) == 1


def test_a_paused_queue_has_no_slots(api: Api, node: Node, lab: str) -> None:
    queues = [api.queue() for _ in range(2)]
    tenant(api, lab, slots=1)
    first, second = (api.spawn(queue, tenant=lab) for queue in queues)
    api.reap()
    api.rows("pause_queue", queue=queues[0])
    assert [row["lease_id"] for row in claimed(api, node, *queues)] == [second]
    api.rows("resume_queue", queue=queues[0])
    assert claimed(api, node, *queues) == []
    assert api.state(first) == "scheduled"


def test_slots_go_along_to_another_queue(api: Api, node: Node, lab: str) -> None:
    queue, other = api.queue(), api.queue()
    tenant(api, lab, slots=1)
    leases = [api.spawn(queue, tenant=lab) for _ in range(2)]
    api.reap()
    for lease in leases:
        api.rows("update_lease", lease=lease, changes={"queue": other})
    assert drained(api, node, other) == [1, 1]


@pytest.mark.parametrize("function", ["spawn_gang", "spawn_everywhere", "spawn_lease"])
def test_what_takes_no_part_in_slots(api: Api, queue: str, lab: str, function: str) -> None:
    """It is refused, as with a limit of its queue; without slots it is not."""
    options = {"tenant": lab} | ({"one_of": str(uuid4())} if function == "spawn_lease" else {})
    one: Row = {"task": "t", "options": options}
    more = {"members": Jsonb([one] * 2)} if function == "spawn_gang" else one
    tenant(api, lab, slots=1)
    refusal = api.refused("QHM03", function, queue=queue, **more)
    assert "tenant without slots" in refusal.hint
    tenant(api, lab, slots=None)
    api.rows(function, queue=queue, **more)


def test_the_limit_of_slots_is_kept(api: Api, queue: str, lab: str) -> None:
    tenant(api, lab, slots=1)
    api.refused("QHM03", "drop_limit", name=SLOTS)
    api.refused("QHM03", "set_limit", name=SLOTS, changes={"slots": 7})
    api.refused("QHA01", "create_limit", name=SLOTS, spec={"slots": 7})
    until = api.value("throttle_limit", name=SLOTS, key=lab, retry_after=MINUTE)
    assert until is not None


def test_what_tenants_without_slots_pay(api: Api, queue: str) -> None:
    """Not a statement more than one whose row says nothing of them, and no lane."""
    tenant(api, "plain", tier="scavenger")
    api.spawn(queue, tenant="plain")
    with counting(api.conn) as calls:
        lease = api.spawn(queue, tenant="plain")
    assert (calls["admit_tenant"], calls["find_tenant"]) == (1, 1)
    assert "read_limits" not in calls
    assert lanes_of(api, lease) == []


def test_shares_by_the_weights_of_tenants(api: Api, node: Node) -> None:
    """1 : 2 : 4, also once they are changed, and where a limit has weights those."""
    turns = fresh("turns")
    api.rows("create_limit", name=turns, spec={"fair": True, "by": "tenant"})
    queue = api.queue(limits=[turns])
    three = [fresh("three") for _ in range(3)]
    for name, weight in zip(three, (1, 2, 4), strict=True):
        tenant(api, name, weight=weight)
    batch: list[Row] = [{"task": "t", "options": {"tenant": name}} for name in three for _ in range(500)]
    owners = {
        row["lease_id"]: batch[n]["options"]["tenant"]
        for n, row in enumerate(api.rows("spawn_leases", queue=queue, leases=Jsonb(batch)))
    }

    def ran(count: int) -> Counter[str]:
        api.reap()
        found: Counter[str] = Counter()
        for _ in range(count):
            for claim in api.claim(node, queue, qty=1):
                found[owners[claim["lease_id"]]] += 1
                api.complete(claim)
        return found

    ran(28)  # what was in line
    assert [ran(140)[name] for name in three] == [20, 40, 80]
    for name in three:
        tenant(api, name, weight=None)
    ran(28)
    counts = ran(150)
    assert max(counts.values()) - min(counts.values()) <= 4
    api.rows("set_limit", name=turns, changes={"weights": {three[0]: 3}})
    ran(28)
    assert ran(150)[three[0]] in range(86, 95)


def test_no_more_than_may_wait(api: Api, clock: Clock, node: Node, lab: str, film: str) -> None:
    """Over all queues, delayed ones among them; reap counts, and what it counted long ago refuses nothing."""
    queues = [api.queue() for _ in range(2)]
    tenant(api, lab, pending=3, tier="scavenger")
    [first, *_] = [api.spawn(queues[n % 2], tenant=lab, **({"delay": "1 h"} if n else {})) for n in range(5)]
    api.reap()
    refusal = api.refused("QHT03", "spawn_lease", queue=queues[0], task="t", options={"tenant": lab})
    assert refusal.message == f'tenant "{lab}" has 5 leases that wait, and may have 3'
    assert (refusal.detail["what"], refusal.detail["used"], refusal.detail["limit"]) == ("pending", 5, 3)
    assert "counted_at" in refusal.detail
    batch = [{"task": "t"}, {"task": "t", "options": {"tenant": lab}}]
    refusal = api.refused("QHT03", "spawn_leases", queue=queues[0], leases=Jsonb(batch))
    assert refusal.detail["index"] == 1
    [listed] = api.rows("list_tenants", name=lab)
    assert listed["usage"] == {lab: {"pending": 5, "classes": 2}}
    assert listed["spec"] == {"tier": "scavenger", "pending": 3}
    for free in ({}, {"tenant": film}):
        api.spawn(queues[0], **free)
    tenant(api, lab, pending=6)
    api.spawn(queues[0], tenant=lab)  # at once
    tenant(api, lab, pending=3)
    api.refused("QHT03", "spawn_lease", queue=queues[0], task="t", options={"tenant": lab})
    clock.advance(timedelta(seconds=11))
    api.spawn(queues[0], tenant=lab)
    api.reap()
    [told] = api.rows("list_events", filter={"code": ["usage_stale"]})
    assert told["detail"]["name"] == lab
    api.refused("QHT03", "spawn_lease", queue=queues[0], task="t", options={"tenant": lab})
    assert first in api.claimed(node, *queues, qty=100)
    for (lease,) in api.conn.execute("select lease_id from hwqueue.scheduled").fetchall():
        api.rows("cancel_lease", lease=lease)
    clock.advance(timedelta(seconds=4))
    api.reap()
    api.spawn(queues[0], tenant=lab)


def test_a_caller_for_one_tenant_has_what_it_may(api: Api, queue: str, lab: str) -> None:
    """Also where it names no tenant."""
    tenant(api, lab, pending=1, slots=1, tier="scavenger")
    api.rows("set_queue_policy", queue=queue, policy={"everywhere_tenants": ["*"]})
    options = {"unique": {"key": "k"}}
    batches: list[Any] = [
        [{"task": "t"}],
        {"kinds": [{"task": "t"}], "each": [{}]},
        [{"task": "t", "options": options}],
    ]
    with limited(api, lab):
        leases = [
            row["lease_id"]
            for each in batches
            for row in api.rows("spawn_leases", queue=queue, leases=Jsonb(each))
        ]
        leases.append(api.spawn(queue))
        assert [lanes_of(api, lease) for lease in leases] == [[SLOTS]] * 4
        api.reap()
        options["unique"]["key"] = "another"
        for each in batches:
            api.refused("QHT03", "spawn_leases", queue=queue, leases=Jsonb(each))
        api.refused("QHT03", "spawn_lease", queue=queue, task="t")
        api.refused("QHT03", "spawn_gang", queue=queue, members=Jsonb([{"task": "t", "count": 2}]))
        api.refused("QHT03", "spawn_everywhere", queue=queue, task="t")
    tiers = "select array_agg(distinct tier) from hwqueue.scheduled"
    assert api.one(tiers) == [2]


@pytest.mark.parametrize("on_conflict", [None, "keep", "replace"])
def test_a_repeat_is_no_new_lease(
    api: Api, queue: str, node: Node, lab: str, on_conflict: str | None
) -> None:
    """With a key that a lease holds, alone and in a batch; one element that is new refuses all of it."""
    unique = {"unique": {"key": "k", "on_conflict": on_conflict}}
    options = {"tenant": lab} | (unique if on_conflict else {"idempotency_key": "k"})
    one, new = ({"task": TASK, "options": each} for each in (options, {"tenant": lab}))
    lease = api.spawn(queue, **options)
    tenant(api, lab, pending=1)
    api.reap()
    assert api.spawn(queue, **options) == lease
    kinds = {"kinds": [one], "each": [{}, {}], "of": [0, 0]}
    for leases in ([one], [one] * 3, kinds):
        rows = api.rows("spawn_leases", queue=queue, leases=Jsonb(leases))
        assert {(row["lease_id"], row["created"]) for row in rows} == {(lease, False)}
    refusal = api.refused("QHT03", "spawn_leases", queue=queue, leases=Jsonb([one, one, new]))
    assert refusal.detail["index"] == 2
    other = one | {"options": options | {"tenant": fresh("film")}}  # another tenant's key of that name
    [row] = api.rows("spawn_leases", queue=queue, leases=Jsonb([other]))
    assert row["created"]
    api.complete(*(claim for claim in api.claim(node, queue, qty=9) if claim["lease_id"] == lease))
    if on_conflict:  # its key is free
        api.refused("QHT03", "spawn_lease", queue=queue, **one)
    else:
        assert api.spawn(queue, **options) == lease


def test_an_everywhere_task_that_is_there_is_not_refused(api: Api, queue: str, lab: str) -> None:
    tenant(api, lab, pending=1)
    api.spawn(queue, tenant=lab)
    task = {"queue": queue, "task": "t", "options": {"tenant": lab, "everywhere_id": str(uuid4())}}
    assert api.row("spawn_everywhere", **task)["created"]
    api.reap()
    assert not api.row("spawn_everywhere", **task)["created"]
    api.refused("QHT03", "spawn_everywhere", **task | {"options": {"tenant": lab}})


def test_new_classes_are_refused(api: Api, queue: str, lab: str, film: str) -> None:
    tenant(api, "*", classes=2)
    for number, name in product((0, 1), (lab, "*")):  # the row's name is one of a tenant, too
        api.spawn(queue, tenant=name, patience=number)
    api.spawn(queue, tenant=film)
    api.reap()
    api.spawn(queue, tenant=lab, patience=1)
    options = {"tenant": lab, "patience": 2}
    refusal = api.refused("QHT03", "spawn_lease", queue=queue, task="t", options=options)
    assert (refusal.detail["what"], refusal.detail["used"]) == ("classes", 2)
    api.refused("QHT03", "spawn_lease", queue=queue, task="t", options=options | {"tenant": "*"})
    api.spawn(queue, **options | {"tenant": film})
    [listed] = api.rows("list_tenants", name="*")
    assert listed["usage"].keys() >= {lab}
    assert not listed["usage"].keys() & {film, ""}  # of many tenants those alone that have all they may


def test_spawns_in_a_time(api: Api, queue: str, lab: str, film: str, clock: Clock) -> None:
    """What was spawned before reap counted it is waited for. Of the tenants of a row each has its own."""
    tenant(api, "*", spawns={"count": 2, "per": "1 s", "burst": 10})
    api.refused("QHA01", "set_tenant", name=lab, changes={"spawns": {"count": 2}})
    api.rows("define_workflow", spec={"name": "w", "steps": [{"name": "a", "queue": queue, "task": "t"}]})
    one = {"task": "t", "options": {"tenant": lab}}
    api.rows("spawn_leases", queue=queue, leases=Jsonb({"kinds": [one], "each": [{}] * 12, "of": [0] * 12}))
    api.spawn(queue, tenant=lab, idempotency_key="k")
    api.spawn(queue, tenant=film)
    api.reap()
    options = {"tenant": lab}
    refusal = api.refused("QHT03", "spawn_lease", queue=queue, task="t", options=options)
    assert (refusal.detail["what"], refusal.detail["used"], refusal.detail["limit"]) == ("spawns", 13, 10)
    assert "wait 2 s" in str(refusal.hint)
    api.refused("QHT03", "submit_workflow", workflow="w", options=options)
    api.refused("QHT03", "spawn_everywhere", queue=queue, task="t", options=options)
    api.spawn(queue, tenant=lab, idempotency_key="k")
    for _ in range(8):
        api.spawn(queue, tenant=film)
    clock.advance(timedelta(seconds=4))
    api.reap()
    [listed] = api.rows("list_tenants", name="*")
    assert {name: used["spawns"] for name, used in listed["usage"].items()} == {
        lab: 13 + 1 - 8,
        film: 1 + 8 - 8,
    }
    for _ in range(5):
        api.spawn(queue, tenant=lab)
    clock.advance(timedelta(seconds=3))
    api.reap()
    api.spawn(queue, tenant=lab)
    tenant(api, "*", spawns=None, pending=10**6)
    clock.advance(timedelta(seconds=4))
    api.reap()
    assert api.one("select count(*) from hwqueue.spawn_count") == 0
    assert api.rows("list_tenants", name="*")[0]["usage"] == {}


def test_who_keeps_its_rate_is_not_refused(api: Api, queue: str, lab: str, clock: Clock) -> None:
    """Whenever reap counts it and the row *, and though nobody reaped for long; who does not is refused."""
    rate = {"count": 1, "per": "1 s", "burst": 2}
    options = {"tenant": lab}
    tenant(api, lab, spawns=rate)
    api.reap_after(clock, SECOND)
    tenant(api, "*", spawns=rate)
    for _ in range(9):
        api.spawn(queue, **options)
        api.reap_after(clock, SECOND)
    for _ in range(60):
        api.spawn(queue, **options)
        clock.advance(SECOND)
    api.reap()
    batch = [{"task": task, "options": options} for task in ("t", "u", "t", "t", "t", "t", "t", "t", "t")]
    api.rows("spawn_leases", queue=queue, leases=Jsonb(batch))
    for _ in range(3):
        api.reap_after(clock, SECOND)
    refusal = api.refused("QHT03", "spawn_lease", queue=queue, task="t", options=options)
    assert refusal.detail["used"] == 9 - 3


@pytest.mark.parametrize("spec", [{"pending": 3}, {"spawns": {"count": 1, "per": "1 s"}}])
def test_quotas_are_kept_once_a_clock_was_set_back(
    api: Api, queue: str, lab: str, clock: Clock, spec: Row
) -> None:
    """What was counted at a time to come refuses nothing, and is counted anew."""
    tenant(api, lab, **spec)
    for _ in range(3):
        api.spawn(queue, tenant=lab)
    api.reap()
    clock.advance(-timedelta(hours=1))
    for _ in range(3):
        api.spawn(queue, tenant=lab)
    api.reap()
    refusal = api.refused("QHT03", "spawn_lease", queue=queue, task="t", options={"tenant": lab})
    assert refusal.detail["used"] == 6


def test_a_schedule_is_written_whatever_waits(api: Api, queue: str, lab: str) -> None:
    """Its times are refused, each when it comes."""
    tenant(api, lab, pending=1)
    api.spawn(queue, tenant=lab)
    api.reap()
    spec = {"queue": queue, "task": "t", "every": "1 h", "options": {"tenant": lab}}
    name = fresh("schedule")
    api.rows("create_schedule", name=name, spec=spec)
    fired = api.row("trigger_schedule", name=name)
    assert fired["outcome"] == "failed"
    assert "QHT03" in fired["error"]


def test_no_way_makes_more_classes(api: Api, queue: str, lab: str) -> None:
    """A batch, a gang, a change of what waits, the steps of a run and their update."""
    waits = api.spawn(queue, tenant=lab)
    steps = [{"name": "a", "task": "u"}, {"name": "b", "task": "u", "after": ["a"]}]
    api.rows("define_workflow", spec={"name": "w", "queue": queue, "steps": steps})
    run = api.row("submit_workflow", workflow="w", options={"tenant": lab})["run_id"]
    tenant(api, lab, classes=1)
    api.reap()
    labels = {"labels": {"n": "new"}}
    one = {"task": "t", "options": {"tenant": lab, **labels}}
    level = {"placement": {"require": [{"label": "x", "op": "exists"}]}}
    calls: list[tuple[str, Row]] = [
        ("spawn_leases", {"queue": queue, "leases": Jsonb([one])}),
        ("spawn_gang", {"queue": queue, "members": Jsonb([{**one, "count": 2}])}),
        ("submit_workflow", {"workflow": "w", "options": {"tenant": lab, "steps": {"b": level}}}),
        ("update_lease", {"lease": waits, "changes": labels}),
        ("update_leases", {"filter": {"queue": queue}, "changes": labels}),
        ("update_steps", {"run": run, "changes": level}),
    ]
    for name, arguments in calls:
        assert api.refused("QHT03", name, **arguments).detail["what"] == "classes"
    tenant(api, lab, pending=1)
    api.rows("update_lease", lease=waits, changes={"priority": 3})
    tenant(api, lab, pending=None)
    api.rows("submit_workflow", workflow="w", options={"tenant": lab})


def test_runs_go_on_that_were_let_in(api: Api, queue: str, node: Node, lab: str) -> None:
    """Steps are spawned whatever waits; another run is refused."""
    steps = [
        {"name": n, "queue": queue, "task": "t", "after": after} for n, after in (("a", []), ("b", ["a"]))
    ]
    api.rows("define_workflow", spec={"name": "w", "steps": steps})
    api.rows("submit_workflow", workflow="w", options={"tenant": lab})
    api.spawn(queue, tenant=lab)
    tenant(api, lab, pending=1)
    api.reap()
    api.refused("QHT03", "submit_workflow", workflow="w", options={"tenant": lab})
    claims = api.claim(node, queue, qty=9)
    api.complete(*claims)
    assert len(api.claim(node, queue, qty=9)) == 1


@pytest.mark.parametrize("stops", [False, True])
def test_nodes_of_tenants(api: Api, queue: str, stops: bool, lab: str, film: str) -> None:
    """Any of them is let in; what tolerates every taint, and what has no tenant, is not."""
    api.leave_all()
    other, node = fresh("other"), api.node()
    everything: Row = {"placement": {"tolerate": [{"op": "exists"}]}}
    running = [api.granted(api.spawn(queue, tenant=name), node, queue) for name in (film, other)]
    api.rows("set_node_tenants", node=node.node_id, tenants=[film, lab], stop=stops)
    assert [verdict(api, node, claim) for claim in running] == ["ok", "preempted" if stops else "ok"]
    mine = [api.spawn(queue, tenant=name) for name in (film, lab)]
    for options in ({}, {"tenant": other}, {"tenant": film[:-1]}):
        api.spawn(queue, **options)
        api.spawn(queue, **options, **everything)
    assert api.claimed(node, queue, qty=100) == mine
    [reason] = reasons(api, node)
    assert (reason["code"], reason["permanent"]) == ("tenant_not_admitted", True)
    assert reason["message"] == f"the node is for other tenants: {film} and {lab}"
    found = api.rows("pending_reasons", queue=queue)
    assert {row["code"] for row in found} == {"tenant_not_admitted"}
    waits = api.spawn(queue, tenant=other)
    assert "tenant_not_admitted" in str(explain(api, waits))
    api.rows("set_node_tenants", node=node.node_id, tenants=[])
    assert len(api.claimed(node, queue, qty=100)) == 7
    assert api.used(node)["taints"] == []


def test_no_tenant_hears_of_others(api: Api, node: Node, conn: psycopg.Connection, lab: str) -> None:
    api.rows("set_node_tenants", node=node.node_id, tenants=["secret"])
    conn.execute("select set_config('hwqueue.tenant', %s, false)", [lab])
    try:
        rows = api.rows("match_nodes", options={"tenant": lab})
    finally:
        conn.execute("select set_config('hwqueue.tenant', '', false)")
    [row] = [row for row in rows if row["node_id"] == node.node_id]
    assert [reason["code"] for reason in row["reasons"]] == ["tenant_not_admitted"]
    assert "secret" not in str(rows)


def test_workers_register_no_tenants(api: Api, node: Node, film: str) -> None:
    taint = {"key": f"tenant:{film}", "effect": "no_schedule"}
    assert api.fault("taint_node", node=node.node_id, taint=taint) == "p_taint.key"
    spec = {"name": "x", "instance_id": "x", "taints": [taint]}
    assert api.fault("register_node", node=node.node_id, spec=spec) == "spec.taints[0].key"
    assert api.fault("set_node_tenants", node=node.node_id, tenants=["x" * 101]) == "p_tenants[0]"
    assert api.fault("set_node_tenants", node=node.node_id, tenants=[""]) == "p_tenants[0]"


def test_tenants_stay_beside_other_taints(api: Api, queue: str, lab: str, film: str) -> None:
    """Each command changes its own; twice is once; the fleet as a whole knows it, too."""
    api.leave_all()
    node = api.node()
    api.rows("taint_node", node=node.node_id, taint=NO_WAY)
    for _ in range(2):
        api.rows("set_node_tenants", node=node.node_id, tenants=[film])
    assert len(api.rows("list_events", filter={"node": str(node.node_id), "code": "node_reserved"})) == 1
    assert codes(api, node) == ["untolerated_taint", "tenant_not_admitted"]
    assert api.value("untaint_node", node=node.node_id, key="maintenance") == 1
    assert codes(api, node) == ["tenant_not_admitted"]
    lease, own = (api.spawn(queue, tenant=name) for name in (lab, film))
    api.reap()
    found = {row["class_id"]: row["code"] for row in api.rows("pending_reasons", queue=queue)}
    assert found[explain(api, lease)["class_id"]] == "tenant_not_admitted"
    assert found[explain(api, own)["class_id"]] is None
    assert api.claimed(node, queue, qty=9) == [own]
