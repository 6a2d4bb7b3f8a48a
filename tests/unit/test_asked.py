"""What a step asks of its node, and what the command line says of steps, items and runs."""

from __future__ import annotations

from typing import Any

import pytest

from hwqueue.cli.run_view import _headline, _why, items_text
from hwqueue.dashboard.formatting import asked
from tests.unit.test_run_pages import NODE, row, run


def rule(label: str, op: str, *values: Any) -> dict[str, Any]:
    return {"label": label, "op": op, **({"values": list(values)} if values else {})}


def test_parts_are_under_those_who_ask_them() -> None:
    placement = {
        "require": [rule("kernel", "in", "6.8"), rule("nvlink", "exists"), rule("zone", "in", "b")],
        "resources": {"gpu": 4, "memory_mib": 4096},
        "isolation": {"gpu": "device_exclusive"},
        "prefer": [{"when": [{"rack": [7]}], "weight": 100}, {"when": [{"node": ["x"]}], "weight": -9}],
        "strength": 5,
    }
    came_from = {
        "require": [["workflow"], ["step"], ["workflow", "submission"]],
        "resources": {"gpu": ["step"], "memory_mib": ["task"]},
        "isolation": {"gpu": ["step"]},
        "prefer": [["near train -> rack 7"], ["away from fetch -> node box"]],
        "strength": ["task"],
    }
    assert asked(placement, came_from) == [
        ("workflow", ["kernel in 6.8"]),
        ("step", ["has nvlink", "4 GPU", "GPU device_exclusive"]),
        ("workflow and submission", ["zone in b"]),
        ("task", ["4 GiB", "strength 5"]),
        ("near train", ["prefers rack 7"]),
        ("away from fetch", ["prefers not node box"]),
    ]


@pytest.mark.parametrize(
    ("key", "part", "words"),
    [
        ("require", rule("z", "in", "a", "b"), "z in a or b"),
        ("require", rule("z", "in", "a", "b", "c", "d", "e"), "z in a or b or c or 2 more"),
        ("require", rule("z", "not_in", True), "z not in true"),
        ("require", rule("z", "gte", 2.5), "z >= 2.5"),
        ("require", rule("z", "does_not_exist"), "has no z"),
        ("require", {"trust": "pci"}, '{"trust": "pci"}'),
        ("require", rule("z", "in", "x" * 100), "z in " + "x" * 59 + "…"),
        ("prefer", {"when": [rule("z", "exists")], "weight": 10}, "prefers has z"),
        ("prefer", {"when": [rule("z", "in", 1)], "weight": -1}, "prefers not z in 1"),
        ("tolerate", {"key": "film"}, "tolerates film"),
        ("tolerate", {"op": "exists"}, "tolerates everything"),
        ("spread", {"domain": "rack"}, 'spread {"domain": "rack"}'),
    ],
)
def test_words_of_a_part(key: str, part: dict[str, Any], words: str) -> None:
    assert asked({key: [part]}, {key: [["step"]]}) == [("step", [words])]


def test_nobody_is_named_for_nothing() -> None:
    assert asked({}, {}) == []
    assert asked({"resources": {"gpu": 1}}, None) == []


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
