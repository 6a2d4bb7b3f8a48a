"""hwqueue events and webhook: listed, followed, delivered."""

import getpass
import importlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import IO, Any

import psycopg
import pytest
import uvicorn

from hwqueue.client import Client
from tests.e2e.conftest import Cli, Shown
from tests.e2e.programs import running
from tests.e2e.test_worker_examples import EXAMPLES
from tests.e2e.worker_support import QUEUE
from tests.sql.api import outlive

CUT = (
    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


def test_list(cli: Cli, shown: Shown) -> None:
    def listed(*args: str) -> list[Any]:
        return list(shown("events", "list", *args))

    cli("queue", "create", "renders")
    cli("node", "register", "box-1")
    cli("node", "cordon", "box-1")
    cordoned, registered, created, *_ = listed()
    assert [event["code"] for event in (cordoned, registered, created)] == [
        "node_cordoned",
        "node_registered",
        "queue_created",
    ]
    assert {event["actor"] for event in (cordoned, registered)} == {getpass.getuser()}
    assert listed("--node", "box-1") == [cordoned, registered]
    assert listed("--node", cordoned["node_id"], "--limit", "1") == [cordoned]
    assert listed("--since", "1h", "--code", "node_cordoned") == [cordoned]
    assert listed("--until", "1h") == []
    assert listed("--since", cordoned["at"])[-1] == cordoned
    text = cli("events", "list", "--queue", "renders").stdout
    assert "queue renders is created" in text
    assert "queue=renders" in text


def test_what_cannot_be_listed(cli: Cli) -> None:
    for wrong in "--since yesterday", "--lease seven", "--limit 0", "--since 9999999999d":
        cli("events", "list", *wrong.split(), code=2)
    cli("events", "list", "--node", "absent", code=3)


def test_the_tail_without_following(cli: Cli) -> None:
    for name in ("a", "b", "c"):
        cli("queue", "create", name)
    lines = cli("events", "tail", "-n", "2").stdout.splitlines()
    assert [line.rpartition("queue=")[2] for line in lines] == ["b", "c"]
    assert "queue_created" in lines[0]
    objects = map(json.loads, cli("--json", "events", "tail", "-n", "2").stdout.splitlines())
    assert [event["queue"] for event in objects] == ["b", "c"]
    assert cli("events", "tail", "-n", "0").stdout == ""


def follow(dsn: str, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A command that prints events as they come."""
    line = ("--json", "events", "tail", "--follow", "--every", "50ms", *more)
    return running(dsn, *line, stdout=subprocess.PIPE)


def next_queue(process: subprocess.Popen[str]) -> str:
    """The queue of the next event that is printed; waits for it."""
    output: IO[str] | None = process.stdout
    assert output is not None
    queue = json.loads(output.readline())["queue"]
    assert isinstance(queue, str)
    return queue


def test_following_over_a_lost_connection(dsn: str, conn: psycopg.Connection, producer: Client) -> None:
    outlive(conn)
    with follow(dsn, "--code", "queue_created") as process:
        assert next_queue(process) == QUEUE
        producer.create_queue("q1")
        producer.pause_queue("q1")
        producer.create_queue("q2")
        assert [next_queue(process), next_queue(process)] == ["q1", "q2"]
        assert conn.execute(CUT).fetchone() != (0,)
        with Client(dsn) as client:
            client.create_queue("q3")
        assert next_queue(process) == "q3"
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=120)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in complaints
    assert "Aborted" not in complaints


@pytest.mark.usefixtures("producer")
def test_a_reader_that_goes_ends_it(dsn: str, conn: psycopg.Connection) -> None:
    """Though nothing happens that it could fail to print."""
    outlive(conn)
    with follow(dsn, "-n", "1") as process:
        next_queue(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=120) in (0, 1)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


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
    made = shown("webhook", "add", "pager", ELSEWHERE)
    assert made["secret"].startswith("whsec_")
    [listed] = shown("webhook", "list")
    assert listed == shown("webhook", "show", "pager")
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
