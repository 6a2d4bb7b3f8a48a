"""Charts of samples: GPUs by model, what waits by reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hwqueue.types import FleetSample

SPANS = {"3 h": 180, "6 h": 360, "7 d": 7 * 1440, "35 d": 35 * 1440}
SHOWN_MODELS, SHOWN_REASONS = 6, 4
ANY = "any model"
COLOURS = ("no-match", "pending", "claimed", "scheduled", "completed")
REASONS = {
    "room": "a node would do",
    "require": "no node has what they require",
    "capacity": "no node is large enough",
    "device": "no node has such devices",
    "isolation": "no node isolates like that",
    "served": "no worker has the task",
    "taints": "nodes are tainted",
    "nodes": "no node is there",
    "limit": "a limit",
    "team": "the rest of a gang",
    "place": "a place among others",
    "signal": "a signal",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time, and the table that they are drawn from.

    Attributes:
        name: Of the chart, once a page, whatever models are named.
        says: What the last sample says, in words.
        lines: Their labels and colours.
        rows: A value of each line, for each time.
    """

    name: str
    title: str
    says: str
    lines: Sequence[tuple[str, str]]
    rows: Sequence[tuple[datetime, Sequence[float]]]


def gpu_charts(samples: Sequence[FleetSample]) -> list[Chart]:
    """A chart for each model that nodes have or leases ask for, the most wanted first."""
    times = sorted({sample.at for sample in samples})
    models: dict[str, dict[datetime, FleetSample]] = defaultdict(dict)
    for sample in samples:
        models[sample.name][sample.at] = sample
    last = {name: by_time.get(times[-1]) for name, by_time in models.items()}

    def size(name: str) -> tuple[float, float, str]:
        now = last[name]
        return (-now.waiting, -now.present, name) if now else (0, 0, name)

    return [
        _gpus(name, name or ANY, times, [models[name]])
        for name in sorted(models, key=size)[:SHOWN_MODELS]
        if any(one.present or one.waiting for one in models[name].values())
    ]


@dataclass(frozen=True, slots=True)
class Supply:
    """GPUs of a model: in use, free, and asked for by what waits."""

    model: str
    used: float
    free: float
    asked: float


def supply_of(samples: Sequence[FleetSample]) -> list[Supply]:
    """What there is of each model beside what is asked for, in the last sample, the most asked for first."""
    last = max((sample.at for sample in samples), default=None)
    rows = [
        Supply(each.name or ANY, each.used, each.present - each.used, each.waiting)
        for each in samples
        if each.at == last and (each.present or each.waiting)
    ]
    return sorted(rows, key=lambda row: (-row.asked, -row.used - row.free, row.model))


def all_gpus(samples: Sequence[FleetSample]) -> Chart | None:
    """All models in one chart; None: there were no GPUs."""
    times = sorted({sample.at for sample in samples if sample.present or sample.waiting})
    models: dict[str, dict[datetime, FleetSample]] = defaultdict(dict)
    for sample in samples:
        models[sample.name][sample.at] = sample
    return _gpus("", "GPUs", times, list(models.values())) if times else None


def waits_chart(samples: Sequence[FleetSample]) -> Chart | None:
    """What waits by the reasons that keep most leases, all others in one line; None: no samples."""
    times = sorted({sample.at for sample in samples})
    if not times:
        return None
    waiting: dict[str, dict[datetime, float]] = defaultdict(dict)
    for sample in samples:
        waiting[sample.name][sample.at] = sample.waiting
    total = waiting.pop("", {})
    names = sorted(waiting, key=lambda name: (-max(waiting[name].values()), name))[:SHOWN_REASONS]
    rows = []
    for at in times:
        values = [waiting[name].get(at, 0.0) for name in names]
        rows.append((at, [*values, max(0.0, total.get(at, 0.0) - sum(values))]))
    lines = [*((REASONS.get(name, name), colour) for name, colour in zip(names, COLOURS, strict=False))]
    if any(values[-1] for _, values in rows):
        lines.append(("others", "cancelled"))
    else:
        rows = [(at, values[:-1]) for at, values in rows]
    now = total.get(times[-1], 0.0)
    return Chart("waits", "What leases wait for", f"{now:,.0f} wait now", lines, rows)


def _gpus(
    name: str, title: str, times: Sequence[datetime], models: Sequence[dict[datetime, FleetSample]]
) -> Chart:
    rows = []
    for at in times:
        found = [by_time[at] for by_time in models if at in by_time]
        used, present = (sum(getattr(one, key) for one in found) for key in ("used", "present"))
        rows.append((at, [used, present - used, sum(one.waiting for one in found)]))
    used, free, asked = rows[-1][1]
    says = f"{used:,.4g} in use, {free:,.4g} free, {asked:,.4g} asked for"
    lines = [("in use", "claimed"), ("free", "completed"), ("asked for", "pending")]
    return Chart(f"gpus-{name}", title, says, lines, rows)
