"""What the shell offers when Tab is pressed."""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hwqueue.cli.main import app
from hwqueue.client import Client
from hwqueue.embedded import EmbeddedServer
from hwqueue.types import NodeSpec
from tests.cli.test_db import NAMING

pytestmark = pytest.mark.thorough


def offered(line: str) -> list[str]:
    """What bash is told for a line whose last word is not finished."""
    words = f"hwqueue {line}"
    told = {"_HWQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    told["COMP_CWORD"] = str(len(shlex.split(words)) - (not words.endswith(" ")))
    result = CliRunner().invoke(app, [], prog_name="hwqueue", env=told)
    assert result.stderr == ""
    return result.stdout.split()


def test_names_in_the_database(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(dsn) as client:
        for queue in ("mail", "renders", "reports"):
            client.create_queue(queue)
        for name in ("training", "mailing"):
            client.define_workflow({"name": name, "steps": [{"name": "a", "task": "t"}]})
        node = "0197f3a2-7c1e-7000-8000-000000000001"
        client.register_node(node, NodeSpec(name="gpu-1", instance_id="1"))
    lines: list[tuple[str, list[str]]] = [
        ("queue show re", ["renders", "reports"]),
        ("lease spawn rep", ["reports"]),
        ("lease list --queue ", ["mail", "renders", "reports"]),
        ("worker run --queue m", ["mail"]),
        ("node cordon g", ["gpu-1"]),
        ("events list --node g", ["gpu-1"]),
        ("events list --code node_d", ["node_deregistered", "node_drained"]),
        ("workflow run tr", ["training"]),
        ("workflow runs --workflow ", ["mailing", "training"]),
        ("queue show nothing", []),
    ]
    for line, names in lines:
        monkeypatch.setenv("HWQUEUE_DSN", dsn)
        assert sorted(offered(line)) == names
        monkeypatch.setenv("HWQUEUE_DSN", "host=127.0.0.1 port=1 dbname=gone")
        assert sorted(offered(line)) == (names if "--code" in line else [])
    assert offered(f"--dsn='{dsn}' queue show m") == ["mail"]


def test_no_server_is_started(monkeypatch: pytest.MonkeyPatch, open_folder: Path) -> None:
    for variable in NAMING:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HWQUEUE_DATA_DIR", str(open_folder / "server"))
    assert offered("queue show m") == []
    assert not EmbeddedServer().data_dir.exists()
