"""Items that a handler adds to its step, as the database takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from hwqueue.errors import BadArgument


class Named(Protocol):
    """What has a name, such as a task."""

    @property
    def name(self) -> str:
        """The name."""


def items_of(items: Iterable[Mapping[str, Any]], task: str | Named | None) -> list[dict[str, Any]]:
    """Items with the task of those that name none.

    Raises: BadArgument.
    """
    return [_item_of(item, task, f"items[{index}]") for index, item in enumerate(items)]


def _item_of(item: Mapping[str, Any], task: str | Named | None, field: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise BadArgument(
            f"{field} must be a mapping, got {type(item).__name__}",
            detail={"field": field},
            hint='for example {"name": "page-1", "params": {"page": 1}}',
        )
    written = {key: item[key] for key in item if key != "task"}
    runs = item.get("task") or task
    if runs is not None:
        written["task"] = runs if isinstance(runs, str) else runs.name
    return written
