"""Arguments that are meant to do harm, and numbers that are too small to count."""

import json
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.flows import Flow, step
from tests.sql.api import NOBODY, Api, Node, beat, raw, read_refusal, refusing, token

pytestmark = pytest.mark.thorough


LONG = "1e131071"  # 16 bytes as it is kept, 131,072 characters as text
SHORT = "1e-16383"
BOMB = f"[{','.join([LONG] * 10_000)}]"  # 1.3 GB as text: more than Postgres holds in a value
SMALL = f"[{','.join([SHORT, '-' + LONG] * 10_000)}]"


BOMBED: dict[str, list[str]] = {
    "spawn_lease options": [
        '{"headers": {"a": %s}}',
        '{"headers": %s}',
        '{"labels": {"a": %s}}',
        '{"labels": %s}',
        '{"priority": %s}',
        '{"tenant": %s}',
        '{"lease_id": %s}',
        '{"deadline": %s}',
        '{"delay": %s}',
        '{"notify": %s}',
        '{"retry": {"kind": %s}}',
        '{"wire": %s}',
        '{"affinity_tags": {"a": %s}}',
        '{"affinity_with": %s}',
        '{"placement": %s}',
        '{"placement": {"require": %s}}',
        '{"placement": {"require": [{"label": "a", "op": "in", "values": %s}]}}',
        '{"placement": {"require": [{"tags": {"a": %s}}]}}',
        '{"placement": {"resources": {"gpu": %s}}}',
        '{"placement": {"isolation": {"cpu": %s}}}',
        '{"placement": {"tolerate": [{"key": "a", "value": %s}]}}',
        '{"placement": {"spread": [{"domain": %s}]}}',
    ],
    "spawn_lease params": ['{"a": %s}'],
    "spawn_leases leases": [
        '[{"task": "t", "params": %s}]',
        '[{"task": %s}]',
        '[{"task": "t", "options": %s}]',
        "%s",
    ],
    "update_lease changes": ['{"labels": %s}', '{"placement": {"require": %s}}'],
    "complete_lease result": ["%s"],
    "fail_lease error": ["%s", '{"message": %s}'],
    "settle_and_claim settle": [
        '[{CLAIM, "outcome": %s}]',
        '[{CLAIM, "outcome": "complete", "result": %s}]',
        '[{CLAIM, "outcome": "fail", "error": {"a": %s}}]',
        '[{CLAIM, "outcome": "fail", "retry": %s}]',
        '[{CLAIM, "outcome": "fail", "retry_at": %s}]',
        '[{CLAIM, "outcome": "release", "delay": %s}]',
        '[{CLAIM, "outcome": "release", "available_at": %s}]',
        '[{"outcome": "complete", "lease_id": %s, "claim_token": 1}]',
    ],
    "heartbeat_node claims": ["%s", '[{"lease_id": %s, "claim_token": 1}]'],
    "register_node spec": [
        '{NODE, "labels": {"a": %s}}',
        '{NODE, "labels": %s}',
        '{NODE, "capacity": {"cpu_milli": %s}}',
        '{NODE, "gpus": [{"resource_id": %s}]}',
        '{NODE, "cores": %s}',
        '{NODE, "taints": [{"key": "a", "effect": %s}]}',
        '{NODE, "resources": %s}',
        '{NODE, "rack": %s}',
        '{NODE, "cpu_isolation": %s}',
    ],
    "match_nodes placement": ['{"require": %s}', "%s"],
    "match_nodes options": ['{"queue": %s}'],
    "what_if nodes": ['{"labels": {"a": %s}}', "%s"],
    "list_events filter": ['{"code": %s}'],
}


