"""The dashboard on real databases: an empty one, a seeded one, and one of the test's own."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from playwright.sync_api import Browser

from hwqueue.client import Client
from hwqueue.dashboard.actions import ACTIONS
from hwqueue.types import Claim, NodeSpec
from tests.dashboard.screenshots import browsing, chromium
from tests.dashboard.seed import seed
from tests.dashboard.visits import Visit, visiting
from tests.fix_db import fresh_database, strict_skip
from tests.server.conftest import Http, create_token, served


def csrf(page: str) -> str:
    """What the first form of a page carries."""
    return page.partition('name="csrf" value="')[2].partition('"')[0]


class Pages(Http):
    """Somebody's browser, without the browser."""

    async def page(self, path: str, status: int = 200) -> str:
        """A page's text; it must have this status."""
        response = await self.get(path)
        assert response.status_code == status, response.text
        return response.text

    async def do(self, verb: str, subject: str, **fields: str) -> httpx.Response:
        """Answer the question of an action with yes, as its form does."""
        asked = await self.page(str(httpx.URL(f"/do/{verb}", params={ACTIONS[verb].subject: subject})))
        return await self.post(f"/do/{verb}", data={"csrf": csrf(asked), "subject": subject, **fields})


Serving = Callable[..., AbstractAsyncContextManager[Pages]]


@asynccontextmanager
async def serving(dsn: str, **settings: Any) -> AsyncIterator[Pages]:
    """Serve a database; a browser that looks at it."""
    async with served(dsn, **settings) as app, Pages(app) as pages:
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
    return partial(create_token, sql)


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
