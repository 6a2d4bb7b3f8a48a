"""Does a claim pay for leases that the node may not run?

Two databases on one server: both hold the same leases that the node may run; one also holds a
backlog, older and in ten classes, that asks for a label the node lacks. Claims alternate between
the two, one by one, so that both see the machine in the same mood; the figure is the ratio of the
medians, round by round.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid4

import psycopg
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.bench import Spread, databases, machine
from hwqueue.client import Client
from hwqueue.types import NodeSpec

QUEUE = "bench"
BATCH = 5000
AIM = 1.2


@dataclass(frozen=True)
class Figures:
    """What came out. Times are in milliseconds."""

    backlog: int
    claims_per_round: int
    rounds: int
    ratio: Spread
    p50_ms_without: Spread
    p50_ms_with: Spread
    aim: float
    machine: dict[str, str]


def ineligible(
    backlog: Annotated[int, typer.Option(help="leases that the node may not run")] = 1_000_000,
    claims: Annotated[int, typer.Option(help="claims in each round")] = 500,
    rounds: Annotated[int, typer.Option(help="rounds", min=3)] = 7,
    dsn: Annotated[str | None, typer.Option(help="server; default: the embedded one")] = None,
    output: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    """Claim p50 with a backlog of ineligible leases over p50 with none (aim: at most 1.2)."""
    console = Console()
    with databases(dsn, 2) as (empty, full):
        needed = claims * (rounds + 1)
        without = _prepare(empty, 0, needed, console)
        with_backlog = _prepare(full, backlog, needed, console)
        _round(without, with_backlog, claims)  # warms caches and plans
        pairs = [
            _round(without, with_backlog, claims)
            for _ in track(range(rounds), "claiming", console=console)
        ]
        figures = Figures(
            backlog,
            claims,
            rounds,
            Spread.of([loaded / bare for bare, loaded in pairs]),
            Spread.of([bare for bare, _ in pairs]),
            Spread.of([loaded for _, loaded in pairs]),
            AIM,
            machine(full),
        )
    _print(figures, console)
    if output:
        output.write_text(json.dumps(asdict(figures), indent=2), encoding="utf-8")


def _prepare(dsn: str, backlog: int, eligible: int, console: Console) -> Callable[[], float]:
    """Fill a database; return a function that claims a lease and gives the milliseconds."""
    client = Client(dsn, pool_size=1)
    client.open()
    client.create_queue(QUEUE)
    node = uuid4()
    spec = NodeSpec(name="bench", instance_id="1", labels={"pool": "cpu"})
    epoch = client.register_node(node, spec)
    unwanted = [
        {"task": "t", "options": {"affinity_tags": {"pool": "gpu", "kind": i % 10}}}
        for i in range(BATCH)
    ]
    starts = range(0, backlog, BATCH)
    for start in track(starts, "backlog", console=console, disable=not backlog):
        client.spawn_leases(QUEUE, unwanted[: backlog - start])
    wanted = [{"task": "t", "options": {"affinity_tags": {"pool": "cpu"}}}] * BATCH
    for start in range(0, eligible, BATCH):
        client.spawn_leases(QUEUE, wanted[: eligible - start])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")
    return lambda: _claim(client, node, epoch)


def _claim(client: Client, node: UUID, epoch: int) -> float:
    started = time.perf_counter()
    granted = client.claim_task([QUEUE], node, epoch)
    elapsed = time.perf_counter() - started
    if len(granted) != 1:
        raise RuntimeError("the benchmark ran out of leases: its sizes are wrong")
    client.complete_lease(granted[0].lease_id, granted[0].claim_token)
    return 1000 * elapsed


def _round(
    without: Callable[[], float], with_backlog: Callable[[], float], claims: int
) -> tuple[float, float]:
    """The p50 of either side in milliseconds."""
    times = [(without(), with_backlog()) for _ in range(claims)]
    return Spread.of([bare for bare, _ in times]).median, Spread.of([b for _, b in times]).median


def _print(figures: Figures, console: Console) -> None:
    table = Table(
        title="claim p50 with ineligible backlog / with none",
        show_header=False,
        title_justify="left",
    )
    for name, value in {**vars(figures), **figures.machine}.items():
        if name != "machine":
            table.add_row(name, str(value))
    console.print(table)
