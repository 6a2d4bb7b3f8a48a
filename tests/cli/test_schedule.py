"""hwqueue schedule: made, looked at, fired by hand, declared by an app."""

import sys
from pathlib import Path

import pytest

from hwqueue.client import Client
from tests.e2e.conftest import Cli, Shown

TASKS = """
from datetime import timedelta

import hwqueue

app = hwqueue.App()


@app.task("report", schedule=hwqueue.cron("0 2 * * *", zone="Europe/Berlin"))
def report() -> None: ...


@app.task("sweep", schedule=hwqueue.every(timedelta(minutes=5)))
def sweep() -> None: ...
"""
WHAT = ("--queue", "default", "--task", "report")


@pytest.fixture(autouse=True)
def _queue(dsn: str) -> None:
    with Client(dsn, pool_size=1) as client:
        client.create_queue("default")


def test_from_created_to_dropped(cli: Cli, shown: Shown) -> None:
    assert "hwqueue schedule create" in cli("schedule", "list").stderr
    made = ("schedule", "create", "nightly", "--cron", "0 2 * * *", "--zone", "Europe/Berlin", *WHAT)
    for said in ("is made", "is there already"):
        assert said in cli(*made, "--params", '{"day": 1}').stderr
    assert "another specification" in cli(*made, code=1).stderr
    assert "five fields" in cli("schedule", "create", "bad", "--cron", "0 2 *", *WHAT, code=2).stderr
    cli("schedule", "create", "often", "--every", "5m", "--jitter", "30s", "--overlap", "skip", *WHAT)
    assert shown("schedule", "set", "nightly", '{"missed": "all"}')["spec"]["missed"] == "all"
    listed = cli("schedule", "list").output
    assert "0 2 * * * Europe/Berlin" in listed
    assert "every 0:05:00" in listed
    cli("schedule", "pause", "nightly", "--reason", "leave")
    assert "leave" in cli("schedule", "list").output
    cli("schedule", "resume", "nightly")
    [fired] = shown("schedule", "trigger", "nightly", "--params", '{"day": 2}')
    assert fired["outcome"] == "spawned"
    span = ("--from", "2026-03-28T00:00:00Z", "--to", "2026-03-30T00:00:00Z")
    assert [row["outcome"] for row in shown("schedule", "backfill", "nightly", *span)] == ["would_spawn"] * 2
    assert "add --fire" in cli("schedule", "backfill", "nightly", *span).stderr
    cli("schedule", "backfill", "nightly", *span, "--fire")
    assert len(shown("schedule", "history", "nightly")) == 3
    cli("schedule", "drop", "nightly")
    for verb in ("drop", "pause", "trigger", "history"):
        cli("schedule", verb, "nightly", code=3)


def test_next_needs_no_database(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWQUEUE_DSN", "postgresql://nowhere.invalid:1/none")
    line = ("schedule", "next", "30 2 * * *", "--zone", "Europe/Berlin", "--after", "2026-03-01T00:00:00Z")
    shown = cli(*line, "--around", "dst", "--count", "3").output
    assert "2026-03-29 03:00:00+02:00" in shown  # half past two is left out
    assert "2026-03-30 00:30:00+00:00" in shown
    assert "do not change" in cli("schedule", "next", "0 0 * * *", "--around", "dst", code=2).stderr
    assert "no cron expression" in cli("schedule", "next", "0 3 31 2 *", code=2).stderr
    nowhere = ("schedule", "next", "0 0 * * *", "--zone", "Nowhere", "--around", "dst")
    assert "no time zone" in cli(*nowhere, code=2).stderr


def test_sync_makes_them_those_of_an_app(
    cli: Cli, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tasks_on_schedule.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tasks_on_schedule", raising=False)
    for change in ("created", "same"):
        synced = shown("schedule", "sync", "--app", "tasks_on_schedule:app", "--origin", "billing")
        assert synced == [{"name": name, "change": change} for name in ("report", "sweep")]
