"""Every link of every page leads to a file, and to a heading of it."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

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
