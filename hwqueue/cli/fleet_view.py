"""The demo's live picture: GPUs by model, counts, the last grants, and what nobody can run."""

import asyncio
from collections import Counter
from itertools import islice
from uuid import UUID

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hwqueue.cli.output import cell
from hwqueue.client import AsyncClient
from hwqueue.demo.fleet import Fleet
from hwqueue.demo.model import WHOLE_GPU
from hwqueue.demo.report import percent

SHOWN_WAITING = 4
EXPLAIN_EVERY_SECONDS = 1.0
PLAIN_STEP_SECONDS = 2.0


class View:
    """Shows nothing of a running fleet: with --json only the report is printed."""

    def watch(self, stage: str, fleet: Fleet) -> None:
        """Take note of a new stage."""

    async def follow(self, dsn: str) -> None:
        """Look now and then at what happens; never ends."""


class FleetView(View):
    """A picture of a running fleet, drawn afresh at every refresh of a `rich.live.Live`."""

    def __init__(self) -> None:
        self._stage = "starting"
        self._fleet: Fleet | None = None
        self._why: dict[UUID, str] = {}

    def watch(self, stage: str, fleet: Fleet) -> None:
        """Take note of a new stage."""
        self._stage, self._fleet = stage, fleet

    async def follow(self, dsn: str) -> None:
        """Ask now and then why the first leases wait, over a connection of its own; never ends."""
        async with AsyncClient(dsn, pool_size=1) as client:
            while True:
                await asyncio.sleep(EXPLAIN_EVERY_SECONDS)
                if self._fleet is not None:
                    for lease_id in _first_waiting(self._fleet):
                        why = await client.explain_lease(lease_id)
                        self._why[lease_id] = f"{why.code}: {why.headline}"

    def __rich__(self) -> RenderableType:
        if self._fleet is None:
            return Text(self._stage)
        return Group(
            Panel(_bars(self._fleet), title=f"{len(self._fleet.nodes)} nodes · {self._stage}"),
            Text(counts(self._fleet)),
            Panel(_last_grants(self._fleet), title="last placements"),
            Panel(self._waiting(self._fleet), title="waiting longest, and why"),
        )

    def _waiting(self, fleet: Fleet) -> Table:
        table = _one_line_rows(3)
        for lease_id in _first_waiting(fleet):
            job = fleet.ledger.jobs[lease_id]
            table.add_row(*map(cell, (job.name, job.words, self._why.get(lease_id, ""))))
        return table


class PlainView(View):
    """The same without a terminal: a line now and then."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None

    def watch(self, stage: str, fleet: Fleet) -> None:
        """Say the new stage."""
        typer.echo(stage)
        self._fleet = fleet

    async def follow(self, dsn: str) -> None:
        """Say the counts every other second; never ends."""
        while True:
            await asyncio.sleep(PLAIN_STEP_SECONDS)
            if self._fleet is not None and self._fleet.ledger.jobs:
                typer.echo(f"  {self._fleet.now:4.0f} s  {counts(self._fleet)}")


def counts(fleet: Fleet) -> str:
    """Say how many leases wait, run and have ended, and how much of the GPUs is in use."""
    ledger = fleet.ledger
    ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ledger.outcomes.items()))
    devices = WHOLE_GPU * sum(node.machine.gpus for node in fleet.nodes)
    return (
        f"{len(ledger.waiting)} pending, {len(ledger.running)} claimed, {ended or '0 completed'}"
        f" · {percent(ledger.gpu_milli_used, devices):.0f} % of the GPUs in use"
    )


def _bars(fleet: Fleet) -> Table:
    devices: Counter[str] = Counter()
    for node in fleet.nodes:
        if node.machine.gpu_model is not None:
            devices[node.machine.gpu_model] += node.machine.gpus
    table = Table.grid(padding=(0, 2))
    for model, count in devices.most_common():
        used = fleet.ledger.used_by_model[model] / WHOLE_GPU
        bar = ProgressBar(total=count, completed=used, width=40)
        table.add_row(cell(model), bar, f"{used:.1f} of {count} GPUs")
    return table


def _last_grants(fleet: Fleet) -> Table:
    table = _one_line_rows(6)
    for grant in reversed(fleet.ledger.recent):
        job = fleet.ledger.jobs[grant.lease_id]
        devices = grant.assignment.gpus if grant.assignment else ()
        gpus = "GPU " + ",".join(str(gpu.index) for gpu in devices) if devices else ""
        cells = (grant.job, "→", grant.machine, gpus, job.words, f"score {grant.score:.0f}")
        table.add_row(*map(cell, cells))
    return table


def _first_waiting(fleet: Fleet) -> list[UUID]:
    return list(islice(fleet.ledger.waiting, SHOWN_WAITING))


def _one_line_rows(columns: int) -> Table:
    """Return a table whose rows are cut to one line, so that the picture keeps its height."""
    table = Table.grid(padding=(0, 2))
    for _ in range(columns):
        table.add_column(no_wrap=True, overflow="ellipsis")
    return table
