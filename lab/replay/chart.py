"""Draw a report as a picture (PNG) or a page (HTML with the picture as SVG)."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hwqueue.demo.report import Report


def write_chart(reports: Sequence[Report], path: Path) -> None:
    """Write the chart of one or more runs; models and kinds are those of the first."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    if reports[0].timed:  # everything has ended: nothing is allocated to any model
        over_time, by_kind = figure.subplots(1, 2, width_ratios=(9, 4))
    else:
        over_time, by_model, by_kind = figure.subplots(1, 3, width_ratios=(5, 4, 4))
        _draw_models(by_model, reports[0])
    _draw_timeline(over_time, reports)
    _draw_kinds(by_kind, reports[0])
    figure.suptitle(_title(reports))
    if path.suffix == ".png":
        figure.savefig(path, dpi=130)
    else:
        path.write_text(_page(figure, _title(reports)), encoding="utf-8")


def _title(reports: Sequence[Report]) -> str:
    first = reports[0]
    shares = ", ".join(
        f"mean {report.timed.mean_gpu_percent:.1f} %"
        if report.timed
        else f"{report.gpus_allocated_percent:.2f} %"
        for report in reports
    )
    return (
        f"{first.mode}: {first.leases:,} leases on {first.machines:,} nodes"
        f" with {first.gpus:,} GPUs · allocated {shares}"
    )


def _draw_timeline(axes: Axes, reports: Sequence[Report]) -> None:
    for report in reports:
        times, levels = zip(*report.timeline, strict=True)
        axes.plot(times, levels, drawstyle="steps-post", label=f"seed {report.seed}")
    axes.set(xlabel="seconds", ylabel="GPUs allocated, %", title="Over time")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def _draw_models(axes: Axes, report: Report) -> None:
    names = [f"{share.model} ({share.gpus})" for share in report.models]
    bars = axes.barh(names, [share.percent for share in report.models], color="tab:green")
    axes.bar_label(bars, fmt="%.1f", padding=2)
    axes.invert_yaxis()
    axes.set(xlim=(0, 120), xlabel="GPUs allocated, %", title="By model (GPUs)")


def _draw_kinds(axes: Axes, report: Report) -> None:
    names = [kind.kind for kind in report.kinds]
    granted = [kind.granted for kind in report.kinds]
    pending = [kind.spawned - kind.granted for kind in report.kinds]
    axes.bar(names, granted, color="tab:green", label="claimed")
    bars = axes.bar(names, pending, bottom=granted, color="tab:orange", label="never claimed")
    axes.bar_label(bars, labels=[f"{count}" if count else "" for count in pending])
    axes.set(ylabel="leases", title="By kind of lease")
    axes.legend()


def _page(figure: Figure, title: str) -> str:
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    heading = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>\n'
        f"<body>{svg[svg.index('<svg') :]}</body></html>\n"
    )