@pytest.mark.parametrize("argument", BOMBED)
@pytest.mark.every_variant
def test_number_bombs(api: Api, argument: str) -> None:
    """Each is refused with a code of the queue's, in no more memory than the call has."""
    function, _, name = argument.partition(" ")
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    others: dict[str, list[Row]] = {
        "spawn_lease": [{"queue": queue, "task": "t"}],
        "spawn_leases": [{"queue": queue}],
        "update_lease": [{"lease": api.spawn(queue)}],
        # of a lease that is not there no queue says how large its result may be
        "complete_lease": [token(claim), {"lease": NOBODY, "token": 1}],
        "fail_lease": [token(claim)],
        "settle_and_claim": [{**node.who, "queues": [queue]}],
        "heartbeat_node": [node.who],
        "register_node": [{"node": node.node_id}],
        "match_nodes": [{"placement": {}} if name == "options" else {}],
    }
    facts = {
        "CLAIM": json.dumps(beat(claim)[0])[1:-1],
        "NODE": f'"name": "{node.name}", "instance_id": "first"',
    }
    for template, bomb in product(BOMBED[argument], (BOMB, SMALL)):
        text = template.replace("CLAIM", facts["CLAIM"]).replace("NODE", facts["NODE"])
        for more in others.get(function, [{}]):
            with pytest.raises(psycopg.Error) as caught:
                api.rows(function, **more, **{name: raw(text % bomb)})
            assert (caught.value.sqlstate or "").startswith("QH"), caught.value
            if name == "params":
                assert "the limit is" in (caught.value.diag.message_primary or "")
    assert api.state(claim["lease_id"]) == "claimed"


def test_one_that_comes_compressed_from_a_table(api: Api, queue: str) -> None:
    """Such a value is small as it is kept, however many numbers it has."""
    api.conn.execute("create temp table bomb (value jsonb)")
    api.conn.execute("insert into bomb values (%s)", [raw(BOMB)])
    with refusing("QHA01"):
        api.conn.execute(
            "select hwqueue.spawn_lease(%s, 't', jsonb_build_object('a', 1), '{}'),"
            " hwqueue.spawn_lease(%s, 't', value) from bomb",
            [queue, queue],
        )
    api.conn.execute("drop table bomb")


def test_long_numbers_that_fit_are_kept(api: Api, queue: str) -> None:
    """The limit is on what is written out, not on numbers."""
    params = raw(f'{{"a": [{",".join(["1e5000"] * 100)}], "b": "{"x" * 9000}"}}')
    lease = api.spawn(queue, "t", params)
    [kept] = api.conn.execute("select params = %s from hwqueue.get_lease(%s)", [params, lease]).fetchall()
    assert kept == (True,)


def test_times_before_christ(api: Api) -> None:
    claim = api.running(api.queue())
    for moment in ("4713-01-01 00:00:00+00 BC", "0001-12-31 23:59:59+00 BC"):
        refusal = api.refused("QHA01", "fail_lease", **token(claim), error={}, retry_at=moment)
        assert refusal.field == "p_retry_at"
    assert api.value("fail_lease", **token(claim), error={}, retry_at="0001-01-01 00:00+00")


# How many rows a call gives or works off at most, where that is not 10,000; None: it may be asked for all.
MOST: dict[str, int | None] = {
    **dict.fromkeys(["list_gangs", "list_everywhere", "take_deaths", "take_ended_runs"], 1000),
    **dict.fromkeys(["claim_deliveries", "lease_logs", "list_run_signals"], 1000),
    **dict.fromkeys(["list_nodes", "node_usage", "tag_distribution", "pending_reasons"]),
    "placement_class_stats": None,
    "reap": 100_000,
    "prune": 1_000_000,
}


def test_limits_that_are_no_number_of_rows(api: Api) -> None:
    """Of every function that takes one."""
    rows = api.conn.execute(
        "select distinct p.proname, p.proargnames[1:p.pronargs - p.pronargdefaults]"
        " from pg_proc p where p.pronamespace = 'hwqueue'::regnamespace and p.prosecdef"
        " and 'p_limit' = any (p.proargnames)"
    ).fetchall()
    given: Row = {
        "p_placement": Jsonb({}),
        "p_node": api.node().node_id,
        "p_epoch": 1,
        "p_filter": Jsonb({}),
        "p_changes": Jsonb({"priority": 1}),
        "p_lease": api.spawn(api.queue()),
        "p_name": "none",
        "p_everywhere": api.row("spawn_everywhere", queue=api.queue(), task="agent")["everywhere_id"],
        "p_run": Flow(api, [step("a")]).run,
        "p_step": "a",
        "p_part": "queues",
    }
    assert {*MOST, "list_leases", "list_events", "match_page", "node_claims"} <= {name for name, _ in rows}
    before = api.contents()
    for name, required in rows:
        arguments = {argument[2:]: given[argument] for argument in required}
        limits: list[int | None] = [-1, -(2**31)] if name == "get_everywhere" else [-1, -(2**31), 0]
        if (most := MOST.get(name, 10_000)) is not None:
            limits += [None, most + 1]
        for limit in limits:
            with pytest.raises(psycopg.Error) as caught:
                api.rows(name, **arguments, limit=limit)
            refusal = read_refusal(caught.value)
            assert (refusal.code, refusal.field) == ("QHA01", "p_limit"), (name, limit)
            assert refusal.hint, name
    assert api.contents() == before


