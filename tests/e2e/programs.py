"""`hwqueue` in a process of its own: to its end, or until a test has done with it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.e2e.worker_support import BOUND_SECONDS

HWQUEUE = (sys.executable, "-m", "hwqueue")


def ran(dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended by itself."""
    line = [*HWQUEUE, "--dsn", dsn, *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def running(dsn: str, *words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that is killed at the end if it still runs; options: of its process."""
    line = [*HWQUEUE, "--dsn", dsn, *words]
    with subprocess.Popen(line, text=True, **({"stderr": subprocess.PIPE} | options)) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def bounded(process: subprocess.Popen[str]) -> Iterator[None]:
    """What is read of a process in the block has an end: it is killed if that takes too long."""
    watchdog = threading.Timer(BOUND_SECONDS, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def read_until(process: subprocess.Popen[str], *words: str) -> list[str]:
    """What a process says, until each of these words was in a line."""
    said: list[str] = []
    assert process.stderr is not None
    with bounded(process):
        while not all(any(word in line for line in said) for word in words):
            said.append(process.stderr.readline())
            assert said[-1], said
    return said


def is_blocked(dsn: str, application: str) -> bool:
    """Whether a call of a program waits for a lock."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "select 1 from pg_stat_activity where application_name = %s"
            " and wait_event_type = 'Lock' and datname = current_database()",
            [application],
        )
        return bool(found.fetchall())
