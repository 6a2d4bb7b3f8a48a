"""Sessions that write: leases through hwqueue's functions, the same payload into the floor."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.fill import QUEUE, Lease
from benchmarks.core.floor import COPY, INSERT
from hwqueue.client._spawn import spawn_batch

Payload = Mapping[str, Any]

_SPAWN = """
    select lease_id from hwqueue.spawn_lease(
      p_queue => %s, p_task => %s, p_params => %s, p_options => %s)
"""
_SPAWN_BATCH = "select ordinal, lease_id from hwqueue.spawn_leases(p_queue => %s, p_leases => %s)"


class _Producer:
    """A connection that commits every call."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@dataclass(frozen=True)
class SingleInsert:
    """Opens sessions that insert one row a step."""

    dsn: str
    payload: Payload

    def __call__(self, number: int) -> "SingleInsertSession":
        return SingleInsertSession(self.dsn, self.payload)


class SingleInsertSession(_Producer):
    """Inserts into the floor."""

    def __init__(self, dsn: str, payload: Payload) -> None:
        super().__init__(dsn)
        self._payload = payload

    def step(self) -> int:
        """Insert one."""
        self.connection.execute(INSERT, [Jsonb(self._payload)], prepare=True)
        return 1


@dataclass(frozen=True)
class SingleSpawn:
    """Opens sessions that spawn one lease a step, of the given ones in turn."""

    dsn: str
    leases: tuple[Lease, ...]

    def __call__(self, number: int) -> "SingleSpawnSession":
        return SingleSpawnSession(self.dsn, self.leases)


class SingleSpawnSession(_Producer):
    """Spawns with spawn_lease."""

    def __init__(self, dsn: str, leases: tuple[Lease, ...]) -> None:
        super().__init__(dsn)
        self._leases = cycle(leases)

    def step(self) -> int:
        """Spawn one."""
        lease = next(self._leases)
        values = [QUEUE, lease["task"], Jsonb(lease["params"]), Jsonb(lease["options"])]
        self.connection.execute(_SPAWN, values, prepare=True)
        return 1


@dataclass(frozen=True)
class BulkCopy:
    """Opens sessions that copy all the given rows in a step."""

    dsn: str
    payloads: tuple[Payload, ...]

    def __call__(self, number: int) -> "BulkCopySession":
        return BulkCopySession(self.dsn, self.payloads)


class BulkCopySession(_Producer):
    """Copies into the floor."""

    def __init__(self, dsn: str, payloads: tuple[Payload, ...]) -> None:
        super().__init__(dsn)
        self._payloads = payloads

    def step(self) -> int:
        """Copy the batch."""
        with self.connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for payload in self._payloads:
                copy.write_row([json.dumps(payload)])
        return len(self._payloads)


@dataclass(frozen=True)
class BulkSpawn:
    """Opens sessions that spawn all the given leases in a step, `calls` times, as the client does."""

    dsn: str
    leases: tuple[Lease, ...]
    calls: int = 1

    def __call__(self, number: int) -> "BulkSpawnSession":
        return BulkSpawnSession(self.dsn, self.leases, self.calls)


class BulkSpawnSession(_Producer):
    """Spawns with spawn_leases; several calls are one transaction, each sent before one is answered."""

    def __init__(self, dsn: str, leases: tuple[Lease, ...], calls: int) -> None:
        super().__init__(dsn)
        self._leases = leases
        self._calls = calls

    def step(self) -> int:
        """Spawn the batch, so many times."""
        if self._calls == 1:
            return len(self._spawn().fetchall())
        with self.connection.transaction(), self.connection.pipeline():
            sent = [self._spawn() for _ in range(self._calls)]
            return sum(len(cursor.fetchall()) for cursor in sent)

    def _spawn(self) -> psycopg.Cursor[Any]:
        values = [QUEUE, Jsonb(spawn_batch(self._leases))]
        return self.connection.execute(_SPAWN_BATCH, values, prepare=True)
