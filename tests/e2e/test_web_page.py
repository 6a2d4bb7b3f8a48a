"""docs/use/web.md: its programs, and its Django project from top to bottom, as a reader does it."""

import importlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any
from uuid import UUID

import django
import psycopg
import pytest
from fastapi import Depends, FastAPI
from httpx import ASGITransport
from httpx import AsyncClient as Browser
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session

from benchmarks.core.pooler import free_port
from hwqueue.client import AsyncClient, Client
from hwqueue.errors import LeaseNotFound
from tests.e2e.conftest import Shell
from tests.e2e.test_worker_examples import EXAMPLES, run_example
from tests.e2e.worker_support import wait_until
from tests.shell_lines import fenced, part, tokens, whole_lines

PAGE = Path(__file__).parents[2] / "docs" / "use" / "web.md"


def test_from_a_clone_to_an_invoice(shell: Shell, dsn: str) -> None:
    [script] = fenced(part(PAGE, "FastAPI"), "sh")
    lines = [line for line in script.splitlines() if not line.startswith(("pip ", "export "))]
    text = "\n".join(lines[:-1]).replace("8000", str(free_port()))
    shell.run(text.replace("cd docs/examples", f"cd {EXAMPLES}"))
    with Client(dsn) as client:
        [lease] = client.list_leases(queue="invoices")
        wait_until(lambda: client.get_lease(lease.lease_id).finished_at is not None)
    assert "completed" in shell.run(lines[-1])


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("web_fastapi", ["/orders", "/async/orders", "/dependent/orders"]),
        *((name, ["/orders"]) for name in ("web_asyncpg", "web_flask", "web_flask_sqlalchemy")),
    ],
)
def test_a_program_of_the_page(dsn: str, name: str, ways: list[str]) -> None:
    assert run_example(f"{name}.py", dsn) == "".join(f"{way} pending\n" for way in ways)


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


def database_of(dsn: str) -> Mapping[str, str]:
    """The variables that the page's settings read."""
    named = conninfo_to_dict(dsn)
    keys = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host"}
    found = {f"DB_{name}": str(named.get(key) or "") for name, key in keys.items()}
    return {**found, "DB_PORT": str(named.get("port", "5432"))}


@pytest.fixture
def django_shell(empty_dsn: str, tmp_path: Path) -> Iterator[Shell]:
    """Of somebody whose settings name a database, as the page has them."""
    programs = Path(sys.executable).parent
    env = os.environ | database_of(empty_dsn) | {"PATH": f"{programs}:{os.environ['PATH']}"}
    made = Shell(tmp_path, env | {"PYTHONWARNINGS": "error"})
    yield made
    made.end()


def write(folder: Path, content: str) -> None:
    """A file of the page: its first line names it, and says if it is the end of one."""
    name, _, where = content.partition("\n")[0].removeprefix("# ").partition(", ")
    if django.VERSION < (6, 0):
        content = content.replace("from django.tasks", "from django_tasks")
    with (folder / name).open("a" if where == "at the end" else "w", encoding="utf-8") as file:
        file.write(content)


def test_the_page(empty_dsn: str, django_shell: Shell, tmp_path: Path) -> None:
    said: dict[str, str] = {}
    for token in tokens(PAGE, "Django"):
        if token.type == "fence" and token.info == "python":
            write(tmp_path, token.content)
        elif token.type == "fence" and token.info == "sh":
            for line in whole_lines(token.content.splitlines()):
                if " worker run " in line:
                    look_at_a_worker(empty_dsn, django_shell, line)
                elif not line.startswith("pip "):
                    said[line] = django_shell.run(f"{{ {line}\n}} 2>&1 </dev/null")
    [enqueued] = [told for line, told in said.items() if "render.enqueue" in line]
    assert enqueued.splitlines()[-2:] == ["READY", "10"]
    assert "Ran 2 tests" in said["python manage.py test"]


def look_at_a_worker(dsn: str, shell: Shell, line: str) -> None:
    """Run the worker of a line, which stops gracefully, and look at what the page promises of it."""
    with Client(dsn) as client, psycopg.connect(dsn, autocommit=True) as connection:
        [lease] = client.list_leases(queue="mail")
        shell.run(f"{line} </dev/null & worker=$!")
        wait_until(lambda: client.get_lease(lease.lease_id).finished_at is not None)
        shell.run("kill $worker; wait $worker")
        assert client.get_lease(lease.lease_id).result == "lamp is confirmed"
        assert connection.execute("select confirmed from orders_order").fetchall() == [(True,)]
