"""Which errors a worker waits out."""

from __future__ import annotations

import psycopg
import psycopg_pool
import pytest

from hwqueue import errors
from hwqueue.worker.transient import is_transient, may_come_up


@pytest.mark.parametrize(
    ("sqlstates", "passes"),
    [
        ("08006 25006 40001 40P01 53300 55P03 57014 57P01 57P03", True),
        ("3D000 28000 28P01 42501 54000 22003", False),
    ],
)
def test_what_passes_is_repeated(sqlstates: str, passes: bool) -> None:
    for sqlstate in sqlstates.split():
        assert is_transient(psycopg.errors.lookup(sqlstate)("no")) is passes, sqlstate


def test_a_lost_connection_passes_and_a_refusal_does_not() -> None:
    assert is_transient(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert is_transient(psycopg_pool.PoolTimeout("no connection after 30 s"))
    assert may_come_up(psycopg.errors.ConnectionTimeout("no answer"))
    assert is_transient(errors.NodeUnknown("deregistered"))
    assert not is_transient(errors.BadArgument("no"))
    assert not is_transient(ValueError("no"))


@pytest.mark.parametrize(
    ("words", "may"),
    [
        ('connection to server at "::1", port 5432 failed: Connection refused', True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  sorry, too many clients already", True),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", True),
        ('on socket "/tmp/.s.PGSQL.5432" failed: No such file or directory', True),
        ("session is read-only", True),
        ('FATAL:  password authentication failed for user "worker"', False),
        ('FATAL:  role "worker" does not exist', False),
        ('FATAL:  database "app" does not exist', False),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', False),
        ("SSL error: certificate verify failed", False),
    ],
)
def test_a_server_may_come_up_and_wrong_settings_stay_wrong(words: str, may: bool) -> None:
    assert may_come_up(psycopg.OperationalError(f"connection failed: {words}")) is may
