"""Spawn options and batch items as the SQL functions take them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from hwqueue.client._arguments import check_span
from hwqueue.client._json import given, plain
from hwqueue.text import one_line
from hwqueue.types import LeaseSpec

_log = logging.getLogger("hwqueue.spawn")
_MOST_TOLD = 1000
_told: set[tuple[str, str]] = set()

SPANS = ("delay", "patience", "claim_timeout", "max_run")
"""Options that are spans: `timedelta`s where Python names them, seconds in JSON."""


def spawn_options(options: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """The JSON form of spawn options; None when none are given.

    Raises: BadArgument, for a span that is a plain number.
    """
    for name in SPANS:
        check_span(options.get(name), f"{field}.{name}")
    return plain(given(options), field) or None


def with_headers(options: Mapping[str, Any], headers: Mapping[str, str] | None) -> Mapping[str, Any]:
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


def tell_warnings(task: str, warnings: Iterable[str] | None) -> None:
    """Log what a spawn lacks; of a task once in this process, not for each of its leases."""
    for each in warnings or ():
        if (task, each) not in _told and len(_told) < _MOST_TOLD:
            _told.add((task, each))
            _log.warning("spawned a lease of task %s: %s", task, one_line(each))
