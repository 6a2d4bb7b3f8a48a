"""What does an event cost the transaction that writes it, beside a row in a bare table?"""

from collections.abc import Mapping
from typing import Annotated, Any

import psycopg
import typer
from psycopg.types.json import Jsonb

from benchmarks.core.options import Rounds
from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import database, machine
from benchmarks.core.usage import Usage, usage_of

BATCH = 100  # leases told at once, as by a drop of a queue
BARE = """
    create table bare (like hwqueue.event);
    create function bare_row() returns void language plpgsql as $$ begin
      insert into bare (slot, event_id, at, code, queue, actor, message)
      values (0, 1, clock_timestamp(), 'queue_paused', 'q', 'ann', 'queue q is paused');
    end $$
"""
ROW = "select bare_row() from generate_series(1, %(events)s)"
ABOUT: Mapping[str, str] = {
    "a queue": (
        "select hwqueue.note_event('queue_paused', 'queue q is paused', p_queue => 'q')"
        " from generate_series(1, %(events)s)"
    ),
    "a lease": (
        "select hwqueue.note_leases('lease_requeued', array[l], 'requeued, it was failed')"
        " from generate_series(1, %(events)s), (select (%(leases)s::uuid[])[1] as l) i"
    ),
    f"each of {BATCH} leases": (
        "select hwqueue.note_leases('lease_requeued', %(leases)s, 'requeued, it was failed')"
        f" from generate_series(1, %(events)s / {BATCH})"
    ),
}


def events(
    ctx: typer.Context,
    *,
    count: Annotated[int, typer.Option(help="Events of each kind in a round", min=BATCH)] = 20_000,
    rounds: Rounds = 3,
) -> Answer:
    """Processor time and log of one event over those of a row in a bare table."""
    run = Run.of(ctx)
    with database(run.dsn) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(BARE)
        connection.execute("select hwqueue.create_queue(p_queue => 'q')")
        spawned = connection.execute(
            "select lease_id from hwqueue.spawn_leases(p_queue => 'q', p_leases => %s)",
            [Jsonb([{"task": "t"}] * BATCH)],
        ).fetchall()
        given = {"events": count, "leases": [lease for (lease,) in spawned]}
        sides = {"bare": ROW, **ABOUT}
        done = [
            {side: _usage(connection, call, given) for side, call in sides.items()}
            for _ in run.track(range(rounds), "rounds of events")
        ]
        figures = [figure for about in ABOUT for figure in _figures(about, done)]
        return Answer("events", "an event / a row", tuple(figures), ctx.params, machine(dsn))


def _usage(connection: psycopg.Connection[Any], call: str, given: Mapping[str, Any]) -> Usage:
    """What one event costs, as one of many in a transaction."""
    used = usage_of(connection, lambda: connection.execute(call.encode(), given), 1)
    cpu = None if used.cpu_ms is None else used.cpu_ms / given["events"]
    return Usage(cpu, used.wal_bytes / given["events"])


def _figures(about: str, rounds: list[dict[str, Usage]]) -> list[Figure]:
    pairs = [(usages[about], usages["bare"]) for usages in rounds]
    times = [(our.cpu_ms, row.cpu_ms) for our, row in pairs if our.cpu_ms and row.cpu_ms]
    logs = [(our.wal_bytes, row.wal_bytes) for our, row in pairs]
    found = [_against(f"about {about}: log", "bytes", logs)]
    if times:
        found.insert(0, _against(f"about {about}: processor time", "ms", times))
    return found


def _against(case: str, unit: str, pairs: list[tuple[float, float]]) -> Figure:
    values, bases = zip(*pairs, strict=True)
    return Figure.against(case, unit, values=values, bases=bases)
