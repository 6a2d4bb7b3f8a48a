"""Tenants cannot stop each other: who passes an earmark, bounds of open work, turns of sweeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, each, step, sweeps
from tests.nests import nested
from tests.patience import looks
from tests.sql.api import Api, Node
from tests.sql.gangs import gang, nodes, spawn
from tests.sql.test_everywhere import Fleet, fleet

__all__ = ["fleet"]  # a fixture

WHOLE: Row = {"placement": {"resources": {"cpu_milli": 4000}}}
LOW, HIGH = {"priority": -5}, {"priority": 5}
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def machines(api: Api) -> list[Node]:
    """Two nodes that hold one lease each; no other nodes and gangs."""
    for row in api.rows("list_gangs", limit=1000):
        api.rows("cancel_gang", gang=row["gang_id"])
    api.reap()
    api.leave_all()
    return [api.node(capacity={"cpu_milli": 4000}) for _ in range(2)]


@contextmanager
def limited(api: Api, tenant: str) -> Iterator[None]:
    """Calls of the block are limited to a tenant."""
    api.conn.execute("select set_config('hwqueue.tenant', %s, false)", [tenant])
    try:
        yield
    finally:
        api.conn.execute("select set_config('hwqueue.tenant', '', false)")


def waiting_gang(api: Api, queue: str, machines: list[Node], **options: int) -> tuple[UUID, Row]:
    """A gang that needs both nodes, earmarked, and the lease that holds the first for ever."""
    held, other = (api.running(queue, node, **WHOLE) for node in machines)
    gang_id = spawn(api, queue, 2, WHOLE | options)
    api.reap()
    assert gang(api, gang_id)["state"] == "earmarked"
    api.complete(other)
    return gang_id, held


def test_what_comes_before_passes_an_earmark(api: Api, queue: str, machines: list[Node]) -> None:
    """Equals and later ones wait, or a large gang would never start."""
    gang_id, held = waiting_gang(api, queue, machines)
    for priority in (-1, 0):
        api.spawn(queue, priority=priority, **WHOLE)
        assert api.claimed(machines[1], queue) == []
    urgent = api.spawn(queue, priority=1, **WHOLE)
    claim = api.granted(urgent, machines[1], queue, qty=5)
    assert api.rows("verify_invariants") == []
    api.complete(held)
    api.reap()
    assert gang(api, gang_id)["state"] == "earmarked"  # one node is in use again
    api.complete(claim)
    api.reap()
    assert gang(api, gang_id)["state"] == "reserved"
    assert all(len(api.claim(node, queue, qty=5)) == 1 for node in machines)
    assert api.rows("verify_invariants") == []


def test_upkeep_gives_no_room_to_an_earmark_before_what_comes_first(
    api: Api, machines: list[Node], clock: Clock
) -> None:
    """Its nodes have ten seconds to claim that; then nobody waits for them any more."""
    queue = api.queue()
    gang_id, held = waiting_gang(api, queue, machines)
    urgent = api.spawn(queue, priority=1, **WHOLE)
    api.complete(held)
    api.reap()
    assert gang(api, gang_id)["state"] == "earmarked"
    for seconds, state in ((9, "earmarked"), (1, "reserved")):
        clock.advance(seconds * SECOND)
        api.reap()
        assert gang(api, gang_id)["state"] == state
    assert api.state(urgent) == "pending"
    assert api.sound()


def test_an_earmark_ends_in_time_and_is_not_made_again_for_as_long(
    api: Api, machines: list[Node], clock: Clock
) -> None:
    queue = api.queue(tuning={"earmark_time": 60}, claim_timeout=3600)
    gang_id, held = waiting_gang(api, queue, machines)
    later = api.spawn(queue, **WHOLE)

    def after(seconds: int) -> Row:
        clock.advance(seconds * SECOND)
        for node in machines:
            api.rows("heartbeat_node", **node.who, claims=[])
        api.reap()
        return gang(api, gang_id)

    assert after(59)["state"] == "earmarked"
    assert api.claimed(machines[1], queue) == []
    found = after(1)
    assert (found["state"], found["reason"]) == ("waiting", "kept_too_long")
    assert api.claimed(machines[1], queue) == [later]
    assert after(59)["state"] == "waiting"
    assert after(20)["state"] == "earmarked"
    assert held["lease_id"] != later


@pytest.mark.parametrize(("rank", "state"), [(HIGH, "earmarked"), ({}, "waiting")])
def test_a_gang_that_comes_before_gets_the_room_that_is_kept(
    api: Api, machines: list[Node], rank: Row, state: str
) -> None:
    queue = api.queue()
    first, held = waiting_gang(api, queue, machines)
    second = spawn(api, queue, 2, WHOLE | rank)
    api.reap()
    assert gang(api, second)["state"] == state
    assert gang(api, first)["state"] == ("waiting" if rank else "earmarked")
    api.complete(held)
    api.reap()
    assert gang(api, second if rank else first)["state"] == "reserved"
    assert len(nodes(api, second if rank else first)) == 2
    assert api.rows("verify_invariants") == []


def test_a_tenant_keeps_room_for_twenty_gangs(api: Api, machines: list[Node]) -> None:
    queue = api.queue(earmarks=1000)
    for _ in range(22):
        node = api.node(capacity={"cpu_milli": 9000})
        api.running(queue, node, placement={"resources": {"cpu_milli": 9000}})
    half = {"placement": {"resources": {"cpu_milli": 4500}}, "tenant": "film"}
    for _ in range(21):
        spawn(api, queue, 2, half)
    for _ in range(3):
        api.reap()
    states = [row["state"] for row in api.rows("list_gangs", limit=100)]
    assert (states.count("earmarked"), states.count("waiting")) == (20, 1)
    assert machines


def test_everywhere_tasks_belong_to_operators(api: Api, fleet: Fleet) -> None:
    with limited(api, "film"):
        refusal = api.refused("QHA03", "spawn_everywhere", **fleet.call(tenant="film"))
    assert "everywhere_tenants" in refusal.hint
    for allowed in (["games"], ["film"], ["*"]):
        policy = {"everywhere_tenants": allowed, "everywhere_limit": 2}
        api.rows("set_queue_policy", queue=fleet.queue, policy=policy)
        with limited(api, "film"):
            if allowed == ["games"]:
                api.refused("QHA03", "spawn_everywhere", **fleet.call(tenant="film"))
            else:
                assert api.row("spawn_everywhere", **fleet.call(tenant="film"))["created"]
    with limited(api, "film"):
        refusal = api.refused("QHT03", "spawn_everywhere", **fleet.call(tenant="film"))
        assert (refusal.detail["used"], refusal.detail["limit"]) == (2, 2)
    with limited(api, "games"):
        assert api.row("spawn_everywhere", **fleet.call(tenant="games"))["created"]
    assert fleet.spawn(tenant="film")  # an operator's own business


@pytest.mark.parametrize("rank", [LOW, HIGH])
def test_an_everywhere_task_waits_behind_what_comes_before(api: Api, fleet: Fleet, rank: Row) -> None:
    """Whether its room is kept, or became free just now."""
    node = fleet.node(capacity={"cpu_milli": 4000})
    held = api.running(fleet.queue, node, **WHOLE)
    everywhere = fleet.spawn(**WHOLE, **rank)
    fleet.reap()
    assert fleet.states(everywhere) == ["earmarked"]
    other = api.spawn(fleet.queue, **WHOLE)
    api.complete(held)
    fleet.reap(SECOND)
    [claim] = api.claim(node, fleet.queue, qty=5)
    assert (claim["lease_id"] == other) == (rank is LOW)
    assert fleet.sound()


def test_an_everywhere_task_takes_no_idle_room_from_what_comes_before(api: Api, fleet: Fleet) -> None:
    node = fleet.node(capacity={"cpu_milli": 4000})
    fleet.reap()
    other = api.spawn(fleet.queue, **WHOLE)
    everywhere = fleet.spawn(**WHOLE, **LOW)
    fleet.reap()
    assert fleet.states(everywhere) == ["earmarked"]
    assert api.claimed(node, fleet.queue) == [other]


def test_room_for_an_everywhere_task_is_kept_for_a_time(api: Api, fleet: Fleet, clock: Clock) -> None:
    policy = {"tuning": {"earmark_time": 60}, "claim_timeout": 3600}
    api.rows("set_queue_policy", queue=fleet.queue, policy=policy)
    node = fleet.node(capacity={"cpu_milli": 4000})
    api.running(fleet.queue, node, **WHOLE)
    everywhere = fleet.spawn(**WHOLE)
    fleet.reap()
    states = []
    for _ in range(3):
        clock.advance(59 * SECOND)
        api.rows("heartbeat_node", **node.who, claims=[])
        fleet.reap(SECOND)
        states += fleet.states(everywhere)
    assert states[0] == "waiting"
    assert "earmarked" in states[1:]
    assert fleet.sound()


def test_a_registration_looks_at_no_everywhere_task(api: Api, fleet: Fleet) -> None:
    """But the node grants nothing else until they have booked their room there."""
    everywhere = [fleet.spawn(labels={"n": str(n)}) for n in range(3)]
    other = api.spawn(fleet.queue, priority=9)
    node = fleet.node()
    assert [fleet.leases(each) for each in everywhere] == [{}, {}, {}]
    found = [lease for _ in range(2) for lease in api.claimed(node, fleet.queue, qty=3)]
    assert len(found) == 4
    assert found[3] == other
    assert fleet.sound()


def test_what_holds_a_new_node_back_is_over_in_five_seconds(api: Api, fleet: Fleet, clock: Clock) -> None:
    fleet.spawn()
    node, other = fleet.node(), api.spawn(fleet.queue)
    with api.conn.transaction(force_rollback=True):
        api.conn.execute(  # as if each slice were cut short
            "create or replace function hwqueue.expand_node(p_state hwqueue.node_state)"
            " returns hwqueue.node_state language sql volatile"
            " as 'select p_state'"
        )
        assert api.claimed(node, fleet.queue) == []
        clock.advance(5 * SECOND)
        assert api.claimed(node, fleet.queue) == [other]


def test_open_work_of_a_tenant_is_bounded(api: Api, queue: str, clock: Clock) -> None:
    """It is counted by upkeep, and by submissions in between."""
    spec = {"name": "wide", "queue": queue, "steps": [step(f"s{n}") for n in range(1100)]}
    mine = {"tenant": f"t-{queue}"}
    api.rows("submit_spec", spec=spec, options=mine)
    clock.advance(20 * SECOND)
    api.reap()
    assert api.one("select steps from hwqueue.tenant_work where tenant = %s", mine["tenant"]) == 1100
    api.rows("submit_spec", spec={"name": "one", "queue": queue, "steps": [step("a")]}, options=mine)
    api.conn.execute("update hwqueue.tenant_work set steps = steps + 198899")
    more = {"name": "two", "queue": queue, "steps": [step("a"), step("b")]}
    refusal = api.refused("QHT03", "submit_spec", spec=more, options=mine)
    assert refusal.detail["limit"] == 200000
    assert "hwqueue workflow cancel" in str(refusal.hint)
    assert api.row("submit_spec", spec=more, options={"tenant": "other"})["created"]
    api.conn.execute("update hwqueue.tenant_work set steps = 0, nested = 20000")
    api.rows("define_workflow", spec=more | {"name": f"w-{queue}"})
    above = {"name": "above", "queue": queue, "steps": [nested("n", f"w-{queue}")]}
    run = api.row("submit_spec", spec=above, options=mine)["run_id"]
    sweeps(api, 3)
    [found] = api.rows("list_workflow_steps", run=run)
    assert (found["state"], found["reason"]) == ("failed", "nested_refused")
    assert found["error"]["code"] == "QHT03"


def test_steps_that_wait_are_open_work_of_their_tenant(api: Api, queue: str, clock: Clock) -> None:
    """Until their run has ended: else a run with one first step were work without a bound."""
    mine = {"tenant": f"t-{queue}"}
    spec = {"name": "deep", "queue": queue, "steps": [step("a"), *(step(f"s{n}", "a") for n in range(999))]}
    counted = "select steps from hwqueue.tenant_work where tenant = %s"
    runs = [api.row("submit_spec", spec=spec, options=mine)["run_id"] for _ in range(2)]
    clock.advance(20 * SECOND)
    api.reap()
    assert api.one(counted, mine["tenant"]) == 2000
    api.conn.execute("update hwqueue.tenant_work set steps = 199001")
    refusal = api.refused("QHT03", "submit_spec", spec=spec, options=mine)
    assert refusal.detail["what"] == "steps in open runs"
    api.rows("cancel_workflow_run", run=runs[0])
    clock.advance(20 * SECOND)
    api.reap()
    assert api.one(counted, mine["tenant"]) == 1000
    api.rows("cancel_workflow_run", run=runs[1])
    clock.advance(20 * SECOND)
    api.reap()
    assert api.one("select count(*) from hwqueue.tenant_work where tenant = %s", mine["tenant"]) == 0


def test_what_is_retried_is_open_work_again(api: Api, queue: str, clock: Clock) -> None:
    """Else runs that were cancelled were work without a bound, kept for later."""
    mine = {"tenant": f"t-{queue}"}
    spec = {"name": "wide", "queue": queue, "steps": [step(f"s{n}") for n in range(1000)]}
    small = {"name": "two", "queue": queue, "steps": [step("a"), step("b")]}
    run, _ = (api.row("submit_spec", spec=one, options=mine)["run_id"] for one in (small, spec))
    api.rows("cancel_workflow_run", run=run)
    clock.advance(20 * SECOND)
    api.reap()
    changed = "update hwqueue.tenant_work set steps = %s where tenant = %s"
    api.conn.execute(changed, [199999, mine["tenant"]])
    refusal = api.refused("QHT03", "retry_workflow_run", run=run)
    assert (refusal.detail["used"], refusal.detail["limit"]) == (199999, 200000)
    api.conn.execute(changed, [199998, mine["tenant"]])
    assert api.value("retry_workflow_run", run=run) == "running"
    assert api.one("select steps from hwqueue.tenant_work where tenant = %s", mine["tenant"]) == 200000


def test_sweeps_take_turns_by_tenant(api: Api, queue: str) -> None:
    """A run of one tenant goes on with the next sweep, however many of another wait."""
    name = f"below-{queue}"
    api.rows("define_workflow", spec={"name": name, "queue": queue, "steps": [step("a")]})

    def submit(tenant: str, count: int) -> UUID:
        steps = [nested(f"n{n}", name) for n in range(count)]
        spec = {"name": "above", "queue": queue, "steps": steps}
        run = api.row("submit_spec", spec=spec, options={"tenant": tenant})["run_id"]
        assert isinstance(run, UUID)
        return run

    submit("b", 60)
    runs = [submit(tenant, 1) for tenant in ("a", "c") for _ in range(3)]
    api.rows("advance_workflows", limit=9)  # three for each tenant
    below = "select count(*) from hwqueue.run where parent_run_id = %s"
    assert [api.one(below, run) for run in runs] == [1] * 6


@pytest.mark.parametrize("step", ["tried", "changed"])
def test_gangs_take_turns_by_tenant(api: Api, machines: list[Node], step: str) -> None:
    """Upkeep looks at twenty in a call; to cancel one takes two calls."""
    queue = api.queue(earmarks=0)
    many = WHOLE if step == "tried" else {}
    theirs = [spawn(api, queue, 3, many | {"tenant": "a"}) for _ in range(25)]
    mine = spawn(api, queue, 2, WHOLE | {"tenant": "b"} | LOW)
    if step == "changed":
        api.reap()
        for each_gang in (*theirs, mine):
            api.rows("cancel_gang", gang=each_gang)
        api.rows("reap")
    api.rows("reap")
    assert gang(api, mine)["state"] == ("reserved" if step == "tried" else "cancelled")
    assert machines


def test_replacements_take_turns_by_tenant(api: Api, queue: str, clock: Clock) -> None:
    """Nor do those that wait on keep the ones behind them from their turn."""

    def replacing(tenant: str) -> UUID:
        clock.advance(SECOND)
        old = api.spawn(queue, tenant=tenant)
        return api.spawn(queue, tenant=tenant, replaces={"lease": str(old)})

    leases = [*(replacing("a") for _ in range(5)), replacing("b")]
    for seen in range(2, 7):
        clock.advance(SECOND)
        api.rows("reap", limit=2)
        states = [api.state(lease) for lease in leases]
        assert (states.count("pending"), states[0], states[-1]) == (seen, "pending", "pending")


def test_choices_take_turns_by_tenant(api: Api, queue: str) -> None:
    node, others = api.node(), list[UUID]()
    for tenant in "aaab":
        choice = str(uuid4())
        pair = {api.spawn(queue, tenant=tenant, one_of=choice) for _ in range(2)}
        others += pair - set(api.claimed(node, queue))
    api.rows("reap", limit=2)
    assert [api.state(lease) for lease in others] == ["cancelled", "pending", "pending", "cancelled"]


def test_terms_take_turns_by_tenant(api: Api, queue: str) -> None:
    """One that nobody knows yet waits for few of another tenant's, however many these are."""

    def spawn_apart(tenant: str, count: int) -> None:
        for _ in range(count):
            away = {"leases": {"labels": {"app": str(uuid4())}}, "domain": "rack", "away": True}
            api.spawn(queue, tenant=tenant, placement={"require": [away]})

    def published(tenant: str) -> int:
        where = "published_at is not null and spec #>> '{all,0,tenants,0}' = %s"
        return int(api.one(f"select count(*) from hwqueue.affinity_term where {where}", tenant))

    spawn_apart("many", 12)
    api.rows("reap")  # writes them
    spawn_apart("many", 12)
    spawn_apart("few", 1)
    for _ in looks():
        api.rows("reap", limit=2)
        if published("few"):
            break
    assert published("many") <= 2


