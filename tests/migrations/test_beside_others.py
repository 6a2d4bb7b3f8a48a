"""hwqueue lives in a user's database beside the user's own Alembic migrations."""

from pathlib import Path

import alembic.command
import psycopg
import pytest
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from hwqueue.schema import check, upgrade

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
