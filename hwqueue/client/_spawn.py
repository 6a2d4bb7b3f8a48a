"""Options, batch items, members of gangs and filters of leases, as the SQL functions take them."""

from __future__ import annotations

import logging
import marshal
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, get_type_hints

from hwqueue.client._arguments import check_span
from hwqueue.client._json import given, plain
from hwqueue.errors import BadArgument
from hwqueue.text import one_line
from hwqueue.types import (
    AsMember,
    GangOptions,
    LeaseFilter,
    LeaseSpec,
    QueuePolicy,
    RetryPolicy,
    SpawnOptions,
)

_log = logging.getLogger("hwqueue.spawn")
_MOST_TOLD = 1000
_told: set[tuple[str, str]] = set()
BATCH = 1000
"""How many leases go in one call, if they may go in several."""
# What leases of one batch have in common, or lock in an order: not to be cut up
_IN_ONE_CALL = frozenset({"idempotency_key", "unique", "lease_id", "one_of", "replaces"})


def spans_of(options: type) -> tuple[str, ...]:
    """The options that are spans: `timedelta`s where Python names them, seconds in JSON."""
    hints = get_type_hints(options)
    return tuple(name for name, hint in hints.items() if hint == timedelta | None)


SPANS, GANG_SPANS = spans_of(SpawnOptions), spans_of(GangOptions)
POLICY_SPANS = {
    *spans_of(QueuePolicy),
    *spans_of(RetryPolicy),
    *("earmark_time", "after", "grace", "hold", "min_run"),
}


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


def spawn_batches(items: Sequence[Any]) -> list[Sequence[Any]]:
    """The elements of a batch cut into what may go in calls of their own, one after the other."""
    options = [each["options"] for each in items if isinstance(each, dict) and each.get("options")]
    if not all(isinstance(each, Mapping) and _IN_ONE_CALL.isdisjoint(each) for each in options):
        return [items]
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


def spawn_batch(items: Sequence[Any]) -> Any:
    """The elements as kinds and the params of each, for the server to read less; many kinds as they are."""
    kinds: dict[tuple[Any, bytes], tuple[int, Any]] = {}
    of: list[int] = []
    try:
        for each in items:
            kind = {"task": each["task"], "options": each.get("options") or {}}
            # compared and never read: a tenth of what JSON takes; values that are no plain JSON are refused
            words = marshal.dumps(kind["options"], 0) if kind["options"] else b""
            of.append(kinds.setdefault((kind["task"], words), (len(kinds), kind))[0])
            if len(kinds) > len(items) // 4 or each.keys() - {"task", "params", "options"}:
                return items
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return items  # as their refusal is to name them
    batch = {
        "kinds": [kind for _, kind in kinds.values()],
        "each": [each.get("params", {}) for each in items],
    }
    return batch | ({"of": of} if len(kinds) > 1 else {}) if kinds else items


def tell_warnings(task: str, warnings: Iterable[str] | None) -> None:
    """Log what a spawn lacks; of a task once in this process, not for each of its leases."""
    for each in warnings or ():
        if (task, each) not in _told and len(_told) < _MOST_TOLD:
            _told.add((task, each))
            _log.warning("spawned a lease of task %s: %s", task, one_line(each))


def gang_options(options: GangOptions, headers: Mapping[str, str]) -> dict[str, Any]:
    """The JSON form of the options of a gang, with the headers of its trace.

    Raises: BadArgument, for a span that is a plain number.
    """
    for name in GANG_SPANS:
        check_span(options.get(name), f"options.{name}")
    found: dict[str, Any] = plain(given(with_headers(options, headers)), "options")
    return found


def gang_members(
    members: Iterable[AsMember | LeaseSpec | Mapping[str, Any]],
    options: Mapping[str, Any],
    headers: Mapping[str, str],
) -> list[Any]:
    """The members of a gang that has these options, as JSON. Raises: BadArgument."""
    return [_member(member, f"members[{index}]", options, headers) for index, member in enumerate(members)]


def _member(
    member: AsMember | LeaseSpec | Mapping[str, Any],
    field: str,
    options: Mapping[str, Any],
    headers: Mapping[str, str],
) -> Any:
    if not isinstance(member, LeaseSpec | Mapping) and hasattr(member, "as_member"):
        try:
            member = member.as_member(given(options).keys())
        except BadArgument as error:
            within = f"{field}.{error.field}" if error.field else field
            detail = {**error.detail, "field": within}
            raise BadArgument(f"{field}: {error}", detail=detail, hint=error.hint) from None
    own = member.options if isinstance(member, LeaseSpec) else None
    if isinstance(member, Mapping):
        own = member.get("options")
    # headers of its own replace those of the gang, which have the trace
    traced = headers if isinstance(own, Mapping) and own.get("headers") else None
    return spawn_item(member, field, traced)  # type: ignore[arg-type]


_IN_FILTERS = {"service_id": "service", "node_id": "node"}


def lease_filter(queue: str | None, wanted: LeaseFilter) -> Any:
    """The filter object without the keys that are None. Raises: BadArgument for what is no JSON."""
    named = {_IN_FILTERS.get(key, key): value for key, value in wanted.items()}
    return plain(given({"queue": queue, **named}), "filter")
