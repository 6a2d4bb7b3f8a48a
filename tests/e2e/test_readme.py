"""The examples of the README, as they stand there: files, a shell, a statement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Shell
from tests.e2e.worker_support import wait_until
from tests.shell_lines import session, tokens

README = Path(__file__).parents[2] / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="no checkout")


def blocks(section: str) -> list[tuple[str, str]]:
    """The language and the content of each block of a section."""
    title, found = "", []
    for before, token in zip([None, *tokens(README)], tokens(README), strict=False):
        if before is not None and before.type == "heading_open":
            title = token.content
        elif token.type == "fence" and title == section:
            found.append((token.info, token.content))
    return found


def test_the_example(shell: Shell, conn: psycopg.Connection[Any], tmp_path: Path) -> None:
    printed = []
    languages = []
    for language, content in blocks("An example"):
        languages.append(language)
        if language == "python":
            name = content.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(content, encoding="utf-8")
        elif language == "sh":
            printed.append(shell.run(content))
        else:
            assert language == "sql"
            conn.execute(content.encode())
    assert languages == ["python", "sh", "python", "sh", "sql"]
    assert re.search(r"no_nodes|no node", printed[0])
    results = "select array_agg(result ->> 'drawn' order by result) from hwqueue.outcome"

    def drawn() -> Any:
        row = conn.execute(results).fetchone()
        return row and row[0]

    wait_until(lambda: drawn() == ["7", "8", "9"])


def test_the_first_screen(shell: Shell, conn: psycopg.Connection[Any], tmp_path: Path) -> None:
    (_, program), (_, typed), (_, explained) = screen = blocks("hwqueue")
    assert [language for language, _ in screen] == ["python", "sh", "console"]
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    lease_id = shell.run(typed).splitlines()[-1]
    wait_until(lambda: conn.execute("select from hwqueue.node").fetchone() is not None)
    [(command, lines)] = session(explained)
    [shown] = re.findall(r"[0-9a-f-]{36}", command)
    printed = shell.run(command.replace(shown, lease_id)).replace(lease_id, shown)
    assert printed.splitlines() == lines
