"""Events through the clients: looking, following, and saying who does something."""

from typing import Any

import psycopg
import pytest

from hwqueue import errors
from hwqueue.client import AsyncClient, Client
from tests.client.conftest import of_kind
from tests.client.connections import KINDS, async_connection, sync_connection

pytestmark = pytest.mark.thorough


async def actors(client: AsyncClient, queue: str) -> list[str]:
    """Who did what to the queue, oldest first."""
    return [event.actor for event in (await client.list_events(queue=queue))[::-1]]


async def test_the_actor_of_a_client(kind: str, dsn: str, conn: psycopg.Connection) -> None:
    async with of_kind(kind, dsn, pool_size=1, actor="ann") as client:
        await client.create_queue("q")
        await client.acting_as("bob").pause_queue("q")
        with pytest.raises(errors.QueueUnknown):
            await client.acting_as("eve").pause_queue("absent")
        await client.resume_queue("q")
    async with AsyncClient(dsn) as client:
        await client.drop_queue("q")
        assert await actors(client, "q") == ["ann", "bob", "ann", conn.info.user]


@pytest.mark.parametrize("bad", [5, b"ann", "a\x00"])
async def test_what_is_no_actor(bad: Any) -> None:
    for kind in (AsyncClient, Client):
        with pytest.raises(errors.BadArgument) as caught:
            kind(actor=bad)
        assert caught.value.field == "actor"


@pytest.mark.parametrize("kind_of_connection", KINDS)
async def test_the_actor_in_the_callers_transaction(
    dsn: str, kind_of_connection: str, conn: psycopg.Connection
) -> None:
    with sync_connection(kind_of_connection, dsn) as connection:
        Client.on(connection, actor="ann").create_queue("q")
        connection.commit()
        Client.on(connection).pause_queue("q")
        connection.commit()
    async with async_connection(kind_of_connection, dsn) as async_one:
        await AsyncClient.on(async_one).acting_as("bob").resume_queue("q")
        await async_one.commit()
    async with AsyncClient(dsn) as client:
        assert await actors(client, "q") == ["ann", conn.info.user, "bob"]


async def test_the_actor_on_a_connection_in_autocommit(dsn: str, conn: psycopg.Connection) -> None:
    """By itself, inside a transaction block, and in a pipeline."""
    client = Client.on(conn, actor="ann")
    client.create_queue("q")
    Client.on(conn).pause_queue("q")
    with conn.transaction():
        client.resume_queue("q")
    with conn.pipeline():
        client.pause_queue("q")
        Client.on(conn).resume_queue("q")
    async with AsyncClient(dsn) as reader:
        login = conn.info.user
        assert await actors(reader, "q") == ["ann", login, "ann", "ann", login]
