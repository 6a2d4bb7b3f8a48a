"""Which times schedules have: the hard cases, all minutes walked one by one, and what is planned.

The table holds whatever version of the library is installed: another one cannot change it unseen.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from hwqueue import cron, every
from hwqueue.cron_times import check_cron, cron_times, plan, times_between
from hwqueue.errors import BadArgument, ScheduleInvalid
from hwqueue.types import DuePlan

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
YORK = "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def first(count: int, expr: str, zone: str, after: str, name: str = "") -> list[str]:
    found = islice(cron_times(expr, zone, name, utc(after)), count)
    return [f"{at:%Y-%m-%d %H:%M}" for at in found]


@pytest.mark.parametrize(
    ("expr", "zone", "after", "times"),
    [
        # repeated: once, the first
        ("30 1 * * *", YORK, "2026-10-31 12:00", ["2026-11-01 05:30", "2026-11-02 06:30"]),
        ("30 1 * * *", YORK, "2026-11-01 05:30", ["2026-11-02 06:30"]),
        ("30 1 * * *", YORK, "2026-11-01 06:10", ["2026-11-02 06:30"]),
        ("30 1 * * *", "Europe/London", "2026-10-24 12:00", ["2026-10-25 00:30", "2026-10-26 01:30"]),
        # left out: at the end of the gap, once
        ("30 2 * * *", YORK, "2026-03-07 12:00", ["2026-03-08 07:00", "2026-03-09 06:30"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05 12:00", ["2026-09-06 04:00", "2026-09-07 03:00"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03 00:00", ["2026-10-03 15:30", "2026-10-04 15:15"]),
        (
            "0 1-4 * * *",
            YORK,
            "2026-03-08 05:30",
            ["2026-03-08 06:00", "2026-03-08 07:00", "2026-03-08 08:00"],
        ),
        # a star follows real time
        (
            "*/30 * * * *",
            YORK,
            "2026-11-01 05:15",
            [f"2026-11-01 {at}" for at in ("05:30", "06:00", "06:30")],
        ),
        ("0 * * * *", YORK, "2026-11-01 04:30", [f"2026-11-01 {at}" for at in ("05:00", "06:00", "07:00")]),
        # days: or, but and beside a star; names, the last, the nth
        ("0 0 13 * fri", "UTC", "2026-11-12 00:00", ["2026-11-13 00:00", "2026-11-20 00:00"]),
        ("0 0 */13 * fri", "UTC", "2026-11-12 00:00", ["2026-11-27 00:00"]),
        ("0 0 l * *", "UTC", "2026-02-01 00:00", ["2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 * * mon#1", "UTC", "2026-11-03 00:00", ["2026-12-07 00:00"]),
        ("0 0 29 2 *", "UTC", "2026-11-01 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
    ],
)
def test_hard_cases(expr: str, zone: str, after: str, times: list[str]) -> None:
    assert first(len(times), expr, zone, after) == times


@pytest.mark.parametrize(
    ("expr", "zone"),
    [
        *(("0 3 31 2 *", "UTC"), ("60 * * * *", "UTC"), ("* * * *", "UTC"), ("0 0 2 * * *", "UTC")),
        *(("@daily", "UTC"), ("", "UTC"), ("0 0 * * 1", "Europe/Nowhere"), ("0 0 * * 1", "../etc/passwd")),
        *(("H(9-70) * * * *", "UTC"), ("H/90 * * * *", "UTC"), ("H/0 * * * *", "UTC")),
        *(("9" * 5000 + " * * * *", "UTC"), ("H/" + "9" * 5000 + " * * * *", "UTC")),
    ],
)
def test_what_has_no_times_is_refused(expr: str, zone: str) -> None:
    for made in (lambda: check_cron(expr, zone), lambda: cron(expr, zone=zone)):
        with pytest.raises(ScheduleInvalid) as caught:
            made()
        assert caught.value.hint
        assert caught.value.sqlstate == "QHD03"


# (zone, a day before a change of its clocks)
CHANGES = [
    *((YORK, "2026-03-07"), (YORK, "2026-10-31"), ("Europe/Berlin", "2026-03-28")),
    *(("Europe/Berlin", "2026-10-24"), ("America/Santiago", "2026-09-05"), ("UTC", "2026-02-27")),
    *(("Australia/Lord_Howe", "2026-10-03"), ("Australia/Lord_Howe", "2026-04-04")),
]


class Drawn:
    """An expression that was drawn by chance, with what its fields mean."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        ranges = (range(60), range(24), range(1, 32), range(1, 13), range(7))
        drawn = [
            self._field(numbers, likely) for numbers, likely in zip(ranges, (1, 2, 5, 9, 5), strict=True)
        ]
        self.text = " ".join(text for text, _ in drawn)
        self.minutes, self.hours, self.days, self.months, self.weekdays = (values for _, values in drawn)
        stars = [text.startswith("*") for text, _ in drawn]
        self.is_real_time = stars[0] or stars[1]
        self.needs_both = stars[2] or stars[4]

    def _field(self, numbers: range, likely: int) -> tuple[str, set[int]]:
        kind = self.chance.randrange(10)
        if kind < likely:
            return "*", set(numbers)
        if kind == 9:
            step = self.chance.randint(2, max(2, len(numbers) // 2))
            return f"*/{step}", set(numbers[::step])
        some = sorted(self.chance.sample(numbers, self.chance.randint(1, min(4, len(numbers)))))
        if kind == 8:
            return f"{some[0]}-{some[-1]}", {*range(some[0], some[-1] + 1)}
        return ",".join(map(str, some)), set(some)

    def has_day(self, at: datetime) -> bool:
        if at.month not in self.months:
            return False
        found = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return all(found) if self.needs_both else any(found)

    def has(self, at: datetime) -> bool:
        return at.minute in self.minutes and at.hour in self.hours and self.has_day(at)


def walked(drawn: Drawn, clocks: list[tuple[datetime, datetime]]) -> Iterator[datetime]:
    """The times, minute by minute: of the wall clock, or of real time where a star follows it.

    Args:
        clocks: Each minute of real time, with what the wall clock says then.
    """
    if drawn.is_real_time:
        yield from (at for at, wall in clocks if drawn.has(wall))
        return
    firsts: dict[datetime, datetime] = {}
    for at, wall in clocks:
        firsts.setdefault(wall, at)
    wall, end = clocks[0][1], clocks[-1][1]
    while wall <= end:
        if drawn.has(wall):  # one that is left out is at the clocks' next minute
            yield firsts[wall] if wall in firsts else firsts[min(each for each in firsts if each > wall)]
        wall += MINUTE if drawn.has_day(wall) else DAY - timedelta(hours=wall.hour, minutes=wall.minute)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_as_a_walk_over_all_minutes(zone: str, day: str) -> None:
    chance = random.Random(f"{zone} {day}")
    began = utc(f"{day} 00:00")
    ends = began + 3 * DAY
    minutes = [began + n * MINUTE for n in range(1, 3 * 1440)]
    clocks = [(at, at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for at in minutes]
    seen = 0
    for _ in range(250):
        drawn = Drawn(chance)
        if drawn.is_real_time and "Howe" in zone:
            continue  # known of the library
        times = []
        try:
            for at in cron_times(drawn.text, zone, "", began):
                if at >= ends:
                    break
                times.append(at)
        except ScheduleInvalid:  # such as 31 in February
            assert not [*walked(drawn, clocks)]
        expected = sorted({*walked(drawn, clocks)})
        assert times == expected, drawn.text
        seen += len(times)
    assert seen > 500


def test_h_is_decided_by_the_name() -> None:
    nights = {
        name: first(1, "H H(1-4) * * *", "UTC", "2026-11-01 00:00", name)[0] for name in map(str, range(50))
    }
    assert len({*nights.values()}) > 30
    assert all("01:00" <= at[-5:] <= "04:59" for at in nights.values())
    for name in ("a", "b"):
        quarters = [int(at[-2:]) for at in first(4, "H/15 * * * *", "UTC", "2026-11-01 00:00", name)]
        assert quarters == [quarters[0] + n * 15 for n in range(4)]
        assert quarters[0] < 15
        assert first(1, "h h * * *", "UTC", "2026-11-01 00:00", name) == first(
            1, "H H * * *", "UTC", "2026-11-01 00:00", name
        )
    assert first(1, "0 0 * * thu", "UTC", "2026-11-01 00:00") == ["2026-11-05 00:00"]  # no H


def due(expr: str, since: timedelta, zone: str = "UTC") -> DuePlan:
    now = utc("2026-11-01 00:00")
    return DuePlan(name="n", revision=1, cron=expr, zone=zone, from_at=now - since, now=now)


@pytest.mark.parametrize(
    ("expr", "since", "past", "coming"),
    [
        ("0 2 * * *", timedelta(0), 0, 64),
        ("0 2 * * *", 3 * DAY, 3, 64),
        ("* * * * *", DAY, 1440, 64),
        ("0 0 1 1 *", DAY, 0, 2),  # two at least, so that the first one may fire
        ("0 0 1 * *", DAY, 1, 14),  # up to 400 days ahead, and the one behind
    ],
)
def test_a_plan(expr: str, since: timedelta, past: int, coming: int) -> None:
    asked = due(expr, since)
    times = plan(asked)
    assert times == sorted({*times})
    assert sum(at <= asked.now for at in times) == past
    assert sum(at > asked.now for at in times) == coming


def test_no_time_is_after_the_year_9999() -> None:
    asked = replace(due("0 0 29 2 *", timedelta(0)), from_at=utc("9997-01-01 00:00"))
    with pytest.raises(ScheduleInvalid):
        plan(asked)


def test_the_times_of_a_backfill() -> None:
    since, until = utc("2026-11-01 00:00"), utc("2026-11-02 00:00")

    def between(**spec: Any) -> list[str]:
        return [f"{at:%d %H:%M}" for at in times_between("n", spec, since, until)]

    assert between(cron="0 */8 * * *", zone="UTC") == ["01 00:00", "01 08:00", "01 16:00"]
    assert between(every=28_800, starts_at="2026-11-01T04:00:00Z") == ["01 04:00", "01 12:00", "01 20:00"]
    assert between(every=43_200) == ["01 00:00", "01 12:00"]
    assert between(times=["2026-11-01T09:00:00+01:00", "2026-11-02T00:00:00Z"]) == ["01 08:00"]
    since = datetime.min.replace(tzinfo=UTC)  # none is before 1970
    with pytest.raises(BadArgument, match="more than 1000"):
        between(cron="* * * * *", zone="UTC")


def test_timings_as_json() -> None:
    made = cron("0 2 * * *", zone="Europe/Berlin", missed="all", jitter=timedelta(minutes=5), params={"a": 1})
    assert made.as_json() == {
        "cron": "0 2 * * *", "zone": "Europe/Berlin", "missed": "all", "jitter": 300.0, "params": {"a": 1},
    }  # fmt: skip
    at = utc("2026-11-01 00:00")
    assert every(HOUR, starts_at=at).as_json() == {"every": 3600.0, "starts_at": at.isoformat()}