def test_what_ends_says_whose_it_is(api: Api) -> None:
    """An item that has ended, and a parent of a join, where another session may hold the count."""
    mine, left = {"tenant": "a"}, "select kind, tenant from hwqueue.arrival where run_id = %s"
    items = Flow(api, [each("m", [1, 2])], options=mine)
    api.complete(items.items()[0])
    join = Flow(api, [step("a"), step("b"), step("c", "a", "b", join="any")], options=mine)
    api.complete(join.claims()["a"])
    for flow, kind in ((items, "item"), (join, "count")):
        assert set(api.conn.execute(left, [flow.run]).fetchall()) == {(kind, "a")}


def test_a_dry_run_plans_equal_steps_once(api: Api, queue: str) -> None:
    """As its submission does; of steps that differ it judges a hundred."""
    name = f"below-{queue}"
    api.rows("define_workflow", spec={"name": name, "queue": queue, "steps": [step("a")]})
    steps = [{"name": f"s{n}", "task": "t"} for n in range(40)]
    steps += [nested(f"n{n}", name) for n in range(20)]
    calls = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = %s"
    api.conn.execute("set track_functions = 'all'")
    with api.conn.transaction():
        api.rows("check_workflow", spec={"name": "x", "queue": queue, "steps": steps})
        api.conn.execute("select pg_stat_force_next_flush()")
    api.conn.execute("set track_functions = 'none'")
    assert api.one(calls, "step_class") == 2
    steps = [{"name": f"s{n}", "task": f"t{n}"} for n in range(102)]
    rows = api.rows("check_workflow", spec={"name": "x", "queue": queue, "steps": steps})
    assert [row["code"] == "not_judged" for row in rows] == [False] * 100 + [True] * 2


