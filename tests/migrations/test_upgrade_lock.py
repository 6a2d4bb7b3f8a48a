"""Upgrades beside other upgrades, and beside other schemas."""

import time
from datetime import timedelta
from pathlib import Path

import alembic.command
import psycopg
import pytest
from alembic.config import Config
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

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


ENV = """
from alembic import context

with context.config.attributes["engine"].begin() as connection:
    context.configure(connection=connection)
    context.run_migrations()
"""
REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "theirs"
down_revision = None


def upgrade():
    op.create_table("invoice", sa.Column("invoice_id", sa.Integer, primary_key=True))


def downgrade():
    op.drop_table("invoice")
"""


@pytest.fixture
def their_config(empty_dsn: str, tmp_path: Path) -> Config:
    """A user's own migrations, as plain as Alembic makes them."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "versions" / "theirs.py").write_text(REVISION)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    config.attributes["engine"] = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(empty_dsn), poolclass=NullPool
    )
    return config


@pytest.mark.parametrize("ours_first", [True, False])
def test_both_upgrade_and_go_back_alone(empty_dsn: str, their_config: Config, ours_first: bool) -> None:
    if ours_first:
        upgrade(empty_dsn)
        alembic.command.upgrade(their_config, "head")
    else:
        alembic.command.upgrade(their_config, "head")
        upgrade(empty_dsn)
    assert check(empty_dsn).ok
    with psycopg.connect(empty_dsn) as connection:
        theirs = connection.execute("select version_num from public.alembic_version").fetchall()
        ours = connection.execute("select version_num from hwqueue.alembic_version").fetchall()
    assert theirs == [("theirs",)]
    assert len(ours) == 1
    assert ours != theirs

    alembic.command.downgrade(their_config, "base")
    assert check(empty_dsn).ok
    assert not upgrade(empty_dsn).changed
