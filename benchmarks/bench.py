"""What the benchmarks share: a server, a clone of a database, a machine's description, medians."""

import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from hwqueue.embedded import EmbeddedServer
from hwqueue.replay.database import scratch_database

SETTINGS = ("shared_buffers", "synchronous_commit", "fsync", "max_wal_size", "server_version")


@dataclass(frozen=True)
class Spread:
    """A median with its extremes, in the unit of what was measured."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.least:.3g}-{self.most:.3g}]"


@contextmanager
def databases(dsn: str | None, count: int) -> Iterator[list[str]]:
    """`count` fresh, upgraded databases on one server (the embedded one if `dsn` is None)."""
    server = dsn or os.environ.get("HWQUEUE_DSN") or EmbeddedServer().ensure_running()
    with scratch_database(server) as first:
        if count == 1:
            yield [first]
        else:
            with databases(server, count - 1) as rest:
                yield [first, *rest]


def machine(dsn: str) -> dict[str, str]:
    """What the figures were measured on."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select name, current_setting(name) from pg_settings where name = any(%s)",
            [list(SETTINGS)],
        ).fetchall()
    return {
        "cpu": _cpu_model(),
        "cores": str(psutil.cpu_count()),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.0f}",
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **dict(rows),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, "")
