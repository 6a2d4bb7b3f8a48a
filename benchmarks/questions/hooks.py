"""What do workflows cost leases that are no steps: in a database that has none, that has some?

The other side is the same database with the hooks taken out of its functions: what settlements ask
about steps. Columns stay: two checkouts side by side show those, too (benchmarks/README.md).
"""

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Annotated

import psycopg
import typer

from benchmarks.core import flows
from benchmarks.core.cost import Cost
from benchmarks.core.fill import filled
from benchmarks.core.load import drive, take_turns
from benchmarks.core.metered import costs_of_calls
from benchmarks.core.node import register
from benchmarks.core.options import Connections, Rounds, Seconds
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate_against
from benchmarks.core.report import Answer, Figure, at_least, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.server import calm_down, database, databases, machine, outlive
from benchmarks.core.sessions import ClaimThenSettle, SettleAndClaim

WITHOUT = "without hooks"
SIDES = (WITHOUT, "no workflows", "workflows beside")
RATE_AIM = at_least(0.98)
COST_AIM = at_most(1)

_CALLS = 50
_WARM_UP = 10
_DAY = 86_400
_DEFINITION = "select pg_get_functiondef(p.oid) from pg_proc p where p.oid = %s::regproc"
# What a function does only for steps: how often, and what it looks like.
_STEPS_ALONE = re.compile(
    r"\n  if (?:v_is_step is not null|v_of_runs is not null"
    r"|current_setting\('hwqueue.ended'\) <> v_ended) then(?:  --[^\n]*)?\n.*?\n  end if;"
    r"|\n  v_ended text := set_config\('hwqueue.ended', '', true\);",
    re.DOTALL,
)
_HOOKED = {
    "hwqueue.claim_task": 2,
    "hwqueue.complete_lease": 2,
    "hwqueue.end_completed_claim": 1,
    "hwqueue.end_completed_claims": 1,
}


def hooks(
    ctx: typer.Context,
    *,
    connections: Connections = [1, 4],
    seconds: Seconds = 10,
    rounds: Rounds = 5,
    backlog: Annotated[
        int, typer.Option(help="Plain leases waiting at the start of each turn", min=1)
    ] = 100_000,
    runs: Annotated[int, typer.Option(help="Runs of 10 steps beside them", min=1)] = 1_000,
) -> Answer:
    """Leases/s and cost of plain leases over those without what settlements ask about steps."""
    run = Run.of(ctx)
    figures: list[Figure] = []
    with databases(run.dsn, len(SIDES)) as dsns:
        sides = dict(zip(SIDES, dsns, strict=True))
        for dsn in dsns:
            create_queue(dsn)
        take_out(sides[WITHOUT])
        _put_runs_beside(sides["workflows beside"], runs)
        nodes = {
            name: tuple(register(dsn, number) for number in range(max(connections)))
            for name, dsn in sides.items()
        }
        for count in connections:
            for how, opener in (
                ("claim, then settle", ClaimThenSettle),
                ("settle_and_claim", SettleAndClaim),
            ):
                openers = {name: opener(dsn, nodes[name]) for name, dsn in sides.items()}
                run.tell(f"{how}, {count} connections")
                turns = {
                    name: filled(run, dsn, backlog, partial(drive, openers[name], count, seconds))
                    for name, dsn in sides.items()
                }
                loads = take_turns(turns, rounds, run.tell)
                figures += [
                    rate_against(
                        f"{how}, {count} conn.: {name} / {WITHOUT}",
                        loads[name],
                        loads[WITHOUT],
                        RATE_AIM,
                    )
                    for name in SIDES[1:]
                ]
        facts = machine(dsns[0])
    figures += _cost_figures(run)
    compared = f"plain leases / {WITHOUT}"
    return Answer("hooks", compared, tuple(figures), ctx.params, facts)


def take_out(dsn: str) -> None:
    """Take what settlements ask about steps out of a database's functions.

    Raises: AssertionError when a function looks otherwise than it did.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, expected in _HOOKED.items():
            [(definition,)] = connection.execute(_DEFINITION, [name]).fetchall()
            without, found = _STEPS_ALONE.subn("", definition)
            assert found == expected, f"{name} asks {found} times, not {expected}"
            connection.execute(without.encode())


def _put_runs_beside(dsn: str, runs: int) -> None:
    """Runs whose first step starts tomorrow, in the queue and of the class of plain leases."""
    flows.define(dsn, "beside", flows.behind_one(10, options={"delay": _DAY}))
    flows.submit_many(dsn, "beside", runs)
    calm_down(dsn)
    outlive(dsn)


def _cost_figures(run: Run) -> list[Figure]:
    """Pages, log and rows of single calls: the machine's mood is not in them."""
    found: dict[bool, Mapping[str, list[Cost]]] = {}
    for is_hooked in (False, True):
        with database(run.dsn) as dsn, closing(Scene(10 * _CALLS).prepare(run, dsn)) as claimer:
            if not is_hooked:
                take_out(dsn)
            for _ in range(_WARM_UP):
                claimer.timed_claim()
            found[is_hooked] = costs_of_calls(claimer, _CALLS)
    kinds: Mapping[str, Callable[[Cost], float]] = {
        "pages": lambda cost: cost.pages,
        "log bytes": lambda cost: cost.wal_bytes,
        "rows": lambda cost: cost.rows.total(),
    }
    return [
        Figure.against(
            f"{call}: {kind} / {WITHOUT}",
            kind,
            values=[_middle(of, costs)],
            bases=[_middle(of, found[False][call])],
            aim=COST_AIM,
        )
        for call, costs in found[True].items()
        for kind, of in kinds.items()
    ]


def _middle(of: Callable[[Cost], float], costs: list[Cost]) -> float:
    """The median: an automatic vacuum beside it adds to some calls."""
    values = sorted(of(cost) for cost in costs)
    return float(values[len(values) // 2])
