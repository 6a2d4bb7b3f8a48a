"""docs/reference/wire.md names every reason, and its Python example runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from hwqueue.schema.files import SQL_DIR

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no checkout")


def test_every_reason_is_named() -> None:
    text = (SQL_DIR / "placement" / "wire.sql").read_text()
    calls = re.findall(r"perform hwqueue\.refuse_wire\((.*?)\);", text, re.S)
    in_sql = {word for call in calls for word in re.findall(r"'([a-z]\w+)'", call)} - {"hex"}
    section = PAGE.read_text().split("### Reasons")[1].split("\n\n")[1]
    named = {word for row in section.splitlines() for word in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == in_sql


def test_the_python_example_runs() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    sent: list[Any] = []

    class Client:
        def spawn_lease(self, *_: Any, wire: bytes) -> None:
            sent.append(wire)

    exec(code, {"client": Client()})
    assert sent == [bytes.fromhex("0910001502010300100197f3a27c1e70008000000000000000")]
