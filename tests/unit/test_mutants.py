"""The list of planted bugs fits the code; which variants of a parametrized test `--variants` leaves."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import surplus
from tests.mutants.planted import ROOT, Mutant, all_mutants

MUTANTS = all_mutants()
LEAST = 180


def test_there_are_many_of_both_languages() -> None:
    assert len(MUTANTS) >= LEAST
    assert {Path(mutant.file).suffix for mutant in MUTANTS} >= {".sql", ".py"}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_fits_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    for test in mutant.tests:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text()
        assert not name or f"def {name.split('::')[-1].split('[')[0]}(" in text, test


def item(nodeid: str, *marks: str) -> Any:
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda name: name if name in marks else None)


@pytest.mark.parametrize(
    ("count", "most", "left"), [(1, 2, [0]), (2, 2, [0, 1]), (3, 2, [0, 2]), (11, 3, [0, 4, 8]), (5, 1, [0])]
)
def test_they_are_spread_evenly(count: int, most: int, left: list[int]) -> None:
    items = [item(f"test_it.py::test_one[{number}]") for number in range(count)]
    others = [item("test_it.py::test_other"), item("test_it.py::test_third[a]")]
    others += [item(f"test_it.py::test_each[{number}]", "every_variant") for number in range(9)]
    gone = surplus(cast(list[pytest.Item], items + others), most)
    assert [number for number, one in enumerate(items) if one not in gone] == left
    assert not any(one in gone for one in others)
