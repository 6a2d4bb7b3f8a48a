"""Spawning inside the caller's own transaction, on every kind of connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import django.conf
import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.db import transaction
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy
from psycopg.conninfo import conninfo_to_dict

from hwqueue import errors
from hwqueue.client import AsyncClient, Client
from hwqueue.types import SpawnResult
from tests.client.conftest import Awaitable
from tests.client.connections import KINDS, OF_ASYNCPG, OF_PSYCOPG2, async_connection, sync_connection

CALLERS = [
    *(pytest.param("sync", kind) for kind in KINDS),
    *(pytest.param("sync", kind, marks=pytest.mark.thorough) for kind in OF_PSYCOPG2),
    *(pytest.param("async", kind, marks=pytest.mark.thorough) for kind in [*KINDS, *OF_ASYNCPG[1:]]),
]


@pytest.fixture(autouse=True)
def queue(dsn: str) -> str:
    with Client(dsn) as client:
        client.create_queue("work")
    return "work"


@asynccontextmanager
async def calling(api: str, kind: str, dsn: str) -> AsyncIterator[tuple[Any, Any]]:
    """A client on a caller's connection, and the connection; both are awaited, whichever it is."""
    if api == "async":
        async with async_connection(kind, dsn) as connection:
            yield AsyncClient.on(connection), connection
    else:
        with sync_connection(kind, dsn) as connection:
            client = Client.on(connection)
            yield Awaitable(client, inline=True), Awaitable(connection, inline=True)


def spawned(dsn: str) -> list[Any]:
    """What is there for others to see."""
    with Client(dsn) as client:
        return [lease.task_name for lease in client.list_leases()]


@pytest.mark.every_variant
@pytest.mark.parametrize(("api", "kind"), CALLERS)
async def test_spawns_commit_and_roll_back_with_the_caller(api: str, kind: str, dsn: str) -> None:
    async with calling(api, kind, dsn) as (client, connection):
        result = await client.spawn_lease("work", "rolled-back", {"a": 1})
        assert isinstance(result, SpawnResult)
        assert (await client.get_lease(result.lease_id)).params == {"a": 1}
        assert spawned(dsn) == []
        await connection.rollback()
        assert spawned(dsn) == []
        await client.spawn_lease("work", "committed")
        assert spawned(dsn) == []
        await connection.commit()
    assert spawned(dsn) == ["committed"]


REFUSED: Any = {"a": 1}


@pytest.mark.parametrize("kind", [*KINDS, *OF_PSYCOPG2[1:]])
@pytest.mark.thorough
def test_a_savepoint_survives_an_error(kind: str, dsn: str) -> None:
    """Errors are the same on every driver."""
    with Client(dsn) as own, pytest.raises(errors.BadArgument) as expected:
        own.spawn_lease("work", "refused", labels=REFUSED)
    with sync_connection(kind, dsn) as connection:
        client = Client.on(connection)
        client.spawn_lease("work", "kept")
        savepoint = "transaction" if kind.startswith("psycopg") else "begin_nested"
        with pytest.raises(errors.BadArgument) as caught, getattr(connection, savepoint)():
            client.spawn_lease("work", "refused", labels=REFUSED)
        assert isinstance(caught.value.__cause__, psycopg.DatabaseError | psycopg2.DatabaseError)
        for name in ("field", "sqlstate", "detail", "hint", "args"):
            assert getattr(caught.value, name) == getattr(expected.value, name)
        connection.commit()
    assert spawned(dsn) == ["kept"]


