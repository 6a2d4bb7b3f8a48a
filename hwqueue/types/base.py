"""What the other types are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

Json = Any
"""None, bool, int, float, str, list, tuple or dict with str keys: nothing is converted for you."""


class AsJson(Protocol):
    """Anything with a JSON form of its own, such as a `Placement`."""

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        ...


class LeaseState(StrEnum):
    """The life of a lease; the first three are open, the others final unless requeued."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verdict(StrEnum):
    """What a heartbeat or a settlement found the claim to be.

    Heartbeats: ok, lost, cancelled, preempted, finished (this claim has completed the lease); over
    HTTP also unnamed (the node holds it, and the worker has not named it).
    Settlements: ok, lost, cancelled, finished, bad_token, busy (another session holds the claim:
    nothing was done, settle it again later).
    """

    OK = "ok"
    LOST = "lost"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    BAD_TOKEN = "bad_token"
    BUSY = "busy"
    UNNAMED = "unnamed"


def members(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not None, spans in seconds.

    Raises: NoSpan, for a plain number where the annotation says `timedelta`.
    """
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    spans = {each.name: seconds(found[each.name]) for each in fields(value) if "timedelta" in str(each.type)}
    return given({**found, **spans})


def given(options: Mapping[str, Any] | None = None, /, **values: Any) -> dict[str, Any]:
    """The values that are not None: those that are count as not given."""
    return {key: value for key, value in {**(options or {}), **values}.items() if value is not None}


class NoSpan(TypeError):
    """A dataclass has a plain number where a `timedelta` belongs."""


def seconds(span: timedelta | None) -> float | None:
    """The span in seconds; None stays None. Raises: NoSpan, for a plain number."""
    if span is None:
        return None
    if not isinstance(span, timedelta):
        raise NoSpan(f"a span must be a timedelta, such as timedelta(seconds=5), not {span!r}")
    return span.total_seconds()
