"""One upgrade at a time, and whoever is in the way is named: any login may take that lock."""

import time
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hwqueue.errors import SchemaLocked
from hwqueue.schema import check, install_script, session, upgrade
from tests.migrations.programs import run_psql

LOCK = "select pg_advisory_xact_lock(hashtextextended('hwqueue upgrade', 0))"
NEVER = timedelta(days=1)


def test_who_has_the_lock_is_told_while_waiting(empty_dsn: str) -> None:
    told: list[str] = []
    with psycopg.connect(make_conninfo(empty_dsn, application_name="in the way")) as holder:
        holder.execute(LOCK)
        pid = holder.info.backend_pid

        def let_go(message: str) -> None:
            told.append(message)
            holder.rollback()

        assert upgrade(empty_dsn, patience=NEVER, on_wait=let_go).changed
    [message] = told
    with psycopg.connect(empty_dsn) as connection:
        row = connection.execute("select session_user::text").fetchone()
    assert row is not None
    user = str(row[0])
    assert message == (
        f"waiting for the lock of upgrades: session {pid} of user {user!r}, application 'in the way' holds it"
    )
    assert check(empty_dsn).ok


@pytest.mark.parametrize(("soon", "told"), [(-1.0, 1), (NEVER.total_seconds(), 0)])
def test_a_short_wait_is_nothing_to_warn_of(
    *,
    empty_dsn: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    soon: float,
    told: int,
) -> None:
    """As of programs that start together."""
    monkeypatch.setattr(session, "_SOON_SECONDS", soon)
    with psycopg.connect(empty_dsn) as holder:
        holder.execute(LOCK)
        monkeypatch.setattr(time, "sleep", lambda _: holder.rollback())
        assert upgrade(empty_dsn, patience=NEVER).changed
    assert sum("waiting for the lock" in message for message in caplog.messages) == told


def test_patience_ends(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as holder:
        holder.execute(LOCK)
        with pytest.raises(SchemaLocked, match=f"session {holder.info.backend_pid} of") as caught:
            upgrade(empty_dsn, patience=timedelta(0))
    assert caught.value.retryable
    assert "pg_terminate_backend" in (caught.value.hint or "")
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("select to_regnamespace('hwqueue')").fetchone() == (None,)


def test_the_script_does_not_wait(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as holder:
        holder.execute(LOCK)
        run = run_psql(empty_dsn, install_script(), "-1", "-v", "ON_ERROR_STOP=1")
    assert "another session holds the lock of upgrades" in run.stderr


def test_another_database_is_not_in_the_way(empty_dsn: str, another_dsn: str) -> None:
    with psycopg.connect(another_dsn) as holder:
        holder.execute(LOCK)
        assert upgrade(empty_dsn, patience=timedelta(0)).changed
