"""The dashboard on real databases: an empty one, a seeded one, and one of the test's own."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser

from hwqueue.client import Client
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.types import Claim, NodeSpec
from tests.dashboard.screenshots import browsing, chromium
from tests.dashboard.seed import seed
from tests.dashboard.visits import Visit, visiting
from tests.fix_db import fresh_database, strict_skip

_numbers = count(1)


def csrf(page: str) -> str:
    """What the first form of a page carries."""
    return page.partition('name="csrf" value="')[2].partition('"')[0]


class Pages(httpx.AsyncClient):
    """Somebody's browser, without the browser."""

    def __init__(self, app: FastAPI, **options: Any) -> None:
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 5000))
        super().__init__(transport=transport, base_url="http://localhost", **options)
        self.app = app

    async def page(self, path: str, status: int = 200) -> str:
        """A page's text; it must have this status."""
        response = await self.get(path)
        assert response.status_code == status, response.text
        return response.text

    async def do(self, verb: str, subject: str, **fields: str) -> httpx.Response:
        """Answer the question of an action with yes, as its form does."""
        kind = {"cancel": "lease", "requeue": "lease", "pause": "queue", "resume": "queue"}
        kind |= dict.fromkeys(("pause-webhook", "resume-webhook", "test-webhook", "redeliver"), "webhook")
        kind |= dict.fromkeys(
            ("cancel-run", "pause-run", "resume-run", "retry-run", "retry-downstream", "retry-all"), "run"
        )
        kind |= dict.fromkeys(("retry-step", "skip-step", "send-signal"), "step")
        kind |= {"cancel-gang": "gang"}
        asked = await self.page(str(httpx.URL(f"/do/{verb}", params={kind.get(verb, "node"): subject})))
        return await self.post(f"/do/{verb}", data={"csrf": csrf(asked), "subject": subject, **fields})


Serving = Callable[..., AbstractAsyncContextManager[Pages]]


@asynccontextmanager
async def serving(dsn: str, **settings: Any) -> AsyncIterator[Pages]:
    """Serve a database; a browser that looks at it."""
    app = create_app(ServerSettings(dsn=dsn, pool_size=2, rate_limit=None, **settings))
    async with app.router.lifespan_context(app), Pages(app) as pages:
        yield pages


@pytest.fixture(scope="module")
def seeded(server_dsn: str, template: str) -> Iterator[str]:
    """A database with a little of everything; for tests that only look."""
    with fresh_database(server_dsn, template) as made:
        with Client(made, pool_size=1) as client:
            seed(client)
            client.reap()
        yield made


@pytest.fixture
async def shown(seeded: str) -> AsyncIterator[Pages]:
    """The dashboard of the seeded database."""
    async with serving(seeded) as made:
        yield made


@pytest.fixture
def sql(dsn: str) -> Iterator[Client]:
    """The functions, on the test's own database."""
    with Client(dsn, pool_size=1) as client:
        yield client


@pytest.fixture
async def pages(dsn: str) -> AsyncIterator[Pages]:
    """The dashboard of the test's own database, as on a laptop: it asks nobody who they are."""
    async with serving(dsn) as made:
        yield made


@pytest.fixture
async def guarded(dsn: str) -> AsyncIterator[Pages]:
    """The dashboard of the test's own database, for who shows a token."""
    async with serving(dsn, auth="tokens") as made:
        yield made


@pytest.fixture
def lease(sql: Client) -> UUID:
    """A lease that waits."""
    sql.create_queue("renders")
    return sql.spawn_lease("renders", "draw").lease_id


def states(sql: Client, leases: Sequence[UUID]) -> list[str]:
    """What each of them is now."""
    return [sql.get_lease(each).state for each in leases]


def granted(sql: Client, queue: str, **node: Any) -> Claim:
    """What a new node is granted first."""
    node_id = uuid4()
    epoch = sql.register_node(node_id, NodeSpec(**{"name": "n-1", "instance_id": "1"} | node))
    return sql.claim_task([queue], node_id, epoch)[0]


@pytest.fixture
def token(sql: Client) -> Callable[..., str]:
    """Make a token of the API; its secret."""

    def make(role: str, tenant: str | None = None) -> str:
        name = f"{role}-{next(_numbers)}"
        secret = f"secret-of-{name}"
        sql.create_token(name, hashlib.sha256(secret.encode()).digest(), role, tenant=tenant)
        return secret

    return make


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, if it is here; in CI it has to be."""
    if chromium() is None:
        strict_skip("no Chromium: apt-get install chromium, or name it: HWQUEUE_TEST_CHROMIUM")
    with browsing() as made:
        yield made


@pytest.fixture
def visit(browser: Browser, dsn: str) -> Iterator[Visit]:
    """A window on the test's own database, on a laptop that asks nobody who they are."""
    with visiting(browser, dsn, viewport={"width": 1440, "height": 900}) as window:
        yield window
