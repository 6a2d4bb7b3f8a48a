"""The README shows the states that the schema knows, and commands that exist."""

import re
from pathlib import Path

import pytest

from hwqueue.schema.files import MIGRATIONS_DIR

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="no checkout")


def test_the_picture_has_every_way_between_states() -> None:
    drawn = set(re.findall(r"^ +(\S+) --> (\w+):", README.read_text(), re.M))
    table = (MIGRATIONS_DIR / "versions" / "0001_tables.sql").read_text()
    rows = re.findall(r"^  \('(\w+)', '(\w+)', '\w+'\)[,;]", table, re.M)
    assert rows
    assert drawn == {("[*]" if origin == "none" else origin, target) for origin, target in rows}
