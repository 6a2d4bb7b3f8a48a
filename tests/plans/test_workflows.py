"""Runs of workflows find their rows by key, and no call compares all steps with all others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.counted import counting
from tests.flows import Flow, each, fail, finish, finish_all, step
from tests.nests import below, define, nested
from tests.plans.backlog import BIG
from tests.plans.explain import Work, explained
from tests.sql.api import Api, count_all, token

RUNS = 3_000
WIDE = 240
TABLES = (
    *("run", "step", "tally", "arrival", "workflow_step", "run_key", "run_class"),
    "run_signal",
    "map",
    "map_list",
    "added",
    "checkpoint",
    "lease_signal",
)
ROWS = 30  # of each of them that a call about one small run may read; up to 12 seen
SAVED = 6  # that a call of a handler may read of what its lease has
LIMIT = 10  # of what one sweep looks at
GRAPH = [step("a"), step("b"), step("c", "a", "b"), step("d", "c")]

# Copies of a run that waits, each with a count that some session has left.
COPIES = """
  with fresh as materialized (
    select gen_random_uuid() as id from generate_series(1, %(runs)s)),
  runs as (
    insert into hwqueue.run
    select (jsonb_populate_record(r, jsonb_build_object('run_id', f.id, 'root_run_id', f.id))).*
    from hwqueue.run r cross join fresh f where r.run_id = %(run)s),
  steps as (
    insert into hwqueue.step
    select (jsonb_populate_record(s, jsonb_build_object('run_id', f.id,
      'lease_id', gen_random_uuid()))).*
    from hwqueue.step s cross join fresh f where s.run_id = %(run)s),
  tallies as (
    insert into hwqueue.tally
    select (jsonb_populate_record(t, jsonb_build_object('run_id', f.id))).*
    from hwqueue.tally t cross join fresh f where t.run_id = %(run)s)
  insert into hwqueue.arrival (run_id, step_no, kind, at)
  select f.id, 3, 'count', now() + interval '1 day' from fresh f
"""

# What other steps have added, and what other leases have saved and were sent.
ADDED = """
  with fresh as materialized (
    select gen_random_uuid() as id, n from generate_series(1, %(runs)s) n),
  maps as (
    insert into hwqueue.map (run_id, step_no, items, params) select f.id, 1, 1, '{}' from fresh f),
  items as (insert into hwqueue.added (run_id, step_no, item_no, name, task_name, params)
    select f.id, 1, 0, 'x', 'x', '{}' from fresh f),
  saved as (
    insert into hwqueue.checkpoint (lease_id, name, claim_token, saved_at, is_open)
    select f.id, 'x', 1, now(), false from fresh f)
  insert into hwqueue.lease_signal (lease_id, number, name, sent_at)
  select f.id, 1, 'x', now() from fresh f
"""

# Outcomes of steps that ended long ago, of runs that are kept for longer than their queue's leases.
KEPT = """
  insert into hwqueue.outcome
  select (jsonb_populate_record(o, jsonb_build_object('lease_id', gen_random_uuid(),
    'finished_at', now() - interval '100 days'))).*
  from hwqueue.outcome o join hwqueue.queue q using (queue_id)
  cross join generate_series(1, %(times)s)
  where q.name = %(queue)s
"""
KEPT_STEPS = 1_000

# What sessions have left in the open runs.
ARRIVALS = """
  insert into hwqueue.arrival (run_id, step_no, kind, at)
  select r.run_id, 3, 'count', now() + interval '1 day'
  from hwqueue.run r where r.finished_at is null
"""

# Copies of a run that has ended, long ago.
ENDED_COPIES = """
  insert into hwqueue.run
  select (jsonb_populate_record(r, jsonb_build_object('run_id', f.id, 'root_run_id', f.id,
    'finished_at', r.finished_at - interval '1 day'))).*
  from hwqueue.run r
  cross join (select gen_random_uuid() as id from generate_series(1, %(runs)s)) f
  where r.run_id = %(run)s
