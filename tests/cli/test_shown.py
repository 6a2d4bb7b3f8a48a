"""What lists and shows print: all that the client returned as JSON, a choice of it for people."""

from __future__ import annotations

import dataclasses
import json
import re
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
        ("node list", names_of(Node, "state")),
        ("node show box", names_of(Node, "state")),
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


def test_json_holds_numbers_as_numbers(cli: Cli) -> None:
    cli("queue", "create", "renders")
    cli("lease", "spawn", "renders", "draw", "--max-attempts", "3")
    cli("node", "register", "box", "--capacity", '{"cpu_milli": 2000, "memory_mib": 1048577}')
    [lease] = json.loads(cli("lease", "list", "--json"))
    assert (lease["attempt"], lease["max_attempts"]) == (0, 3)
    [node] = json.loads(cli("node", "list", "--json"))
    assert (node["capacity"]["cpu_milli"], node["used"]["cpu_milli"]) == (2000, 0)
    for command in ("list", "usage"):
        assert {"0/2000", "0/1048577"} <= set(cli("node", command).split())


def test_spans_of_a_policy_are_in_units(cli: Cli) -> None:
    policy = '{"claim_timeout": 90, "retry": {"kind": "fixed", "base": 3600}}'
    shown = cli("queue", "create", "renders", "--policy", policy)
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (facts["claim_timeout"], facts["retain_completed"]) == ("1 min 30 s", "7 d")
    assert (facts["retry.kind"], facts["retry.base"]) == ("fixed", "1 h")
    assert json.loads(cli("queue", "policy", "renders", "--json"))["claim_timeout"] == 90


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


def test_a_suspended_lease_says_what_it_waits_for(cli: Cli, dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("renders")
        lease_id = client.spawn_lease("renders", "draw").lease_id
        claim = claim_one(client, "renders")
        client.save_checkpoint(claim.lease_id, claim.claim_token, "charge", {"id": 7})
        client.suspend_lease(claim.lease_id, claim.claim_token, signal="packed")
    shown = cli("lease", "show", str(lease_id))
    assert re.search(r"^suspended +waits for signal packed$", shown, re.M)
    assert re.search(r"^packed .* 0 +open: waits for signal packed$", shown, re.M)
    assert re.search(r"^charge .* saved$", shown, re.M)
    saved = json.loads(cli("lease", "show", str(lease_id), "--json"))["checkpoints"]
    assert [one["name"] for one in saved] == ["packed", "charge"]
    sent = cli("lease", "signal", str(lease_id), "packed", "--payload", '{"by": "ann"}', "--json")
    assert json.loads(sent)["state"] == "pending"
    assert "suspended" not in cli("lease", "show", str(lease_id))
    again = cli("lease", "signal", str(lease_id), "packed", "--key", "k")
    assert "True" in again or "yes" in again


def test_an_explanation_says_what_released_a_step(cli: Cli, dsn: str) -> None:
    steps = [{"name": "a", "task": "t"}, {"name": "b", "task": "t", "after": ["a"]}]
    with Client(dsn) as client:
        client.create_queue("q")
        run = client.submit_spec({"name": "two", "queue": "q", "steps": steps}).run_id
        claim = claim_one(client, "q")
        client.complete_lease(claim.lease_id, claim.claim_token)
        lease = client.list_workflow_steps(run)[1].lease_id
    told = cli("lease", "explain", str(lease)).splitlines()
    assert re.fullmatch(rf"released \S+ s ago by step a of run {run}", told[2])
    found = json.loads(cli("lease", "explain", str(lease), "--json"))
    assert found["released"].endswith(f"by step a of run {run}")


def test_a_definition_says_what_its_steps_do(cli: Cli, dsn: str) -> None:
    steps = [
        {"name": "each", "kind": "map", "task": "score", "over": {"$input": ["shards"]}},
        {"name": "train", "kind": "gang", "task": "train", "size": 4, "after": ["each"]},
        {"name": "load", "kind": "workflow", "workflow": "nightly-load"},
        {"name": "old", "kind": "workflow", "workflow": "nightly-load", "version": 3},
        {"name": "approve", "kind": "wait", "signal": "approved"},
        {"name": "nap", "kind": "sleep", "for": "1 h"},
    ]
    with Client(dsn) as client:
        client.define_workflow({"name": "kinds", "queue": "q", "steps": steps})
    told = cli("workflow", "show", "kinds")
    for name, does in {
        "each": r"score \(for each item\)",
        "train": r"train \(a gang of 4\)",
        "load": r"\(a run of workflow nightly-load\)",
        "old": r"\(a run of workflow nightly-load version 3\)",
        "approve": r"\(waits for signal approved\)",
        "nap": r"\(sleeps\)",
    }.items():
        assert re.search(rf"\b{name}\s+{does}(\s|$)", told), (name, told)
