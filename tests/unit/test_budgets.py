"""The project is no larger than tests/budgets.toml says; planted bugs fit the code; variants of tests."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import budgets
from tests.budgets import COMMAND, SHORT, faults, measured
from tests.conftest import surplus
from tests.migrations.call_graph import Function, functions
from tests.mutants.planted import ROOT, Mutant, all_mutants


def test_nothing_is_above_its_budget_and_no_budget_far_above_what_is_there() -> None:
    assert faults(measured(functions()), budgets.read()) == []


@pytest.mark.parametrize(
    ("present", "budget", "told"),
    [
        (1000, 1000, None),
        (990, 1000, None),
        (7, 9, None),
        (1001, 1000, "raise it with"),
        (980, 1000, "lower it"),
        (7, 10, "lower it"),
    ],
)
def test_a_number_is_at_its_budget_or_a_little_below(present: int, budget: int, told: str | None) -> None:
    found = faults({"docs": {"pages": present}}, {"docs": {"pages": budget}})
    assert len(found) == (told is not None)
    for fault in found:
        assert f"docs.pages is {present}" in fault
        assert (told or "") in fault
        assert COMMAND in fault


@pytest.mark.parametrize("number", [0, 7, 305, 999, 1001, 9999, 10001, 55618, 110755])
def test_a_budget_that_is_written_holds(number: int) -> None:
    written = {"lines": {"sql": budgets.rounded(number)}}
    assert faults({"lines": {"sql": number}}, written) == []
    assert len(faults(written, {"docs": {"words": 1}})) == 2  # and they are of the same numbers


def test_what_a_call_reaches_and_short_functions_with_one_caller() -> None:
    text = "create or replace function hwqueue.x() returns int language sql as $$\n{}$$;\n-- next\n"
    long = text.format("  select 1\n" * SHORT)
    known = {
        name: Function(name, module, long if name == "long" else text.format(""), frozenset(calls))
        for name, module, calls in [
            ("top", "api/top", ["one", "long", "both"]),
            ("one", "claim/one", ["both"]),
            ("long", "claim/one", ["base"]),
            ("both", "base/both", ["base"]),
            ("base", "base/both", ["top"]),
        ]
    }
    assert budgets.chain(known, "one", {}) == 5
    assert budgets.reach(known, "one") == {"one", "both", "base", "top", "long"}
    assert budgets.short_with_one_caller(known) == ["one"]


FOLDERS = ("benchmarks", "hwqueue", "lab", "migrations", "tests", "tools")
MOST_LINES = 60
MOST_LINES_OF_A_FILE = 600


def sources() -> Iterator[Path]:
    yield ROOT / "pytest_hwqueue.py"
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.py")


def too_long(source: str) -> dict[str, int]:
    """Functions whose bodies have too many lines; their docstrings and signatures do not count."""
    if source.count("\n") < MOST_LINES:
        return {}
    found = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = function.body[1:] if ast.get_docstring(function) else function.body
            found[function.name] = (function.end_lineno or 0) + 1 - statements[0].lineno if statements else 0
    return {name: length for name, length in found.items() if length > MOST_LINES}


@pytest.mark.thorough
def test_functions_have_at_most_60_lines_of_code() -> None:
    found = {path: too_long(path.read_text(encoding="utf-8")) for path in sources()}
    assert {str(path): names for path, names in found.items() if names} == {}


def test_files_have_at_most_600_lines() -> None:
    lengths = {path: path.read_bytes().count(b"\n") for path in sources()}
    assert {str(p): lines for p, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_a_long_function_is_found() -> None:
    signature = 'def long(\n    a: int,\n) -> None:\n    """What.\n\n    More.\n    """\n'
    assert too_long(signature + "    a = 1\n" * 60) == {}
    assert too_long(signature + "    a = 1\n" * 61) == {"long": 61}


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
