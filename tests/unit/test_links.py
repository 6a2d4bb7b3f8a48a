"""Links, promised features and known failures: each leads to what is there, a page, a heading or a test."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hwqueue.schema import files
from hwqueue.schema.files import SQL_DIR
from hwqueue.types import EVENT_CODES

ROOT = Path(__file__).parents[2]


def pages() -> list[str]:
    """The pages of this checkout, those that are not committed yet among them."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in found.stdout.splitlines() if (ROOT / name).exists()]


def prose(page: Path) -> str:
    """Without examples of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


@cache
def anchors(page: Path) -> set[str]:
    """What its headings are called in links; the second of two alike has a number."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


@pytest.mark.parametrize("name", pages())
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def named_pages(text: str) -> list[str]:
    """The pages that code, comments and hints name, with what is behind a `#`."""
    return re.findall(r"(?<![\w/.])docs/[\w/]+\.md(?:#[\w-]+)?", text)


def test_code_names_pages_that_exist() -> None:
    folders = ("deploy", "docs", "hwqueue", "lab", "migrations", "monitoring", "sql", "tests", "tools")
    listed = ["git", "ls-files", *(f"{folder}/*" for folder in folders)]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    suffixes = (".py", ".sql", ".yml", ".yaml", ".conf", ".ipynb", ".toml")
    files = [ROOT / name for name in names.splitlines() if name.endswith(suffixes)]
    found = {
        (file.relative_to(ROOT).as_posix(), named)
        for file in files
        if file.is_file() and "docs/" in (text := file.read_text(encoding="utf-8"))
        for named in named_pages(text)
    }
    assert len(found) > 50
    lost = []
    for file, named in sorted(found):
        path, _, anchor = named.partition("#")
        page = ROOT / path
        if not page.exists() or (anchor and anchor not in anchors(page)):
            lost.append(f"{file}: {named}")
    assert lost == []


def named_tests(page: str) -> Iterator[tuple[str, Path]]:
    """The files of tests that the rows by subject name; in a cell the first says the folder."""
    rows = re.findall(r"^\| (.*) \|$", page.partition("## By subject")[2], re.M)
    for cell in (cell for row in rows for cell in row.split(" | ")[1:]):
        folder = ROOT / "tests"
        for name in re.findall(r"`([\w/*]+\.py)`", cell):
            path = (ROOT / "tests" / name) if "/" in name else folder / name
            folder = path.parent
            yield name, path


def test_the_map_of_tests_names_files_that_exist() -> None:
    page = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    found = list(named_tests(page))
    assert len(found) > 100
    assert [name for name, path in found if not list(path.parent.glob(path.name))] == []
    page = "## By subject\n| a | `sql/test_reap.py`, `test_gone.py` | `races/test_m*.py` |\n"
    there = [bool(list(path.parent.glob(path.name))) for _, path in named_tests(page)]
    assert there == [True, False, True]


def test_the_map_of_the_package_names_every_room() -> None:
    page = (ROOT / "hwqueue" / "README.md").read_text(encoding="utf-8")
    named = {name.partition("/")[0] for name in re.findall(r"`([\w/]+)`", page)}
    rooms = {path.stem for path in (ROOT / "hwqueue").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - named - {"__init__", "__pycache__"} == set()


tools = pytest.importorskip("tools.features_reference", reason="no checkout")

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


FAILURES = ROOT / "lab" / "known_failures.md"
BLOCK = "```text\n(.*?)```"  # of node ids, a line each


def sections(page: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.*)$", page, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def faults_of(section: str) -> list[str]:
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


SECTIONS = sections(FAILURES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_failure_is_reported_and_shown_not_to_happen(heading: str) -> None:
    assert faults_of(SECTIONS[heading]) == []


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
