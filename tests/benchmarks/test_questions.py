"""Every question runs at the smallest size: benchmarks rot when nobody runs them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import QUESTIONS, app

pytestmark = pytest.mark.embedded

FEW = ["--claims", "2", "--rounds", "3"]
SHORT = ["--seconds", "0.02", "--rounds", "3"]
SMALL = {
    "floor": [*SHORT, "--connections", "1", "--backlog", "4000"],
    "ineligible": [*FEW, "--backlog", "20"],
    "blocked": [*FEW, "--backlog", "20", "--classes", "1", "--classes", "3"],
    "eligible": [*FEW, "--sizes", "20", "--sizes", "40"],
    "active": [*FEW, "--classes", "1", "--classes", "3", "--waiting", "30"],
    "existing": [*FEW, "--classes", "10", "--classes", "20", "--waiting", "20"],
    "horizon": [*FEW, "--classes", "1", "--classes", "3"],
    "dependents": [*FEW, "--dependents", "1", "--dependents", "3", "--groups", "1", "--groups", "3"],
    "nodes": [*FEW, "--counts", "1", "--counts", "3"],
    "profiles": [*FEW, "--counts", "1", "--counts", "3"],
    "payloads": [*FEW, "--sizes", "100", "--sizes", "10000"],
    "priorities": [*FEW, "--waiting", "20"],
    "others": [*FEW, "--terms", "2", "--domains", "2"],
    "connections": [*SHORT, "--counts", "1", "--counts", "2", "--backlog", "4000"],
    "batches": [*SHORT, "--sizes", "1", "--sizes", "10", "--backlog", "8000", "--connections", "1"],
    "releases": [
        *("--seconds", "0.2", "--rounds", "3"),
        *("--backlog", "2000", "--items", "10", "--connections", "1"),
    ],
    "held": [*(*SHORT, "--backlog", "3000", "--items", "1500"), *("--connections", "1", "--open", "0.2")],
    "hooks": [*SHORT, "--connections", "1", "--backlog", "4000", "--runs", "2"],
    "fanin": [*SHORT, "--backlog", "4000", "--items", "2000", "--connections", "1"],
    "chains": [*SHORT, "--backlog", "4000", "--connections", "1"],
    "waiting": [*FEW, "--steps", "20", "--runs", "2"],
    "submissions": ["--sizes", "2", "--sizes", "5", "--calls", "2", "--rounds", "3"],
    "cancels": ["--steps", "5", "--runs", "2", "--backlog", "3000", "--rounds", "3"],
    "gangs": [
        *("--members", "2", "--small", "3", "--busy", "2", "--fetched", "2"),
        *(*FEW, "--waiting", "2", "--backlog", "3000"),
    ],
    "limits": [
        *(*SHORT, "--keys", "100", "--waiting", "2000", "--sessions", "2"),
        *("--claims", "100", "--rates", "20"),
    ],
    "spawns": SHORT,
    "worker": [*SHORT, "--concurrency", "10", "--backlog", "4000"],
    "gateway": [*SHORT, "--workers", "1", "--backlog", "4000"],
    "pickup": ["--spawns", "1", "--rounds", "3"],
    "cost": ["--calls", "5", "--rounds", "3"],
    "views": [
        *(*SHORT, "--reads", "1", "--backlog", "10000", "--profiles", "2", "--profiles", "200"),
        *("--nodes", "20", "--classes", "30", "--pending", "60"),
    ],
    "events": ["--count", "100", "--rounds", "3"],
}


# One of each kind: rates, latencies, calls, costs. The others take minutes together.
QUICK = {"chains", "cost", "events", "nodes", "spawns", "submissions"}


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in (question.__name__ for question in QUESTIONS)
    ],
)
def test_a_question_is_answered(server_dsn: str, tmp_path: Path, question: str) -> None:
    out = tmp_path / "out.json"
    before = ["--dsn", server_dsn, "--json", str(out), "--chart", str(tmp_path)]
    options = [*before, question, *SMALL[question]]
    ended = CliRunner().invoke(app, options, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    [answer] = json.loads(out.read_text(encoding="utf-8"))
    assert answer["question"] == question
    assert answer["figures"]
    assert (tmp_path / f"{question}.png").stat().st_size > 0
