"""The guard: do spawns, claims and settlements still cost what they may?

Counts pages, log and rows of single calls at small sizes, which a noisy machine does not move, and
holds them against committed limits (benchmarks/limits.toml).
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.core import flows, limits
from benchmarks.core.fill import kind
from benchmarks.core.metered import (
    costs_of_batches,
    costs_of_calls,
    costs_of_spawns,
    typical,
)
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.server import database, server

LIMITS = Path(__file__).parent.parent / "limits.toml"
WARM_UP = 10
CALLS = 50
BATCHES = 20
ATTEMPTS = 3
WAITING = 1000
SPAWNS = "1 class"  # the scene in which spawns are counted, too

_CPU_NODE = {"labels": {"pool": "cpu"}}
_FULL_NODE = {"capacity": {"cpu_milli": 1000}}
_AWAY = {"leases": {"labels": {"app": "db"}}, "domain": "rack", "away": True}
SCENES = {
    "1 class": Scene(WAITING),
    "1 class, nothing kept": Scene(WAITING, policy={"retain_completed": 0}),
    "1 class, counted": Scene(WAITING, [kind(placement={"resources": {"cpu_milli": 1}})], node=_FULL_NODE),
    "100 classes": Scene(WAITING, [kind(patience=number) for number in range(100)]),
    "20,000 ineligible ahead": Scene(
        WAITING,
        [kind(affinity_tags={"pool": "cpu"})],
        ahead=20_000,
        ahead_kinds=[kind(affinity_tags={"pool": "gpu", "n": number}) for number in range(10)],
        node=_CPU_NODE,
    ),
    "100 blocked classes ahead": Scene(
        WAITING,
        [kind(placement={"resources": {"cpu_milli": 1}})],
        ahead=2000,
        ahead_kinds=[kind(placement={"resources": {"cpu_milli": 2000 + number}}) for number in range(100)],
        node=_FULL_NODE,
    ),
    "away from others": Scene(
        WAITING, [kind(placement={"require": [_AWAY]}, labels={"app": "web"})], node={"rack": 1}
    ),
    # a settlement releases one step; counts towards a join, which is never whole; ends a run
    "links of a chain": Scene(WAITING, steps=flows.chain(2)),
    "parents of a join": Scene(WAITING, steps=flows.join(WAITING)),
    "last steps of runs": Scene(WAITING, steps=flows.chain(1)),
    # its window is left alone until a sixteenth of it is free, so few settlements spawn others
    "items of a map": Scene(WAITING, steps=flows.items(4 * WAITING, WAITING), done=2 * WAITING),
}


def smoke(
    ctx: typer.Context,
    *,
    limits_file: Annotated[Path, typer.Option("--limits", help="What calls may cost")] = LIMITS,
    write: Annotated[
        bool, typer.Option("--write", help="Make limits of what is found, with a tenth of headroom")
    ] = False,
) -> None:
    """Hold the cost of calls against the committed limits; exits with 1 if one is exceeded."""
    run = Run.of(ctx)
    found: dict[str, Mapping[str, float]] = {}
    with server(run.dsn) as dsn:
        if write:
            for name, scene in SCENES.items():
                attempts = [_measure(run, dsn, name, scene) for _ in range(ATTEMPTS)]
                found |= limits.largest(attempts)
            limits.write(limits_file, found)
            run.tell(f"wrote {limits_file}")
            return
        allowed = limits.read(limits_file)
        for name, scene in SCENES.items():
            found |= _measure_within(run, dsn, name, scene, allowed)
    excesses = limits.exceeded(found, allowed)
    _show(found, allowed, excesses)
    if excesses:
        raise typer.Exit(1)


def _measure_within(
    run: Run, server_dsn: str, name: str, scene: Scene, allowed: limits.Figures
) -> limits.Figures:
    """Measure a scene, again in a new database if something is above its limit.

    The server's own background work (an automatic analyze has a snapshot, so dead entries stay) can
    be in the way of one attempt. What calls really cost is above its limit in all of them.
    """
    for attempt in range(1, ATTEMPTS + 1):
        found = _measure(run, server_dsn, name, scene)
        excesses = limits.exceeded(found, allowed)
        if not excesses:
            break
        run.tell(f"attempt {attempt} of {ATTEMPTS}: {len(excesses)} above the limit in {name!r}")
    return found


def _measure(run: Run, server_dsn: str, name: str, scene: Scene) -> dict[str, dict[str, float]]:
    """What each call costs in a scene once caches and plans are warm."""
    with database(server_dsn) as dsn, closing(scene.prepare(run, dsn)) as claimer:
        for _ in range(WARM_UP):
            claimer.timed_claim()
        costs = costs_of_calls(claimer, CALLS) | costs_of_batches(claimer, BATCHES)
        if name == SPAWNS:
            costs |= costs_of_spawns(claimer, CALLS)
        return {f"{name}: {call}": typical(found) for call, found in costs.items()}


def _show(found: limits.Figures, allowed: limits.Figures, excesses: list[limits.Excess]) -> None:
    """A row for each call; then what is above its limit."""
    table = Table("call", "pages", "log, bytes", "rows", title="found / limit", title_justify="left")
    for call, figures in found.items():
        limit = allowed.get(call, {})
        rows = ", ".join(
            f"{what.removeprefix(limits.ROWS)} {count:.2g}"
            for what, count in figures.items()
            if what.startswith(limits.ROWS)
        )
        counted = (f"{figures[what]:.4g} / {limit.get(what, 0):g}" for what in ("pages", "wal bytes"))
        table.add_row(call, *counted, rows)
    console = Console() if Console().is_terminal else Console(width=140)
    console.print(table)
    for excess in excesses:
        console.print(
            f"above its limit: {excess.call}, {excess.what}: {excess.found:g} > {excess.limit:g}",
            style="red",
        )
