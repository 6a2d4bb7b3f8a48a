"""lab/known_failures.md: each failure has threads that report it, and tests."""

import re
from pathlib import Path

import pytest

from tests.unit.test_features import names_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "lab" / "known_failures.md"
BLOCK = "```text\n(.*?)```"  # of node ids, a line each


def sections(page: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.*)$", page, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def faults(section: str) -> list[str]:
    """What is wrong with a section."""
    found = []
    if not re.search(r"^(Reported|Asked) of [^(]*\]\(https://\S+\)", section, re.M):
        found.append("no thread reports it")
    tests = [line for block in re.findall(BLOCK, section, re.S) for line in block.split()]
    if not tests:
        found.append("no test shows it")
    for test in tests:
        file, _, name = test.partition("::")
        if name not in names_in(file):
            found.append(f"no such test: {test}")
    return found


SECTIONS = sections(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_failure_is_reported_and_shown_not_to_happen(heading: str) -> None:
    assert faults(SECTIONS[heading]) == []


def test_the_page_has_them() -> None:
    assert len(SECTIONS) >= 13


def test_what_gangs_hold_names_rules_and_tests() -> None:
    """The table in gangs.md: rules that verify_invariants has, and tests that exist."""
    folder = ROOT / "docs"
    rules = re.search(r"^Rules: ([^.]*)\.", (folder / "reference" / "sql.md").read_text(), re.M)
    table = (folder / "explanation" / "gangs.md").read_text().split("### What holds")[1]
    rows = re.findall(r"^\| [^`\n]* \| (`.*`) \|$", table.split("\n## ")[0], re.M)
    assert rules
    assert len(rows) == 13
    for name in re.findall(r"`([^`]*)`", " ".join(rows)):
        file, _, test = name.partition("::")
        assert test in names_in(file) if test else name in re.split(r",\s", rules[1]), name
