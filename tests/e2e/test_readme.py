"""The examples of the README, as they stand there: files, a shell, a statement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
from markdown_it.token import Token

from tests.e2e.conftest import Shell
from tests.e2e.reading import ID, Reader
from tests.e2e.worker_support import wait_until
from tests.shell_lines import tokens

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
