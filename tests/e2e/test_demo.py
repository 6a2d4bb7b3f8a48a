"""`hwqueue demo`: a made-up cluster at work, and what it says to type next."""

import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hwqueue import Member
from hwqueue.cli.main import app
from hwqueue.client import Client
from hwqueue.demo.generate import add_labels, generate_trace, impossible_jobs
from hwqueue.demo.model import Trace


def test_demo_ends_with_what_to_type_next(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwqueue.cli.demo.demo_trace", _small_demo_trace)
    monkeypatch.setattr("hwqueue.cli.demo.SPEEDUP", 6000.0)
    for _ in range(2):  # it can be repeated: the second run replaces the first one's data
        result = CliRunner().invoke(app, ["--dsn", dsn, "demo"])
        assert result.exit_code == 0, (result.output, result.exception)
    for words in ("What you just saw", "every constraint kept", "H100", "What to type next"):
        assert words in result.stdout
    _waits_for_an_h100(dsn, result.stdout)
    with Client(dsn, pool_size=1) as client:  # nobody asks for work in the name of its nodes
        client.create_queue("training")
        gang = client.what_if_gang("training", [Member("train", count=2)])
        assert gang.code == "no_handler"
    commands = result.stdout.split("What to type next")[1].split("\n")
    for line in filter(None, map(str.strip, commands)):
        followed = CliRunner().invoke(app, ["--dsn", dsn, *_words(line)])
        assert followed.exit_code == (1 if "H100" in line else 0), (line, followed.output)
    with Client(dsn, pool_size=1) as client:  # the last one has removed them
        assert client.list_nodes() == []
        assert [each.queue for each in client.list_queues()] == ["training"]


def test_demo_leaves_the_queue_of_somebody_else_alone(dsn: str) -> None:
    CliRunner().invoke(app, ["--dsn", dsn, "queue", "create", "demo"])
    refused = CliRunner().invoke(app, ["--dsn", dsn, "demo"])
    assert refused.exit_code == 2
    assert "queue 'demo' exists" in refused.stderr


def _waits_for_an_h100(dsn: str, told: str) -> None:
    """The run has come as far as it can; that of the first demo was cancelled."""
    with Client(dsn, pool_size=1) as client:
        runs = client.list_workflow_runs(workflow="demo-pipeline")
        assert [run.state for run in runs] == ["running", "cancelled"]
        assert f"/runs/{runs[0].run_id}\n" in told
        steps = {step.step: step for step in client.list_workflow_steps(runs[0].run_id)}
        done = {name for name, step in steps.items() if step.state == "completed"}
        assert done == {"fetch", "clean", "check-quality", "train"}
        lease = steps["evaluate"].lease_id
        assert lease is not None
        assert "gpu_model in H100" in client.explain_lease(lease).words


def _small_demo_trace(*, seed: int) -> Trace:
    trace = add_labels(generate_trace(12, seed=seed, demand=0.6, span=600), seed=seed)
    return replace(trace, jobs=trace.jobs + impossible_jobs())


def _words(line: str) -> list[str]:
    program, *words = shlex.split(line)
    assert program == "hwqueue"
    return words
