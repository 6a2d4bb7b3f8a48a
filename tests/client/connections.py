"""Connections of a caller, by kind: of each driver, plain and under SQLAlchemy."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

KINDS = ["psycopg", "psycopg dict rows", "connection", "session", "scoped session"]
OF_PSYCOPG2 = ["psycopg2", "connection of psycopg2", "session of psycopg2"]
OF_ASYNCPG = ["asyncpg", "connection of asyncpg", "session of asyncpg"]


def place(dsn: str) -> dict[str, Any]:
    """A connection string as asyncpg takes it."""
    given = conninfo_to_dict(dsn)
    names = {"host": "host", "port": "port", "user": "user", "password": "password"}
    found = {name: given[key] for name, key in names.items() if given.get(key)}
    return {**found, "database": given["dbname"]}


@contextmanager
def sync_connection(kind: str, dsn: str) -> Iterator[Any]:
    """A connection outside autocommit."""
    driver: Any = psycopg2 if kind.endswith("psycopg2") else psycopg
    if kind.startswith("psycopg"):
        factory: Any = {"row_factory": dict_row} if "dict" in kind else {}
        with closing(driver.connect(dsn, **factory)) as connection:
            yield connection
        return
    engine = sqlalchemy.create_engine(
        f"postgresql+{driver.__name__}://", creator=lambda: driver.connect(dsn), poolclass=NullPool
    )
    if kind == "scoped session":
        scoped = scoped_session(sessionmaker(engine))
        yield scoped
        scoped.remove()
    else:
        with engine.connect() if kind.startswith("connection") else Session(engine) as made:
            yield made
    engine.dispose()


@asynccontextmanager
async def async_connection(kind: str, dsn: str, **options: Any) -> AsyncIterator[Any]:
    """The same for asyncio; one of asyncpg itself has a transaction when it is told to."""
    if kind == "asyncpg":
        of_asyncpg = await asyncpg.connect(**place(dsn), **options)
        try:
            yield of_asyncpg
        finally:
            await of_asyncpg.close()
    elif kind == "pool of asyncpg":
        async with asyncpg.create_pool(**place(dsn), min_size=1, max_size=1) as pool, pool.acquire() as lent:
            yield lent
    elif kind.startswith("psycopg"):
        factory: Any = {"row_factory": dict_row} if "dict" in kind else {}
        async with await psycopg.AsyncConnection.connect(dsn, **factory) as connection:
            yield connection
    else:
        async with _on_sqlalchemy(kind, dsn) as made:
            yield made


@asynccontextmanager
async def _on_sqlalchemy(kind: str, dsn: str) -> AsyncIterator[Any]:
    driver = "asyncpg" if kind.endswith("asyncpg") else "psycopg"

    async def connect(**_: Any) -> Any:
        if driver == "asyncpg":
            return await asyncpg.connect(**place(dsn))
        return await psycopg.AsyncConnection.connect(dsn)

    engine = create_async_engine(f"postgresql+{driver}://", async_creator=connect, poolclass=NullPool)
    if kind == "scoped session":
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        yield scoped
        await scoped.remove()
    else:
        async with engine.connect() if kind.startswith("connection") else AsyncSession(engine) as made:
            yield made
    await engine.dispose()