def test_ids_of_ones_own_do_not_stay_first(api: Api, queue: str, clock: Clock) -> None:
    """Whatever a producer chooses: what is new is on the first page."""
    chosen = [UUID(f"ffffffff-ffff-ffff-ffff-{number:012x}") for number in range(5)]
    for lease in chosen:
        api.spawn(queue, lease_id=str(lease))
    mine = []
    for _ in range(3):
        clock.advance(timedelta(milliseconds=2))
        mine.append(api.spawn(queue))
    seen: list[UUID] = []
    before = None
    while page := api.rows("list_leases", filter={"queue": queue}, limit=2, before=before):
        seen += [row["lease_id"] for row in page]
        before = seen[-1]
    assert seen == mine[::-1] + chosen[::-1]


TINY = ["1e-400", "1e-320", "1e-7"]

tiny = pytest.mark.parametrize("number", TINY)


def spawn(api: Api, queue: str, options: str) -> Any:
    """Spawn a lease with options as they are written; its id."""
    return api.row("spawn_lease", queue=queue, task=TASK, options=raw(options))["lease_id"]


@tiny
@pytest.mark.parametrize("key", ["jitter", "base", "max"])
@pytest.mark.parametrize("end", ["fail_lease", "fail_lease of the queue", "reap", "register_node"])
def test_retry(api: Api, clock: Clock, number: str, key: str, end: str) -> None:
    """The attempt ends, whoever ends it, and the lease is tried again."""
    queue, node = api.queue(claim_timeout=60), api.node()
    retry = f'{{"retry": {{"kind": "fixed", "{key}": {number}}}}}'
    if end.endswith("queue"):
        api.rows("set_queue_policy", queue=queue, policy=raw(retry))
    lease = spawn(api, queue, "{}" if end.endswith("queue") else retry)
    [claim] = api.claim(node, queue)
    if end == "reap":
        clock.advance(timedelta(hours=1))
        assert api.row("reap")["expired"] >= 1
    elif end == "register_node":
        node = api.node(node.node_id, name=node.name, instance_id="second")
    else:
        assert api.value("fail_lease", **token(claim), error={}) in ("pending", "scheduled")
    clock.advance(timedelta(hours=1))
    assert api.claimed(node, queue) == [lease]


@tiny
@pytest.mark.parametrize("weight", ["affinity", "fit", "spread"])
def test_weights(api: Api, number: str, weight: str) -> None:
    queue, node = api.queue(), api.node(labels={"zone": "a"}, capacity={"cpu_milli": 1000})
    policy = raw(f'{{"tuning": {{"weight_{weight}": {number}}}}}')
    api.rows("set_queue_policy", queue=queue, policy=policy)
    lease = api.spawn(queue, placement={"prefer": [{"when": {"tags": {"zone": "a"}}}]})
    assert api.claimed(node, queue) == [lease]


@tiny
def test_delay(api: Api, queue: str, node: Node, number: str) -> None:
    lease = spawn(api, queue, f'{{"delay": {number}}}')
    assert api.claimed(node, queue) == [lease]
    batch = raw(f'[{{"task": "t", "options": {{"delay": {number}}}}}]')
    [row] = api.rows("spawn_leases", queue=queue, leases=batch)
    assert api.claimed(node, queue) == [row["lease_id"]]


@pytest.mark.parametrize("number", [*TINY, "1e-6", '"1 microsecond"'])
def test_ageing_step(api: Api, queue: str, node: Node, number: str) -> None:
    """A step of one microsecond is the least; less is none."""
    api.rows("set_queue_policy", queue=queue, policy=raw(f'{{"ageing_step": {number}}}'))
    leases = [api.spawn(queue, priority=priority) for priority in (1, 0)]
    assert api.claimed(node, queue, qty=2) == leases
    api.rows("release_lease", **token(api.running(queue, node)))


@tiny
@pytest.mark.parametrize("key", ["claim_timeout", "poll_interval"])
def test_spans_that_cannot_be_none(api: Api, number: str, key: str) -> None:
    policy = raw(f'{{"{key}": {number}}}')
    assert api.fault("set_queue_policy", queue=api.queue(), policy=policy) == f"policy.{key}"
