"""Does a claim pay for leases that the node may not run?

Two databases on one server: both hold the same leases that the node may run; one also holds a
backlog, older and in ten classes, that asks for a label the node lacks. Claims alternate between
the two in short rounds, so that both see the machine in the same mood; the figure is the ratio of
the medians, round by round.
"""

import json
import time
from collections.abc import Callable
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

QUEUE = "bench"
BATCH = 5000
AIM = 1.2


def ineligible(
    backlog: Annotated[int, typer.Option(help="leases that the node may not run")] = 1_000_000,
    claims: Annotated[int, typer.Option(help="claims in each round")] = 500,
    rounds: Annotated[int, typer.Option(help="rounds, at least 3")] = 7,
    dsn: Annotated[str | None, typer.Option(help="server to measure; default: the embedded one")] = None,
    output: Annotated[Path | None, typer.Option("--json", help="write the figures here, too")] = None,
) -> None:
    """Claim p50 with a backlog of ineligible leases over p50 with none (aim: at most 1.2)."""
    console = Console()
    with databases(dsn, 2) as (empty, full):
        needed = claims * (rounds + 1)
        without = _prepare(empty, 0, needed, console)
        with_backlog = _prepare(full, backlog, needed, console)
        ratios, times = [], ([], [])
        for round_number in track(range(rounds + 1), "claiming", console=console):
            halves = [without(claims), with_backlog(claims)]
            if round_number == 0:
                continue  # warms caches and plans
            ratios.append(halves[1] / halves[0])
            for kept, p50 in zip(times, halves, strict=True):
                kept.append(p50)
        figures = {
            "question": "claim p50 with ineligible backlog / with none",
            "backlog": backlog,
            "claims_per_round": claims,
            "rounds": rounds,
            "ratio": Spread.of(ratios),
            "p50_ms_without": Spread.of(times[0]),
            "p50_ms_with": Spread.of(times[1]),
            "aim": AIM,
            "machine": machine(full),
        }
    _print(figures, console)
    if output:
        output.write_text(json.dumps(figures, default=vars, indent=2), encoding="utf-8")


def _prepare(dsn: str, backlog: int, eligible: int, console: Console) -> Callable[[int], float]:
    """Fill a database; return a function that claims n leases and gives the p50 in milliseconds."""
    client = Client(dsn, pool_size=1)
    client.open()
    client.create_queue(QUEUE)
    node = uuid4()
    epoch = client.register_node(
        node, {"name": "bench", "instance_id": "1", "labels": {"pool": "cpu"}}
    )
    unwanted = [
        {"task": "t", "options": {"affinity_tags": {"pool": "gpu", "kind": i % 10}}}
        for i in range(BATCH)
    ]
    for start in track(range(0, backlog, BATCH), "backlog", console=console, disable=not backlog):
        client.spawn_leases(QUEUE, unwanted[: backlog - start])
    wanted = [{"task": "t", "options": {"affinity_tags": {"pool": "cpu"}}}] * BATCH
    for start in range(0, eligible, BATCH):
        client.spawn_leases(QUEUE, wanted[: eligible - start])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")
    return lambda count: _claim(client, node, epoch, count)


def _claim(client: Client, node: UUID, epoch: int, count: int) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        granted = client.claim_task([QUEUE], node, epoch)
        times.append(time.perf_counter() - started)
        if len(granted) != 1:
            raise RuntimeError("the benchmark ran out of leases: its sizes are wrong")
        client.complete_lease(granted[0].lease_id, granted[0].claim_token)
    times.sort()
    return 1000 * times[len(times) // 2]


def _print(figures: dict[str, object], console: Console) -> None:
    table = Table(title=str(figures["question"]), show_header=False)
    for name, value in figures.items():
        if name not in ("question", "machine"):
            table.add_row(name, str(value))
    for name, value in figures["machine"].items():  # type: ignore[attr-defined]
        table.add_row(name, value)
    console.print(table)
