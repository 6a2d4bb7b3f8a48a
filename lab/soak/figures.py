"""A soak in figures: its last minute against the first, minute by minute, table by table."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.core.report import Aim, Figure
from benchmarks.core.spread import Spread, percentile
from lab.soak.pace import Claims, Phase
from lab.soak.sizes import Size, Sizes, total

_NOTHING = Size(0, 0, 0)
# What a minute's spread is over.
_PARTS = 6


@dataclass(frozen=True)
class Minute:
    """The claims of a minute, or of however long a period is.

    Attributes:
        parts: Their latencies in milliseconds, cut by time into equal parts.
        seconds: How long it is.
    """

    parts: tuple[list[float], ...]
    seconds: float

    @classmethod
    def of(cls, claims: Claims, number: int, seconds: float) -> "Minute":
        """Minute 0, 1, ..."""
        parts: tuple[list[float], ...] = tuple([] for _ in range(_PARTS))
        for at, ms in zip(claims.at, claims.ms, strict=True):
            part = int((at - number * seconds) * _PARTS // seconds)
            if 0 <= part < _PARTS:
                parts[part].append(ms)
        return cls(parts, seconds)

    @property
    def rates(self) -> list[float]:
        """Claims per second, part by part."""
        return [len(part) * _PARTS / self.seconds for part in self.parts]

    def latency(self, percent: float) -> Spread:
        """A percentile over the parts that have claims; not a number if none has."""
        found = [percentile(part, percent) for part in self.parts if part]
        return Spread.of(found or [float("nan")])


def rate_kept(each: Sequence[Minute], per_second: float, aim: Aim | None) -> Figure:
    """The rate of all minutes together over what was offered; the spread is that of the minutes.

    What is late is made up for later, so a minute may be above what was offered.
    """
    found = [fmean(minute.rates) for minute in each]
    rate = Spread(fmean(found), min(found), max(found))
    offered = Spread.of([per_second])
    ratio = Spread(*(value / per_second for value in (rate.median, rate.least, rate.most)))
    return Figure("rate, all minutes / offered", "leases/s", rate, offered, ratio, aim)


def furthest_behind(claims: Claims) -> Figure:
    """The most seconds that a claim ended after its moment on the schedule."""
    most = Spread.of([max(claims.behind, default=float("nan"))])
    return Figure("furthest behind the schedule", "s", most)


def latency_kept(what: str, percent: float, first: Minute, last: Minute, aim: Aim | None = None) -> Figure:
    """The last minute's latency over the first one's; the spread is that of the last one."""
    base, value = first.latency(percent), last.latency(percent)
    ratio = Spread(value.median / base.median, value.least / base.median, value.most / base.median)
    return Figure(f"{what} p{percent:g}, last / first", "ms", value, base, ratio, aim)


def beside(lookups: Claims, control: Claims, aim: Aim) -> list[Figure]:
    """A query that has nothing to do with the queue, over the same before."""
    return [
        Figure.against(
            f"unrelated lookup p{percent}, held / control",
            "ms",
            values=[percentile(lookups.ms, percent)],
            bases=[percentile(control.ms, percent)],
            aim=aim,
        )
        for percent in (50, 99)
    ]


def minutes(name: str, phase: Phase, samples: Sequence[Sizes], seconds: float) -> list[Figure]:
    """The rate of every minute, with latencies, dead rows and sizes at its end."""
    return [_minute(name, phase, number, found, seconds) for number, found in enumerate(samples)]


def tables(before: Sizes, moments: dict[str, Sizes]) -> list[Figure]:
    """Every table that has changed, at each of the moments, over before."""
    last = list(moments.values())[-1]
    changed = [table for table, size in last.items() if size != before.get(table)]
    return [
        _table(f"{table}, {moment}", found.get(table, _NOTHING), before.get(table, _NOTHING))
        for table in changed
        for moment, found in moments.items()
    ]


def _minute(name: str, phase: Phase, number: int, found: Sizes, seconds: float) -> Figure:
    claims = Minute.of(phase.claims, number, seconds)
    probes = Minute.of(phase.probes, number, seconds)
    more = {
        "p50 ms": claims.latency(50),
        "p99 ms": claims.latency(99),
        "probe p50": probes.latency(50),
        "probe p99": probes.latency(99),
        "dead rows": Spread.of([total(found).dead]),
        "MiB": Spread.of([total(found).mebibytes]),
    }
    case = f"{name}, {seconds * (number + 1):,.0f} s"
    return Figure(case, "leases/s", Spread.of(claims.rates), more=more)


def _table(case: str, size: Size, before: Size) -> Figure:
    more = {
        "of it indexes": Spread.of([size.index_bytes / 2**20]),
        "dead rows": Spread.of([size.dead]),
    }
    held, was = Spread.of([size.mebibytes]), Spread.of([before.mebibytes])
    return Figure(case, "MiB", held, was, more=more)
