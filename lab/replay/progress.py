"""What a person sees while a replay runs: one moving line on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from hwqueue.demo.fleet import Fleet
from hwqueue.demo.report import percent


class StageLine:
    """The running stage and how far it is; rendered afresh several times a second."""

    def __init__(self) -> None:
        self._spinner = Spinner("dots")
        self._stage = "starting"
        self._fleet: Fleet | None = None
        self._begun = time.monotonic()

    def watch(self, stage: str, fleet: Fleet) -> None:
        """Take note of a new stage."""
        self._stage, self._fleet = stage, fleet
        self._begun = time.monotonic()

    def __rich__(self) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [self._spinner, f"{self._stage:32}"]
        if self._fleet is not None and self._fleet.ledger.jobs:
            cells += self._counts(self._fleet)
        row.add_row(*cells, f"[dim]{time.monotonic() - self._begun:.0f} s[/dim]")
        return row

    @staticmethod
    def _counts(fleet: Fleet) -> list[RenderableType]:
        ledger = fleet.ledger
        spawned, waiting = len(ledger.jobs), len(ledger.waiting)
        devices = 1000 * sum(node.machine.gpus for node in fleet.nodes)
        return [
            ProgressBar(total=max(1, spawned), completed=spawned - waiting, width=30),
            f"{spawned - waiting:,} of {spawned:,} leases,",
            f"{percent(ledger.gpu_milli_used, devices):.1f} % of the GPUs",
        ]


@contextmanager
def stage_line(*, shown: bool) -> Iterator[StageLine]:
    """Show a stage line on stderr when that is a terminal and `shown`."""
    line = StageLine()
    console = Console(stderr=True)
    if shown and console.is_terminal:
        with Live(line, console=console, transient=True, refresh_per_second=8):
            yield line
    else:
        yield line
