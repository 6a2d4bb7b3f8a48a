"""hwqueue events: listed, printed and followed."""

import getpass
import json
import signal
import subprocess
from contextlib import AbstractContextManager
from typing import IO, Any

import psycopg
import pytest

from hwqueue.client import Client
from tests.e2e.conftest import Cli, Shown
from tests.e2e.programs import running
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
    both = ("--code", "node_cordoned", "--code", "queue_created")
    assert listed(*both) == [cordoned, created]
    assert listed("--queue", "renders", "--actor", getpass.getuser()) == [created]
    assert listed("--before", str(registered["event_id"]))[0] == created
    assert listed("--since", "1h", "--code", "node_cordoned") == [cordoned]
    assert listed("--until", "1h") == []
    assert listed("--since", cordoned["at"])[-1] == cordoned
    assert listed("--class", "1") == []
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
        rest, complaints = process.communicate(timeout=20)
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
        assert process.wait(timeout=20) in (0, 1)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
