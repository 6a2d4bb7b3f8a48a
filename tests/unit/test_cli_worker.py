"""`hwqueue worker run`: how its options become settings."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from hwqueue import logs
from hwqueue.app import App
from hwqueue.cli import worker
from hwqueue.cli.main import app
from hwqueue.worker import WorkerSettings

pytestmark = pytest.mark.thorough

NODE = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[WorkerSettings]:
    """The settings that workers were started with; none really runs."""
    seen: list[WorkerSettings] = []

    def keep(_app: App, settings: WorkerSettings, *, supervised: bool) -> int:
        assert not supervised
        seen.append(settings)
        return 0

    monkeypatch.setattr(worker, "run_worker", keep)
    monkeypatch.setattr(logs, "set_up", lambda _settings: None)
    (tmp_path / "tasks_of_the_test.py").write_text("import hwqueue\napp = hwqueue.App()\n")
    monkeypatch.chdir(tmp_path)
    return seen


def run(*options: str) -> int:
    line = ["--dsn", "dbname=none", "worker", "run", "--app", "tasks_of_the_test:app", *options]
    return CliRunner().invoke(app, line).exit_code


def test_spans_and_the_id_are_settings(started: list[WorkerSettings]) -> None:
    spans = ["--poll-interval=250ms", "--cancel-grace=0s", "--reap-interval=1m"]
    more = ["--shutdown-timeout=0s", "--claim-timeout=90s", "--prune-interval=2h"]
    assert run(*spans, *more, f"--node-id={NODE}") == 0
    [settings] = started
    assert settings.poll_interval == timedelta(milliseconds=250)
    assert settings.cancel_grace == timedelta(0)
    assert settings.reap_interval == timedelta(minutes=1)
    assert settings.prune_interval == timedelta(hours=2)
    assert settings.claim_timeout == timedelta(seconds=90)
    assert settings.shutdown_timeout == timedelta(0)
    assert settings.effective_node_id == UUID(NODE)
    assert run("--reap-interval=never", "--prune-interval=never") == 0
    assert (started[1].reap_interval, started[1].prune_interval) == (None, None)


@pytest.mark.parametrize("listen", ["auto", "off", "host=direct dbname=x"])
def test_where_to_listen(started: list[WorkerSettings], monkeypatch: pytest.MonkeyPatch, listen: str) -> None:
    assert run(f"--listen={listen}", "--pass-env=PGAPPNAME") == 0
    monkeypatch.setenv("HWQUEUE_LISTEN", listen)
    assert run() == 0
    assert [settings.listen for settings in started] == [listen, listen]
    assert [settings.pass_environment for settings in started] == [("PGAPPNAME",), ()]


def test_left_out_they_are_the_defaults_and_a_template_names_the_node(started: list[WorkerSettings]) -> None:
    assert run("--name=n") == 0
    [settings] = started
    plain = WorkerSettings(dsn="dbname=none", name="n")
    assert settings == plain
    assert run() == 0
    assert started[1].name == WorkerSettings(dsn="").name
    assert run() == run("--name=%h") == run("--name=gpu-%i@%h.x") == 0
    host = socket.gethostname()
    assert [settings.name for settings in started[2:]] == [host, host, f"gpu-0@{host}.x"]


@pytest.mark.parametrize("option", ["--label", "--tags"])
def test_labels_of_the_node(started: list[WorkerSettings], option: str) -> None:
    assert run(f"{option}=gpu=true", f'{option}={{"region": "us-east"}}') == 0
    assert started[0].labels == {"gpu": True, "region": "us-east"}


def test_the_version_of_the_code(started: list[WorkerSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--app-version=2.4") == 0
    monkeypatch.setenv("HWQUEUE_APP_VERSION", "2.5")
    assert run() == 0
    assert [settings.app_version for settings in started] == ["2.4", "2.5"]


def test_the_log_is_set_up_before_the_app_is_loaded(
    started: list[WorkerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(logs, "set_up", seen.append)
    assert run("--log-format=json", "--log-level=debug", "--app=not_there:app") != 0
    assert run() == 0
    assert seen == [("json", "debug"), ("text", "info")]


def test_isolation_is_told_to_the_worker(started: list[WorkerSettings]) -> None:
    classes = ["--cpu-isolation=whole_core", "--cpu-isolation=strict_isolated"]
    gpus = ["--gpu-exclusivity=device_exclusive", "--gpu-share-mode=exclusive"]
    assert run(*classes, *gpus, "--default-cpu-isolation=whole_core") == 0
    [settings] = started
    assert settings.cpu_isolation == ("whole_core", "strict_isolated")
    assert (settings.gpu_exclusivity, settings.default_cpu_isolation) == (("device_exclusive",), "whole_core")
    assert settings.gpu_share_mode == "exclusive"


@pytest.mark.every_variant
@pytest.mark.parametrize(
    "options",
    [
        ["--listen=no place"],
        ["--claim-timeout=never"],
        ["--node-id=box-1"],
        ["--label=app_version=2", "--app-version=2.4"],
        ["--default-cpu-isolation=whole_core"],
        ["--log-format=xml"],
        ["--log-level=loud"],
        ["--name=%p"],
        ["--name=box%"],
        ["--processes=2", "--name=box"],
        ["--processes=2", "--name=%h"],
        ["--processes=2", f"--node-id={NODE}"],
        ["--processes=2", "--cpu-isolation=whole_core"],
        ["--processes=0"],
        ["--watch-dir=no such folder"],
        ["--gpu=:80"],
        ["--gpu=A100:80TB"],
        ["--gpu=A100:80"],
        ["--gpu=A100:80x2"],
        ["--gpu=A100x"],
        ["--gpu=A100x0"],
        ["--gpu=A100x1000", "--gpu=T4x25"],
        ["--url=https://queue.example"],
        ["--url=https://queue.example", "--token-file=t"],  # the line names a database, too
    ],
)
def test_what_makes_no_sense_is_refused(started: list[WorkerSettings], options: list[str]) -> None:
    """Before a process is started."""
    assert run(*options) == 2
    assert started == []


def test_gpus_are_declared_by_hand(started: list[WorkerSettings]) -> None:
    line = ["--gpu=A100:80GiBx2", "--gpu=RTX 4090", "--gpu=T4:15360MiB", "--name=box"]
    assert run(*line) == run(*line) == run("--gpu=A100", "--name=other") == 0
    first, again, other = (settings.gpus or () for settings in started)
    assert [(gpu.model, gpu.memory_mib) for gpu in first] == [
        ("A100", 81920),
        ("A100", 81920),
        ("RTX 4090", None),
        ("T4", 15360),
    ]
    assert first == again, "the same ids at every start"
    assert len({gpu.resource_id for gpu in (*first, *other)}) == 5


def test_processes_show_no_connection_string() -> None:
    """Everybody on the machine sees their lines."""
    line = ["python", "manage.py", "--dsn=one", "worker", "run", "--listen", "two", "--app=a:b"]
    kept, told = worker.without_connection_strings(line)
    assert kept == ["python", "manage.py", "worker", "run", "--app=a:b"]
    assert told == {"HWQUEUE_PROCESS_DSN": "one", "HWQUEUE_LISTEN": "two"}
