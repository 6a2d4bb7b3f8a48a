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
    scripts = sorted((MIGRATIONS_DIR / "versions").glob("*.sql"))
    written = [
        insert
        for script in scripts
        for insert in re.findall(r"insert into hwqueue\.lease_transition [^;]*;", script.read_text())
    ]
    rows = re.findall(r"\('(\w+)', '(\w+)', '\w+'\)", "".join(written))
    assert rows
    assert drawn == {("[*]" if origin == "none" else origin, target) for origin, target in rows}
