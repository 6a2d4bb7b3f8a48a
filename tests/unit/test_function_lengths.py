"""Functions are short enough to be read at once, and files hold one subject."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
