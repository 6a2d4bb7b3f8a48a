"""Spawning inside the caller's own transaction, on every kind of connection."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from hwqueue import errors
from hwqueue.client import AsyncClient, Client
from hwqueue.types import SpawnResult

KINDS = ["psycopg", "psycopg dict rows", "connection", "session"]


@pytest.fixture(autouse=True)
def queue(dsn: str) -> str:
    """A queue to spawn into."""
    with Client(dsn) as client:
        client.create_queue("work")
    return "work"


@contextmanager
def sync_connection(kind: str, dsn: str) -> Iterator[Any]:
    """A connection outside autocommit."""
    if kind.startswith("psycopg"):
        factory: Any = {"row_factory": dict_row} if "dict" in kind else {}
        with psycopg.connect(dsn, **factory) as connection:
            yield connection
        return
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=NullPool
    )
    with engine.connect() if kind == "connection" else Session(engine) as made:
        yield made
    engine.dispose()


@asynccontextmanager
async def async_connection(kind: str, dsn: str) -> AsyncIterator[Any]:
    """The same for asyncio."""
    if kind.startswith("psycopg"):
        factory: Any = {"row_factory": dict_row} if "dict" in kind else {}
        async with await psycopg.AsyncConnection.connect(dsn, **factory) as connection:
            yield connection
        return
    engine = create_async_engine(
        "postgresql+psycopg://",
        async_creator=lambda: psycopg.AsyncConnection.connect(dsn),
        poolclass=NullPool,
    )
    async with engine.connect() if kind == "connection" else AsyncSession(engine) as made:
        yield made
    await engine.dispose()


def spawned(dsn: str) -> list[Any]:
    """What is there for others to see."""
    with Client(dsn) as client:
        return [lease.task_name for lease in client.list_leases()]


@pytest.mark.parametrize("kind", KINDS)
def test_sync_spawns_commit_and_roll_back_with_the_caller(kind: str, dsn: str) -> None:
    with sync_connection(kind, dsn) as connection:
        client = Client.on(connection)
        result = client.spawn_lease("work", "rolled-back", {"a": 1})
        assert type(result) is SpawnResult
        assert client.get_lease(result.lease_id).params == {"a": 1}
        assert spawned(dsn) == []
        connection.rollback()
        assert spawned(dsn) == []
        client.spawn_lease("work", "committed")
        assert spawned(dsn) == []
        connection.commit()
    assert spawned(dsn) == ["committed"]


@pytest.mark.parametrize("kind", KINDS)
async def test_async_spawns_commit_and_roll_back_with_the_caller(kind: str, dsn: str) -> None:
    async with async_connection(kind, dsn) as connection:
        client = AsyncClient.on(connection)
        result = await client.spawn_lease("work", "rolled-back", {"a": 1})
        assert type(result) is SpawnResult
        assert (await client.get_lease(result.lease_id)).params == {"a": 1}
        assert spawned(dsn) == []
        await connection.rollback()
        assert spawned(dsn) == []
        await client.spawn_lease("work", "committed")
        assert spawned(dsn) == []
        await connection.commit()
    assert spawned(dsn) == ["committed"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_savepoint_survives_an_error(kind: str, dsn: str) -> None:
    with sync_connection(kind, dsn) as connection:
        client = Client.on(connection)
        client.spawn_lease("work", "kept")
        savepoint = "transaction" if kind.startswith("psycopg") else "begin_nested"
        with pytest.raises(errors.BadArgument) as caught, getattr(connection, savepoint)():
            client.spawn_lease("work", "refused", labels={"a": 1})  # type: ignore[dict-item]
        assert caught.value.field == "options.labels.a"
        assert isinstance(caught.value.__cause__, psycopg.DatabaseError)
        connection.commit()
    assert spawned(dsn) == ["kept"]


def test_a_client_on_a_connection_neither_opens_nor_closes_it(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        with Client.on(connection) as client:
            client.spawn_lease("work", "t")
        assert not connection.closed
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_functions_that_lock_refuse_other_isolation_levels(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(errors.IsolationLevel) as caught:
            Client.on(connection).reap()
    assert caught.value.detail["isolation"] == "repeatable read"


def test_other_objects_are_refused(dsn: str) -> None:
    with psycopg.connect(dsn) as connection, pytest.raises(errors.BadArgument) as caught:
        AsyncClient.on(connection)
    assert caught.value.field == "connection"
    with pytest.raises(errors.BadArgument, match=r"builtins\.str"):
        Client.on(dsn)


def test_other_drivers_are_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(errors.BadArgument, match="sqlite"):
        Client.on(connection).list_queues()
    engine.dispose()


def test_errors_of_the_transaction_stay_the_drivers(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        client = Client.on(connection)
        with pytest.raises(errors.QueueUnknown):
            client.spawn_lease("nope", "t")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.spawn_lease("work", "t")
        cast(Any, connection).rollback()
        client.spawn_lease("work", "t")
