"""Which variants of a parametrized test `--variants` leaves."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import surplus


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
