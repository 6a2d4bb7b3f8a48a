"""`hwqueue.contrib.django`: the cases of tests/django_shop by Django's runner, and its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from hwqueue.client import Client
from hwqueue.types import Json, LeaseState
from tests.e2e.worker_support import BOUND_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
TASKS = "tests.django_shop.orders.tasks"
NO_ARGUMENTS: Json = {"args": [], "kwargs": {}}
NAMES = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}


def shop(dsn: str, *arguments: str) -> dict[str, Any]:
    """How a command of the project is started."""
    named = conninfo_to_dict(dsn)
    variables = {f"SHOP_{name}": str(named.get(key) or "") for name, key in NAMES.items()}
    return {
        "args": [sys.executable, "-W", "error", "-m", "tests.django_shop.manage", *arguments],
        "cwd": ROOT,
        "env": os.environ | variables | {"DJANGO_SETTINGS_MODULE": "tests.django_shop.settings"},
        "text": True,
    }


def manage(dsn: str, *arguments: str) -> str:
    """Run a command of the project to its end; what it said on both streams."""
    done = subprocess.run(
        **shop(dsn, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@contextmanager
def worker(dsn: str, *arguments: str) -> Iterator[None]:
    """A worker of the project, which stops gracefully at the end."""
    quick = ("--no-detect", "--poll-interval", "20ms", "--listen", "off")
    line = shop(dsn, "hwqueue", "worker", "run", *quick, *arguments)
    with subprocess.Popen(**line, stderr=subprocess.PIPE) as process:
        try:
            yield
            process.terminate()
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 0, said
        finally:
            process.kill()


@pytest.fixture
def client(empty_dsn: str) -> Iterator[Client]:
    """On a database that `migrate` has made."""
    manage(empty_dsn, "migrate")
    with Client(empty_dsn, pool_size=1) as opened:
        yield opened


def results(client: Client, lease_ids: Sequence[UUID]) -> list[Any]:
    """What leases returned, once all have."""
    leases = client.wait_many(lease_ids, timeout=timedelta(seconds=BOUND_SECONDS))
    assert [lease.state for lease in leases] == [LeaseState.COMPLETED] * len(leases), leases
    return [lease.result for lease in leases]


def test_the_cases(empty_dsn: str) -> None:
    cases = ("-p", "case_*.py", "tests/django_shop/cases", "-t", ".")
    said = manage(empty_dsn, "test", "--noinput", *cases)
    assert "\nOK" in said


def test_old_connections_are_closed_around_each_handler(client: Client, empty_dsn: str) -> None:
    """CONN_MAX_AGE is 0, as Django has it: none outlives its handler."""
    names = ("backend-pid", "backend-pid", "backend-pid-async", "backend-pid-async")
    spawned = [client.spawn_lease("mail", name).lease_id for name in names]
    with worker(empty_dsn, "--queue", "mail", "--concurrency", "1"):
        sessions = results(client, spawned)
    assert len(set(sessions)) == len(sessions)


def test_child_processes_have_django(client: Client, empty_dsn: str) -> None:
    """Two workers that manage.py starts again as it was started, with handlers in processes."""
    spawned = [
        client.spawn_lease("mail", "count-in-process").lease_id,
        client.spawn_lease("default", f"{TASKS}.in_process", NO_ARGUMENTS).lease_id,
    ]
    with worker(empty_dsn, "--processes", "2"):
        count, (_pid, _parent, other_count) = results(client, spawned)
        assert len(client.list_nodes()) == 2
    assert (count, other_count) == (0, 0)


def test_the_end_of_a_failed_task_is_told(client: Client, empty_dsn: str) -> None:
    lease_id = client.spawn_lease("default", f"{TASKS}.reject", NO_ARGUMENTS).lease_id
    with psycopg.connect(empty_dsn, autocommit=True) as connection:

        def told() -> list[Any]:
            return connection.execute("select item from orders_order").fetchall()

        with worker(empty_dsn, "--queue", "default"):
            wait_until(lambda: bool(told()))
        assert told() == [("reject failed",)]
    assert client.get_lease(lease_id).state is LeaseState.FAILED


def test_settings_that_are_wrong_end_a_command_with_a_message(empty_dsn: str) -> None:
    line = shop(empty_dsn, "hwqueue", "queue", "list")
    line["env"] |= {"SHOP_HWQUEUE_DATABASE": "other"}
    done = subprocess.run(**line, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: DATABASES['other'] has the engine ")
