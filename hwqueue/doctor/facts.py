"""What the checks look at, read once: through public functions and catalogs open to any login."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

import psycopg
from psycopg.rows import class_row

from hwqueue.client import Client
from hwqueue.schema.bundle import ROLES
from hwqueue.schema.session import pin
from hwqueue.types import KnownTask, Limit, NodeUsage, PendingReason, Queue, Schedule, Webhook

LONG_SECONDS = 300
MOST_CLASSES = 500
"""Of pending leases that are looked at: those with most of them."""
"""From how long on an open transaction is told of."""

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server, the database, and what this login may do.

    connections: how many ordinary logins may open; connected: open now, in all databases.
    encoding: of the database. isolation: of transactions that do not say it. idle_timeout: seconds,
    0: none. roles_there: of the queue's; roles_held: by this login.
    """

    version: str
    version_number: int
    database: str
    encoding: str
    isolation: str
    login: str
    clock: datetime
    in_recovery: bool
    read_only: bool
    connections: int
    connected: int
    autovacuum: bool
    outlives_crashes: bool
    synchronous_commit: str
    has_standby: bool
    idle_timeout: float
    oldest_xid_age: int
    is_superuser: bool
    owns_schema: bool
    roles_there: Sequence[str]
    roles_held: Sequence[str]
    sees_sessions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who keeps dead tuples from being removed, and, if it writes, new terms from being published.

    kind: session, prepared, slot or standby. seconds: since when; None of the last two.
    """

    kind: str
    who: str
    seconds: float | None
    writes: bool
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the queue: its live and dead tuples, and its size with indexes."""

    name: str
    live: int
    dead: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the queue says of itself.

    figures: metrics, by name, summed over all labels, of spans the longest. nodes: how many are in
    each state. silent: some of those that are.
    """

    figures: Mapping[str, float]
    nodes: Mapping[str, int]
    silent: Sequence[NodeUsage]
    queues: Sequence[Queue]
    reasons: Sequence[PendingReason]
    webhooks: Sequence[Webhook]
    schedules: Sequence[Schedule]
    limits: Sequence[Limit] = ()
    tasks: Sequence[KnownTask] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Seconds that the server's clock is ahead of ours, and how wrong that may be."""

    seconds: float
    uncertainty: float


@cache
def _statement(name: str) -> bytes:
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_bytes()


def _rows(connection: psycopg.Connection, name: str, row: type[_Row], **given: object) -> list[_Row]:
    """The rows of a statement of ours, which runs no function that others have made."""
    with connection.transaction(), connection.cursor(row_factory=class_row(row)) as cursor:
        pin(connection)
        return cursor.execute(_statement(name), given or None, prepare=False).fetchall()


def read_server(connection: psycopg.Connection) -> tuple[Server, Skew]:
    """The server, and how far its clock is from ours."""
    before = time.time()
    [server] = _rows(connection, "server", Server, roles=list(ROLES))
    after = time.time()
    ahead = server.clock.timestamp() - (before + after) / 2
    return server, Skew(seconds=ahead, uncertainty=(after - before) / 2)


def read_holders(connection: psycopg.Connection, seconds: float = LONG_SECONDS) -> list[Holder]:
    """Open and prepared transactions that are older, slots that nobody reads, late standbys."""
    return _rows(connection, "holders", Holder, seconds=seconds)


def read_tables(connection: psycopg.Connection) -> list[Table]:
    """The queue's tables, the largest first."""
    return _rows(connection, "tables", Table)


def read_work(client: Client) -> Work:
    """What the queue says of itself. SQL: metrics, node_usage, list_queues, pending_reasons,
    list_webhooks, list_schedules, list_limits, list_tasks.

    Raises: psycopg.errors.InsufficientPrivilege, without hwqueue_operator or hwqueue_admin.
    """
    figures: dict[str, float] = {}
    nodes: dict[str, int] = {}
    for sample in client.metrics():
        before = figures.get(sample.name, 0)
        is_span = sample.name.endswith("_seconds")
        figures[sample.name] = max(before, sample.value) if is_span else before + sample.value
        if sample.name == "hwqueue_nodes":
            nodes[sample.labels["state"]] = int(sample.value)
    silent = client.node_usage(state="silent", limit=100)
    return Work(
        figures=figures,
        nodes=nodes,
        silent=silent,
        queues=client.list_queues(),
        reasons=client.pending_reasons(order="pending", limit=MOST_CLASSES),
        webhooks=client.list_webhooks(),
        schedules=client.list_schedules(limit=10_000),
        limits=client.list_limits(),
        tasks=client.list_tasks(),
    )
