"""Fixtures for every test; each subject has a plugin module of its own."""

import os

import pytest

pytest_plugins = ["tests.fix_db"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `embedded` where HWQUEUE_TEST_DSN names a server."""
    if not os.environ.get("HWQUEUE_TEST_DSN"):
        return
    left_out = [item for item in items if item.get_closest_marker("embedded")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
