"""Spawn options and batch items as the SQL functions take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwqueue.client._arguments import check_span
from hwqueue.client._json import given, plain
from hwqueue.types import LeaseSpec

SPANS = ("delay", "patience", "claim_timeout", "max_run")
"""Options that are spans: `timedelta`s where Python names them, seconds in JSON."""


def spawn_options(options: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """The JSON form of spawn options; None when none are given.

    Raises: BadArgument, for a span that is a plain number.
    """
    for name in SPANS:
        check_span(options.get(name), f"{field}.{name}")
    return plain(given(options), field) or None


def with_headers(
    options: Mapping[str, Any], headers: Mapping[str, str] | None
) -> Mapping[str, Any]:
    """The options with these headers added; what the caller gave under the same names stays."""
    own = options.get("headers")
    if not headers or not isinstance(own, Mapping | None):
        return options
    return {**options, "headers": {**headers, **(own or {})}}


def spawn_item(
    lease: LeaseSpec | Mapping[str, Any], field: str, headers: Mapping[str, str] | None = None
) -> Any:
    """One element of a `spawn_leases` batch; a mapping is JSON, where spans are seconds.

    Raises: BadArgument.
    """
    if isinstance(lease, LeaseSpec):
        for name in SPANS:
            check_span(lease.options.get(name), f"{field}.options.{name}")
        lease = {"task": lease.task, "params": lease.params, "options": lease.options}
    if isinstance(lease, Mapping) and isinstance(lease.get("options"), Mapping | None):
        options = with_headers(lease.get("options") or {}, headers)
        return {**lease, "options": plain(given(options), f"{field}.options")} if options else lease
    return lease
