"""hwqueue everywhere: from a spawn to a stop."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.e2e.test_cli import Cli, cli, shown

__all__ = ["cli", "shown"]

pytestmark = pytest.mark.thorough

QUEUE = "ops"


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn, pool_size=1) as connected:
        connected.create_queue(QUEUE)
        yield connected


def test_from_spawned_to_stopped(client: Client, cli: Cli, shown: Callable[..., Any]) -> None:
    own, node_id = str(uuid4()), uuid4()
    client.register_node(node_id, NodeSpec(name="gpu-1", instance_id="1", labels={"gpu": True}))
    spawned = shown(
        *("everywhere", "spawn", QUEUE, "agent", "--params", '{"level": 3}', "--id", own),
        *("--node-label", "gpu=true", "--mode", "once", "--on-cordoned", "--label", "app=x"),
    )
    assert (spawned["everywhere_id"], spawned["created"], spawned["nodes"]) == (own, True, 1)
    again = cli(
        *("everywhere", "spawn", QUEUE, "agent", "--params", '{"level": 3}', "--id", own),
        *("--node-label", "gpu=true", "--mode", "once", "--on-cordoned", "--label", "app=x"),
    )
    assert again.stdout.strip() == own
    assert "nodes that suit it now: 1; it was there already" in again.stderr
    for _ in range(3):
        client.reap()
    found = shown("everywhere", "show", own)
    assert (found["mode"], found["on_cordoned"], found["reserved"]) == ("once", True, 1)
    assert found["leases"][0]["node"] == "gpu-1"
    assert "gpu-1" in cli("everywhere", "show", own).stdout
    assert shown("everywhere", "show", own, "--after", str(node_id))["leases"] == []
    [listed] = shown("everywhere", "list", "--state", "active")
    assert (listed["everywhere_id"], listed["reserved"]) == (own, 1)

    cli("everywhere", "stop", own, stdin="n\n", code=1)
    assert client.get_everywhere(own).state == "active"
    asked = cli("everywhere", "stop", own, "--running", "stop", stdin="y\n")
    assert "stop task agent, which runs on 0 nodes?" in asked.stderr
    for _ in range(3):
        client.reap()
    assert shown("everywhere", "stop", own, "--yes") == {"everywhere_id": own, "state": "stopped"}
    assert shown("everywhere", "list", "--before", listed["created_at"]) == []
    cli("everywhere", "show", str(uuid4()), code=3)
