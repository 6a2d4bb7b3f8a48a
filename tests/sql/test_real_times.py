"""No answer names a time that never comes, nor a span until it: it is null, and words say why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, clear, gpus, reap, spawn

OF_A_LEASE = ("get_lease", "lease_history", "explain_lease", "lease_checkpoints")
OF_A_GANG = ("get_gang", "explain_gang")
OF_A_RUN = ("list_workflow_steps", "list_step_details")
OF_ALL = (
    *("list_leases", "list_gangs", "list_everywhere", "queue_depth", "running_leases"),
    *("pending_reasons", "list_events", "list_nodes"),
)
YEAR = re.compile(r"\binfinity\b|\b(20[3-9]\d|2[1-9]\d\d|[3-9]\d{3})-\d\d-\d\d\b")
SPAN = re.compile(r"\b\d{4,} d\b|\b\d{4,} days\b")


@pytest.fixture
def queue(api: Api) -> str:
    return api.queue(retry={"kind": "fixed", "base": 0, "jitter": 0})


@pytest.fixture
def node(api: Api) -> Node:
    """The only one, with two GPUs."""
    for row in api.rows("list_everywhere", limit=1000):
        api.value("stop_everywhere", everywhere=row["everywhere_id"], running="stop")
    clear(api)
    return api.node(gpus=gpus(2))


def world(api: Api, clock: Clock, queue: str, node: Node) -> Iterator[str]:
    """One after the other: what waits for something else than a time, and what came of it."""
    waits = api.running(queue, node)
    api.value("suspend_lease", **token(waits), signal="go")
    yield "a signal without a timeout"
    for then in ("cancel", "requeue"):
        old = api.running(queue, node, **GPU)["lease_id"]
        api.spawn(queue, replaces={"lease": str(old), "then": then}, **GPU)
    yield "replacements that nobody has looked at"
    reap(api)
    yield "room that is still in use"
    spawn(api, queue, 2, GPU)
    yield "a gang that waits"
    reap(api)
    clock.advance(timedelta(seconds=1))
    yield "a gang whose room is kept"
    spawn(api, queue, 9, GPU)
    reap(api)
    yield "a gang without room"
    here = {"queue": queue, "task": "agent", "options": {**GPU, "priority": 5}}
    api.row("spawn_everywhere", **here)
    reap(api)
    yield "an everywhere task whose node is full"
    Flow(api, [{"name": "a", "kind": "wait", "signal": "s"}, step("b")])
    reap(api)
    yield "a step that waits"


def ended_gangs(api: Api, _clock: Clock, queue: str, node: Node) -> Iterator[str]:
    """Members that ran, or wait again, or have ended."""
    spawn(api, queue, 2, GPU)
    reap(api)
    claims = api.claim(node, queue, qty=2)
    assert len(claims) == 2
    yield "a gang that is fetched"
    api.rows("complete_lease", **token(claims[0]))
    reap(api)
    yield "a gang of which one member has completed"
    api.value("suspend_lease", **token(claims[1]), signal="go")
    reap(api)
    yield "a member that waits for a signal"


def answers(api: Api) -> Iterator[tuple[str, Row]]:
    """All rows that people and programs are told."""
    ids = [row["lease_id"] for row in api.rows("list_leases", limit=1000)]
    of_leases = [{"lease": lease} for lease in ids]
    gangs = [{"gang": row["gang_id"]} for row in api.rows("list_gangs")]
    runs = [{"run": row["run_id"]} for row in api.rows("list_workflow_runs")]
    nodes = [{"node": row["node_id"]} for row in api.rows("list_nodes")]
    calls: list[tuple[str, Row]] = [
        *((name, {}) for name in OF_ALL),
        *product(OF_A_LEASE, of_leases),
        *product(OF_A_GANG, gangs),
        *product(OF_A_RUN, runs),
        *product(["node_claims"], nodes),
        *(("lease_outlook", {**node, "lease_ids": ids}) for node in nodes),
    ]
    for name, arguments in calls:
        yield from ((name, row) for row in api.rows(name, **arguments))
    views = "select viewname from pg_catalog.pg_views where schemaname = 'hwqueue'"
    for (name,) in api.conn.execute(views).fetchall():
        query = sql.SQL("select to_jsonb(v) from hwqueue.{} v").format(sql.Identifier(name))
        yield from ((f"view {name}", row) for (row,) in api.conn.execute(query))


def magic(row: Row) -> list[str]:
    """Times that never come, and spans until them."""
    text = json.dumps(row, default=str)
    return [*YEAR.findall(text), *SPAN.findall(text)]


@pytest.mark.parametrize("told", [world, ended_gangs])
def test_no_answer_has_a_time_that_never_comes(
    api: Api, clock: Clock, queue: str, node: Node, told: Any
) -> None:
    met = set()
    for stage in told(api, clock, queue, node):
        found = {(name, *magic(row)) for name, row in answers(api) if magic(row)}
        assert found == set(), stage
        met |= {row["state"] for row in api.rows("list_leases", limit=1000)}
    assert {"scheduled", "claimed"} <= met


def test_a_wait_without_a_timeout_has_no_end(api: Api, queue: str, node: Node) -> None:
    claim = api.running(queue, node)
    api.value("suspend_lease", **token(claim), signal="go")
    found = api.row("explain_lease", lease=claim["lease_id"])
    assert found["headline"] == 'suspended: its handler waits for signal "go"'
    assert (found["waits_until"], api.lease(claim["lease_id"])["available_at"]) == (None, None)
    *_, last = api.rows("lease_history", lease=claim["lease_id"])
    assert (last["event"], last["at"]) == ("scheduled", None)
    api.row("signal_lease", lease=claim["lease_id"], name="go", payload=Jsonb(None))
    assert api.claimed(node, queue) == [claim["lease_id"]]
