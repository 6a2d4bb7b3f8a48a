"""Worker settings: every refusal names the field."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.errors import ConfigError
from hwqueue.worker.node import combine
from hwqueue.worker.settings import WorkerSettings

SECOND = timedelta(seconds=1)


def test_the_node_id_belongs_to_the_name() -> None:
    first = WorkerSettings(dsn="x", name="gpu-1")
    assert first.effective_node_id == WorkerSettings(dsn="y", name="gpu-1").effective_node_id
    assert first.effective_node_id != WorkerSettings(dsn="x", name="gpu-2").effective_node_id
    given = uuid4()
    assert WorkerSettings(dsn="x", node_id=given).effective_node_id == given


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queues", "default"),
        ("queues", ("",)),
        ("name", ""),
        ("name", "x" * 254),
        ("concurrency", 0),
        ("concurrency", 10_001),
        ("concurrency", 1.5),
        ("concurrency", True),
        ("claim_ahead", -1),
        ("claim_ahead", "many"),
        ("share", (0, 0)),
        ("share", (2, 2)),
        ("share", (-1, 2)),
        ("rack", -1),
        ("rack", 2**32),
        ("capacity", {"cpu_milli": -1}),
        ("capacity", {"license": "two"}),
        ("poll_interval", timedelta(0)),
        ("poll_interval", 1),
        ("claim_timeout", timedelta(milliseconds=1)),
        ("heartbeat_interval", timedelta(0)),
        ("heartbeat_timeout", 15 * SECOND),
        ("reap_interval", timedelta(0)),
        ("shutdown_timeout", -SECOND),
        ("cancel_grace", -SECOND),
        ("cpu_isolation", "whole_core"),
        ("cpu_isolation", ("whole",)),
        ("gpu_exclusivity", ("whole_core",)),
        ("default_cpu_isolation", "whole_core"),
        ("gpu_share_mode", "shared"),
        ("app_version", ""),
        ("app_version", "x" * 101),
        ("app_version", 2),
    ],
)
def test_bad_values_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        WorkerSettings(**{"dsn": "host=x", field: value})


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("https://q.example", {"token_file": None}),
        ("http://q.example", {}),  # the token would go through the network
        ("http://localhost.q.example", {}),
        ("http://127.0.0.1@q.example", {}),
        ("q.example", {}),
        ("https://", {}),
        ("https://[", {}),
        ("https://q.example", {"dsn": "x"}),
        ("https://q.example", {"sync_dsn": "x"}),
        ("https://q.example", {"node_id": uuid4()}),
        ("https://q.example", {"listen": "host=x"}),
    ],
)
def test_a_server_takes_the_place_of_the_database(url: str, more: dict[str, Any]) -> None:
    for good in ("https://q.example:8443/below", "http://localhost:8080", "http://[::1]:8080"):
        assert WorkerSettings(url=good, token_file=Path("t")).url == good
    with pytest.raises(ConfigError):
        WorkerSettings(**{"url": url, "token_file": Path("t"), **more})


def test_the_version_of_the_code_is_a_label() -> None:
    settings = WorkerSettings(dsn="x", labels={"gpu": True}, app_version="2.4")
    assert settings.own_labels == {"gpu": True, "app_version": "2.4"}
    assert combine(settings, None).spec.labels == settings.own_labels
    assert WorkerSettings(dsn="x", labels={"app_version": "1"}).own_labels == {"app_version": "1"}
    with pytest.raises(ConfigError, match=r"app_version is '2\.4', the label app_version '1'"):
        WorkerSettings(dsn="x", labels={"app_version": "1"}, app_version="2.4")


def test_whole_cores_need_a_system_that_can_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    WorkerSettings(dsn="x", cpu_isolation=("best_effort",))
    with pytest.raises(ConfigError, match="cannot pin"):
        WorkerSettings(dsn="x", cpu_isolation=("whole_core",))
