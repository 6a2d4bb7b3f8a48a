"""Marks by folder: what takes long, and what tells nothing about the server."""

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.fix_db"]

# Left out of `make test`: forced interleavings, random worlds, plans of filled databases, whole
# processes, browsers, upgrades from older versions.
THOROUGH = {
    "benchmarks", "dashboard", "e2e", "embedded", "lab", "migrations", "plans", "properties",
    "races", "server", "walk",
}  # fmt: skip
# What a Postgres of another version could do otherwise is seen by other folders.
EMBEDDED = {"dashboard", "embedded", "server"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folders; leave out `embedded` where HWQUEUE_TEST_DSN names a server."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in THOROUGH:
            item.add_marker("thorough")
        if folder in EMBEDDED:
            item.add_marker("embedded")
    if not os.environ.get("HWQUEUE_TEST_DSN"):
        return
    config.hook.pytest_deselected(items=[item for item in items if _is_embedded(item)])
    items[:] = [item for item in items if not _is_embedded(item)]


def _is_embedded(item: pytest.Item) -> bool:
    return item.get_closest_marker("embedded") is not None
