"""docs/use/web.md: its programs, and when a lease exists for those who got the answer."""

import importlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi import Depends, FastAPI
from httpx import ASGITransport
from httpx import AsyncClient as Browser
from sqlalchemy.orm import Session

from hwqueue.client import AsyncClient, Client
from hwqueue.errors import LeaseNotFound
from tests.e2e.test_worker_examples import EXAMPLES, run_example

PAGE = Path(__file__).parents[2] / "docs" / "use" / "web.md"


def test_fastapi(dsn: str) -> None:
    assert run_example("web_fastapi.py", dsn).splitlines() == [
        "/orders pending",
        "/async/orders pending",
        "/dependent/orders pending",
    ]


def test_asyncpg(dsn: str) -> None:
    assert run_example("web_asyncpg.py", dsn) == "/orders pending\n"


@pytest.mark.parametrize("name", ["web_flask", "web_flask_sqlalchemy"])
def test_flask(dsn: str, name: str) -> None:
    assert run_example(f"{name}.py", dsn) == "/orders pending\n"


def test_the_page_shows_what_the_programs_have() -> None:
    programs = "\n".join(path.read_text(encoding="utf-8") for path in EXAMPLES.glob("web_*.py"))
    shown = re.findall(
        r"^```python\n(.*?)^```",
        PAGE.read_text(encoding="utf-8").partition("\n## Django\n")[0],
        re.M | re.S,
    )
    assert len(shown) >= 7
    parts = [part.strip() for block in shown for part in block.split("\n\n\n")]
    assert [part for part in parts if part not in programs] == []


@pytest.fixture
async def example(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModuleType]:
    """The program for FastAPI, imported, with its tables and its queue."""
    monkeypatch.setenv("HWQUEUE_DSN", dsn)
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("web_fastapi")
    module.Base.metadata.create_all(module.engine)
    with Client(dsn) as client:
        client.create_queue("invoices")
    yield module
    module.engine.dispose()
    await module.async_engine.dispose()
    for name in ("web_fastapi", "web_orders"):
        sys.modules.pop(name)


async def exists_when_answered(dsn: str, api: Callable[..., Any], path: str) -> bool:
    """Whether another connection sees the lease at the moment when its id is sent."""
    seen = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def look(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                [lease_id] = [part for part in message["body"].split(b'"') if len(part) == 36]
                async with AsyncClient(dsn) as other:
                    try:
                        await other.get_lease(UUID(lease_id.decode()))
                        seen.append(True)
                    except LeaseNotFound:
                        seen.append(False)
            await send(message)

        await api(scope, receive, look)

    async with Browser(transport=ASGITransport(watched), base_url="http://localhost") as browser:
        assert (await browser.post(path, params={"item": "one lamp"})).status_code == 200
    [answer] = seen
    return answer


@pytest.mark.parametrize("path", ["/orders", "/async/orders", "/dependent/orders"])
async def test_the_lease_exists_when_its_id_is_sent(dsn: str, example: ModuleType, path: str) -> None:
    assert await exists_when_answered(dsn, example.api, path)


async def test_a_dependency_of_the_usual_scope_commits_too_late(dsn: str, example: ModuleType) -> None:
    api = FastAPI()

    @api.post("/orders")
    def place(session: Annotated[Session, Depends(example.transaction)]) -> dict[str, UUID]:
        spawned = example.send_invoice.spawn(Client.on(session), order_id=1)
        return {"lease_id": spawned.lease_id}

    assert not await exists_when_answered(dsn, api, "/orders")


async def test_a_spawn_that_nobody_awaits_is_none(dsn: str, example: ModuleType) -> None:
    async with AsyncClient(dsn) as client:
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            example.send_invoice.spawn(client, order_id=1)
        assert await client.list_leases(queue="invoices") == []
