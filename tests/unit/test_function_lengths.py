"""Functions are short enough to be read at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "hwqueue", "lab", "migrations", "tests", "tools")
MOST_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[Path]:
    yield ROOT / "pytest_hwqueue.py"
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.py")


def too_long(source: str) -> dict[str, int]:
    """Functions whose bodies have too many lines; their docstrings and signatures do not count."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    lengths = {function.name: lines_of_body(function) for function in functions}
    return {name: length for name, length in lengths.items() if length > MOST_LINES}


def lines_of_body(function: Function) -> int:
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def test_functions_have_at_most_60_lines_of_code() -> None:
    found = {path: too_long(path.read_text(encoding="utf-8")) for path in sources()}
    assert {str(path): names for path, names in found.items() if names} == {}


def test_a_long_function_is_found() -> None:
    signature = 'def long(\n    a: int,\n) -> None:\n    """What.\n\n    More.\n    """\n'
    assert too_long(signature + "    a = 1\n" * 60) == {}
    assert too_long(signature + "    a = 1\n" * 61) == {"long": 61}
