"""Calls through asyncpg and psycopg2: what they answer, and that text stays text."""

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import psycopg2.extras
import pytest

from hwqueue import App, errors
from hwqueue.client import AsyncClient, Client
from hwqueue.client._drivers import texts
from hwqueue.types import Gpu, NodeSpec, Taint
from tests.client.conftest import Awaitable
from tests.client.connections import OF_ASYNCPG, async_connection, sync_connection

pytestmark = pytest.mark.thorough

SETTINGS = [
    "set datestyle = 'German, DMY'",
    "set intervalstyle = 'sql_standard'",
    "set timezone = 'America/New_York'",
]

app = App()


@app.task("draw", queue="work")
def draw(frame: int) -> None: ...


@pytest.fixture(autouse=True)
def queue(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("work")


@asynccontextmanager
async def async_transaction(kind: str, dsn: str) -> AsyncIterator[Any]:
    """What `AsyncClient.on` is given, in a transaction that an exception rolls back."""
    async with async_connection("session of asyncpg" if kind == "run_sync" else kind, dsn) as connection:
        begin = getattr(connection, "transaction", None) or connection.begin
        async with begin():
            yield connection


async def spawn(kind: str, connection: Any, frame: int) -> UUID:
    """Spawn through whatever it is."""
    if kind == "run_sync":  # what an AsyncSession lets sync code have
        spawned = await connection.run_sync(lambda session: draw.spawn(Client.on(session), frame=frame))
    else:
        spawned = await draw.spawn(AsyncClient.on(connection), frame=frame)
    lease_id: UUID = spawned.lease_id
    return lease_id


def frames(dsn: str) -> list[Any]:
    """What is there for others to see."""
    with Client(dsn) as client:
        leases = client.list_leases()
        return sorted(client.get_lease(lease.lease_id).params["frame"] for lease in leases)


@pytest.mark.parametrize("kind", ["asyncpg", "pool of asyncpg", "run_sync"])
async def test_async_spawns_commit_and_roll_back_with_the_caller(kind: str, dsn: str) -> None:
    with suppress(KeyError):
        async with async_transaction(kind, dsn) as connection:
            await spawn(kind, connection, 1)
            raise KeyError
    assert frames(dsn) == []
    async with async_transaction(kind, dsn) as connection:
        lease_id = await spawn(kind, connection, 2)
        assert type(lease_id) is UUID
        assert frames(dsn) == []
    assert frames(dsn) == [2]


@pytest.mark.parametrize("kind", OF_ASYNCPG)
async def test_async_errors_are_those_of_psycopg(kind: str, dsn: str) -> None:
    async with AsyncClient(dsn) as own:
        with pytest.raises(errors.BadArgument) as expected:
            await refused(own)
    async with async_transaction(kind, dsn) as connection:
        await spawn(kind, connection, 1)
        savepoint = getattr(connection, "transaction", None) or connection.begin_nested
        with pytest.raises(errors.BadArgument) as found:
            async with savepoint():
                await refused(AsyncClient.on(connection))
    assert isinstance(found.value.__cause__, asyncpg.PostgresError)
    for name in ("sqlstate", "detail", "hint", "args"):
        assert getattr(found.value, name) == getattr(expected.value, name)
    assert frames(dsn) == [1]


async def refused(client: AsyncClient) -> None:
    """A call that the database refuses."""
    await client.spawn_lease("work", "t", labels={"a": 1})  # type: ignore[dict-item]


ODD = """'; drop schema hwqueue cascade; -- \\' \\\\ %(p_queue)s %s %% $1 $$ :x "q" {} E'\\x27'"""


async def test_text_is_text(dsn: str) -> None:
    """Whatever it has of quotes, placeholders and backslashes; a NUL is refused."""
    async with async_connection("asyncpg", dsn) as connection:
        await connection.execute("set standard_conforming_strings = off")
        client = AsyncClient.on(connection)
        spawned = await client.spawn_lease("work", "t", {"a": ODD}, labels={"odd": ODD}, tenant=ODD)
        with pytest.raises(Exception, match=r"(?i)nul|\\x00"):
            await client.spawn_lease("work", "a\0b")
    for scs, encoding in (("off", "UTF8"), ("on", "LATIN1")):
        with sync_connection("psycopg2", dsn) as connection:
            connection.cursor().execute(f"set standard_conforming_strings = {scs}")
            connection.set_client_encoding(encoding)
            blocking = Client.on(connection)
            own = blocking.spawn_lease("work", "t", {"a": ODD}, labels={"odd": ODD})
            for lease in (spawned.lease_id, own.lease_id):
                found = blocking.get_lease(lease)
                assert (found.params, found.labels) == ({"a": ODD}, {"odd": ODD})
            with pytest.raises(Exception, match=r"(?i)nul"):
                blocking.spawn_lease("work", "a\0b")


async def test_types_are_those_of_postgres(dsn: str, conn: psycopg.Connection) -> None:
    """A search path may have others before them, of somebody who may create some there."""
    planted = ("text", "uuid", "jsonb", "bytea", "interval", "int4", "int8", "timestamptz")
    conn.execute(
        "create function public.planted() returns boolean language plpgsql"
        " as $$begin raise 'a planted type was taken'; end$$"
    )
    for name in planted:
        conn.execute(f"create domain public.{name} as pg_catalog.{name} check (public.planted())")
    try:
        with sync_connection("psycopg2", dsn) as connection:
            connection.cursor().execute("set search_path = public, pg_catalog")
            blocking = Client.on(connection)  # with arguments and columns of each type
            lease_id = blocking.spawn_lease("work", "t", {"a": 1}).lease_id
            assert blocking.get_lease(lease_id).params == {"a": 1}
            assert blocking.list_leases(queue="work")
            blocking.create_token("ci", bytes(32), "viewer")
            blocking.set_webhook("hook", "https://hooks.example/")
            blocking.rotate_webhook("hook")
            blocking.cancel_leases("work")
        async with async_connection("asyncpg", dsn) as connection:
            await connection.execute("set search_path = public, pg_catalog")
            client = AsyncClient.on(connection)
            spawned = await client.spawn_lease("work", "t", {"a": 1})
            assert (await client.get_lease(spawned.lease_id)).params == {"a": 1}
    finally:
        conn.execute("drop function public.planted() cascade")
        for name in planted:
            conn.execute(f"drop domain public.{name}")


async def test_errors_of_the_transaction_stay_the_drivers(dsn: str) -> None:
    async with async_connection("asyncpg", dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        client = AsyncClient.on(connection)
        with pytest.raises(errors.QueueUnknown):
            await client.spawn_lease("unknown", "t")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await client.spawn_lease("work", "t")
        await transaction.rollback()
        await client.spawn_lease("work", "t")


async def test_a_refused_call_says_which_role_is_needed(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("create role denied_by_drivers in role hwqueue_producer")
    try:
        async with async_transaction("asyncpg", dsn) as connection:
            await connection.execute("set local role denied_by_drivers")
            with pytest.raises(asyncpg.InsufficientPrivilegeError) as caught:
                async with connection.transaction():
                    await AsyncClient.on(connection).list_leases()
    finally:
        conn.execute("drop role denied_by_drivers")
    [note] = caught.value.__notes__
    assert note.startswith("hint: log in as one who has the role")


async def fill(dsn: str) -> UUID:
    """Leases that run, wait, failed, and nodes that run them; the id of a node."""
    node_id = uuid4()
    spec = NodeSpec(
        name="n",
        instance_id="i",
        labels={"zone": "a", "é": 1.5},
        cpu_milli=4000,
        gpus=[Gpu(resource_id=uuid4(), model="A100")],
        taints=[Taint(key="old", effect="prefer_no_schedule")],
    )
    async with AsyncClient(dsn) as client:
        await client.set_task("draw", {"priority": 3})
        epoch = await client.register_node(node_id, spec)
        resources = {"resources": {"gpu": 1}}
        later = timedelta(days=400, microseconds=1)
        await client.spawn_lease("work", "draw", {"a": [1, "ü"]}, placement=resources)
        await client.spawn_lease("work", "draw")
        claims = await client.claim_task(["work"], node_id, epoch, qty=2)
        assert len(claims) == 2
        await client.fail_lease(claims[1].lease_id, claims[1].claim_token, error={"type": "Odd"})
        await client.spawn_lease("work", "draw", delay=later, service_id=uuid4())
        await client.spawn_lease("work", "large", placement={"resources": {"gpu": 7}})
    return node_id


async def everything(client: Any, node_id: UUID) -> list[Any]:
    """What the calls that change nothing answer; moments of now left out."""
    leases = await client.list_leases()
    found = [leases, await client.list_queues(), await client.list_tasks()]
    for lease in leases:
        found.append(await client.get_lease(lease.lease_id))
        # types only: what lasts still does so longer at each look
        found.append(typed(await client.lease_history(lease.lease_id)))
    found += [
        await client.await_leases([lease.lease_id for lease in leases]),
        await client.list_nodes(),
        await client.list_nodes(node_id=str(node_id), limit=1),
        await client.node_claims(node_id),
        await client.match_nodes({"resources": {"gpu": 1}}),
        await client.match_page({"resources": {"gpu": 9}}),
        await client.list_events(),
        await client.node_usage(),
        await client.tag_distribution(label="zone"),
        await client.placement_class_stats(queue="work"),
        await client.pending_reasons(queue="work"),
        await client.queue_depth(),
        await client.schema_version(),
    ]
    return found


async def test_what_calls_return_is_the_same_on_every_driver(dsn: str) -> None:
    """Whatever the settings of the session and the caller's own converters."""
    node_id = await fill(dsn)
    async with AsyncClient(dsn) as own:
        expected = await everything(own, node_id)
    async with async_connection("asyncpg", dsn) as connection:
        for statement in SETTINGS:
            await connection.execute(statement)
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)
        found = [await everything(AsyncClient.on(connection), node_id)]
    async with async_connection("session of asyncpg", dsn) as session:
        found.append(await everything(AsyncClient.on(session), node_id))
    with sync_connection("psycopg2", dsn) as connection:
        connection.cursor().execute("set timezone = 'America/New_York'")
        connection.cursor_factory = psycopg2.extras.RealDictCursor
        psycopg2.extras.register_default_jsonb(connection, loads=lambda text: {"read": text})
        psycopg2.extras.register_uuid(conn_or_curs=connection)
        found.append(await everything(Awaitable(Client.on(connection)), node_id))
    with sync_connection("session of psycopg2", dsn) as session:
        found.append(await everything(Awaitable(Client.on(session)), node_id))
    for answers in found:
        for answer, wanted in zip(answers, expected, strict=True):
            assert (answer, typed(answer)) == (wanted, typed(wanted))


def typed(value: Any) -> Any:
    """The types of a value and of all that is in it."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value), [typed(getattr(value, name)) for name in names]
    if isinstance(value, list | tuple):
        return type(value), [typed(each) for each in value]
    if isinstance(value, dict):
        return type(value), {key: typed(each) for key, each in value.items()}
    return type(value)


@pytest.mark.parametrize("style", ["postgres", "sql_standard", "iso_8601"])
@pytest.mark.parametrize(
    "span", [timedelta(seconds=-1), timedelta(days=3, microseconds=999_999), timedelta(hours=-30)]
)
def test_spans_mean_the_same_in_every_session(conn: psycopg.Connection, style: str, span: timedelta) -> None:
    conn.execute("select set_config('intervalstyle', %s, false)", [style])
    sent = texts({"span": span})["span"]
    [[seconds]] = conn.execute("select extract(epoch from %s::text::interval)", [sent]).fetchall()
    assert float(seconds) == span.total_seconds()


async def test_spans_come_back_as_they_were_given(dsn: str) -> None:
    span = timedelta(days=40, seconds=5, microseconds=1)
    async with async_connection("asyncpg", dsn) as connection:
        await AsyncClient.on(connection).set_node_expiry(span)
        assert await AsyncClient.on(connection).set_node_expiry(2 * span) == span
    with sync_connection("psycopg2", dsn) as other:
        assert Client.on(other).set_node_expiry(span) == 2 * span


@pytest.mark.parametrize("in_transaction", [True, False])
async def test_events_name_the_actor(dsn: str, in_transaction: bool) -> None:
    async with async_connection("asyncpg", dsn) as connection:
        client = AsyncClient.on(connection, actor="ann")
        if in_transaction:
            async with connection.transaction():
                await client.pause_queue("work")
        else:
            await client.pause_queue("work")
    with sync_connection("psycopg2", dsn) as other:
        other.autocommit = not in_transaction
        Client.on(other, actor="bob").resume_queue("work")
        other.commit()
    with Client(dsn) as own:
        events = own.list_events(code=["queue_paused", "queue_resumed"])
        assert [event.actor for event in events] == ["bob", "ann"]


@pytest.mark.parametrize(("cache", "left"), [(0, 0), (100, 1)])
async def test_prepared_statements_are_those_of_the_callers_cache(dsn: str, cache: int, left: int) -> None:
    async with async_connection("asyncpg", dsn, statement_cache_size=cache) as connection:
        for frame in range(5):
            await draw.spawn(AsyncClient.on(connection), frame=frame)
        prepared = await connection.fetchval(
            "select count(*) from pg_prepared_statements where statement ~ 'hwqueue[.]'"
        )
    assert prepared == left
