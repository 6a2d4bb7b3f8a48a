"""What the command line says of a step with items, of a nested run, and of the run above it."""

from __future__ import annotations

from typing import Any

import pytest

from hwqueue.cli.run_view import _headline, _why, items_text
from tests.unit.test_run_pages import NODE, row, run


@pytest.mark.parametrize(
    ("items", "done", "failed", "text"),
    [
        (None, None, None, None),
        (0, 0, 0, "0/0 items"),
        (1000, 412, 0, "412/1,000 items"),
        (1000, 412, 3, "412/1,000 items, 3 failed"),
    ],
)
def test_items(items: int | None, done: int | None, failed: int | None, text: str | None) -> None:
    assert items_text(row(1, items=items, items_done=done, items_failed=failed)) == text


def test_why_a_step_waits_and_whose_step_a_run_is() -> None:
    step = row(1, "running", kind="workflow", nested_run_id=NODE, headline="waits for a run")
    assert _why(step, {}) == f"run {NODE}; waits for a run"
    assert _why(row(1), {}) is None
    items: dict[str, Any] = {"items": 3, "items_done": 1, "items_failed": 0}
    assert _why(row(1, "running", headline="1 of 3 items have ended", **items), {}) == "1/3 items"
    told = _headline(run(parent_run_id=NODE, step_counts={"running": 1}))
    assert f"training version 1, a step of run {NODE}: running" in told
    assert "a step of" not in _headline(run(step_counts={"running": 1}))
