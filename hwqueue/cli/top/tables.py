"""The tables of `hwqueue top`: columns, order and filter; nothing of how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from hwqueue.cli.output import plain_text
from hwqueue.cli.top.formatting import use
from hwqueue.cli.top.reading import Reading
from hwqueue.text import age, bar, count
from hwqueue.types import Event, NodeUsage, PendingReason, QueueDepth, RunningLease

R = TypeVar("R")
_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column.

    Attributes:
        text: A cell, given a row and the time of the reading.
        order: What rows are sorted by; None comes last whichever way.
        is_number: Aligned right, and sorted with the greatest first.
    """

    title: str
    text: Callable[[R, datetime], str]
    order: Callable[[R], Any]
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """One table.

    Attributes:
        name: Of the field of a reading that it shows.
        noun: What its rows are.
        key: What tells a row from all others, from one reading to the next.
        empty: What is said instead of no rows.
    """

    name: str
    title: str
    noun: str
    key: Callable[[R], str]
    columns: Sequence[Column[R]]
    empty: str

    def rows(self, reading: Reading) -> Sequence[R]:
        """Its rows in the order in which they were read."""
        rows: Sequence[R] = getattr(reading, self.name)
        return rows

    def cells(self, row: R, now: datetime) -> list[str]:
        """A row as text, each cell on one line; what users wrote moves no cursor."""
        return [plain_text(" ".join(column.text(row, now).split())) for column in self.columns]


@dataclass(frozen=True, slots=True)
class Order:
    """How a table is sorted: by which column, or (None) as it was read; and whether reversed."""

    column: int | None = None
    is_reversed: bool = False

    def next(self, columns: int) -> Order:
        """The next column to the right, after the last as it was read."""
        following = 0 if self.column is None else self.column + 1
        return Order(None if following == columns else following)

    def turned(self) -> Order:
        """The other way round."""
        return Order(self.column, not self.is_reversed)


def arranged(table: Table[R], reading: Reading, order: Order, wanted: str) -> list[tuple[R, list[str]]]:
    """The rows with their cells, in order, without those in which `wanted` does not occur."""
    sought = wanted.casefold()
    rows = [(row, table.cells(row, reading.at)) for row in table.rows(reading)]
    rows = [item for item in rows if sought in " ".join(item[1]).casefold()]
    if order.column is None:
        return rows[::-1] if order.is_reversed else rows
    column = table.columns[order.column]
    known = [item for item in rows if column.order(item[0]) is not None]
    unknown = [item for item in rows if column.order(item[0]) is None]
    known.sort(key=lambda item: column.order(item[0]), reverse=column.is_number != order.is_reversed)
    return known + unknown


def kind_of(reason: PendingReason) -> str:
    """Why leases of a class wait, in one or two words."""
    if reason.code == "queue_paused":
        return "paused"
    if reason.nodes_matching is None:
        return "limit"
    if reason.nodes_matching == 0:
        return "no match"
    return "contended" if reason.nodes_free == 0 else "waiting"


def share_of(lease: RunningLease) -> float | None:
    """How far it has come, from 0 to 1; None: not known."""
    return lease.progress.fraction if lease.progress else None


def progress_of(lease: RunningLease) -> str:
    """A bar of what its handler reported last, and the words for it."""
    if lease.progress is None:
        return "-"
    share = share_of(lease)
    return lease.progress.words if share is None else f"{bar(share, 10)} {lease.progress.words}"


def subject_of(event: Event) -> str:
    """What an event is about."""
    if event.lease_id is not None:
        return f"lease {str(event.lease_id)[-8:]}"
    if event.node_id is not None:
        return f"node {str(event.node_id)[-8:]}"
    if event.class_id is not None:
        return f"class {event.class_id}"
    return "-" if event.queue is None else f"queue {event.queue}"


