"""The examples of the documentation, run as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hwqueue.client import Client
from hwqueue.types import LeaseState
from tests.e2e.worker_support import is_in, wait_until

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


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


def test_quickstart(dsn: str) -> None:
    assert run_example("quickstart.py", dsn) == "completed hello world, this is attempt 1\n"


def test_sqlalchemy_outbox(dsn: str) -> None:
    assert run_example("sqlalchemy_outbox.py", dsn) == "1 order, 1 lease\n"


def test_compose_app_through_the_command_line(dsn: str) -> None:
    """As the node containers of docker-compose.yml run it."""
    with Client(dsn) as client:
        client.create_queue("examples")
        placement = {"require": [{"tags": {"gpu": True}}]}
        spawned = client.spawn_lease("examples", "where", {"n": 1}, placement=placement)
        options = ["--app=compose_app:app", "--queue=examples", "--name=node-gpu", "--rack=1"]
        program = Path(sys.executable).parent / "hwqueue"
        with subprocess.Popen(
            [program, "worker", "run", *options, '--tags={"gpu":true}'],
            env=os.environ | {"HWQUEUE_DSN": dsn},
            cwd=EXAMPLES,
            stderr=subprocess.PIPE,
            text=True,
        ) as node:
            try:
                assert node.stderr is not None
                while "node node-gpu" not in (line := node.stderr.readline()):
                    assert line, "it says what it does, unasked"
                wait_until(is_in(client, spawned.lease_id, LeaseState.COMPLETED))
                node.terminate()
                assert node.wait(30) == 0
            finally:
                node.kill()
        assert client.get_lease(spawned.lease_id).result["params"] == {"n": 1}
