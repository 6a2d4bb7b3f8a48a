"""What lists and shows print: all that the client returned as JSON, a choice of it for people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from hwqueue.client import Client
from hwqueue.testing import claim_one
from hwqueue.types import (
    ApiToken,
    DefinedWorkflow,
    LeaseSummary,
    Node,
    Queue,
    RunSummary,
    ServedClass,
    SpawnResult,
    SubmittedRun,
    TagCount,
    WorkflowDefinition,
    WorkflowSummary,
)

pytestmark = pytest.mark.thorough

Cli = Callable[..., str]
TRACE = 'Traceback (most recent call last):\n  File "tasks.py", line 3\nOSError: no \x1b[2Jfile\n'
ERROR = {"type": "OSError", "message": "no file\nnor folder", "traceback": TRACE}


@pytest.fixture
def cli(cli: Callable[..., Result]) -> Cli:
    """Run `hwqueue ARGS --dsn ...` and return its stdout."""
    return lambda *args: cli(*args).stdout


def names_of(kind: Any, *more: str) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)} | set(more)


def test_a_preview_of_preemption_says_why_nothing_would_stop(cli: Cli) -> None:
    cli("queue", "create", "renders")
    lease = json.loads(cli("lease", "spawn", "renders", "draw", "--json"))["lease_id"]
    assert "no node would have room" in cli("lease", "preemption", lease)
    assert json.loads(cli("lease", "preemption", lease, "--json"))["reason"] == "no_victims"


def test_json_has_every_field_of_what_the_client_returned(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [{"name": "a", "task": "t", "queue": "renders"}]
    Path("film.json").write_text(json.dumps({"name": "film", "steps": steps}))
    cli("queue", "create", "renders")
    cli("workflow", "define", "film.json")
    cli("workflow", "run", "film")
    cli("lease", "spawn", "renders", "draw")
    cli("node", "register", "box", "--tags", '{"zone": "a"}')
    cli("token", "create", "ci", "--role", "viewer")
    for line, names in (
        ("queue list", names_of(Queue)),
        ("queue show renders", names_of(Queue)),
        ("lease list", names_of(LeaseSummary)),
        ("lease spawn renders draw", names_of(SpawnResult)),
        ("node list", names_of(Node, "state", "tenants")),
        ("node show box", names_of(Node, "state", "tenants")),
        ("node labels", names_of(TagCount)),
        ("node what-if", names_of(ServedClass)),
        ("token list", names_of(ApiToken)),
        ("workflow list", names_of(WorkflowSummary)),
        ("workflow show film", names_of(WorkflowDefinition)),
        ("workflow define film.json", names_of(DefinedWorkflow)),
        ("workflow run film", names_of(SubmittedRun)),
        ("workflow runs", names_of(RunSummary)),
    ):
        found = json.loads(cli("--json", *line.split()))
        assert set(found[0] if isinstance(found, list) else found) == names, line


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_traceback_is_shown_in_lines(cli: Cli, dsn: str, max_attempts: int) -> None:
    with Client(dsn) as client:
        client.create_queue("renders")
        lease_id = client.spawn_lease("renders", "draw", max_attempts=max_attempts).lease_id
        claim = claim_one(client, "renders")
        client.fail_lease(claim.lease_id, claim.claim_token, error=ERROR)
    shown = cli("lease", "show", str(lease_id))
    facts, _, attempt = shown.partition("\n\n")
    values = dict([*line.split(maxsplit=1), ""][:2] for line in facts.splitlines())
    assert values["error"] == ("OSError: no file" if max_attempts == 1 else "-")
    assert "attempts" not in values
    heading, *trace = attempt.splitlines()
    assert heading.startswith("attempt 1 failed on test-")
    assert trace == [
        "  Traceback (most recent call last):",
        '    File "tasks.py", line 3',
        "  OSError: no \\x1b[2Jfile",
    ]
    assert json.loads(cli("lease", "show", str(lease_id), "--json"))["attempts"][0]["error"] == ERROR
    if max_attempts == 1:  # the list of failed leases has it, too
        [heading, row] = cli("lease", "list", "--state", "failed").splitlines()
        assert heading.split()[-1] == "error"
        assert row.endswith("  OSError: no file")
        [lease] = json.loads(cli("lease", "list", "--state", "failed", "--json"))
        assert lease["error"] == ERROR
