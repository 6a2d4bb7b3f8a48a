"""How much of the floor's rate is left when a queue also places, fences and records?

The floor is a bare table, claimed and completed by two statements (benchmarks/core/floor.sql). Both
sides are prepared calls with a commit each, on one server, one node for each connection, 100 bytes
of payload. A second set of figures without durable commits shows the server's work alone.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from benchmarks.core import pgbench
from benchmarks.core.fill import kind, top_up
from benchmarks.core.floor import FloorOpener, create_floor, top_up_floor
from benchmarks.core.load import Load, Opener, drive, take_turns
from benchmarks.core.node import Node, register
from benchmarks.core.options import Connections, Rounds, Seconds
from benchmarks.core.payload import payload
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate_against
from benchmarks.core.report import Answer, Figure, at_least
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, machine, with_setting
from benchmarks.core.sessions import ClaimThenSettle, SettleAndClaim

FLOOR = "floor"
# By connections, with durable commits.
AIMS = {
    "claim, then settle": {1: 0.85, 4: 0.75, 8: 0.65},
    "settle_and_claim": {1: 1.3, 4: 1.0, 8: 1.2},
}
SCRIPTS = {
    FLOOR: "floor",
    "claim, then settle": "claim_then_settle",
    "settle_and_claim": "settle_and_claim",
}


class Driver(StrEnum):
    """What plays the client."""

    PSYCOPG = "psycopg"
    PGBENCH = "pgbench"


def floor(
    ctx: typer.Context,
    *,
    connections: Connections = [1, 4, 8],
    seconds: Seconds = 10,
    rounds: Rounds = 3,
    backlog: Annotated[int, typer.Option(help="Waiting at the start of each side's turn")] = 300_000,
    driver: Annotated[Driver, typer.Option(help="Client of both sides")] = Driver.PSYCOPG,
) -> Answer:
    """Leases/s of claim and settle over those of a bare SKIP LOCKED table."""
    if driver is Driver.PGBENCH and not pgbench.is_there():
        raise typer.BadParameter("pgbench is not on the PATH; the other driver is psycopg")
    run = Run.of(ctx)
    figures: list[Figure] = []
    with database(run.dsn) as dsn:
        create_floor(dsn)
        create_queue(dsn)
        nodes = tuple(register(dsn, number) for number in range(max(connections)))
        for commits in ("on", "off"):
            session_dsn = with_setting(dsn, "synchronous_commit", commits)
            for count in connections:
                sides = _sides(run, dsn, backlog, _drivers(driver, session_dsn, nodes, count, seconds))
                run.tell(f"{count} connections, synchronous_commit {commits}")
                loads = take_turns(sides, rounds, run.tell)
                figures += _figures(loads, count, commits)
        return Answer("floor", "claim and settle / bare table", tuple(figures), ctx.params, machine(dsn))


def _drivers(
    driver: Driver, dsn: str, nodes: tuple[Node, ...], connections: int, seconds: float
) -> dict[str, Callable[[], Load]]:
    """What measures each side once."""
    if driver is Driver.PGBENCH:
        return {
            name: partial(pgbench.drive_script, dsn, script, connections, seconds)
            for name, script in SCRIPTS.items()
        }
    openers: dict[str, Opener] = {
        FLOOR: FloorOpener(dsn),
        "claim, then settle": ClaimThenSettle(dsn, nodes),
        "settle_and_claim": SettleAndClaim(dsn, nodes),
    }
    return {name: partial(drive, opener, connections, seconds) for name, opener in openers.items()}


def _sides(
    run: Run, dsn: str, backlog: int, drivers: dict[str, Callable[[], Load]]
) -> dict[str, Callable[[], Load]]:
    """Each side's turn: fill up, let the server come to rest, measure."""

    def turn(name: str, measure: Callable[[], Load]) -> Load:
        if name == FLOOR:
            top_up_floor(dsn, backlog)
        else:
            top_up(run, dsn, kind(payload()), backlog)
        calm_down(dsn)
        return measure()

    return {name: partial(turn, name, measure) for name, measure in drivers.items()}


def _figures(loads: dict[str, list[Load]], connections: int, commits: str) -> list[Figure]:
    durable = commits == "on"
    figures = []
    for name, by_connections in AIMS.items():
        aim = by_connections.get(connections) if durable else None
        figures.append(
            rate_against(
                f"{name}, {connections} conn., {'durable' if durable else 'not durable'}",
                loads[name],
                loads[FLOOR],
                None if aim is None else at_least(aim),
            )
        )
    return figures
