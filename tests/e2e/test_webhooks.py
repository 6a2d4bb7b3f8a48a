"""hwqueue webhook, and the receiver of docs/run/events.md."""

import importlib
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psycopg
import pytest
import uvicorn

from tests.e2e.conftest import Cli, Shown
from tests.e2e.test_worker_examples import EXAMPLES
from tests.sql.api import outlive

ELSEWHERE = "https://hooks.example/"
RUN = ("webhook", "run", "--once", "--allow-private", "--allow-http")


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an application in a thread; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def example(monkeypatch: pytest.MonkeyPatch, secret: str) -> ModuleType:
    """The receiver of the docs, with this secret."""
    monkeypatch.setenv("HOOK_SECRET", secret)
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop("webhook_receiver", None)
    return importlib.import_module("webhook_receiver")


def test_the_receiver_of_the_page(
    cli: Cli, shown: Shown, monkeypatch: pytest.MonkeyPatch, conn: psycopg.Connection[Any]
) -> None:
    """It takes what is signed, and what is sent again once; after a rotation both secrets do."""
    secret = cli("webhook", "add", "pager", ELSEWHERE, "--code", "queue_paused", "--bare").stdout
    receiver = example(monkeypatch, secret.strip())
    messages: list[Any] = []
    monkeypatch.setattr(receiver, "handle", messages.append)
    with listening(receiver.api) as url:
        cli("webhook", "add", "pager", f"{url}/hwqueue", "--code", "queue_paused")
        cli("queue", "create", "q")
        cli("queue", "pause", "q")
        outlive(conn)
        cli(*RUN)
        assert [each["data"]["queue"] for each in messages] == ["q"]
        [delivery] = shown("webhook", "deliveries", "pager")
        cli("webhook", "redeliver", "pager", delivery["delivery_id"])
        cli("webhook", "rotate", "pager")
        cli(*RUN)
        assert shown("webhook", "deliveries", "pager")[0]["state"] == "delivered"
        assert len(messages) == 1
        cli("webhook", "rotate", "pager", "--keep", "0s")
        cli("webhook", "test", "pager")
        cli(*RUN)
    [failed, _] = shown("webhook", "deliveries", "pager")
    assert (failed["state"], failed["status"]) == ("waiting", 401)


def test_from_added_to_dropped(cli: Cli, shown: Shown) -> None:
    assert "hwqueue webhook add" in cli("webhook", "list").output
    made = shown(
        *("webhook", "add", "pager", ELSEWHERE, "--code", "lease_completed", "--queue", "q"),
        *("--tenant", "film", "--label", "film=7"),
    )
    assert made["secret"].startswith("whsec_")
    [listed] = shown("webhook", "list")
    assert listed == shown("webhook", "show", "pager")
    assert (listed["codes"], listed["queues"]) == (["lease_completed"], ["q"])
    assert (listed["tenant"], listed["labels"]) == ("film", {"film": "7"})
    assert made["secret"] not in cli("webhook", "list").output
    assert "paused" in cli("webhook", "pause", "pager").stderr
    assert "goes on" in cli("webhook", "resume", "pager").stderr
    shown("webhook", "test", "pager")
    assert "to be sent again" in cli("webhook", "redeliver", "pager", "--dead").stderr
    cli("webhook", "drop", "pager")
    for verb in ("show", "drop", "pause", "resume", "rotate", "test", "deliveries"):
        cli("webhook", verb, "pager", code=3)


def test_what_is_refused(cli: Cli) -> None:
    said = cli("webhook", "add", "pager", ELSEWHERE, "--code", "lease_faild", code=2).stderr
    assert "lease_failed" in said
    cli("webhook", "add", "pager", "ftp://hooks.example", code=2)
    cli("webhook", "add", "pager", ELSEWHERE, "--label", "film", code=2)
    which = cli("webhook", "redeliver", "pager", code=2).stderr
    assert "hwqueue webhook deliveries pager" in which
    cli("webhook", "run", "--once", "--timeout", "10m", code=2)
    plain = cli("webhook", "add", "pager", "http://hooks.example/").stderr
    assert "--allow-http" in plain
    assert "--allow-private" in plain