def test_a_choice_of_another_tenant_is_like_one_that_is_full(api: Api) -> None:
    queue, theirs, mine = api.queue(), str(uuid4()), str(uuid4())
    api.spawn(queue, one_of=theirs, tenant="film")
    for _ in range(100):
        api.spawn(queue, one_of=mine, tenant="games")
    told = [
        api.refused("QHA01", "spawn_lease", queue=queue, task="t", options={"one_of": c, "tenant": "games"})
        for c in (theirs, mine)
    ]
    words = [
        (each.message.replace(c, "ID"), each.hint, each.detail.keys())
        for each, c in zip(told, (theirs, mine), strict=True)
    ]
    assert words[0] == words[1]


def test_a_planner_leads_for_a_minute_at_most(api: Api, clock: Clock) -> None:
    api.value("lead_planner", holder="the one before", ttl=timedelta(0))
    assert api.value("lead_planner", holder="lost", ttl=timedelta(hours=1)) is not None
    clock.advance(MINUTE - SECOND)
    assert api.value("lead_planner", holder="next") is None
    clock.advance(SECOND)
    assert api.value("lead_planner", holder="next") is not None
    api.value("lead_planner", holder="next", ttl=timedelta(0))


def test_a_tenant_shares_its_leases(api: Api, queue: str, node: Node) -> None:
    """With those that it names: their selectors may name it, and nobody may name all tenants."""
    film, lab, games = (f"{name}-{uuid4()}" for name in ("film", "lab", "games"))
    with limited(api, lab):
        api.spawn(queue, labels={"app": "db"})
    api.claim(node, queue)

    def near(tenants: str | list[str]) -> Row:
        at = {"leases": {"labels": {"app": "db"}}, "domain": "node", "tenants": tenants}
        return {"placement": {"require": [at]}}

    api.value("set_tenant", name=lab, changes={"shared_with": [film]})
    with limited(api, games):
        api.refused("QHA03", "spawn_lease", queue=queue, task="t", options=near([lab]))
    with limited(api, film):
        for tenants in ([games, lab], "*"):
            api.refused("QHA03", "spawn_lease", queue=queue, task="t", options=near(tenants))
        lease = api.spawn(queue, **near([film, lab]))
    api.reap()
    assert api.claimed(api.node(), queue) == []
    assert api.claimed(node, queue) == [lease]
    api.value("set_tenant", name=lab, changes={"shared_with": None})
    with limited(api, film):
        api.refused("QHA03", "spawn_lease", queue=queue, task="t", options=near([lab]))