def test_a_client_on_a_connection_neither_opens_nor_closes_it(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        with Client.on(connection) as client:
            client.spawn_lease("work", "t")
        assert not connection.closed
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def django_connections(dsn: str, **settings: Any) -> ConnectionHandler:
    """Django's connections to the database, of which "default" is the only one."""
    if not django.conf.settings.configured:
        django.conf.settings.configure()
    given = conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host"}
    place = {name: given.get(key, "") for name, key in (names | {"PORT": "port"}).items()}
    engine = {"ENGINE": "django.db.backends.postgresql"}
    return ConnectionHandler({"default": engine | place | settings})


def test_djangos_connection_and_its_proxy(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = django_connections(dsn)
    monkeypatch.setattr(transaction, "get_connection", lambda using=None: connections["default"])
    for task, connection in (
        ("wrapper", connections["default"]),
        ("proxy", ConnectionProxy(connections, "default")),
    ):
        client = Client.on(connection)
        with transaction.atomic():
            client.spawn_lease("work", f"{task}-rolled-back")
            transaction.set_rollback(True)
        with transaction.atomic():
            client.spawn_lease("work", task)
            assert task not in spawned(dsn)
    connections["default"].close()
    assert spawned(dsn) == ["proxy", "wrapper"]


def test_djangos_other_databases_are_refused(dsn: str) -> None:
    engine = "django.db.backends.sqlite3"
    connection = django_connections(dsn, ENGINE=engine, NAME=":memory:")["default"]
    with pytest.raises(errors.BadArgument, match=r"Django's sqlite .* needs psycopg") as caught:
        Client.on(connection)
    connection.close()
    assert "django.db.backends.postgresql" in (caught.value.hint or "")


@pytest.mark.parametrize("kind", [*KINDS, "psycopg2", "asyncpg"])
@pytest.mark.thorough
async def test_a_connection_of_the_other_kind_is_refused(kind: str, dsn: str) -> None:
    if kind != "asyncpg":
        with (
            sync_connection(kind, dsn) as connection,
            pytest.raises(errors.BadArgument, match=r"AsyncClient .* not one for asyncio") as caught,
        ):
            AsyncClient.on(connection)
        assert "Client.on(...) works on it" in (caught.value.hint or "")
    if kind in ("scoped session", "psycopg2"):
        return
    async with async_connection(kind, dsn) as other:
        with pytest.raises(errors.BadArgument, match=r"Client .* which is one for asyncio") as at:
            Client.on(other)
    assert "AsyncClient.on(...) works on it" in (at.value.hint or "")


def test_other_objects_and_drivers_are_refused(dsn: str) -> None:
    with psycopg.connect(dsn) as connection, pytest.raises(errors.BadArgument) as caught:
        AsyncClient.on(connection)
    assert caught.value.field == "connection"
    with pytest.raises(errors.BadArgument, match=r"builtins\.str") as caught:
        Client.on(dsn)
    assert "select hwqueue.spawn_lease" in (caught.value.hint or "")
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as other, pytest.raises(errors.BadArgument, match="sqlite"):
        Client.on(other).list_queues()
    engine.dispose()


@pytest.mark.parametrize("driver", [psycopg, pytest.param(psycopg2, marks=pytest.mark.thorough)])
def test_errors_of_the_transaction_stay_the_drivers(dsn: str, driver: Any) -> None:
    with sync_connection(driver.__name__, dsn) as connection:
        client = Client.on(connection)
        with pytest.raises(errors.QueueUnknown):
            client.spawn_lease("nope", "t")
        with pytest.raises(driver.errors.InFailedSqlTransaction):
            client.spawn_lease("work", "t")
        connection.rollback()
        client.spawn_lease("work", "t")


@pytest.mark.parametrize("driver", [psycopg, pytest.param(psycopg2, marks=pytest.mark.thorough)])
def test_a_refused_call_says_which_role_is_needed(dsn: str, driver: Any) -> None:
    with sync_connection(driver.__name__, dsn) as connection:
        connection.cursor().execute("create role denied_here in role hwqueue_producer")
        connection.cursor().execute("set local role denied_here")
        with pytest.raises(driver.errors.InsufficientPrivilege, match="list_leases") as caught:
            Client.on(connection).list_leases()
        connection.rollback()
    [note] = caught.value.__notes__
    assert note.startswith("hint: log in as one who has the role")
    assert "hwqueue_operator looks at everything" in note
