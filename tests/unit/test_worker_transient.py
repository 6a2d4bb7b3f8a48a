"""Which errors a worker waits out."""

from __future__ import annotations

import psycopg
import psycopg_pool
import pytest

from hwqueue import errors
from hwqueue.worker.transient import is_transient, may_come_up


@pytest.mark.parametrize(
    "sqlstate", ["08006", "25006", "40001", "40P01", "53300", "55P03", "57014", "57P01", "57P03"]
)
def test_what_passes_is_repeated(sqlstate: str) -> None:
    assert is_transient(psycopg.errors.lookup(sqlstate)("no"))


@pytest.mark.parametrize("sqlstate", ["3D000", "28000", "28P01", "42501", "54000", "22003"])
def test_what_stays_is_not(sqlstate: str) -> None:
    assert not is_transient(psycopg.errors.lookup(sqlstate)("no"))


def test_a_lost_connection_passes_and_a_refusal_does_not() -> None:
    assert is_transient(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert is_transient(psycopg_pool.PoolTimeout("no connection after 30 s"))
    assert may_come_up(psycopg.errors.ConnectionTimeout("no answer"))
    assert is_transient(errors.NodeUnknown("deregistered"))
    assert not is_transient(errors.BadArgument("no"))
    assert not is_transient(ValueError("no"))


@pytest.mark.parametrize(
    "words",
    [
        'connection to server at "::1", port 5432 failed: Connection refused',
        "FATAL:  the database system is starting up",
        "FATAL:  sorry, too many clients already",
        "failed to resolve host 'db': [Errno -2] Name or service not known",
        'on socket "/tmp/.s.PGSQL.5432" failed: No such file or directory',
        "session is read-only",
    ],
)
def test_a_server_may_come_up(words: str) -> None:
    assert may_come_up(psycopg.OperationalError(f"connection failed: {words}"))


@pytest.mark.parametrize(
    "words",
    [
        'FATAL:  password authentication failed for user "worker"',
        'FATAL:  role "worker" does not exist',
        'FATAL:  database "app" does not exist',
        'FATAL:  no pg_hba.conf entry for host "10.0.0.1"',
        "SSL error: certificate verify failed",
    ],
)
def test_wrong_settings_stay_wrong(words: str) -> None:
    assert not may_come_up(psycopg.OperationalError(f"connection failed: {words}"))
