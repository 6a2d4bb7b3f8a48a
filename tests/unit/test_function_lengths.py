"""Functions are short enough to be read at once, and files hold one subject."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "hwqueue", "lab", "migrations", "tests", "tools")
MOST_LINES = 60
MOST_LINES_OF_A_FILE = 600

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[Path]:
    yield ROOT / "pytest_hwqueue.py"
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.py")


def too_long(source: str) -> dict[str, int]:
    """Functions whose bodies have too many lines; their docstrings and signatures do not count."""
    if source.count("\n") < MOST_LINES:
        return {}
    lengths = {f.name: lines_of_body(f) for f in functions_in(ast.parse(source).body)}
    return {name: length for name, length in lengths.items() if length > MOST_LINES}


def functions_in(statements: list[ast.stmt]) -> Iterator[Function]:
    """Every function in these, at any depth. Expressions hold none, so they are not walked."""
    for statement in statements:
        if isinstance(statement, Function):
            yield statement
        branches = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
        for branch in branches:
            for name in ("body", "orelse", "finalbody"):
                yield from functions_in(getattr(branch, name, []))


def lines_of_body(function: Function) -> int:
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1 if statements else 0


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
    long = signature + "    a = 1\n" * 61
    assert too_long(long) == {"long": 61}
    inner = long.replace("\n", "\n    ")
    for outer in ("class C", "def f()", "if 1", "with a", "match a:\n  case 1", "for a in b"):
        assert "long" in too_long(f"{outer}:\n    {inner}"), outer
    for outer in ("try:\n    pass\nexcept E", "try:\n    pass\nfinally", "if 1:\n    pass\nelse"):
        assert too_long(f"{outer}:\n    {inner}") == {"long": 61}, outer
