"""What calls cost the server as it goes: processor time; log with commits and page images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg


@dataclass(frozen=True)
class Usage:
    """Of one call, on average.

    Attributes:
        cpu_ms: Of the connection's server process; None when it runs where we cannot see it.
        wal_bytes: Written to the log by anybody: the server has nothing else to do.
    """

    cpu_ms: float | None
    wal_bytes: float

    def __add__(self, other: "Usage") -> "Usage":
        cpu = None
        if self.cpu_ms is not None and other.cpu_ms is not None:
            cpu = self.cpu_ms + other.cpu_ms
        return Usage(cpu, self.wal_bytes + other.wal_bytes)


def usage_of(connection: psycopg.Connection[Any], call: Callable[[], object], times: int) -> Usage:
    """Make a call so many times. `connection` is the one that the calls use."""
    process = server_process(connection)
    cpu_before, wal_before = cpu_seconds(process), _wal_position(connection)
    for _ in range(times):
        call()
    cpu_after, wal_after = cpu_seconds(process), _wal_position(connection)
    cpu_ms = None if process is None else 1000 * (cpu_after - cpu_before) / times
    return Usage(cpu_ms, (wal_after - wal_before) / times)


def server_process(connection: psycopg.Connection[Any]) -> psutil.Process | None:
    """The connection's server process, if it is one of this machine."""
    try:
        process = psutil.Process(connection.info.backend_pid)
        return process if process.name().startswith("postgres") else None
    except psutil.Error:
        return None


def cpu_seconds(process: psutil.Process | None) -> float:
    """User and system time; the kernel counts in hundredths of a second."""
    if process is None:
        return 0
    times = process.cpu_times()
    return float(times.user + times.system)


def _wal_position(connection: psycopg.Connection[Any]) -> float:
    row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return float(row[0])
