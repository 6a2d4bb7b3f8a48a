"""Databases of a run's own, dropped at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hwqueue.errors import ConfigError
from hwqueue.schema import upgrade


@contextmanager
def scratch_database(
    dsn: str,
    name: str | None = None,
    *,
    keep: bool = False,
    upgraded_by: Callable[[str], object] = upgrade,
) -> Iterator[str]:
    """Create an upgraded database on the server of `dsn`; drop it at the end unless `keep`.

    `name` None picks one of its own. Raises: ConfigError when it exists, or may not be created.
    """
    name = name or f"hwqueue_replay_{uuid4().hex[:12]}"
    try:
        _execute(dsn, "create database {}", name)
    except psycopg.errors.DuplicateDatabase as error:
        raise ConfigError(
            f"database {name!r} exists, and a replay makes its own",
            hint="choose another --database, or add --in-place if it is empty",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            "a replay runs in a database of its own, and this role may not create one",
            hint="grant it CREATEDB, or name an empty database with --database and add --in-place",
        ) from error
    scratch = make_conninfo(dsn, dbname=name)
    try:
        upgraded_by(scratch)
        yield scratch
    finally:
        if not keep:
            _execute(dsn, "drop database {} with (force)", name)


def _execute(dsn: str, command: LiteralString, database: str) -> None:
    # Neither command runs in a transaction, so neither can be a function of the SQL API.
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(command).format(sql.Identifier(database)))
