"""What does a claim or a settlement cost the server, beside the two statements of the floor?

Processor time and log are averages over many calls. Pages and rows are exact, from single calls
(EXPLAIN and the transaction's own row counts).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any

import psycopg
import typer

from benchmarks.core import floor
from benchmarks.core.claimer import Claimer
from benchmarks.core.metered import costs_of_calls, costs_of_floor
from benchmarks.core.options import Rounds
from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.server import database, machine
from benchmarks.core.sessions import Held
from benchmarks.core.spread import Spread
from benchmarks.core.usage import Usage, usage_of

EXACT = 20  # calls whose pages and rows are counted
# What of the floor a call of ours is held against.
COUNTERPARTS = {
    "claim_task": "claim",
    "complete_lease": "complete",
    "settle_and_claim": "claim and complete",
}


def cost(
    ctx: typer.Context,
    *,
    calls: Annotated[int, typer.Option(help="Calls of each kind in a round", min=1)] = 2000,
    rounds: Rounds = 3,
) -> Answer:
    """Processor time, log, pages and rows of claims and settlements over the floor's."""
    run = Run.of(ctx)
    scene = Scene(2 * (calls + EXACT) * (rounds + 1))
    with database(run.dsn) as dsn:
        floor.create_floor(dsn)
        floor.top_up_floor(dsn, (calls + EXACT) * (rounds + 1))
        with (
            closing(scene.prepare(run, dsn)) as claimer,
            psycopg.connect(dsn, autocommit=True) as connection,
        ):
            _round(claimer, connection, EXACT)  # warms caches and plans
            exact = list(_exact(claimer, connection))
            _round(claimer, connection, calls)
            by_round = [
                _round(claimer, connection, calls) for _ in run.track(range(rounds), "rounds of calls")
            ]
            figures = [*_averages(by_round), *exact]
        seen = by_round[0]["claim_task"].cpu_ms is not None
        notes = () if seen else ("The server's processor time cannot be seen from here.",)
        return Answer("cost", "a call / the floor's", tuple(figures), ctx.params, machine(dsn), notes)


def _round(claimer: Claimer, connection: psycopg.Connection[Any], calls: int) -> dict[str, Usage]:
    """What every call of both sides costs on average."""
    held: list[Held] = []
    jobs: list[int] = []

    def exchange() -> None:
        held.append(claimer.exchange(*held.pop()))

    def ours(call: Callable[[], object]) -> Usage:
        return usage_of(claimer.connection, call, calls)

    def theirs(call: Callable[[], object]) -> Usage:
        return usage_of(connection, call, calls)

    usages = {
        "claim_task": ours(lambda: held.append(claimer.take())),
        "claim": theirs(lambda: jobs.append(floor.claim_job(connection))),
        "complete_lease": ours(lambda: claimer.settle(*held.pop())),
        "complete": theirs(lambda: floor.complete_job(connection, jobs.pop())),
    }
    held.append(claimer.take())
    usages["settle_and_claim"] = ours(exchange)
    claimer.settle(*held.pop())
    return usages | {"claim and complete": usages["claim"] + usages["complete"]}


def _averages(rounds: Sequence[dict[str, Usage]]) -> Iterator[Figure]:
    for ours, theirs in COUNTERPARTS.items():
        sides = [(usages[ours], usages[theirs]) for usages in rounds]
        times = [(our.cpu_ms, their.cpu_ms) for our, their in sides if our.cpu_ms and their.cpu_ms]
        if times:
            yield _against(f"{ours}: processor time", "ms", times)
        logs = [(our.wal_bytes, their.wal_bytes) for our, their in sides]
        yield _against(f"{ours}: log, with commits and page images", "bytes", logs)


def _exact(claimer: Claimer, connection: psycopg.Connection[Any]) -> Iterator[Figure]:
    """Pages and rows of single calls."""
    costs = costs_of_calls(claimer, EXACT)
    costs |= costs_of_floor(connection, EXACT)
    for ours, theirs in COUNTERPARTS.items():
        pages = [(our.pages, their.pages) for our, their in zip(costs[ours], costs[theirs], strict=True)]
        yield _against(f"{ours}: pages touched", "pages", pages)
    for call in costs:
        for what in sorted({what for one in costs[call] for what in one.rows}):
            yield Figure(f"{call}: {what}", "rows", Spread.of([one.rows[what] for one in costs[call]]))


def _against(case: str, unit: str, pairs: Sequence[tuple[float, float]]) -> Figure:
    values, bases = zip(*pairs, strict=True)
    return Figure.against(case, unit, values=values, bases=bases)
