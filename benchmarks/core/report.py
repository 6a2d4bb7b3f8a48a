"""What came out of a question: shown as a table, written as JSON and as a chart."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.core.spread import Spread


@dataclass(frozen=True)
class Aim:
    """Where a ratio should be; a bound that is met by the median."""

    bound: float
    at_most: bool

    def met_by(self, ratio: Spread) -> bool:
        """Whether the median is on the right side."""
        return ratio.median <= self.bound if self.at_most else ratio.median >= self.bound

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"


def at_most(bound: float) -> Aim:
    """For what should be small: times."""
    return Aim(bound, at_most=True)


def at_least(bound: float) -> Aim:
    """For what should be large: rates."""
    return Aim(bound, at_most=False)


@dataclass(frozen=True)
class Figure:
    """One thing measured, in most cases against another one.

    Attributes:
        case: What it is.
        unit: Of `value` and `base`.
        value: Round by round.
        base: What it is compared with, None when it is only told.
        ratio: value / base within each round.
        aim: For the ratio.
        more: Further figures of the same runs by name, e.g. {"p99 ms": ...}.
    """

    case: str
    unit: str
    value: Spread
    base: Spread | None = None
    ratio: Spread | None = None
    aim: Aim | None = None
    more: dict[str, Spread] = field(default_factory=dict)

    @classmethod
    def against(
        cls,
        case: str,
        unit: str,
        *,
        values: Sequence[float],
        bases: Sequence[float],
        aim: Aim | None = None,
        more: dict[str, Spread] | None = None,
    ) -> "Figure":
        """Compare two sides of the same rounds."""
        return cls(
            case,
            unit,
            Spread.of(values),
            Spread.of(bases),
            Spread.of_ratios(values, bases),
            aim,
            more or {},
        )


@dataclass(frozen=True)
class Answer:
    """A question's figures.

    Attributes:
        question: Its command.
        compared: What with what, in a sentence.
        sizes: The options it ran with.
        notes: What a reader must know to read the figures.
    """

    question: str
    compared: str
    figures: tuple[Figure, ...]
    sizes: dict[str, Any]
    machine: dict[str, str]
    notes: tuple[str, ...] = ()


def show(answer: Answer, console: Console) -> None:
    """Print the figures, then what they were measured on."""
    table = Table(title=f"{answer.question}: {answer.compared}", title_justify="left")
    extras = list(dict.fromkeys(name for figure in answer.figures for name in figure.more))
    for heading in ("case", "unit", "value", "against", "ratio", "aim", "met", *extras):
        table.add_column(heading, no_wrap=True)
    for figure in answer.figures:
        table.add_row(*_cells(figure), *(_median(figure.more.get(name)) for name in extras))
    console.print(table)
    console.print(_in_one_line(answer.sizes), style="dim", highlight=False)
    console.print(_in_one_line(answer.machine), style="dim", highlight=False)
    for note in answer.notes:
        console.print(f"Note: {note}", highlight=False)


def write_json(answers: Iterable[Answer], path: Path) -> None:
    """Write all answers as one JSON array."""
    written = [asdict(answer) for answer in answers]
    path.write_text(json.dumps(written, indent=2, default=str), encoding="utf-8")


def _cells(figure: Figure) -> list[str]:
    met = "" if figure.aim is None or figure.ratio is None else _met(figure.aim, figure.ratio)
    shown = (figure.value, figure.base, figure.ratio, figure.aim)
    return [figure.case, figure.unit, *("" if one is None else str(one) for one in shown), met]


def _median(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.3g}"


def _met(aim: Aim, ratio: Spread) -> str:
    return "yes" if aim.met_by(ratio) else "[red]no[/red]"


def _in_one_line(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in facts.items())
