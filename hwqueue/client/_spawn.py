"""Spawn options and batch items as the SQL functions take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwqueue.client._json import given, plain
from hwqueue.types import LeaseSpec


def spawn_options(options: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """The JSON form of spawn options; None when none are given."""
    return plain(given(options), field) or None


def spawn_item(lease: LeaseSpec | Mapping[str, Any], field: str) -> Any:
    """One element of a `spawn_leases` batch."""
    if isinstance(lease, LeaseSpec):
        lease = {"task": lease.task, "params": lease.params, "options": lease.options}
    if isinstance(lease, Mapping) and isinstance(lease.get("options"), Mapping):
        return {**lease, "options": plain(given(lease["options"]), f"{field}.options")}
    return lease
