"""A database that says nothing: answers come all the same, and the server recovers by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
import pytest
import pytest_asyncio
import tenacity
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hwqueue.client import Client
from hwqueue.connections import with_timeouts
from tests.server.conftest import V1, Http, Serving, ok, problem

BOUND_SECONDS = 60.0
SHORT = timedelta(seconds=1)


@dataclass
class Relay:
    """A way to a database: it takes all, but passes nothing on while `flows` is not set.

    dsn: of the database, through it.
    """

    to: str
    dsn: str = ""
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    serving: set[asyncio.Task[None] | None] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes from one side to the other."""
        self.serving.add(asyncio.current_task())
        told = conninfo_to_dict(self.to)
        host, port = str(told.get("host") or "localhost"), int(told.get("port") or 5432)
        if host.startswith("/"):
            there, back = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            there, back = await asyncio.open_connection(host, port)
        try:
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
        finally:
            for end in (writer, back):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self.flows.wait()
                target.write(data)
        await self.flows.wait()
        target.close()


@pytest_asyncio.fixture(loop_scope="module")
async def way(dsn: str) -> AsyncIterator[Relay]:
    made = Relay(dsn)
    made.flows.set()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    made.dsn = make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=port)
    yield made
    listening.close()
    serving = [each for each in made.serving if each is not None]
    for each in serving:
        each.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@pytest_asyncio.fixture(loop_scope="module")
async def impatient(
    serving: Serving, way: Relay, queue: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Http]:
    """A server that gives up soon."""
    for name in ("server.pools._CHECK_SECONDS", "server.pools._GRACE_SECONDS"):
        monkeypatch.setattr(f"hwqueue.{name}", 1.0)
    monkeypatch.setattr("hwqueue.server.pools._CONNECT_SECONDS", 2)
    monkeypatch.setattr("hwqueue.metrics.collector._GRACE_SECONDS", 0.3)
    async with serving(dsn=way.dsn, read_timeout=SHORT, pool_timeout=SHORT) as http:
        await works(http, queue)  # the first calls of a connection may take too long
        yield http


async def works(http: Http, queue: str) -> None:
    """Wait until everything does."""
    async for attempt in tenacity.AsyncRetrying(
        stop=tenacity.stop_after_delay(BOUND_SECONDS), wait=tenacity.wait_fixed(0.1), reraise=True
    ):
        with attempt:
            ok(await http.get("/readyz"))
            ok(await http.post(f"{V1}/leases", json={"queue": queue, "task": "draw"}), 201)
            ok(await http.get(f"{V1}/leases"))
            assert "\nhwqueue_up 1.0\n" in (await http.get("/metrics")).text


async def test_whoever_asks_is_told(impatient: Http, way: Relay, queue: str) -> None:
    body = {"queue": queue, "task": "draw"}
    way.flows.clear()
    async with asyncio.timeout(BOUND_SECONDS):
        for _ in range(2):  # of idle connections, and when there are none any more
            problem(await impatient.get("/readyz"), 503)
            found = problem(await impatient.post(f"{V1}/leases", json=body), 503)
            assert found["retryable"] is True
            problem(await impatient.get(f"{V1}/leases"), 503)
            assert "\nhwqueue_up 0.0\n" in (await impatient.get("/metrics")).text
        ok(await impatient.get("/healthz"))
    way.flows.set()
    await works(impatient, queue)


async def test_so_is_who_was_being_answered(
    impatient: Http, way: Relay, queue: str, conn: psycopg.Connection, sql: Client
) -> None:
    made = sql.spawn_lease(queue, "draw").lease_id
    with conn.transaction():
        conn.execute("select hwqueue.update_lease(%s, '{\"priority\": 3}')", [made])
        asked = asyncio.ensure_future(impatient.post(f"{V1}/leases/{made}/cancel"))
        async for attempt in tenacity.AsyncRetrying(stop=tenacity.stop_after_delay(BOUND_SECONDS)):
            with attempt:
                await asyncio.sleep(0)
                assert conn.execute(
                    "select 1 from pg_stat_activity"
                    " where datname = current_database() and wait_event_type = 'Lock'"
                ).fetchall()
        way.flows.clear()
        async with asyncio.timeout(BOUND_SECONDS):
            found = problem(await asked, 503, "08000")
        assert "unknown" in found["detail"]
    way.flows.set()
    await works(impatient, queue)


def test_what_the_dsn_says_itself_stays() -> None:
    made = with_timeouts("host=here connect_timeout=30", seconds=5, application_name="x")
    told = psycopg.conninfo.conninfo_to_dict(made)
    assert (told["connect_timeout"], told["application_name"]) == ("30", "x")
    assert (told["keepalives_idle"], told["tcp_user_timeout"]) == ("5", "5000")
