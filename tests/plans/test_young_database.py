"""A session that has planned while the tables were small reads no more once they are large."""

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.flows import Flow, each, fail, finish, finish_all, gang, step, sweeps
from tests.patience import looks
from tests.plans.backlog import multiply
from tests.plans.explain import explained
from tests.sql.api import Api, settlement

pytestmark = pytest.mark.usefixtures("fresh")  # nobody has analysed it

MANY = 400
SOME = 200  # steps of which each statement is written to the log


@pytest.mark.parametrize("qty", [1, 5])
def test_claims_find_leases_by_key(api: Api, qty: int) -> None:
    queue, node = api.queue(), api.node()
    for _ in range(8):
        for _ in range(qty):
            api.spawn(queue)
        claims = api.claim(node, queue, qty=qty)
        settle = [settlement(claim) for claim in claims]
        api.rows("settle_and_claim", **node.who, settle=settle, queues=[queue], qty=0)
    for _ in range(MANY):
        api.spawn(queue)
    with explained(api.conn) as work:
        claims = api.claim(node, queue, qty=qty)
    assert work.rows_read("lease") == len(claims) == qty
    with explained(api.conn) as work:
        settle = [settlement(claim) for claim in claims]
        api.rows("settle_and_claim", **node.who, settle=settle, queues=[queue], qty=0)
    assert work.rows_read("lease") <= 2 * qty  # found, then updated


def test_one_queue_is_counted_by_index(api: Api) -> None:
    queue, other = api.queue(), api.queue()
    api.spawn(queue)
    for _ in range(20):
        assert api.row("queue_depth", queue=queue)["pending"] == 1
        api.spawn(other)
        api.conn.execute("analyze hwqueue.ready")
    with explained(api.conn) as work:
        api.rows("queue_depth", queue=queue)
    assert work.rows_read("ready") == 1
    api.rows("spawn_gang", queue=queue, members=Jsonb([{"task": "work", "count": MANY}]))
    with explained(api.conn) as work:
        api.rows("claim_hint", queues=[queue], node=api.node().node_id)
    assert work.rows_read("scheduled") == 0  # what a gang holds is due at no time
    assert api.conn.execute("show enable_seqscan").fetchone() == ("on",)


@pytest.mark.parametrize("counted", [False, True])
def test_completions_find_leases_by_key(api: Api, counted: bool) -> None:
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 10**6} if counted else {})
    needs = {"resources": {"cpu_milli": 1}}
    claims = [api.running(queue, node, placement=needs) for _ in range(5)]
    other, many = api.queue(), [{"task": "work"}] * MANY
    for each_queue in (queue, other):
        api.rows("spawn_leases", queue=each_queue, leases=many)
    assert len(api.claim(node, other, qty=MANY)) == MANY
    with explained(api.conn) as work:
        finish_all(api, claims)
    assert work.rows_read("lease") <= 2 * len(claims)  # found, then updated
    assert work.rows_read("claim") <= 4 * len(claims)


@pytest.mark.parametrize("function", ["spawn_lease", "spawn_leases", "spawn_gang", "update_lease"])
def test_a_class_is_found_by_its_digest(api: Api, function: str) -> None:
    queue = api.queue()
    lease = api.spawn(queue)
    many = [{"task": "work", "options": {"labels": {str(n): "n"}}} for n in range(MANY)]
    calls: dict[str, Row] = {
        "spawn_lease": {"queue": queue, "task": "work", "options": {"labels": {"n": "1"}}},
        "spawn_leases": {"queue": queue, "leases": many[:1]},
        "spawn_gang": {"queue": queue, "members": Jsonb(many[:2])},
        "update_lease": {"lease": lease, "changes": {"labels": {"n": "1"}}},
    }
    for number in range(16):
        if number == 8:
            api.conn.execute("analyze")
        api.rows(function, **calls[function])
    api.rows("spawn_leases", queue=queue, leases=many)
    with explained(api.conn) as work:
        api.rows(function, **calls[function])
    assert work.rows_read("placement_class") <= 10


def test_a_list_finds_its_leases_by_key(api: Api) -> None:
    queue = api.queue()
    api.spawn(queue)
    api.conn.execute("analyze")  # a class has one lease, say the statistics from now on
    multiply(api.conn, queue, 5_000)
    with explained(api.conn) as work:
        assert len(api.rows("list_leases", limit=5)) == 5
    assert work.rows_read("lease") <= 5 * 5


def test_what_runs_is_found_by_key(api: Api) -> None:
    queue, node = api.queue(), api.node()
    for _ in range(8):
        api.running(queue, node)
        api.rows("running_leases", limit=5)
    api.rows("spawn_leases", queue=queue, leases=[{"task": "work"}] * MANY)
    with explained(api.conn) as work:
        assert len(api.rows("running_leases", limit=5)) == 5
    assert work.rows_read("lease") <= 5


def test_claims_look_at_their_queue_alone(api: Api) -> None:
    queue, node = api.queue(), api.node()
    for _ in range(8):
        api.running(queue, node)
    for _ in range(100):
        api.running(api.queue(), node)
    read: dict[str, float] = {}
    # while another session on this server has a transaction open, claims go the long way
    for _ in looks():  # a claim that moves marks reads them again
        api.spawn(queue)
        with explained(api.conn) as work:
            assert len(api.claim(node, queue)) == 1
        read = {table: work.rows_read(table) for table in ("queue", "profile_queue", "low_water")}
        if max(read.values()) <= 5:
            break
    assert max(read.values()) <= 5, read


