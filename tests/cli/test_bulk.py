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


def test_requeue_and_delete(shown: Shown, frames: list[Any]) -> None:
    shown("lease", "cancel", "--queue", "renders", "--yes")
    line = ("lease", "requeue", "--queue", "renders", "--label", "film=8")
    assert shown(*line, "--yes") == {"leases": 0}  # none has failed
    assert shown(*line, "--state", "cancelled", "--yes") == {"requeued": 1, "skipped": 0}
    found = shown("lease", "delete", "--queue", "renders", "--older", "0s", "--yes")
    assert found == {"deleted": 3, "skipped": 0}
    assert shown("lease", "list")[0]["lease_id"] == str(frames[3])


def test_list_by_label_and_key_then_priority_then_purge(shown: Shown, dsn: str, frames: list[Any]) -> None:
    assert [each["lease_id"] for each in shown("lease", "list", "--label", "film=8")] == [str(frames[3])]
    found = shown("lease", "priority", "9", "--queue", "renders", "--yes")
    assert found == {"changed": 4, "skipped": 0}
    with Client(dsn) as client:
        assert {client.get_lease(each).priority for each in frames} == {9}
        client.spawn_lease("renders", "draw", idempotency_key="k")
    found = shown("lease", "list", "--queue", "renders", "--key", "k")
    assert [each["idempotency_key"] for each in found] == ["k"]
    assert shown("queue", "purge", "renders", "--yes") == {"deleted": 5, "skipped": 0}
    assert shown("lease", "list") == []


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
    found = shown(*line, "--queue", "renders", "--label", "film=7", "--yes")
    assert found == {"moved": 3, "skipped": 0}
    assert shown(*line, str(frames[3])) == [{"lease_id": str(frames[3]), "state": "pending"}]
    with Client(dsn) as client:
        assert {client.get_lease(each).queue for each in frames} == {"night"}
    found = cli(*line, "--queue", "renders", "--yes")
    assert "hwqueue lease move QUEUE LEASE_ID" in found.stderr
    assert "the limit is 10" in cli(*line, str(large), code=2).stderr
    cli(*line, "--queue", "renders", str(large), code=2)
