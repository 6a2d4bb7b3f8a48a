"""`hwqueue demo`: a made-up cluster at work, and what it says to type next."""

import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hwqueue.cli.main import app
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
    commands = result.stdout.split("What to type next")[1].split("\n")
    for line in filter(None, map(str.strip, commands)):
        followed = CliRunner().invoke(app, ["--dsn", dsn, *_words(line)])
        assert followed.exit_code == (1 if "H100" in line else 0), (line, followed.output)


def test_demo_leaves_the_queue_of_somebody_else_alone(dsn: str) -> None:
    CliRunner().invoke(app, ["--dsn", dsn, "queue", "create", "demo"])
    refused = CliRunner().invoke(app, ["--dsn", dsn, "demo"])
    assert refused.exit_code == 2
    assert "queue 'demo' exists" in refused.stderr


def _small_demo_trace(*, seed: int) -> Trace:
    trace = add_labels(generate_trace(12, seed=seed, demand=0.6, span=600), seed=seed)
    return replace(trace, jobs=trace.jobs + impossible_jobs())


def _words(line: str) -> list[str]:
    program, *words = shlex.split(line)
    assert program == "hwqueue"
    return words
