"""How long does what operators look at take, and do claims pay for it?"""

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import cycle
from typing import Annotated

import typer

from benchmarks.core.claiming import Claimed, claiming
from benchmarks.core.crowd import prepare
from benchmarks.core.fill import kind, top_up
from benchmarks.core.looks import ALL, METRICS, Looker, Seen, served
from benchmarks.core.node import Node, register
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, machine
from benchmarks.core.spread import Spread, percentile

SECOND_MS = 1000
SCRAPE_KB = 2000
SLOWDOWN = at_most(1.05)
ALONE, PACED, BUSY = "alone", "one read a second", "a reader without pause"

Sizes = Annotated[list[int], typer.Option(help="Kinds of nodes (profiles)", min=1)]


def views(
    ctx: typer.Context,
    *,
    profiles: Sizes = [100, 10_000],
    nodes: Annotated[int, typer.Option(help="Registered nodes", min=1)] = 10_000,
    classes: Annotated[int, typer.Option(help="Placement classes with leases ready", min=1)] = (10_000),
    pending: Annotated[int, typer.Option(help="Leases ready", min=1)] = 1_000_000,
    backlog: Annotated[int, typer.Option(help="And for the claiming node, each turn")] = 100_000,
    reads: Annotated[int, typer.Option(help="Reads of each view, path and page", min=1)] = 20,
    seconds: Seconds = 10,
    rounds: Rounds = 5,
) -> Answer:
    """p95 of all that operators read while a node claims; its claim p50 beside reads / alone."""
    run = Run.of(ctx)
    figures: list[Figure] = []
    notes: list[str] = []
    facts: dict[str, str] = {}
    for count in profiles:
        with database(run.dsn) as dsn:
            run.tell(f"preparing: {count:,} profiles")
            claiming_node = register(dsn, 0)  # before upkeep looks at all nodes
            prepare(run, dsn, nodes=nodes, profiles=count, classes=classes, pending=pending)
            with served(dsn) as url, closing(Looker(dsn, url)) as looker:
                watch = _Watch(run, dsn, looker, backlog, claiming_node)
                for number in range(rounds):
                    run.tell(f"round {number + 1}/{rounds}")
                    watch.round(seconds, math.ceil(reads / rounds))
            figures += watch.figures(f"{count:,} profiles")
            notes += watch.failures(f"{count:,} profiles")
            facts = machine(dsn)
    compared = "p95 of a read / a second; size of a scrape / 2 MB; claim p50 beside reads / alone"
    return Answer("views", compared, tuple(figures), ctx.params, facts, tuple(notes))


class _Watch:
    """Reads while a node claims, and the claims."""

    def __init__(self, run: Run, dsn: str, looker: Looker, backlog: int, node: Node) -> None:
        self._run = run
        self._dsn = dsn
        self._looker = looker
        self._backlog = backlog
        self._node = node
        self._slowly = cycle(ALL)
        self._random = random.Random(1)
        self._seen: dict[str, list[Seen]] = {what: [] for what in ALL}
        self._claimed: dict[str, list[Claimed]] = {side: [] for side in (ALONE, PACED, BUSY)}

    def round(self, seconds: float, reads: int) -> None:
        """Claim alone, beside one read a second, and while everything is read so many times."""
        calm_down(self._dsn)
        self._claimed[ALONE].append(self._claims_while(lambda: time.sleep(seconds)))
        self._claimed[PACED].append(self._claims_while(lambda: self._look_slowly(seconds)))
        busy = [self._claims_while(self._look_at_all) for _ in range(reads)]
        self._claimed[BUSY].append(Claimed.together(busy))

    def figures(self, case: str) -> list[Figure]:
        """Each read, the size of a scrape, and the claims."""
        scrapes = [seen.size / 1000 for seen in self._seen[METRICS]]
        return [
            *(_read(f"{what}, {case}", seen) for what, seen in self._seen.items()),
            _within(f"{METRICS}, {case}", "kB", scrapes, SCRAPE_KB),
            self._beside(PACED, case, aimed=True),
            self._beside(BUSY, case, aimed=False),
        ]

    def failures(self, case: str) -> list[str]:
        """What the server did not answer."""
        return [
            f"{what}, {case}: {len(failed)} of {len(seen)} reads failed, the first with {failed[0]}"
            for what, seen in self._seen.items()
            if (failed := [one.failed for one in seen if one.failed])
        ]

    def _claims_while(self, look: Callable[[], None]) -> Claimed:
        top_up(self._run, self._dsn, kind(), self._backlog)
        with claiming(self._dsn, self._node) as claimed:
            look()
        return claimed

    def _look_slowly(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds))):
            took = self._looker.look(next(self._slowly)).milliseconds / SECOND_MS
            time.sleep(max(0, 1 - took))

    def _look_at_all(self) -> None:
        # pages keep values for each other: in another order each time, all come first at times
        for what in self._random.sample(ALL, len(ALL)):
            self._seen[what].append(self._looker.look(what))

    def _beside(self, side: str, case: str, *, aimed: bool) -> Figure:
        values, bases = self._claimed[side], self._claimed[ALONE]
        return Figure.against(
            f"claims, {side}, {case}",
            "p50 ms",
            values=[claimed.p50 for claimed in values],
            bases=[claimed.p50 for claimed in bases],
            aim=SLOWDOWN if aimed else None,
            more={
                "p99 ms": Spread.of([claimed.p99 for claimed in values]),
                "leases/s": Spread.of([claimed.per_second for claimed in values]),
                "leases/s alone": Spread.of([claimed.per_second for claimed in bases]),
            },
        )


def _read(case: str, seen: Sequence[Seen]) -> Figure:
    figure = _within(case, "ms", [one.milliseconds for one in seen], SECOND_MS)
    figure.more["kB"] = Spread.of([one.size / 1000 for one in seen])
    return figure


def _within(case: str, unit: str, values: Sequence[float], most: float) -> Figure:
    """Whether the p95 is within a bound."""
    p95 = percentile(values, 95)
    return Figure(
        case,
        unit,
        Spread.of(values),
        Spread.of([most]),
        Spread.of([p95 / most]),
        at_most(1),
        {f"p95 {unit}": Spread.of([p95])},
    )
