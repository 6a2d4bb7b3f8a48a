"""docs/reference promises what a page describes and a test shows, and has every code of an event."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hwqueue.schema import files
from hwqueue.schema.files import SQL_DIR
from hwqueue.types import EVENT_CODES
from tests.unit.test_links import anchors

tools = pytest.importorskip("tools.features_reference", reason="no checkout")

ROOT = Path(__file__).parents[2]
FEATURES = tools.features()


@cache
def names_in(file: str) -> set[str]:
    """The tests of a file, as pytest names them: `test_x`, `TestX::test_y`."""
    path = ROOT / file
    found: set[str] = set()
    if not path.is_file():
        return found
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, functions):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{m.name}" for m in node.body if isinstance(m, functions)}
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def faults(feature: Any) -> list[str]:
    """What is wrong with a row."""
    links = re.findall(r"\]\(([^)\s]+)\)", feature.says)
    found = []
    for link in links:
        path, _, anchor = link.partition("#")
        page = (tools.PAGE.parent / path).resolve()
        if not page.is_file() or (anchor and anchor not in anchors(page)):
            found.append(f"no such page or heading: {link}")
    for node in feature.tests:
        file, _, name = node.partition("::")
        if name not in names_in(file):
            found.append(f"no such test: {node}")
    if feature.has not in tools.ANSWERS:
        found.append(f"{feature.has} is no answer")
    if feature.has != "no" and not links:
        found.append("no page describes it")
    if feature.has != "no" and not feature.tests:
        found.append("no test shows it")
    if (feature.has == "in part") != ("Missing: " in feature.says):
        found.append("what is missing belongs to what is there in part")
    return found


def test_the_page_is_current_and_has_no_feature_twice() -> None:
    text = tools.PAGE.read_text(encoding="utf-8")
    assert text == tools.page(), "make reference"
    assert "Generated from" not in re.sub("<!--.*?-->", "", text), "readers need not know"
    names = [feature.name for feature in FEATURES]
    assert len(names) > 60
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
@pytest.mark.thorough
def test_what_is_promised_is_described_and_tested(feature: Any) -> None:
    assert faults(feature) == []


PAGE = Path(__file__).parents[2] / "docs" / "run" / "events.md"
INSTALLATION = Path(files.__file__).parent / "sql" / "write_info.sql"
# the first argument: one code, or one of several
_CASE = r"(?:case when .*? then )?'(\w+)'(?:\s+when .*? then '(\w+)')?(?: else '(\w+)')?"
WRITTEN = re.compile(rf"\bnote_(?:e\w+|leases|policy)\(\s*{_CASE}")


# a code that is made of a prefix and a state, and the states that a gang can be in
OF_A_STATE = re.compile(r"hwqueue\.gang_states\(\).*?select array\[([^]]+)\]", re.DOTALL)


def codes_in_sql() -> set[str]:
    """Every code that some function writes."""
    texts = [path.read_text(encoding="utf-8") for path in (*SQL_DIR.rglob("*/*.sql"), INSTALLATION)]
    codes = {code for text in texts for pair in WRITTEN.findall(text) for code in pair if code}
    prefixes = {code for code in codes if code.endswith("_")}
    assert prefixes == {"gang_"}
    listed = OF_A_STATE.search((SQL_DIR / "gangs" / "spawn.sql").read_text(encoding="utf-8"))
    assert listed is not None
    states = re.findall(r"'(\w+)'", listed[1])
    return codes - prefixes | {f"gang_{state}" for state in states}


def test_the_page_lists_every_code() -> None:
    assert len(codes_in_sql()) > 25
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(codes_in_sql())
    assert sorted(EVENT_CODES) == sorted(codes_in_sql())
