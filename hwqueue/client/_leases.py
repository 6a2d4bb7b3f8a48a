"""Filters of leases, as the SQL functions take them."""

from __future__ import annotations

from typing import Any

from hwqueue.client._json import given, plain
from hwqueue.types import LeaseFilter

_NAMES = {"service_id": "service", "node_id": "node"}


def lease_filter(queue: str | None, wanted: LeaseFilter) -> Any:
    """The filter object without the keys that are None. Raises: BadArgument for what is no JSON."""
    named = {_NAMES.get(key, key): value for key, value in wanted.items()}
    return plain(given({"queue": queue, **named}), "filter")
