"""What every question of one run is told: which server, and where to say how far it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import track

_T = TypeVar("_T")


@dataclass(frozen=True)
class Run:
    """Set by the options that stand before the question.

    Attributes:
        dsn: Server to measure on; None: an embedded one, thrown away afterwards.
        console: For progress; results go to standard output.
    """

    dsn: str | None
    console: Console

    @classmethod
    def of(cls, ctx: typer.Context) -> "Run":
        """The run that a question belongs to."""
        run = ctx.find_object(cls)
        assert run is not None, "the app's callback sets it"
        return run

    def tell(self, line: str) -> None:
        """Print a line of progress."""
        self.console.print(line, style="dim", highlight=False)

    def track(self, items: Sequence[_T], what: str) -> Iterable[_T]:
        """The items, with a progress bar while it takes long."""
        if not self.console.is_terminal:
            return items
        return track(items, what, console=self.console, transient=True)
