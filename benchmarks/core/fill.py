"""Fills a queue: the first lease of each kind is spawned, the others are copies of its rows.

Spawning ten million leases takes an hour, copying them minutes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.payload import payload
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down

T = TypeVar("T")

QUEUE = "bench"
TASK = "work"

Lease = Mapping[str, Any]
"""A lease as spawn_leases takes it: {"task", "params", "options"}."""

_CHUNK = 250_000
_BATCH = 1_000
_COPY = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


def kind(params: Mapping[str, Any] | None = None, **options: Any) -> Lease:
    """A lease of the benchmarks' one task with these options."""
    return {"task": TASK, "params": params or {}, "options": options}


def fill(run: Run, dsn: str, kinds: Sequence[Lease], count: int, queue: str = QUEUE) -> None:
    """Add `count` leases to a queue, of all kinds in turn; these differ in class or priority.

    With a `count` below the number of kinds only that many of them are spawned.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        templates = spawn(connection, kinds[:count], queue)
        starts = range(len(templates), count, _CHUNK)
        for first in run.track(starts, f"{count:,} leases") if len(starts) > 1 else starts:
            last = min(first + _CHUNK, count) - 1
            values = {"templates": templates, "first": first, "last": last}
            connection.execute(_COPY.encode(), values)


def top_up(run: Run, dsn: str, one: Lease, ready: int, queue: str = QUEUE) -> None:
    """Add leases of one kind until so many of the queue wait."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        [waiting] = connection.execute(
            "select pending from hwqueue.list_queues() where queue = %s", [queue]
        ).fetchone() or [0]
    fill(run, dsn, [one], max(0, ready - waiting), queue)


def filled(run: Run, dsn: str, backlog: int, measure: Callable[[], T]) -> Callable[[], T]:
    """A turn: fill up with plain leases, let the server come to rest, measure."""

    def turn() -> T:
        top_up(run, dsn, kind(payload()), backlog)
        calm_down(dsn)
        return measure()

    return turn


def spawn(connection: psycopg.Connection, leases: Sequence[Lease], queue: str = QUEUE) -> list[UUID]:
    """Spawn leases in batches; their ids."""
    return [row for batch in _batches(leases) for row in _spawn_batch(connection, batch, queue)]


def _spawn_batch(connection: psycopg.Connection, leases: Sequence[Lease], queue: str) -> Iterator[UUID]:
    rows = connection.execute(
        "select lease_id from hwqueue.spawn_leases(p_queue => %s, p_leases => %s) order by ordinal",
        [queue, Jsonb(list(leases))],
    )
    return (row[0] for row in rows)


def _batches(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    return (leases[start : start + _BATCH] for start in range(0, len(leases), _BATCH))
