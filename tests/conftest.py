"""Marks by folder: what takes long, and what tells nothing about the server."""

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

pytest_plugins = ["tests.fix_db"]

TESTS = Path(__file__).parent
# Left out of `make test`: forced interleavings, random worlds, plans of filled databases, whole
# processes, browsers, upgrades from older versions.
THOROUGH = {
    "benchmarks", "clients", "dashboard", "e2e", "embedded", "lab", "migrations", "plans", "properties",
    "races", "server", "walk",
}  # fmt: skip
# What a Postgres of another version could do otherwise is seen by other folders.
EMBEDDED = {"dashboard", "embedded", "server", "unit"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """--variants."""
    parser.addoption(
        "--variants",
        type=int,
        metavar="N",
        help="run at most N variants of a parametrized test, unless it is marked every_variant",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no folder of which no test would run."""
    unwanted = THOROUGH if "not thorough" in config.option.markexpr else set()
    if os.environ.get("HWQUEUE_TEST_DSN"):
        unwanted = unwanted | EMBEDDED
    return True if collection_path.parent == TESTS and collection_path.name in unwanted else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark tests by their folders, and leave out those that are not to run here."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in THOROUGH:
            item.add_marker("thorough")
        if folder in EMBEDDED:
            item.add_marker("embedded")
    if os.environ.get("HWQUEUE_TEST_DSN"):
        leave_out(config, items, [item for item in items if item.get_closest_marker("embedded")])
    yield  # other plugins leave out by mark and by name
    if most := config.getoption("variants"):
        leave_out(config, items, surplus(items, most))


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    """Deselect these, and say so in the summary."""
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def surplus(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """All variants of each test but the first ones: `most` of them, spread evenly."""
    variants = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if not item.get_closest_marker("every_variant"):
            variants[item.nodeid.partition("[")[0]].append(item)
    return [
        item
        for of_one in variants.values()
        for number, item in enumerate(of_one)
        if number * most // len(of_one) == (number - 1) * most // len(of_one)
    ]
