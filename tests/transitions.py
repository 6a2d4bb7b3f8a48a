"""The transitions between states of a lease, as docs/explanation/lifecycle.md has them."""

import re
from pathlib import Path

_PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "lifecycle.md"


def transitions() -> set[tuple[str, str, str]]:
    """From which state, to which, by what."""
    _, _, table = _PAGE.read_text(encoding="utf-8").partition("| from | to: by what |\n")
    rows = re.findall(r"^\| (\w+) \| (\w.*) \|$", table.partition("\n\n")[0], re.M)
    return {
        (origin, target, cause)
        for origin, ways in rows
        for target, causes in (way.split(": ") for way in ways.split("; "))
        for cause in causes.split(", ")
    }
