"""Where the SQL and the migrations are, in a checkout and in an installed wheel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from sqlalchemy import Connection


def _data_root() -> Path:
    """The folder that holds `sql/` and `migrations/`."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "_data"
    return packed if packed.is_dir() else package.parent


SQL_DIR = _data_root() / "sql"
MIGRATIONS_DIR = _data_root() / "migrations"


@dataclass(frozen=True)
class Sources:
    """The folders that a schema is installed from."""

    sql: Path = SQL_DIR
    migrations: Path = MIGRATIONS_DIR


SHIPPED = Sources()


@cache
def statement(name: str) -> str:
    """The text of one of this package's own statements, `hwqueue/schema/sql/<name>.sql`."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def driver_connection(connection: Connection) -> psycopg.Connection:
    """The psycopg connection below a SQLAlchemy one."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def run_revision_sql(op: ModuleType, revision_file: str) -> None:
    """Run the `.sql` file of the same name beside a revision; offline, print it.

    Call it as `run_revision_sql(op, __file__)`. The file may hold several statements; it runs in
    the upgrade's transaction.
    """
    script = Path(revision_file).with_suffix(".sql").read_text(encoding="utf-8")
    context = op.get_context()
    if context.as_sql:
        context.impl.static_output(script)
    else:
        run_script(driver_connection(op.get_bind()), script)


def run_script(connection: psycopg.Connection, script: str) -> None:
    """Run several statements exactly as written.

    Through the driver, because SQLAlchemy reads `:word` as a bind parameter, and its own call
    of the driver wants `%` doubled.
    """
    connection.execute(script.encode(), prepare=False)
