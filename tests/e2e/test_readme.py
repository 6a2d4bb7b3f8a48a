"""Examples of the README and the producer's page, and traces of explanations, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from markdown_it.token import Token

from hwqueue.client import Client
from tests.e2e.conftest import Shell
from tests.e2e.reading import ID, Reader
from tests.e2e.worker_support import wait_until
from tests.fix_db import strict_skip
from tests.shell_lines import fenced, part, tokens

README = Path(__file__).parents[2] / "README.md"


def fences(heading: str) -> list[Token]:
    """The blocks below a heading."""
    return [token for token in tokens(README, heading) if token.type == "fence"]


def test_the_example(shell: Shell, conn: psycopg.Connection[Any]) -> None:
    reader = Reader(shell)
    blocks = fences("An example")
    assert [token.info for token in blocks] == ["python", "sh", "python", "sh", "sql"]
    for token in blocks[:2]:
        reader.block(token)
    assert re.search(r"no_nodes|no node", reader.told)
    for token in blocks[2:-1]:
        reader.block(token)
    conn.execute(blocks[-1].content.encode())
    results = "select array_agg(result ->> 'drawn' order by result) from hwqueue.outcome"
    wait_until(lambda: conn.execute(results).fetchone() == (["7", "8", "9"],))


def test_the_first_screen(shell: Shell, conn: psycopg.Connection[Any]) -> None:
    reader = Reader(shell)
    program, typed, explained, *_ = fences("hwqueue")
    assert [token.info for token in (program, typed, explained)] == ["python", "sh", "console"]
    reader.block(program)
    reader.block(typed)
    wait_until(lambda: conn.execute("select from hwqueue.node").fetchone() is not None)
    [shown] = ID.findall(explained.content.partition("\n")[0])
    reader.ids[shown] = reader.told.splitlines()[-1]
    reader.block(explained)
    reader.finish()


PAGES = Path(__file__).parents[2] / "docs"
TRACED = {
    "explanation/choosing.md": 2, "explanation/gangs.md": 1, "explanation/isolation.md": 1,
    "explanation/lifecycle.md": 1, "explanation/locking.md": 2, "explanation/other_leases.md": 2,
    "explanation/sets.md": 3, "explanation/storage.md": 1, "explanation/upkeep.md": 1,
    "explanation/workflows.md": 1, "run/events.md": 1, "run/planner.md": 1,
    "run/why_pending.md": 1,
}  # fmt: skip
TRACES = [(page, number) for page, traces in TRACED.items() for number in range(traces)]
FRESH = "<!-- on a fresh database -->"
REPEATED = "-- repeat until it returns a row"
BOUND_SECONDS = 60.0
Table = list[list[str]]


class Sessions:
    """The sessions of a page, by name."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stack = ExitStack()
        self._open: dict[str, psycopg.Connection[Any]] = {}

    def run(self, block: str) -> Table:
        """Run a block; what its last statement returns."""
        until = time.monotonic() + BOUND_SECONDS
        found = self._run(block)
        while REPEATED in block and len(found) < 2 and time.monotonic() < until:
            time.sleep(0.05)
            found = self._run(block)
        return found

    def _run(self, block: str) -> Table:
        named = re.match(r"-- session (\w+)", block)
        name = named[1] if named else ""
        if name not in self._open:
            self._open[name] = self._stack.enter_context(
                psycopg.connect(self._dsn, autocommit=True, connect_timeout=10)
            )
            self._open[name].execute("set statement_timeout = '30s'")
        cursor = self._open[name].cursor()
        for statement in [each for each in re.split(r";[ ]*(?:--[^\n]*)?\n", block) if each.strip()]:
            cursor.execute(statement.encode())
        result = cursor.pgresult
        if cursor.description is None or result is None:
            return []
        rows = [
            [(result.get_value(row, column) or b"").decode() for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]
        return [[column.name for column in cursor.description], *rows]

    def close(self) -> None:
        self._stack.close()


def table(text: str) -> Table:
    """The cells of a printed table."""
    header, _, *rows = text.splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in (header, *rows)]


def printed(rows: Table) -> str:
    """A table as psql prints it."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def traces(page: Path) -> list[list[Token]]:
    """The fences of each trace of a page: those after each comment that begins one, or all."""
    found: list[list[Token]] = [[]]
    for token in tokens(page):
        if token.type == "html_block" and token.content.strip() == FRESH:
            found.append([])
        elif token.type == "fence":
            found[-1].append(token)
    return found[1:] or found


def steps(fences: list[Token]) -> Iterator[tuple[str, str | None]]:
    """Each SQL block of a trace, with the output that follows it."""
    for token, following in zip(fences, [*fences[1:], None], strict=True):
        if token.info == "sql":
            shows = following is not None and following.info == "text"
            yield token.content, following.content if following is not None and shows else None


@pytest.fixture
def sessions(dsn: str, conn: psycopg.Connection) -> Iterator[Sessions]:
    conn.execute("select hwqueue.current_generation()")
    # as pages have it
    conn.execute("update hwqueue.installation set generation = 947000000000000000")
    made = Sessions(dsn)
    yield made
    made.close()


@pytest.mark.parametrize(("name", "number"), TRACES)
def test_a_trace_prints_what_the_page_says(name: str, number: int, sessions: Sessions) -> None:
    found = traces(PAGES / name)
    assert len(found) == TRACED[name]
    compared = 0
    for block, expected in steps(found[number]):
        result = sessions.run(block)
        if expected is not None:
            assert result == table(expected), f"{block}\n{printed(result)}"
            compared += 1
    assert compared >= 1


PAGE = Path(__file__).parents[2] / "docs" / "use" / "producer.md"


def run(heading: str, dsn: str) -> list[str]:
    """The lines that the program below a heading prints."""
    [program] = fenced(part(PAGE, heading), "python")
    done = subprocess.run(
        [sys.executable, "-c", program], env={"HWQUEUE_DSN": dsn}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_second_report_is_the_first(dsn: str) -> None:
    assert run("One of a kind: unique leases", dsn) == ["True", "False", "True"]


def test_the_program_cancels_the_film(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("renders")
        for film in ("7", "7", "8"):
            client.spawn_lease("renders", "draw", labels={"film": film})
    told = run("Change many leases at once", dsn)
    assert (told[0], told[-1]) == ("2", "2 ()")
    with Client(dsn) as client:
        assert client.count_leases("renders", states=["pending"]) == 1
        assert client.count_leases("renders", states=["cancelled"]) == 2


NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "notebook.ipynb"


def read() -> Any:
    """The notebook, if there is what runs it."""
    if missing := [name for name in ("nbclient", "ipykernel", "tqdm") if find_spec(name) is None]:
        strict_skip(f"{' and '.join(missing)} not installed")
    import nbformat  # noqa: PLC0415 - may be missing

    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def results(notebook: Any) -> list[str]:
    """What the cells show as their values."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"]


def test_the_notebook_runs_and_shows_what_it_holds(
    dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = read()
    from nbclient import NotebookClient  # noqa: PLC0415 - may be missing

    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.setenv("HWQUEUE_DSN", dsn)
    NotebookClient(run, timeout=120, kernel_name="python3").execute()
    assert len(results(run)) == 3
    assert results(run) == results(read())


def test_the_page_shows_cells_of_the_notebook() -> None:
    cells = "\n".join(cell.source for cell in read().cells)
    shown = fenced(part(PAGE, "In a notebook"), "python")
    assert len(shown) >= 3
    assert [block for block in shown if block.strip() not in cells] == []
