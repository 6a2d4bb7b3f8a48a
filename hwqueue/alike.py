"""Rows that read alike are one row: classes that differ in their labels, events about each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hwqueue.types import Event, PendingReason


@dataclass(frozen=True, slots=True)
class Alike:
    """Pending classes that ask the same for the same task, and wait for the same reason.

    Attributes:
        row: Of the class with most leases, with the leases and the oldest one of all.
        classes: How many; they differ in their labels, or in their patience.
    """

    row: PendingReason
    classes: int


def alike(rows: Iterable[PendingReason]) -> list[Alike]:
    """Merge what reads alike; in the order in which each was met first."""
    groups: dict[object, list[PendingReason]] = {}
    for row in rows:
        asks = row.class_id if row.words is None else row.words  # words are there for the first 500
        who = (row.queue, row.task_name, row.tenant, row.service_id)
        why = (row.code, row.message, row.nodes_matching, row.nodes_free)
        groups.setdefault((asks, who, why), []).append(row)
    return [Alike(_merged(group), len(group)) for group in groups.values()]


def _merged(group: list[PendingReason]) -> PendingReason:
    largest = max(group, key=lambda row: row.pending)
    return replace(
        largest, pending=sum(row.pending for row in group), oldest_at=min(row.oldest_at for row in group)
    )


def folded(events: Iterable[Event]) -> list[tuple[Event, int]]:
    """Events, and of how many more classes of the same task the same was noted.

    Each class without a node is an event: a task whose leases ask a hundred things has as many.
    """
    told: dict[object, list[Event]] = {}
    for event in events:
        told.setdefault(_about(event), []).append(event)
    return [(alike[0], len(alike) - 1) for alike in told.values()]


def _about(event: Event) -> object:
    if not event.code.startswith("class_unmatched"):
        return event.event_id
    task, _, _ = event.message.partition(" that ask for ")
    return event.code, event.queue, task, (event.detail or {}).get("reason")
