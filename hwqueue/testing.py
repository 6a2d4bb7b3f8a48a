"""Helpers for tests of code that uses the queue, on a real database of the tests' own.

There is no fake queue: it would be a second truth. Make a database, `hwqueue db upgrade` it, and
give each test a copy (`create database ... template ...`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import psycopg

from hwqueue.client import Client
from hwqueue.schema.files import SQL_DIR
from hwqueue.types import Claim, Lease, NodeSpec

__all__ = ["Clock", "assert_spawned", "claim_one", "install_clock"]

# These two write a table that exists only where `install_clock` was called; no function does.
_ADVANCE = "update hwqueue.test_clock set offset_by = offset_by operator(pg_catalog.+) %s"
_FREEZE = (
    "update hwqueue.test_clock"
    " set frozen_at = coalesce(%s::timestamptz, hwqueue.clock()), offset_by = '0'"
)


class Clock:
    """The queue's clock in a test database, for all sessions at once. Made by `install_clock`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def now(self) -> datetime:
        """What the queue takes for the time. SQL: clock."""
        row = self._connection.execute("select hwqueue.clock()").fetchone()
        return cast(tuple[datetime], row)[0]

    def advance(self, by: timedelta) -> None:
        """Move the time forward; negative spans move it back."""
        self._connection.execute(_ADVANCE, [by])

    def freeze(self, at: datetime | None = None) -> None:
        """Stop the time at `at` (None: at this moment); `advance` still moves it."""
        self._connection.execute(_FREEZE, [at])


def install_clock(connection: psycopg.Connection[Any]) -> Clock:
    """Put a clock that tests can move in the place of the queue's own.

    Never do this to a database that is used: `hwqueue db check` reports it, and the next
    `hwqueue db upgrade` of another version brings the real clock back.

    Args:
        connection: In autocommit, of the user who installed the schema.
    """
    connection.execute((SQL_DIR / "testing" / "clock.sql").read_bytes())
    return Clock(connection)


def claim_one(
    client: Client,
    queue: str,
    *,
    tasks: Sequence[str] | None = None,
    node: NodeSpec | None = None,
) -> Claim:
    """Claim what a worker would get next, as a new node that nothing else runs on.

    Args:
        node: What the node is; None: no labels and nothing counted.

    Raises: AssertionError, with what the queue's leases wait for, when nothing can be claimed.
    """
    node_id = uuid4()
    spec = node or NodeSpec(name=f"test-{node_id}", instance_id=str(node_id))
    epoch = client.register_node(node_id, spec)
    claims = client.claim_task([queue], node_id, epoch, tasks=tasks)
    if not claims:
        reasons = dict(client.claim_hint([queue], node_id).reasons)
        raise AssertionError(f"nothing to claim in queue {queue!r}; waiting for: {reasons}")
    return claims[0]


def assert_spawned(
    client: Client,
    queue: str,
    task: str,
    *,
    params: Mapping[str, Any] | None = None,
    count: int = 1,
) -> list[Lease]:
    """Assert how many leases of a task the queue has ever got, and return them, newest first.

    Args:
        params: Count only those whose params contain these members.
        count: Exactly this many; at most 1000 can be told apart.

    Raises: AssertionError, with the params that were found.
    """
    listed = client.list_leases(queue=queue, task=task, limit=1000)
    leases = [client.get_lease(lease.lease_id) for lease in listed]
    found = [lease for lease in leases if params is None or _contains(lease.params, params)]
    if len(found) != count:
        seen = [lease.params for lease in leases]
        raise AssertionError(
            f"expected {count} of task {task!r} with {dict(params or {})} in queue {queue!r}, "
            f"found {len(found)}; all of the task: {seen}"
        )
    return found


def _contains(found: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether it is an object with these members."""
    return isinstance(found, Mapping) and all(
        key in found and found[key] == value for key, value in wanted.items()
    )
