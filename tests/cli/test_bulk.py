"""Commands that change all leases of a queue that a filter means."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hwqueue.cli.main import app
from hwqueue.client import Client

pytestmark = pytest.mark.thorough

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str) -> Run:
    """Run `hwqueue ARGS --dsn ...`."""

    def call(*args: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(app, ["--dsn", dsn, *args], input=answer)

    return call


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


def test_count_then_ask_then_cancel(run: Run, dsn: str, frames: list[Any]) -> None:
    line = ("lease", "cancel", "--queue", "renders", "--label", "film=7")
    assert run(*line, "--dry-run").stdout.split() == ["leases", "3"]
    refused = run(*line, answer="n\n")
    assert "cancel 3 leases of queue renders?" in refused.output
    assert (refused.exit_code, states(dsn, frames)) == (1, ["pending"] * 4)
    assert run(*line, answer="y\n").exit_code == 0
    assert states(dsn, frames) == ["cancelled"] * 3 + ["pending"]


def test_requeue_and_delete(run: Run, dsn: str, frames: list[Any]) -> None:
    run("lease", "cancel", "--queue", "renders", "--yes")
    line = ("--json", "lease", "requeue", "--queue", "renders", "--label", "film=8")
    assert json.loads(run(*line, "--yes").stdout) == {"leases": 0}  # none has failed
    found = run(*line, "--state", "cancelled", "--yes")
    assert json.loads(found.stdout) == {"requeued": 1, "skipped": 0}
    found = run("--json", "lease", "delete", "--queue", "renders", "--older", "0s", "--yes")
    assert json.loads(found.stdout) == {"deleted": 3, "skipped": 0}
    assert json.loads(run("--json", "lease", "list").stdout)[0]["lease_id"] == str(frames[3])


def test_priority(run: Run, dsn: str, frames: list[Any]) -> None:
    found = run("--json", "lease", "priority", "9", "--queue", "renders", "--yes")
    assert json.loads(found.stdout) == {"changed": 4, "skipped": 0}
    with Client(dsn) as client:
        assert {client.get_lease(each).priority for each in frames} == {9}


def test_purge(run: Run, frames: list[Any]) -> None:
    found = run("--json", "queue", "purge", "renders", "--yes")
    assert json.loads(found.stdout) == {"deleted": 4, "skipped": 0}
    assert json.loads(run("--json", "lease", "list").stdout) == []


def test_list_by_label_and_key(run: Run, dsn: str, frames: list[Any]) -> None:
    with Client(dsn) as client:
        client.spawn_lease("renders", "draw", idempotency_key="k")
    found = json.loads(run("--json", "lease", "list", "--label", "film=8").stdout)
    assert [each["lease_id"] for each in found] == [str(frames[3])]
    found = json.loads(run("--json", "lease", "list", "--queue", "renders", "--key", "k").stdout)
    assert [each["idempotency_key"] for each in found] == ["k"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("cancel",), "give ids of leases, or --queue"),
        (("cancel", "01890a5d-ac96-774b-bcce-b302099a8057", "--task", "t"), "filters go with"),
        (("cancel", "--queue", "renders", "--state", "failed"), "--state: give one of scheduled"),
        (("requeue", "--failed", "renders", "--label", "a=b"), "--failed goes with"),
        (("requeue", "--queue", "renders", "--limit", "3"), "--limit goes with"),
    ],
)
def test_lines_that_contradict_themselves(run: Run, line: tuple[str, ...], told: str) -> None:
    result = run("lease", *line)
    assert result.exit_code == 2
    assert told in result.output


def test_move(run: Run, dsn: str, frames: list[Any]) -> None:
    with Client(dsn) as client:
        client.create_queue("night", policy={"max_params_bytes": 10})
        large = client.spawn_lease("renders", "draw", {"frame": "x" * 20}).lease_id
    line = ("lease", "move", "night")
    found = run("--json", *line, "--queue", "renders", "--label", "film=7", "--yes")
    assert json.loads(found.stdout) == {"moved": 3, "skipped": 0}
    found = run("--json", *line, str(frames[3]))
    assert json.loads(found.stdout) == [{"lease_id": str(frames[3]), "state": "pending"}]
    with Client(dsn) as client:
        assert {client.get_lease(each).queue for each in frames} == {"night"}
    found = run(*line, "--queue", "renders", "--yes")
    assert "hwqueue lease move QUEUE LEASE_ID" in found.stderr
    assert "the limit is 10" in run(*line, str(large)).stderr
    assert run(*line, "--queue", "renders", str(large)).exit_code == 2
