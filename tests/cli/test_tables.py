"""Each table that a command prints fits a terminal, and what is in it can be copied."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hwqueue.cli import output
from hwqueue.cli.main import app
from hwqueue.cli.output import plain_text
from hwqueue.cli.tables import Row, flat, grid_of, table_of
from hwqueue.client import Client
from hwqueue.types import LeaseState
from tests.dashboard.conftest import seeded as _seeded
from tests.unit.test_cli_inputs import COMMANDS

pytestmark = pytest.mark.thorough

seeded = _seeded
WIDTHS = (80, 100, 120)
MOST_LINES = 9  # of a row, on a narrow terminal
LISTS = {
    *("list", "show", "usage", "labels", "depth", "history", "runs", "results", "versions"),
    *("status", "preemptions", "deliveries", "signals", "pending", "match", "what-if", "check", "policy"),
}
ELSEWHERE = {
    *("hwqueue db status", "hwqueue db check"),  # of a server of their own
    "hwqueue gang what-if",  # an explanation, which wraps
}


@pytest.fixture(scope="module")
def names(seeded: str) -> dict[str, Any]:
    """Things that commands are about; some are made."""
    with Client(seeded, pool_size=1) as client:
        client.set_webhook("pager", "https://pager.example.org/a/long/path/to/nowhere")
        spec = {"cron": "0 2 * * *", "zone": "America/Argentina/Buenos_Aires"}
        client.create_schedule("nightly", {**spec, "queue": "renders", "task": "draw"})
        client.trigger_schedule("nightly")
        client.create_limit("per_user", {"slots": 2, "by": "key"})
        client.set_tenant("a laboratory with a long name", {"tier": "scavenger"})
        client.grant_tenant("hwqueue_tenants", "a laboratory with a long name", ["spawn", "operate"])
        client.throttle_limit("per_user", "u42", retry_after=timedelta(hours=1))
        delivery = client.test_webhook("pager")
        client.set_task("train", {"placement": {"resources": {"gpu": 2}}, "max_attempts": 3})
        client.create_token("ci", b"x" * 32, "viewer")
        client.spawn_everywhere("renders", "agent", affinity_tags={"kernel": "6.8"})
        client.reap()
        runs = client.list_workflow_runs(limit=50)
        run = next(each for each in runs if each.workflow == "score-shards")
        waiting = next(each for each in runs if each.workflow == "score-and-release")
        client.signal_workflow_run(waiting.run_id, "approved", {"by": "ann"})
        return {
            "lease": client.list_leases(state=LeaseState.FAILED, limit=1)[0].lease_id,
            "gang": client.list_gangs()[0].gang_id,
            "node": client.list_nodes()[0].name,
            "everywhere": client.list_everywhere()[0].everywhere_id,
            "delivery": delivery,
            "run": run.run_id,
            "waiting": waiting.run_id,
            "tenant": "a laboratory with a long name",
        }


LINES = (
    *("class list", "events list --limit 100", "everywhere list", "everywhere show {everywhere}"),
    *("gang list", "gang show {gang}", "lease list", "lease list --state failed"),
    *("lease history {lease}", "lease show {lease}", "match {{}} --all", "node labels"),
    *("node list", "node show {node}", "node usage", "pending", "queue depth", "queue list"),
    *("node what-if --label zone=a --gpu A100:80GiB", "queue policy renders", "queue show renders"),
    *("service show 6ba7b812-9dad-11d1-80b4-00c04fd430c8", "task list", "task show train"),
    *("token list", "webhook list", "webhook show pager", "webhook deliveries pager"),
    *("schedule list", "schedule history nightly", "limit list", "limit show per_user"),
    *("tenant list", "tenant show {tenant}", "tenant usage", "tenant preemptions"),
    *("workflow check --workflow score-and-release", "workflow list", "workflow runs"),
    *("workflow results {run} score", "workflow show train-and-publish"),
    *("workflow status {run}", "workflow signals {waiting}", "workflow versions train-and-publish"),
)


def printed(rows: Sequence[Row], width: int) -> str:
    table, least, _ = table_of(rows, width, plain_text)
    out = io.StringIO()
    Console(file=out, width=max(width, least), force_terminal=True, color_system=None).print(table)
    return out.getvalue()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Row]]:
    """The rows of each table that a command prints on a terminal."""
    seen: list[Sequence[Row]] = []

    def watched(rows: Sequence[Row], width: int, spell: Any) -> Any:
        seen.append(rows)
        return table_of(rows, width, spell)

    def watched_grid(facts: Row, spell: Any) -> Any:
        seen.append([facts])
        return grid_of(facts, spell)

    monkeypatch.setattr(output, "table_of", watched)
    monkeypatch.setattr(output, "grid_of", watched_grid)
    terminal = partial(Console, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "Console", partial(terminal, width=100))
    return seen


def test_every_list_is_looked_at() -> None:
    asked = {f"hwqueue {line}" for line in LINES}
    for path in sorted(COMMANDS):
        if path.split()[-1] in LISTS and path not in ELSEWHERE:
            assert any(f"{line} ".startswith(f"{path} ") for line in asked), path


@pytest.mark.parametrize("line", LINES)
def test_a_table_fits(seeded: str, names: dict[str, Any], tables: list[Sequence[Row]], line: str) -> None:
    words = [word.format(**names) for word in line.split()]
    result = CliRunner().invoke(app, ["--dsn", seeded, *words])
    assert result.exit_code in (0, 1), (result.output, result.exception)
    assert tables, result.output
    for rows in tables:
        for width in WIDTHS:
            text = printed(rows, width)
            lines = text.splitlines()
            assert "…" not in text.replace("…", "", sum(str(row).count("…") for row in rows))
            assert max(map(len, lines)) <= width or len(rows) == 1, text
            assert len(lines) <= 4 + MOST_LINES * len(rows) or len(rows) == 1, text
            for row in rows:
                first = plain_text(next(iter(row.values())))
                for name, value in row.items():
                    heading = name.replace("_", " ")
                    if isinstance(value, UUID):
                        assert str(value) in text, name
                    elif isinstance(value, datetime) and f" {heading} " in text.partition("│")[0]:
                        assert flat(value, plain_text) in text, name
                assert len(first) > 44 or " " in first or first in text


def test_the_devices_of_a_node_are_a_table(seeded: str, tables: list[Sequence[Row]]) -> None:
    shown = CliRunner().invoke(app, ["--dsn", seeded, "node", "show", "n-01-01"])
    assert "gpus:" in shown.stdout
    assert [row["model"] for rows in tables if "model" in rows[0] for row in rows] == ["A100"] * 8


def test_the_classes_with_most_leases_come_first(seeded: str, tables: list[Sequence[Row]]) -> None:
    CliRunner().invoke(app, ["--dsn", seeded, "class", "list"])
    [rows] = tables
    most = [(row["pending"], row["running"]) for row in rows]
    assert most == sorted(most, reverse=True) != []


AT = datetime(2030, 1, 31, 17, tzinfo=UTC)
ROW: Row = {
    "lease_id": UUID(int=2**127 + 5),
    "queue": "renders",
    "task": "draw",
    "state": "failed",
    "priority": 0,
    "attempt": "1/3",
    "created_at": AT,
    "labels": {"zone": "a", "gpu": 2},
    "error": "ValueError: " + "a word " * 20,
}


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (80, {"priority", "attempt", "created_at", "labels", "queue", "task"}),
        (100, {"priority", "attempt", "created_at", "labels"}),
        (120, {"priority", "attempt", "created_at"}),
        (200, set()),
    ],
)
def test_the_least_wanted_columns_make_room(width: int, left_out: set[str]) -> None:
    _, least, gone = table_of([ROW], width, plain_text)
    assert set(gone) <= left_out, gone
    assert least <= width
    text = printed([ROW], width)
    assert str(ROW["lease_id"]) in text
    assert "ValueError" in text
    if "labels" not in gone:
        assert "zone=a, gpu=2" in re.sub(r"\s*┃?│?\s+", " ", text)


def test_no_word_of_a_fact_is_broken() -> None:
    long = "https://example.org/" + "x" * 120
    table, least = grid_of({"name": "pager", "url": long}, plain_text)
    out = io.StringIO()
    Console(file=out, width=max(80, least), force_terminal=True, color_system=None).print(table)
    assert long in out.getvalue()