@pytest.mark.parametrize("function", ["match_groups", "explain_class"])
def test_all_nodes_are_joined_by_hash(api: Api, function: str) -> None:
    """No node is held against every other one to judge them all."""
    queue = api.queue()
    skew = {"domain": "label:zone", "max_skew": 1, "select": {"labels": {"app": "one"}}}
    placement = {"spread": [skew]}
    api.spawn(queue, placement=placement, labels={"app": "one"})
    for number in range(MANY):
        api.node(labels={"zone": number % 7, "host": number})
    as_options = {"placement": placement, "options": {"queue": queue, "labels": {"app": "one"}}}
    with explained(api.conn) as work:
        api.rows(function, **(as_options if function == "match_groups" else {"class": 1}))
    assert work.most_rows <= 20 * MANY


@pytest.mark.thorough
def test_what_concerns_a_whole_run_reads_each_step_a_few_times(api: Api) -> None:
    """Submitting, listing, cancelling and retrying a run whose steps are joined, and in a chain."""
    chain = [step("c0"), *(step(f"c{n}", f"c{n - 1}") for n in range(1, SOME))]
    steps = [*(step(f"p{n}") for n in range(SOME)), step("end", *(f"p{n}" for n in range(SOME)))]
    with explained(api.conn) as work:
        flow = Flow(api, [*chain, *steps])
        flow.steps()
        api.rows("cancel_workflow_run", run=flow.run)
        api.row("advance_workflows")
        api.rows("retry_workflow_run", run=flow.run)
        assert api.rows("verify_invariants") == []
    tables = ("step", "workflow_step", "tally")
    read = {table: work.rows_read(table) for table in tables}
    assert max(read.values()) <= 80 * SOME, read  # up to 53 seen; with all others 400 * SOME


def test_steps_with_items_are_listed_by_key(api: Api) -> None:
    """Maps and gangs count their items, each its own: not all those of the run for each."""
    steps = [gang(f"g{n}", 2) for n in range(60)] + [each(f"m{n}", [1]) for n in range(60)]
    flow = Flow(api, steps)
    with explained(api.conn) as work:
        assert {row["items"] for row in flow.steps().values()} == {1, 2}
    assert max(work.rows_read("map"), work.rows_read("tally")) <= 20 * len(steps)


def test_what_steps_ask_and_when_they_began_is_found_by_key(api: Api) -> None:
    """No step is held against all the others, nor against all classes."""
    tasks = [step(f"t{n}", f"t{n - 1}", affinity_tags={"disk": n}) for n in range(1, SOME)]
    naps = [{"name": f"n{n}", "kind": "sleep", "for": 3600} for n in range(SOME)]
    flow = Flow(api, [step("t0"), *tasks, *naps])
    with explained(api.conn) as work:
        details = api.rows("list_step_details", run=flow.run)
        assert len(flow.steps()) == len(details)
    assert sum(row["words"] is not None for row in details) == SOME
    assert sum(row["released_at"] is not None for row in details) == SOME + 1
    assert work.most_rows <= 10 * SOME
    assert work.rows_read("placement_class") <= 10 * SOME


def test_a_sweep_of_a_cancelled_run_finds_claims_by_key(api: Api, dsn: str) -> None:
    """An old transaction keeps the change: each sweep looks for steps that were released since."""
    flow = Flow(api, [step(f"s{n}") for n in range(MANY)])
    assert len(flow.claims()) == MANY
    api.conn.execute("vacuum analyze")
    with psycopg.connect(dsn) as old:
        old.execute("select pg_current_xact_id()")
        api.rows("cancel_workflow_run", run=flow.run)
        sweeps(api, 6)
        with explained(api.conn) as work:
            api.rows("advance_workflows")
    assert work.most_rows <= 5 * MANY


def test_a_retry_of_a_map_finds_its_leases_by_key(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(MANY)))])
    claims = flow.items()
    fail(api, claims.pop(MANY - 1))
    finish_all(api, claims.values())
    api.rows("advance_workflows")
    with explained(api.conn) as work:
        api.rows("retry_workflow_run", run=flow.run)
    assert list(flow.items()) == [MANY - 1]
    assert work.most_rows <= 2 * MANY
    # each item twice, and a few times the one that runs again
    assert max(work.rows_read("lease"), work.rows_read("outcome")) <= 2 * (MANY + 10)


def test_what_maps_return_is_found_by_key(api: Api) -> None:
    """By a step that reads all of it, by a map over it, by who pages through it."""
    ends = [each("n", {"$results": "m"}), step("end", params={"all": {"$results": "m"}})]
    flow = Flow(api, [each("m", list(range(MANY))), *ends])
    claims = flow.items()
    last = claims.pop(MANY - 1)
    finish_all(api, claims.values())
    with explained(api.conn) as work:
        finish(api, last, result=7)
        api.rows("advance_workflows")
        api.rows("step_results", run=flow.run, step="m", limit=MANY)
        flow.steps()
    assert len(flow.items()) == MANY + 1
    assert work.most_rows <= 3 * MANY
