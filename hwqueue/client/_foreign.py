"""Recognise the objects of SQLAlchemy without importing it for those who do not use it."""

from __future__ import annotations

import sys
from typing import Any

from hwqueue.errors import BadArgument


def async_sqlalchemy() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """SQLAlchemy's asyncio connection and session types; empty while nobody has imported them."""
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return ((module.AsyncConnection,), (module.AsyncSession,)) if module else ((), ())


def sync_sqlalchemy() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """SQLAlchemy's connection and session types; empty while nobody has imported them."""
    engine, orm = sys.modules.get("sqlalchemy.engine"), sys.modules.get("sqlalchemy.orm")
    connections = (engine.Connection,) if engine else ()
    return connections, (orm.Session,) if orm else ()


def check_dialect(dialect: Any) -> None:
    """Refuse engines whose driver is not psycopg 3: parameters and errors would be others."""
    if dialect.name != "postgresql" or not dialect.driver.startswith("psycopg"):
        found = f"{dialect.name}+{dialect.driver}"
    elif dialect.driver == "psycopg2":
        found = "postgresql+psycopg2"
    else:
        return
    raise BadArgument(
        f"the connection uses {found}, hwqueue needs postgresql+psycopg",
        detail={"field": "connection", "driver": found},
        hint="make the engine with a URL that starts with postgresql+psycopg://",
    )
