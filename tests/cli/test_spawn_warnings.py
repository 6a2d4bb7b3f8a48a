"""What a spawn lacks, as commands say it on stderr: never a refusal."""

import json
from typing import cast
from uuid import uuid4

import pytest

from hwqueue.cli import spawning
from hwqueue.client import Client
from hwqueue.client._spawn import tell_warnings
from hwqueue.types import NodeSpec
from tests.e2e.conftest import Cli

SAID = 'warning: no live node has a handler for task "trian"; did you mean train?\n'


@pytest.fixture(autouse=True)
def node(dsn: str) -> None:
    """A queue, and a node that has task train and no GPU."""
    with Client(dsn) as client:
        client.create_queue("jobs")
        client.register_node(uuid4(), NodeSpec(name="n", instance_id="1", tasks=["train"]))


def test_a_task_that_no_worker_has_is_told_with_what_was_meant(cli: Cli) -> None:
    for line in (
        ("lease", "spawn", "jobs", "trian"),
        ("gang", "spawn", "jobs", "--member", "trian:2"),
        ("everywhere", "spawn", "jobs", "trian"),
    ):
        for _again in range(2):  # the second time the database knows the class
            told = cli(*line)
            assert SAID in told.stderr
            assert "warning" not in told.stdout
        as_json = cli("--json", *line)
        assert as_json.stderr == ""
        assert json.loads(as_json.stdout)["warnings"] == [SAID.removeprefix("warning: ").strip()]


def test_the_clients_log_does_not_say_it_again(caplog: pytest.LogCaptureFixture) -> None:
    class Telling:
        def spawn_lease(self, _queue: str, task: str, _params: object) -> None:
            tell_warnings(task, ["no live node has it"])

    spawning.spawn_lease(cast("Client", Telling()), "jobs", "said by a command", None, {})
    assert caplog.text == ""
    Telling().spawn_lease("jobs", "spawned by a handler", None)
    assert "no live node has it" in caplog.text


def test_a_spawn_that_fits_says_nothing(cli: Cli) -> None:
    assert "warning" not in cli("lease", "spawn", "jobs", "train").stderr
    told = cli("lease", "spawn", "jobs", "train", "--placement", '{"resources": {"gpus": 1}}')
    assert "warning: no live node has resource gpus" in told.stderr
    # a command that no worker runs
    told = cli("run", "--queue", "jobs", "--detach", "--", "true")
    assert "warning: no live node has a handler for task" in told.stderr
    refused = cli("lease", "spawn", "jbos", "train", code=3)
    assert "hint: make it: hwqueue queue create jbos" in refused.stderr
