"""Spreads, aims and figures."""

import io

import pytest
from rich.console import Console

from benchmarks.core.report import Answer, Figure, at_least, at_most, show
from benchmarks.core.spread import Spread, percentile

pytestmark = pytest.mark.embedded


def test_a_spread_tells_median_and_extremes() -> None:
    assert Spread.of([3, 1, 2]) == Spread(2, 1, 3)
    assert str(Spread(1234.5, 0.12345, 10)) == "1,234 [0.123-10]"


def test_ratios_are_taken_round_by_round() -> None:
    assert Spread.of_ratios([2, 8, 9], [1, 2, 3]) == Spread(3, 2, 4)
    with pytest.raises(ValueError, match="zip"):
        Spread.of_ratios([1, 2], [1])


def test_percentiles() -> None:
    for percent, value in ((0, 1), (50, 50), (99, 99), (100, 100)):
        assert percentile(range(1, 101), percent) == value
        assert percentile([7], percent) == 7
    assert percentile([1, 2, 3, 4, 5], 50) == 3
    assert percentile(range(1, 150), 99) == 148


def test_an_aim_is_met_by_the_median() -> None:
    assert at_most(1.2).met_by(Spread(1.2, 1.1, 9))
    assert not at_most(1.2).met_by(Spread(1.21, 0, 2))
    assert at_least(0.8).met_by(Spread(0.8, 0.1, 1))
    assert not at_least(0.8).met_by(Spread(0.79, 0.1, 9))


def test_an_answer_is_shown_with_what_it_was_measured_on() -> None:
    missed = Figure.against("loaded", "ms", values=[3, 4, 5], bases=[2, 2, 2], aim=at_most(1.5))
    told = Figure("bare", "ms", Spread.of([2]), more={"p99 ms": Spread(9, 9, 9)})
    answer = Answer("q", "loaded / bare", (told, missed), {"size": 7}, {"cpu": "x"}, ("careful",))
    console = Console(width=150, file=io.StringIO(), record=True)
    show(answer, console)
    text = console.export_text()
    assert "q: loaded / bare" in text
    assert "2 [1.5-2.5]" in text
    assert "<= 1.5" in text
    assert " no " in text
    assert "9" in text
    assert "size: 7" in text
    assert "cpu: x" in text
    assert "careful" in text
