"""The README shows the states that the pages tell of, and commands that exist."""

import re
from pathlib import Path

import pytest

from tests.transitions import transitions

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="no checkout")


def test_the_picture_has_every_way_between_states() -> None:
    drawn = set(re.findall(r"^ +(\S+) --> (\w+):", README.read_text(), re.M))
    rows = transitions()
    assert rows
    assert drawn == {("[*]" if origin == "none" else origin, target) for origin, target, _ in rows}
