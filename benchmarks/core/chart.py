"""Draws an answer: ratios with their spread and aims, or plain values where nothing is compared."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from benchmarks.core.report import Answer, Figure
from benchmarks.core.spread import Spread


def write_chart(answer: Answer, folder: Path) -> Path:
    """Write `<question>.png` into the folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    compared = [figure for figure in answer.figures if figure.ratio is not None]
    told = [figure for figure in answer.figures if figure.ratio is None]
    groups = [group for group in (compared, told) if group]
    height = 1.2 + 0.35 * max(map(len, groups))
    picture = Picture(figsize=(8 * len(groups), height), layout="constrained")
    for axes, group in zip(picture.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        _draw(axes, group)
    picture.suptitle(f"{answer.question}: {answer.compared}")
    path = folder / f"{answer.question}.png"
    picture.savefig(path, dpi=120)
    return path


def _draw(axes: Axes, figures: Sequence[Figure]) -> None:
    spreads = [figure.ratio or figure.value for figure in figures]
    rows = range(len(figures))
    medians = [spread.median for spread in spreads]
    axes.barh(rows, medians, xerr=_whiskers(spreads), color="tab:green", capsize=3)
    axes.set_yticks(rows, [figure.case for figure in figures])
    axes.invert_yaxis()
    for row, figure in enumerate(figures):
        if figure.aim is not None:
            axes.plot([figure.aim.bound] * 2, [row - 0.45, row + 0.45], color="tab:red")
    is_ratio = figures[0].ratio is not None
    axes.set_xlabel("ratio; red: aim" if is_ratio else figures[0].unit)
    axes.grid(axis="x", alpha=0.3)


def _whiskers(spreads: Sequence[Spread]) -> list[list[float]]:
    """How far the extremes are from the medians, left and right."""
    return [
        [spread.median - spread.least for spread in spreads],
        [spread.most - spread.median for spread in spreads],
    ]
