"""The application on a real database, asked without a network.

One database for each file of tests, and one event loop: the file's tests share the connections of
its servers, for to plan what a new one calls takes longer than most tests. Each test keeps to
queues and nodes of its own.
"""

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
import uvicorn
from fastapi import FastAPI
from fastapi._compat import ModelField
from jsonschema_rs import validator_for

from hwqueue.client import AsyncClient, Client
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.types import Claim, NodeSpec
from tests.fix_db import fresh_database

V1 = "/api/v1"
NOBODY = "00000000-0000-7000-8000-000000000000"
JSON = {"Content-Type": "application/json"}
_numbers = count(1)


class Http(httpx.AsyncClient):
    """A client of an application that runs in this event loop."""

    def __init__(self, app: FastAPI, address: str = "127.0.0.1", **options: Any) -> None:
        transport = httpx.ASGITransport(app=app, client=(address, 5000))
        super().__init__(transport=transport, base_url="http://localhost", **options)
        self.app = app


_form_of = cache(lambda field: validator_for(field._type_adapter.json_schema()))


@pytest.fixture(autouse=True)
def answers_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered fits the OpenAPI document: the server does not look."""
    write = ModelField.serialize_json

    def checked(field: ModelField, value: Any, **options: Any) -> bytes:
        content = write(field, value, **options)
        _form_of(field).validate(json.loads(content))
        return content

    monkeypatch.setattr(ModelField, "serialize_json", checked)


Serving = Callable[..., AbstractAsyncContextManager[Http]]
Token = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    """A migrated database for the tests of one file."""
    with fresh_database(server_dsn, template) as made:
        yield made


@pytest.fixture
def dsn(database: str) -> str:
    """The file's database."""
    return database


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file in one event loop."""
    for item in items:
        if item.path.parent == Path(__file__).parent and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@asynccontextmanager
async def served(dsn: str, /, **changes: Any) -> AsyncIterator[FastAPI]:
    """The application, connected."""
    settings: dict[str, Any] = {"dsn": dsn, "pool_size": 2, "rate_limit": None}
    app = create_app(ServerSettings(**{**settings, **changes}))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture(scope="module")
def serving(database: str) -> Serving:
    """Serve with other settings."""

    @asynccontextmanager
    async def serve(**changes: Any) -> AsyncIterator[Http]:
        async with served(database, **changes) as app, Http(app) as http:
            yield http

    return serve


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_a_laptop(database: str) -> AsyncIterator[FastAPI]:
    """A server that asks nobody who they are."""
    async with served(database) as app:
        yield app


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def with_tokens(database: str) -> AsyncIterator[FastAPI]:
    """A server that lets in bearers of tokens alone."""
    async with served(database, auth="tokens") as app:
        yield app


@pytest_asyncio.fixture(loop_scope="module")
async def http(on_a_laptop: FastAPI) -> AsyncIterator[Http]:
    """A client of the file's server that asks nobody who they are."""
    async with Http(on_a_laptop) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def guarded(with_tokens: FastAPI) -> AsyncIterator[Http]:
    """A client of the file's server that lets in bearers of tokens alone."""
    async with Http(with_tokens) as client:
        yield client


@pytest.fixture(scope="module")
def sql(database: str) -> Iterator[Client]:
    """The functions themselves, to set things up and to look."""
    with Client(database, pool_size=1) as client:
        yield client


@pytest.fixture
def queue(sql: Client) -> str:
    """A queue of the test's own."""
    name = f"queue-{next(_numbers)}"
    sql.create_queue(name)
    return name


@pytest.fixture
def node(sql: Client) -> str:
    """The id of a node of the test's own, live and with a label."""
    node_id = uuid4()
    spec = NodeSpec(name=f"node-{next(_numbers)}", instance_id="first", labels={"gpu": True})
    sql.register_node(node_id, spec)
    return str(node_id)


def create_token(sql: Client, role: str, tenant: str | None = None, **options: Any) -> str:
    """Make a token of the API; its secret."""
    name = f"{role}-{next(_numbers)}"
    secret = f"secret-of-{name}"
    sql.create_token(name, hashlib.sha256(secret.encode()).digest(), role, tenant=tenant, **options)
    return secret


@pytest.fixture
def token(sql: Client) -> Token:
    """Make a token; the headers of its bearer."""
    return lambda *asked, **options: {"Authorization": f"Bearer {create_token(sql, *asked, **options)}"}


class Slow:
    """A call of the client that begins, and waits until the test goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        call = getattr(AsyncClient, name)

        async def slow(client: AsyncClient, *args: Any, **options: Any) -> Any:
            self.begun.set()
            await self.goes_on.wait()
            return await call(client, *args, **options)

        monkeypatch.setattr(AsyncClient, name, slow)


def reap(sql: Client) -> None:
    """As upkeep does about once a second; several times, since changes make others."""
    for _ in range(4):
        sql.reap()


def claims(sql: Client, queue: str, **options: Any) -> list[Claim]:
    """What a node of its own is granted."""
    node_id = uuid4()
    epoch = sql.register_node(node_id, NodeSpec(name=f"n-{node_id}", instance_id="first"))
    return sql.claim_task([queue], node_id, epoch, **options)


@contextmanager
def live(app: FastAPI, **options: Any) -> Iterator[str]:
    """The address of the application, served in a thread of its own."""
    usual = {"port": 0, "log_config": None, "access_log": False, "proxy_headers": False}
    config = uvicorn.Config(app, **{**usual, **options, "port": 0})
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        [listening] = server.servers[0].sockets
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        app.state.services.streams.stopping = True
        server.should_exit = True
        thread.join()


@pytest.fixture
def url(dsn: str) -> Iterator[str]:
    """A server on a socket."""
    with live(create_app(ServerSettings(dsn=dsn, max_streams=1))) as address:
        yield address


def problem(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The problem that a response must be."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert found["status"] == status
    assert found.get("code") == code, found
    assert found["request_id"] == response.headers["x-request-id"]
    return found


def ok(response: httpx.Response, status: int = 200) -> Any:
    """The content of a response that must have gone well."""
    assert response.status_code == status, response.text
    return response.json()


async def paged(http: Http, url: str, **params: Any) -> list[list[Any]]:
    """The items of every page, each found by the link of the one before."""
    link: dict[str, str] | None = {"url": str(httpx.URL(url, params=params))}
    found: list[list[Any]] = []
    while link is not None:
        response = await http.get(link["url"])
        page = ok(response)
        found.append(page["items"])
        link = response.links.get("next")
        assert (link is None) == (page["next"] is None)
    return found
