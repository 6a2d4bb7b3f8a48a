"""How durations, counts and sizes are written for people, everywhere alike."""

from datetime import UTC, datetime, timedelta

import pytest

from hwqueue import text

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        *((None, "-"), (-3, "0 s"), (0, "0 s"), (0.04, "0 s"), (0.05, "0.1 s"), (0.34, "0.3 s")),
        *((4.25, "4.3 s"), (59, "59 s"), (59.96, "60 s"), (60, "1 min"), (3599, "59 min")),
        *((3600, "1 h 00 min"), (12_000, "3 h 20 min"), (86_400, "1 d 0 h"), (187_200, "2 d 4 h")),
    ],
)
def test_durations_in_their_largest_units(seconds: float | None, written: str) -> None:
    assert text.duration(seconds) == written
    if seconds is not None:
        assert text.duration(timedelta(seconds=seconds)) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        *((None, "-"), (0, "0 s"), (2.5, "2.5 s"), (90, "1 min 30 s"), (300, "5 min")),
        *((604_800, "7 d"), (90_061.5, "1 d 1 h 1 min 1.5 s")),
    ],
)
def test_durations_that_were_set_lose_nothing(seconds: float | None, written: str) -> None:
    span = None if seconds is None else timedelta(seconds=seconds)
    assert text.exact_duration(span) == written


def test_ages_counts_memory_and_shares() -> None:
    assert text.age(NOW - timedelta(seconds=5.9), NOW) == "5 s"
    assert text.age(NOW + timedelta(seconds=5), NOW) == "0 s"
    assert text.age(None, NOW) == "-"
    assert text.ago(NOW - timedelta(seconds=200), NOW) == "3 min ago"
    assert text.ago(NOW + timedelta(hours=2), NOW) == "in 2 h 00 min"
    assert text.ago(NOW - timedelta(seconds=0.9), NOW) == "now"
    assert text.ago(NOW, NOW) == "now"
    assert (text.count(None), text.count(4.6), text.count(2**62 + 1)[-3:]) == ("-", "5", "905")
    assert text.plural(1, "lease") == "1 lease"
    assert text.plural(1204, "class", "classes") == "1,204 classes"
    amounts = (None, 0, 512, 1536 * 1024)
    assert [text.memory(mib) for mib in amounts] == ["-", "0", "512 MiB", "1.5 TiB"]
    latencies = (None, 0.0004, 0.34, 1.2)
    assert [text.milliseconds(each) for each in latencies] == ["-", "0.4 ms", "340 ms", "1,200 ms"]
    assert (text.percent(1, 3), text.percent(1, 0)) == ("33 %", "-")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *((None, "-"), (0, "0"), (1240, "1,240"), (2**62 + 1, "4,611,686,018,427,387,905")),
        *((0.31333, "0.313"), (12.345, "12.3"), (123.456, "123"), (2.0, "2")),
    ],
)
def test_numbers(value: float | None, written: str) -> None:
    assert text.number(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (24 * 2**30, "24 GiB")],
)
def test_sizes(value: int | None, written: str) -> None:
    assert text.size(value) == written


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0, "░░░░"), (0.24, "░░░░"), (0.25, "█░░░"), (0.999, "███░"), (1, "████"), (None, "-")],
)
def test_a_bar_is_full_when_all_is_done(share: float | None, drawn: str) -> None:
    assert text.bar(share, 4) == drawn