QUEUES: Table[QueueDepth] = Table(
    "queues",
    "Queues",
    "queues",
    lambda row: row.queue,
    (
        Column("queue", lambda row, _: row.queue, lambda row: row.queue),
        Column("pending", lambda row, _: count(row.pending), lambda row: row.pending, True),
        Column("oldest", lambda row, now: age(row.oldest_at, now), lambda row: row.oldest_at),
        Column("running", lambda row, _: count(row.running), lambda row: row.running, True),
        Column("scheduled", lambda row, _: count(row.scheduled), lambda row: row.scheduled, True),
        Column(
            "state",
            lambda row, now: f"paused {age(row.paused_at, now)}" if row.paused_at else "open",
            lambda row: row.paused_at,
        ),
    ),
    "no queues; make one: hwqueue queue create NAME",
)
PENDING: Table[PendingReason] = Table(
    "pending",
    "Pending",
    "kinds of leases",
    lambda row: str(row.class_id),
    (
        Column("why", lambda row, _: kind_of(row), kind_of),
        Column("leases", lambda row, _: count(row.pending), lambda row: row.pending, True),
        Column("oldest", lambda row, now: age(row.oldest_at, now), lambda row: row.oldest_at),
        Column("match", lambda row, _: count(row.nodes_matching), lambda row: row.nodes_matching, True),
        Column("free", lambda row, _: count(row.nodes_free), lambda row: row.nodes_free, True),
        Column("queue", lambda row, _: row.queue, lambda row: row.queue),
        Column("asks for", lambda row, _: row.words or "-", lambda row: row.words or ""),
    ),
    "nothing waits",
)
NODES: Table[NodeUsage] = Table(
    "nodes",
    "Nodes",
    "nodes",
    lambda row: str(row.node_id),
    (
        Column("node", lambda row, _: row.node_name, lambda row: row.node_name),
        Column("rack", lambda row, _: "-" if row.rack is None else str(row.rack), lambda row: row.rack),
        Column("state", lambda row, _: row.state, lambda row: row.state),
        Column("beat", lambda row, now: age(row.seen_at, now), lambda row: row.seen_at),
        Column("claims", lambda row, _: count(row.claims), lambda row: row.claims, True),
        Column(
            "CPU",
            lambda row, _: use(row.cpu_used / 1000, (row.cpu_milli or 0) / 1000),
            lambda row: row.cpu_used,
            True,
        ),
        Column(
            "GiB",
            lambda row, _: use(row.memory_used / _MIB_PER_GIB, (row.memory_mib or 0) / _MIB_PER_GIB),
            lambda row: row.memory_used,
            True,
        ),
        Column(
            "GPU",
            lambda row, _: use(row.gpu_milli_used / 1000, row.gpus),
            lambda row: row.gpu_milli_used,
            True,
        ),
    ),
    "no nodes; run a worker: hwqueue worker run --help",
)
RUNNING: Table[RunningLease] = Table(
    "running",
    "Running",
    "running leases",
    lambda row: str(row.lease_id),
    (
        Column("lease", lambda row, _: str(row.lease_id)[-8:], lambda row: str(row.lease_id)),
        Column("task", lambda row, _: row.task_name, lambda row: row.task_name),
        Column("node", lambda row, _: row.node_name or "-", lambda row: row.node_name),
        Column("for", lambda row, now: age(row.claimed_at, now), lambda row: row.claimed_at),
        Column("progress", lambda row, _: progress_of(row), share_of),
        Column("queue", lambda row, _: row.queue, lambda row: row.queue),
    ),
    "nothing runs",
)
EVENTS: Table[Event] = Table(
    "events",
    "Events",
    "events",
    lambda row: str(row.event_id),
    (
        Column("time", lambda row, _: f"{row.at.astimezone():%H:%M:%S}", lambda row: row.at, True),
        Column("code", lambda row, _: row.code, lambda row: row.code),
        Column("subject", lambda row, _: subject_of(row), subject_of),
        Column("by", lambda row, _: row.actor, lambda row: row.actor),
        Column("what", lambda row, _: row.message, lambda row: row.message),
    ),
    "no events",
)
TABLES: Sequence[Table[Any]] = (QUEUES, PENDING, NODES, EVENTS, RUNNING)
