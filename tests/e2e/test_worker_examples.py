"""The examples of the documentation, run as a reader would."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from hwqueue import Worker
from hwqueue.client import AsyncClient, Client
from hwqueue.types import Lease, LeaseState
from tests.e2e.programs import read_until, running
from tests.e2e.worker_support import BOUND_SECONDS, ended, is_in, settings, wait_until
from tests.shell_lines import fenced, part, tokens

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"


def run_example(name: str, dsn: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env=os.environ | {"HWQUEUE_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.every_variant
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("quickstart", ["completed hello world, this is attempt 1"]),
        (
            "moved_from_celery",
            [
                "sent to ada@example.org",
                "['320/trip/0.png', '320/trip/1.png', '320/trip/2.png']",
                "films: 13",
                "report 0 2 * * *",
            ],
        ),
        (
            "progress",
            [
                *("100 %, 3 of 3: frame 2", "25 %, 1 of 4"),
                *("claimed", "fetch cancelled", "cancelled", "draw cancelled"),
            ],
        ),
        (
            "log_lines",
            [
                "info baking {'texture': 'sky.jpg'}",
                "warning no alpha channel {'texture': 'sky.jpg'}",
                "warning slow path {'logger': 'codec'}",
            ],
        ),
        ("sqlalchemy_outbox", ["1 order, 1 lease"]),
        (
            "hooks",
            [
                *("start", "attempt 1 of ask failed: no answer", "ask is dead: LookupError", "stop"),
                *["completed 1 loaded once for each worker"] * 2,
                "failed 1 None",
            ],
        ),
        (
            "middleware_sentry",
            ["mail 1 ConnectionError smtp down", "mail-async 1 ConnectionError smtp down, too"],
        ),
        ("middleware_prometheus", ["draw  1.0", "fetch ConnectionError 1.0"]),
        ("session_per_lease", ["completed invoice of one lamp", "failed None", "1 invoice"]),
        ("middleware_django", ["2 leases, 2 connections"]),
    ],
)
def test_an_example_prints(dsn: str, monkeypatch: pytest.MonkeyPatch, name: str, printed: list[str]) -> None:
    monkeypatch.setenv("METRICS_PORT", "0")
    assert run_example(f"{name}.py", dsn).splitlines() == printed


def test_the_page_shows_what_was_moved() -> None:
    """But for the two decorators on one function, which need Celery, too."""

    def lines(text: str) -> str:
        return "\n".join(line.strip() for line in text.splitlines())

    moved = lines((EXAMPLES / "moved_from_celery.py").read_text())
    shown = fenced((DOCS / "use" / "coming_from.md").read_text(), "python")
    assert len(shown) >= 5
    assert [block for block in shown if lines(block) not in moved and "def deliver(" not in block] == []


def test_results(dsn: str) -> None:
    lines = run_example("results.py", dsn).splitlines()
    assert sorted(lines[:3]) == ["2 completed", "3 completed", "four failed"]
    assert lines[3:] == ["9", "ValueError"]


def test_durable_steps(dsn: str) -> None:
    said = run_example("durable_steps.py", dsn)
    assert said.splitlines() == [
        *("runs", "charges visa", 'suspended: its handler waits for signal "packed"', "runs"),
        "{'parcel': 4711, 'receipt': 'visa-30'}",
    ]
    page = (DOCS / "use" / "handlers.md").read_text()
    assert textwrap.indent(said, "    ") in page


def test_gang_training(dsn: str) -> None:
    """Rank 1 connects to where the roster says that rank 0 is."""
    said = run_example("gang_training.py", dsn)
    assert said.splitlines() == [*(f"rank {rank} of 2: the sum is 3" for rank in (0, 1)), "on node-1 node-2"]
    page = (DOCS / "use" / "gangs.md").read_text()
    assert said in page


def test_middleware_structlog(dsn: str) -> None:
    lines = [json.loads(line) for line in run_example("middleware_structlog.py", dsn).splitlines()]
    assert all(UUID(line.pop("lease_id")) for line in lines)
    assert lines == [
        {"attempt": 1, "event": "drawing", "frame": 7, "task": "draw"},
        {"attempt": 1, "event": "drawing", "frame": 8, "task": "draw-async"},
    ]


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("use/handlers", "Middleware and hooks"),
        ("use/handlers", "Progress"),
        ("use/handlers", "Log lines"),
        ("use/producer", "Cancel"),
        ("use/web", "FastAPI"),
        ("use/web", "Flask"),
        ("use/workflows", "Write it"),
        ("use/workflows", "Submit a run"),
        ("use/workflows", "Wait for somebody, or for a time"),
        ("run/events", "Receive"),
    ],
)
def test_the_page_shows_what_the_examples_run(name: str, heading: str) -> None:
    blocks = fenced(part(DOCS / f"{name}.md", heading), "python")
    sources = [file.read_text(encoding="utf-8") for file in EXAMPLES.glob("*.py")]
    assert blocks
    assert [block for block in blocks if not any(block in source for source in sources)] == []


def test_compose_app_through_the_command_line(dsn: str) -> None:
    """As the node containers of docker-compose.yml run it."""
    with Client(dsn) as client:
        client.create_queue("examples")
        placement = {"require": [{"tags": {"gpu": True}}]}
        spawned = client.spawn_lease("examples", "where", {"n": 1}, placement=placement)
        options = ["--app=compose_app:app", "--queue=examples", "--name=node-gpu", "--rack=1"]
        line = ("worker", "run", *options, '--tags={"gpu":true}')
        with running(dsn, *line, cwd=EXAMPLES) as node:
            read_until(node, "node node-gpu")  # it says what it does, unasked
            wait_until(is_in(client, spawned.lease_id, LeaseState.COMPLETED))
            node.terminate()
            assert node.wait(30) == 0
        assert client.get_lease(spawned.lease_id).result["params"] == {"n": 1}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The files of the how-to for handlers, imported, by their names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for token in tokens(DOCS / "use" / "handlers.md"):
        named = re.match(r"# (\w+)\.py\n", token.content) if token.info == "python" else None
        if named:
            (tmp_path / f"{named[1]}.py").write_text(token.content, encoding="utf-8")
            names.append(named[1])
    assert names == ["tasks", "producer", "orders"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return {name: sys.modules[name] for name in names}


async def finish(dsn: str, app: Any, lease_ids: list[Any]) -> list[Lease]:
    """The leases, when a worker with these tasks has run them."""
    running = Worker(app, settings(dsn, queues=("default",)))
    working = asyncio.create_task(running.run())
    async with AsyncClient(dsn) as client:
        leases = [await ended(client, lease_id) for lease_id in lease_ids]
    running.stop()
    await asyncio.wait_for(working, BOUND_SECONDS)
    return leases


async def test_the_handlers_of_the_how_to(dsn: str, modules: dict[str, Any]) -> None:
    tasks, producer, orders = (modules[name] for name in ("tasks", "producer", "orders"))
    with Client(dsn) as client:
        client.create_queue("default")
        first, second, *rest = [one.lease_id for one in producer.produce(client)]
        later = client.get_lease(second)
        notice = tasks.notify.spawn(client, "ann@example.org").lease_id
        shipped = orders.ship.spawn(client, order=7).lease_id
    assert (later.state, later.priority) == (LeaseState.SCHEDULED, 5)
    leases = await finish(dsn, tasks.app, [first, *rest, notice])
    assert {lease.state for lease in leases} == {LeaseState.COMPLETED}
    assert producer.small_picture(leases[0]) == tasks.Picture("320/a.png", 320)

    with sqlite3.connect("orders.db") as db:
        db.execute("create table orders (id integer, shipped boolean)")
        db.execute("insert into orders values (7, false)")
    [lease] = await finish(dsn, orders.app, [shipped])
    assert lease.state is LeaseState.COMPLETED, lease.error
    assert db.execute("select shipped from orders").fetchall() == [(1,)]
    db.close()
