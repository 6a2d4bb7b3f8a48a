"""Settings of a database that change how values are written, or how transactions begin.

None of them changes an answer, whoever asks; what cannot work is refused by name.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from hwqueue import errors
from hwqueue.cli.main import app
from hwqueue.client import AsyncClient, Client
from hwqueue.doctor import Level, examine
from hwqueue.schema import check, upgrade
from hwqueue.testing import Clock
from hwqueue.testing.databases import administer
from hwqueue.types import NodeSpec
from tests.client.conftest import Awaitable
from tests.client.connections import place
from tests.e2e.worker_support import ended, worker

pytestmark = pytest.mark.thorough

FORMS = {
    "DateStyle": ("German, DMY", "SQL, DMY", "Postgres, MDY"),
    "IntervalStyle": ("sql_standard", "postgres_verbose", "iso_8601"),
    "TimeZone": ("Europe/Berlin", "Asia/Kathmandu"),
    "bytea_output": ("escape",),
    "extra_float_digits": ("-15", "0"),
    "client_encoding": ("LATIN1",),
    "default_transaction_isolation": ("serializable", "repeatable read"),
    "default_transaction_deferrable": ("on",),
    "quote_all_identifiers": ("on",),
    "standard_conforming_strings": ("off",),
    "array_nulls": ("off",),
}
EACH = [(name, value) for name, values in FORMS.items() for value in values]
WORST = [(name, values[0]) for name, values in FORMS.items()]
SECRET = bytes([0, 39, 92, *range(227, 256)])  # with a quote, a backslash, no text


class Seen:
    """Some of all kinds of values: times, spans, floats, bytes, ids, JSON with other letters."""

    def __init__(self, dsn: str) -> None:
        self.node = uuid4()
        with Client(dsn) as client:
            policy = {"claim_timeout": "1 day 2:03:04.5", "tuning": {"weight_fit": 1 / 3}}
            client.create_queue("work", policy=policy)
            self.epoch = client.register_node(self.node, NodeSpec(name="n", instance_id="n"))
            client.create_token("ci", SECRET, "viewer", tenant="caf\u00e9")
            self.lease = client.spawn_lease("work", "t", {"\u00e9": [1 / 3]}, labels={"a": "\u00fc"}).lease_id
            [claim] = client.claim_task(["work"], self.node, self.epoch)
            self.claim = (claim.lease_id, claim.claim_token)
            client.extend_claim(*self.claim, extend=timedelta(minutes=5))
            client.report_progress(
                [{"lease_id": self.lease, "claim_token": claim.claim_token, "fraction": 1 / 3}]
            )

    async def by(self, client: Any) -> list[Any]:
        """All of it, as a client reads it; and what it writes."""
        week = timedelta(days=8, microseconds=7)
        assert await client.set_node_expiry(week) is not None
        secret = await client.check_token(SECRET)
        return [
            await client.get_lease(self.lease),
            await client.list_tokens(),
            secret.tenant,
            await client.list_leases(),
            await client.list_queues(),
            [(node.node_id, node.seen_at) for node in await client.list_nodes()],
            await client.lease_history(self.lease),
            await client.set_node_expiry(week),
            await client.extend_claim(*self.claim, extend=timedelta(days=2, microseconds=5)),
            await client.heartbeat_node(self.node, self.epoch, claims=[self.claim]),
        ]


@pytest.fixture
def seen(dsn: str, clock: Clock) -> Seen:
    clock.freeze(datetime(2030, 3, 4, 5, 6, 7, 89, UTC))
    return Seen(dsn)


@contextmanager
def set_to(conn: psycopg.Connection, *settings: tuple[str, str]) -> Iterator[None]:
    """What new sessions of the database begin with."""
    database = sql.Identifier(conn.info.dbname)
    for name, value in settings:
        conn.execute(
            sql.SQL("alter database {} set {} = {}").format(database, sql.Identifier(name), value)
            if name != "DateStyle"
            else sql.SQL("alter database {} set DateStyle = {}").format(
                database, sql.SQL(",").join(map(sql.Literal, value.split(", ")))
            )
        )
    try:
        yield
    finally:
        conn.execute(sql.SQL("alter database {} reset all").format(database))


@asynccontextmanager
async def ours(dsn: str) -> AsyncIterator[dict[str, Any]]:
    async with AsyncClient(dsn, pool_size=1) as client:
        with Client(dsn, pool_size=1) as blocking:
            yield {"AsyncClient": client, "Client": Awaitable(blocking)}


@asynccontextmanager
async def callers(dsn: str) -> AsyncIterator[dict[str, Any]]:
    """Clients on connections of a caller, whatever these make of values."""
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
    )
    of_asyncpg = await asyncpg.connect(**place(dsn))
    try:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as plain:
            with (
                psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.RawCursor) as raw,
                psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as odd,
                closing(psycopg2.connect(dsn)) as older,
                engine.connect() as wrapped,
            ):
                older.autocommit = True
                for name in ("uuid", "timestamptz", "interval", "float8", "bytea", "numeric"):
                    odd.adapters.register_loader(name, Odd)
                set_json_loads(lambda _: "odd", odd)
                blocking = {"RawCursor": raw, "loaders": odd, "psycopg2": older, "SQLAlchemy": wrapped}
                yield {
                    "AsyncConnection": AsyncClient.on(plain),
                    "asyncpg": AsyncClient.on(of_asyncpg),
                    **{name: Awaitable(Client.on(each)) for name, each in blocking.items()},
                }
    finally:
        await of_asyncpg.close()


class Odd(Loader):
    """Reads all as what nobody expects."""

    def load(self, data: Any) -> Any:
        return ("odd", bytes(data))


async def test_no_setting_changes_an_answer(dsn: str, conn: psycopg.Connection, seen: Seen) -> None:
    async with AsyncClient(dsn) as client:
        await seen.by(client)  # the claim is extended once
        expected = await seen.by(client)
        assert type(expected[0].lease_id) is UUID
        assert expected[0].params == {"\u00e9": [1 / 3]}
    # what transactions of a caller are is the caller's to say
    of_callers = [each for each in WORST if each[0] != "default_transaction_isolation"]
    for settings, clients in [
        *(([each], ours) for each in EACH),
        ([], callers),
        ([each for each in of_callers if each[0] != "client_encoding"], callers),
        (of_callers, callers),
    ]:
        with set_to(conn, *settings):
            async with clients(dsn) as found:
                for name, each in found.items():
                    assert (name, settings, await seen.by(each)) == (name, settings, expected)


def test_programs_say_the_same(dsn: str, conn: psycopg.Connection, seen: Seen) -> None:
    expected = [said(dsn, *line) for line in lines(seen)]
    drifts = {str(drift) for drift in check(dsn).drifts}
    with set_to(conn, *WORST):
        assert [said(dsn, *line) for line in lines(seen)] == expected
        assert {str(drift) for drift in check(dsn).drifts} == drifts  # the test's clock
        findings = {finding.check: finding for finding in examine(dsn)}
    assert findings["isolation"].level is Level.WARN
    assert "serializable" in findings["isolation"].message
    assert findings["encoding"].level is Level.OK


def test_an_upgrade_makes_the_same(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn, set_to(conn, *WORST):
        upgrade(empty_dsn)
    assert check(empty_dsn).drifts == ()


def lines(seen: Seen) -> list[tuple[str, ...]]:
    return [
        ("lease", "list"),
        ("lease", "show", str(seen.lease)),
        ("queue", "list"),
        ("node", "list"),
        ("token", "list"),
        ("db", "status"),
    ]


def said(dsn: str, *line: str) -> Any:
    """What a command prints, its times in UTC."""
    result = CliRunner().invoke(app, ["--dsn", dsn, "--json", *line])
    assert (line, result.exit_code, result.exception) == (line, 0, None)
    return in_utc(json.loads(result.stdout))


def in_utc(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_utc(each) for key, each in value.items()}
    if isinstance(value, list):
        return [in_utc(each) for each in value]
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (TypeError, ValueError):
        return value


async def test_a_worker_works_under_all_of_them(dsn: str, conn: psycopg.Connection) -> None:
    async with AsyncClient(dsn) as client:
        await client.create_queue("work", policy={"max_attempts": 2})
    with set_to(conn, *WORST):
        async with AsyncClient(dsn) as client, worker(dsn, listen="auto"):
            spawned = await client.spawn_lease("work", "add", {"a": 1, "b": 2})
            lease = await ended(client, spawned.lease_id)
    assert (lease.state, lease.attempt) == ("completed", 1)


async def test_text_without_an_encoding_is_refused_by_name(
    dsn: str, conn: psycopg.Connection, seen: Seen
) -> None:
    async with AsyncClient(dsn) as client:
        await seen.by(client)  # the claim is extended once
        expected = await seen.by(client)
    with set_to(conn, ("client_encoding", "SQL_ASCII")):
        async with ours(dsn) as found:
            for name, each in found.items():
                assert (name, await seen.by(each)) == (name, expected)
        with psycopg.connect(dsn) as connection, closing(psycopg2.connect(dsn)) as older:
            for each in (connection, older):
                with pytest.raises(errors.BadArgument, match="encoding is SQL_ASCII") as caught:
                    Client.on(each).list_leases()
                assert "UTF8" in str(caught.value.hint)


def test_letters_that_the_encoding_lacks(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("select hwqueue.create_queue('work')")
    with psycopg.connect(dsn, client_encoding="LATIN1") as connection:
        client = Client.on(connection)
        with pytest.raises(errors.BadArgument, match=r"iso8859-1|latin"):
            client.spawn_lease("work", "t", {"to": "\u2192"})
        spawned = client.spawn_lease("work", "t", {"to": "\u00e9"})
    with Client(dsn) as client:
        assert client.get_lease(spawned.lease_id).params == {"to": "\u00e9"}


def test_a_database_of_bytes_is_refused(server_dsn: str) -> None:
    name = f"hwqueue_test_{uuid4().hex[:12]}"
    administer(server_dsn, "create database {} encoding 'SQL_ASCII' locale 'C' template template0", name)
    dsn = make_conninfo(server_dsn, dbname=name)
    try:
        with pytest.raises(errors.ConfigError, match="encoding SQL_ASCII") as caught:
            upgrade(dsn)
        assert "UTF8" in str(caught.value.hint)
        findings = {finding.check: finding for finding in examine(dsn)}
        assert findings["encoding"].level is Level.FAIL
        result = CliRunner().invoke(app, ["--dsn", dsn, "db", "upgrade"])
        assert result.exit_code != 0
        assert "SQL_ASCII" in result.stderr
    finally:
        administer(server_dsn, "drop database {} with (force)", name)