"""


@pytest.fixture(scope="module")
def database(database: str) -> str:
    """That of all guards, with runs and definitions in it."""
    with psycopg.connect(database, autocommit=True) as conn:
        api = Api(conn)
        flow = Flow(api, GRAPH)
        conn.execute(COPIES, {"runs": RUNS, "run": flow.run})
        conn.execute(ADDED, {"runs": RUNS})
        api.row("define_workflow", spec={"name": "wide", "steps": wide(WIDE)})
        conn.execute("vacuum analyze")
    return database


def wide(count: int) -> list[dict[str, Any]]:
    """Steps that one step comes after and reads the results of, and as many in a chain."""
    first = [step(f"p{n}") for n in range(count)]
    before = [{"params": {"x": {"$result": f"c{n - 1}"}}} if n else {} for n in range(count)]
    chain = [step(f"c{n}", **more) for n, more in enumerate(before)]
    results = [{"$result": f"p{n}"} for n in range(0, count, 2)]
    return [*first, *chain, step("end", *(f"p{n}" for n in range(count)), params={"all": results})]


def end(flow: Flow, claim: Row, as_worker: bool) -> None:
    """Complete a claim, as a worker does or alone."""
    if as_worker:
        flow.settle(claim)
    else:
        finish(flow.calls, claim)


@contextmanager
def by_key(api: Api, rows: int = ROWS) -> Iterator[Work]:
    """The call inside reads a few rows of each table, by index."""
    with explained(api.conn) as work:
        yield work
    assert work.whole_table_scans(*BIG, *TABLES) == []
    read = {table: work.rows_read(table) for table in (*BIG, *TABLES)}
    assert {table: count for table, count in read.items() if count > rows} == {}


@pytest.mark.parametrize("ended", ["a", "b", "c", "d"])
@pytest.mark.parametrize("as_worker", [True, False])
def test_settling_a_step(api: Api, ended: str, as_worker: bool) -> None:
    """The parents of a join, a step with one child, and the last of its run."""
    flow = Flow(api, GRAPH)
    claims = flow.claims()
    for name in "abcd"[: "abcd".index(ended)]:
        finish(api, claims[name])
        claims |= flow.claims()
    with by_key(api):
        end(flow, claims[ended], as_worker)


def parents_read(work: Work) -> float:
    """By what names the spans that ended the parents of a step."""
    return Work([p for p in work.plans if "parent_traceparents" in p["Query Text"]]).rows_read("step")


def test_a_step_of_a_traced_run_reads_its_own_parents(api: Api) -> None:
    """Of a join of hundreds the first hundred parents."""
    traced = {"headers": {"traceparent": "of the submission"}}
    flow = Flow(api, wide(WIDE), options=traced)
    claims = flow.claims()
    with explained(api.conn) as work:
        flow.settle(claims.pop("c0"), traceparent="of c0", result=0)
    assert parents_read(work) == 1
    last = claims.pop("p0")
    for claim in claims.values():
        finish(api, claim, result=0)
    with explained(api.conn) as work:
        flow.settle(last, traceparent="of p0", result=0)
    assert parents_read(work) == 100
    claims = flow.claims()
    assert {name: claims[name]["headers"]["parent_traceparents"] for name in ("c1", "end")} == {
        "c1": ["of c0"],
        "end": ["of p0"],
    }


def test_settling_parents_together(api: Api) -> None:
    """One update of the tally of their join, one of that of the open work."""
    names = [f"p{number}" for number in range(8)]
    flow = Flow(api, [*(step(name) for name in names), step("c", *names)])
    claims = flow.claims()
    last = claims.pop("p0")
    with by_key(api, rows=8 * ROWS) as work:
        finish_all(api, claims.values())
    updates = [plan for plan in work.plans if "update hwqueue.tally" in plan["Query Text"]]
    assert len(updates) == 2
    finish(api, last)
    flow.complete("c")


def test_pruning_beside_steps_that_are_kept(api: Api, conn: psycopg.Connection) -> None:
    """A call that follows another reads none of those that ended long ago."""
    flow = Flow(api, [step("a"), step("b")])
    flow.complete("a", "b")
    conn.execute(KEPT, {"times": KEPT_STEPS, "queue": flow.queue})
    count_all(conn)
    for _ in range(2):
        with explained(conn) as work:
            api.row("prune")
    assert work.rows_read("outcome") <= 3 * ROWS
    old = api.running(api.queue(retain_completed=0))
    finish(api, old)
    count_all(conn)
    api.row("prune")
    assert api.rows("list_leases", filter={"queue": old["queue"]}) == []


@pytest.mark.parametrize("as_worker", [True, False])
def test_settling_an_item_of_a_long_list(api: Api, as_worker: bool) -> None:
    """The end of an item lets the next one in; neither looks at the others."""
    flow = Flow(api, [each("m", list(range(20_000)), max_parallel=300)])
    claims = flow.items()
    assert len(claims) == 300
    for number in range(200):
        flow.settle(claims[number])
    with by_key(api) as work:
        end(flow, claims[200], as_worker)
    assert work.rows_read("lease") <= 10


def test_a_failure(api: Api) -> None:
    flow = Flow(api, GRAPH)
    claims = flow.claims()
    finish(api, claims["b"])
    with by_key(api):
        fail(api, claims["a"])
    assert flow.state == "failed"


ONCE, WEST = {"idempotency_key": "once"}, {"affinity_tags": {"zone": "west"}}
CHANGES: dict[str, Callable[[Flow], Any]] = {
    "submit_spec": lambda flow: flow.calls.rows("submit_spec", spec=flow.spec, options=ONCE),
    "update_steps": lambda flow: flow.calls.rows("update_steps", run=flow.run, changes=WEST),
    "get_workflow_run": lambda flow: flow.get(),
    "list_workflow_steps": lambda flow: flow.steps(),
    "get_run_workflow": lambda flow: flow.calls.rows("get_run_workflow", run=flow.run),
    "list_step_details": lambda flow: flow.calls.rows("list_step_details", run=flow.run),
    "list_run_signals": lambda flow: flow.calls.rows("list_run_signals", run=flow.run),
    "summarise_runs": lambda flow: flow.calls.rows("summarise_runs", run_ids=[flow.run]),
    "pause": lambda flow: flow.calls.rows("pause_workflow_run", run=flow.run),
    "cancel": lambda flow: flow.calls.rows("cancel_workflow_run", run=flow.run),
    "skip_step": lambda flow: flow.calls.rows("skip_step", run=flow.run, step="c"),
}


WAITS = [step("a"), {"name": "w", "kind": "wait", "signal": "go", "after": ["a"]}, step("b", "w")]


@pytest.mark.parametrize("early", [True, False])
def test_a_signal(api: Api, early: bool) -> None:
    flow = Flow(api, WAITS)
    if not early:
        finish(api, flow.claims()["a"])
    with by_key(api):
        api.rows("signal_workflow_run", run=flow.run, name="go", payload=1, key="once")
    if early:
        claims = flow.claims()
        with by_key(api):
            finish(api, claims["a"])
    assert flow.states()["b"] == "running"


def test_steps_that_are_due(api: Api) -> None:
    """It looks at as many as its limit, however many others sleep."""
    sleeps = [{"name": f"s{n}", "kind": "sleep", "for": 0.001} for n in range(3 * LIMIT)]
    flow = Flow(api, [*sleeps, {"name": "long", "kind": "sleep", "for": "1 day"}])
    with by_key(api, rows=4 * ROWS + 30 * LIMIT):
        found = api.row("advance_workflows", limit=LIMIT)
    assert found["folded"] == 2 * LIMIT  # arrivals, and steps that are due
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelled"  # nothing is left due


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.every_variant
def test_looking_and_changing(api: Api, change: str) -> None:
    """An update looks at each step before, after and while it is held, and at no other run."""
    flow, updates = Flow(api, GRAPH), change == "update_steps"
    with by_key(api, ROWS * (2 if updates else 1)):
        rows = CHANGES[change](flow)
    assert not updates or len(rows) == 2


def test_a_cancellation_ends_some_leases_and_sweeps_end_the_others(api: Api) -> None:
    """An operator waits for the call, however wide the run is."""
    flow = Flow(api, [step(f"p{n}") for n in range(WIDE)])
    flow.calls.rows("cancel_workflow_run", run=flow.run)
    assert flow.get()["step_counts"] == {"cancelled": 100, "running": WIDE - 100}
    api.row("advance_workflows")
    assert flow.get()["step_counts"] == {"cancelled": WIDE}
    assert flow.state == "cancelled"


@pytest.mark.parametrize("call", ["check_workflow", "preview_update"])
def test_a_dry_run_judges_each_class_once(api: Api, call: str) -> None:
    """All that it asks of the fleet grows with classes, and not with steps."""
    api.node(labels={"disk": "d0"})
    counted = [
        judged(api, call, [{"disk": f"d{number % classes}"} for number in range(steps)])
        for steps, classes in ((8, 4), (40, 4), (40, 8))
    ]
    assert counted == [4, 4, 8]


def judged(api: Api, call: str, asked: list[dict[str, str]]) -> int:
    """How often a dry run of steps that ask this reads the fleet."""
    steps = [
        step(f"s{number}", *["first"] * (call == "preview_update"), affinity_tags=tags) | {"task": "same"}
        for number, tags in enumerate(asked)
    ]
    flow = Flow(api, [step("first"), *steps])
    arguments: dict[str, Any] = (
        {"spec": flow.spec | {"steps": steps}}
        if call == "check_workflow"
        else {"run": flow.run, "changes": {"affinity_tags": {"zone": "west"}}}
    )
    with counting(api.conn) as calls:
        assert len(api.rows(call, **arguments)) == len(steps)
    assert calls["failure_detail"] == 0
    return calls["judge_fleet"]


def test_a_sweep_that_finds_nothing_left_reads_no_run(api: Api) -> None:
    flow = Flow(api, GRAPH)
    for kind in ("release", "skip", "fail"):
        with explained(api.conn) as work:
            api.conn.execute("select hwqueue.sweep_one(%s, 3, %s, now())", [flow.run, kind])
        assert work.scans("run") == []


def test_retrying(api: Api) -> None:
    flow = Flow(api, GRAPH)
    claims = flow.claims()
    finish(api, claims["a"])
    fail(api, claims["b"])
    with by_key(api):
        api.rows("preview_retry", run=flow.run)
    with by_key(api, 50):  # the parents of each step are counted twice
        api.rows("retry_workflow_run", run=flow.run)


def test_a_sweep(api: Api) -> None:
    """However many arrivals there are: it reads the oldest, others, what it stamps, a few runs."""
    with by_key(api, rows=3 * 10 * LIMIT + ROWS):
        found = api.row("advance_workflows", limit=LIMIT)
    assert found["folded"] == LIMIT


@pytest.mark.parametrize("change", ["open", "retry", "cancel"])
def test_a_sweep_of_a_nested_run(api: Api, change: str) -> None:
    """Each of the two finds the other by key, in either direction."""
    flow = Flow(api, [nested("n", "below"), step("z", "n")])
    define(flow, "below", step("c"))
    if change != "open":
        api.rows("advance_workflows", limit=LIMIT)
    if change == "retry":
        flow.fail("c")
        api.rows("retry_workflow_run", run=flow.run)
    elif change == "cancel":
        api.rows("cancel_workflow_run", run=flow.run)
        api.rows("advance_workflows", limit=LIMIT)
    with by_key(api, rows=3 * 10 * LIMIT + 2 * ROWS):  # as of any sweep, and of each of the two
        api.rows("advance_workflows", limit=LIMIT)
    assert below(flow, "n").state == ("cancelled" if change == "cancel" else "running")


def test_the_end_of_a_nested_run(api: Api) -> None:
    """And the list of the runs below a run."""
    flow = Flow(api, [nested("n", "below"), step("z", "n")])
    define(flow, "below", step("c"))
    api.rows("advance_workflows", limit=LIMIT)
    for above in ("parent_run_id", "root_run_id"):
        with by_key(api):
            [row] = api.rows("list_workflow_runs", filter={above: str(flow.run)})
        assert row["run_id"] == below(flow, "n").run
    claim = flow.claims()["c"]
    with by_key(api):
        finish(api, claim)
    flow.complete("z")


def test_what_a_large_definition_costs(api: Api) -> None:
    """No join of its steps looks at each pair of them."""
    name, steps = f"wide-{uuid4()}", wide(WIDE)
    some = {f"p{n}": {"options": {"priority": 1}} for n in range(0, WIDE, 24)}
    with explained(api.conn) as defined:
        api.row("define_workflow", spec={"name": name, "queue": api.queue(), "steps": steps})
    with explained(api.conn) as submitted:
        run = api.row("submit_workflow", workflow=name, options={"steps": some})["run_id"]
    api.rows("cancel_workflow_run", run=run)
    api.rows("advance_workflows", limit=10_000)
    with explained(api.conn) as retried:
        api.rows("preview_retry", run=run, options={"steps": [one["name"] for one in steps]})
    assert max(work.most_rows for work in (defined, submitted, retried)) <= 5 * WIDE


def test_a_definition_of_steps_near_many_others(api: Api) -> None:
    """Each name is looked up once, not looked for among the steps."""
    names = [f"c{n}" for n in range(100)]
    steps = [
        step(name, *names[n - 1 : n], near={"step": names[max(0, n - 20) : n]})
        for n, name in enumerate(names[1:], 1)
    ]
    spec = {"name": "near", "queue": api.queue(), "steps": [step("c0"), *steps]}
    with explained(api.conn) as work:
        api.row("define_workflow", spec=spec)
    looked_at = sum(node["Actual Loops"] * node["Actual Rows"] for node in work.nodes)
    assert looked_at < 40_000  # 99 steps near 20 each; with a look among all steps 200,000 more


@pytest.mark.parametrize("what", ["items", "steps"])
def test_what_a_handler_adds(api: Api, what: str) -> None:
    """To a step that has added before, and to one that has not."""
    flow = Flow(api, GRAPH)
    own = token(flow.claims()["a"])
    for name in ("x", "y"):
        with by_key(api):
            if what == "items":
                api.rows("add_items", **own, items=Jsonb([{"name": name, "task": "x"}]))
            else:
                api.rows("add_steps", **own, spec={"name": name, "steps": [step("x")]})


@pytest.mark.parametrize("before", [2, 60])
def test_what_a_handler_saves(api: Api, before: int) -> None:
    """A checkpoint, signals, a suspension and what ends it: however much the lease has already."""
    claim = api.running(api.queue(), api.node())
    own, lease = token(claim), claim["lease_id"]
    for number in range(before):
        api.value("save_checkpoint", **own, name=f"s{number}")
        api.rows("signal_lease", lease=lease, name="done", key=f"k{number}")
        api.rows("take_signal", **own, signal="done", name=f"w{number}")
    api.rows("signal_lease", lease=lease, name="other")
    for call, arguments in (
        ("save_checkpoint", own | {"name": "one more"}),
        ("signal_lease", {"lease": lease, "name": "done", "key": "one more"}),
        ("take_signal", own | {"signal": "done", "name": "last"}),
        ("suspend_lease", own | {"signal": "go"}),
        ("signal_lease", {"lease": lease, "name": "go", "key": "once"}),
    ):
        with by_key(api) as work:
            api.rows(call, **arguments)
        assert max(work.rows_read(table) for table in ("checkpoint", "lease_signal")) <= SAVED


def test_metrics_read_open_runs_alone(api: Api) -> None:
    """Runs that have ended are kept for days; a scrape reads those of the last hour."""
    flow = Flow(api, [step("a")])
    flow.complete("a")
    api.conn.execute(ENDED_COPIES, {"runs": RUNS, "run": flow.run})
    api.conn.execute(ARRIVALS)
    api.conn.execute("vacuum analyze hwqueue.run, hwqueue.arrival")
    open_runs = api.one("select count(*) from hwqueue.run where finished_at is null")
    with explained(api.conn) as work:
        rows = {row["name"]: row["value"] for row in api.rows("metrics")}
    assert rows["hwqueue_workflow_arrivals"] > RUNS / 2
    assert work.whole_table_scans("run", "arrival") == []
    assert work.rows_read("run") <= open_runs + ROWS
    assert work.rows_read("arrival") <= 10_001


def test_a_page_of_items_is_read_by_key(api: Api) -> None:
    """Behind an item: what is before it costs nothing. By state: up to the last one of the page."""
    flow = Flow(api, [each("m", list(range(WIDE)), max_parallel=WIDE, tolerate=WIDE)])
    api.rows("advance_workflows")
    claims = flow.items()
    failed = [claims.pop(number) for number in (200, 210)]
    for claim in failed:
        fail(api, claim)
    finish_all(api, claims.values())
    pages: list[tuple[Row, list[int], int]] = [
        ({"after": WIDE - 50, "limit": LIMIT}, list(range(WIDE - 49, WIDE - 49 + LIMIT)), 2 * LIMIT + 1),
        ({"after": 199, "limit": 2, "state": "failed"}, [200, 210], 20),
    ]
    for page, items, most in pages:
        with explained(api.conn) as work:
            rows = api.rows("step_results", run=flow.run, step="m", **page)
        assert [row["item"] for row in rows] == items
        read = {table: work.rows_read(table) for table in ("lease", "outcome", "node", "claim")}
        assert max(read.values()) <= most, read
