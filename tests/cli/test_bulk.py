"""Commands that change all leases of a queue that a filter means."""

from typing import Any

import pytest

from hwqueue.client import Client
from tests.e2e.conftest import Cli, Shown

pytestmark = pytest.mark.thorough


@pytest.fixture
def frames(dsn: str) -> list[Any]:
    """Three leases of film 7 and one of film 8, pending in queue renders."""
    with Client(dsn) as client:
        client.create_queue("renders")
        return [
            client.spawn_lease("renders", "draw", labels={"film": film}).lease_id
            for film in ("7", "7", "7", "8")
        ]


def states(dsn: str, frames: list[Any]) -> list[str]:
    with Client(dsn) as client:
        return [str(client.get_lease(each).state) for each in frames]


def test_count_then_ask_then_cancel(cli: Cli, dsn: str, frames: list[Any]) -> None:
    line = ("lease", "cancel", "--queue", "renders", "--label", "film=7")
    assert cli(*line, "--dry-run").stdout.split() == ["leases", "3"]
    refused = cli(*line, stdin="n\n", code=1)
    assert "cancel 3 leases of queue renders?" in refused.output
    assert states(dsn, frames) == ["pending"] * 4
    cli(*line, stdin="y\n")
    assert states(dsn, frames) == ["cancelled"] * 3 + ["pending"]


def test_lines_that_contradict_themselves(cli: Cli) -> None:
    for line, told in (
        (("cancel",), "give ids of leases, or --queue"),
        (("cancel", "01890a5d-ac96-774b-bcce-b302099a8057", "--task", "t"), "filters go with"),
        (("cancel", "--queue", "renders", "--state", "failed"), "--state: give one of scheduled"),
        (("requeue", "--failed", "renders", "--label", "a=b"), "--failed goes with"),
        (("requeue", "--queue", "renders", "--limit", "3"), "--limit goes with"),
    ):
        assert told in cli("lease", *line, code=2).output


def test_move(cli: Cli, shown: Shown, dsn: str, frames: list[Any]) -> None:
    with Client(dsn) as client:
        client.create_queue("night", policy={"max_params_bytes": 10})
        large = client.spawn_lease("renders", "draw", {"frame": "x" * 20}).lease_id
    line = ("lease", "move", "night")
    found = cli(*line, "--queue", "renders", "--yes")
    assert "hwqueue lease move QUEUE LEASE_ID" in found.stderr
    assert "the limit is 10" in cli(*line, str(large), code=2).stderr
    cli(*line, "--queue", "renders", str(large), code=2)
