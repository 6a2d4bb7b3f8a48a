"""The calls of a claimer and those of the floor, one by one, each with its cost."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import psycopg

from benchmarks.core import floor
from benchmarks.core.claimer import Claimer
from benchmarks.core.cost import Cost, cost_of
from benchmarks.core.fill import QUEUE, TASK
from benchmarks.core.limits import ROWS
from benchmarks.core.load import RanDryError
from benchmarks.core.sessions import (
    CLAIM,
    COMPLETE,
    COMPLETE_MANY,
    SETTLE_ONE_AND_CLAIM,
    Held,
)

_SPAWN = """
    select lease_id from hwqueue.spawn_lease(p_queue => %s, p_task => %s, p_params => '{}')
"""
_SET_TASK = "select hwqueue.set_task(p_task => %s, p_defaults => '{\"max_attempts\": 3}')"
CALLS = ("claim_task", "complete_lease", "settle_and_claim")
BATCH = 10

# EXPLAIN does not tell what was claimed.
_CURRENT = """
    select lease_id, claim_token from hwqueue.list_leases(
      jsonb_build_object('queue', %s::text, 'state', 'claimed'), p_limit => 1)
"""


def costs_of_calls(claimer: Claimer, times: int) -> dict[str, list[Cost]]:
    """What each of `CALLS` costs, so many times each; no claim is left behind."""
    costs: dict[str, list[Cost]] = {call: [] for call in CALLS}
    node = [claimer.node.node_id, claimer.node.epoch]
    for _ in range(times):
        costs["claim_task"].append(cost_of(claimer.connection, CLAIM, [QUEUE, *node, 1]))
        costs["complete_lease"].append(cost_of(claimer.connection, COMPLETE, _current(claimer)))
    held = claimer.take()
    for _ in range(times):
        values = [*node, QUEUE, 1, *held]
        costs["settle_and_claim"].append(cost_of(claimer.connection, SETTLE_ONE_AND_CLAIM, values))
        held = _current(claimer)
    claimer.settle(*held)
    return costs


def costs_of_batches(claimer: Claimer, times: int) -> dict[str, list[Cost]]:
    """What completing `BATCH` claims at once costs."""
    costs: list[Cost] = []
    for _ in range(times):
        values = [QUEUE, claimer.node.node_id, claimer.node.epoch, BATCH]
        claimed = claimer.connection.execute(CLAIM, values).fetchall()
        if len(claimed) < BATCH:
            raise RanDryError("the scene holds too few leases")
        leases, tokens = [row[0] for row in claimed], [row[1] for row in claimed]
        costs.append(cost_of(claimer.connection, COMPLETE_MANY, [leases, tokens]))
    return {f"complete_leases of {BATCH}": costs}


def costs_of_spawns(claimer: Claimer, times: int) -> dict[str, list[Cost]]:
    """What a spawn costs: where no task has defaults, where another one has, where its own has."""
    connection = claimer.connection
    costs: dict[str, list[Cost]] = {}
    for call, task_set in (
        ("spawn_lease", None),
        ("spawn_lease beside defaults", "another"),
        ("spawn_lease with defaults", TASK),
    ):
        if task_set is not None:
            connection.execute(_SET_TASK, [task_set])
        costs[call] = [cost_of(connection, _SPAWN, [QUEUE, TASK]) for _ in range(times)]
    return costs


def costs_of_floor(connection: psycopg.Connection[Any], times: int) -> dict[str, list[Cost]]:
    """What the floor's claim and complete cost, one by one and together."""
    claims: list[Cost] = []
    completions: list[Cost] = []
    for _ in range(times):
        claims.append(cost_of(connection, floor.CLAIM, []))
        [job] = connection.execute("select id from floor where state = 1").fetchall()
        completions.append(cost_of(connection, floor.COMPLETE, job))
    both = [claim + completion for claim, completion in zip(claims, completions, strict=True)]
    return {"claim": claims, "complete": completions, "claim and complete": both}


def typical(costs: Sequence[Cost]) -> dict[str, float]:
    """The usual cost, a figure each; that of the log from calls that wrote no whole page to it."""
    plain = [cost for cost in costs if cost.page_images == 0]
    if not plain:
        raise RuntimeError("every call wrote whole pages: is a checkpoint running all the time?")
    figures = {
        "pages": middle([cost.pages for cost in costs]),
        "wal bytes": middle([cost.wal_bytes for cost in plain]),
    }
    for what in sorted({what for cost in costs for what in cost.rows}):
        figures[f"{ROWS}{what}"] = middle([cost.rows[what] for cost in costs])
    return figures


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half: neither moved by outliers nor, as a median is, between modes."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return mean(ordered[cut : len(ordered) - cut])


def _current(claimer: Claimer) -> Held:
    row = claimer.connection.execute(_CURRENT, [QUEUE]).fetchone()
    if row is None:
        raise RanDryError("the call before claimed nothing: the scene holds too few leases")
    return row[0], row[1]
