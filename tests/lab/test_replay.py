"""Replays over real connections: allocation, the independent check, timed runs."""

import asyncio
import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from hwqueue.demo.fleet import Fleet
from hwqueue.demo.generate import generate_trace
from hwqueue.demo.model import Trace
from hwqueue.demo.report import Report
from hwqueue.demo.run import Driven, Watch, facts_of
from hwqueue.demo.run import run as demo_run
from hwqueue.planner import Planner
from lab.replay.__main__ import app as app_of_replays
from lab.replay.backlog import catch_up
from lab.replay.bound import bound_percent
from lab.replay.demand import backlog_jobs
from lab.replay.run import Plan, run
from lab.replay.trace import POD_COLUMNS

# Allocated GPUs in percent on the generated cluster: less than seeds 1 to 6 gave, 97.7 to 98.8.
FLOOR_PERCENT = 97.3
Replaying = Callable[..., Result]


def _run(dsn: str, trace: Trace, plan: Plan) -> Report:
    return asyncio.run(run(dsn, trace, facts_of(trace), plan, lambda _stage, _fleet: None))


def _write(trace: Trace, folder: Path) -> tuple[Path, Path]:
    """Write a trace as the two CSV files that a replay reads."""
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    with nodes.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["node", "cpu_milli", "memory_mib", "gpu", "gpu_model"])
        for machine in trace.machines:
            writer.writerow(
                [machine.name, machine.cpu_milli, machine.memory_mib, machine.gpus,
                 machine.gpu_model]
            )  # fmt: skip
    with pods.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(POD_COLUMNS)
        for job in trace.jobs:
            writer.writerow(
                [job.name, job.cpu_milli, job.memory_mib, job.num_gpu, job.gpu_milli,
                 "|".join(job.gpu_models), job.qos, job.phase,
                 job.created_at, job.scheduled_at, job.deleted_at]
            )  # fmt: skip
    return nodes, pods


def _exists(dsn: str, database: str) -> bool:
    with psycopg.connect(dsn) as connection:
        query = "select from pg_database where datname = %s"
        return connection.execute(query, [database]).fetchone() is not None


@pytest.fixture
def scratch() -> str:
    """A name for the replay's own database: others come and go while tests run in parallel."""
    return f"hwqueue_test_replay_{uuid4().hex[:12]}"


@pytest.fixture
def replay(dsn: str, tmp_path: Path) -> Replaying:
    """Replay a small trace from its files."""
    nodes, pods = map(str, _write(generate_trace(8, seed=5, demand=1.2), tmp_path))

    def run(*args: str, dsn: str = dsn) -> Result:
        return CliRunner().invoke(app_of_replays, ["--dsn", dsn, "--nodes", nodes, "--leases", pods, *args])

    return run


def test_backlog_fills_the_generated_cluster(dsn: str) -> None:
    trace = generate_trace(60, seed=1, demand=1.3)
    report = _run(dsn, trace, Plan(seed=1, demand_percent=130, connections=1))
    assert report.check.violations == ()
    assert report.check.grants == report.timing.claims > 200
    assert report.gpus_allocated_percent >= FLOOR_PERCENT
    assert sum(kind.pending for kind in report.kinds) == sum(reason.leases for reason in report.pending)
    assert "ready" not in {reason.code for reason in report.pending}


# Less than seeds 1 to 6 gave: 95.8 to 98.0 (bound 98.5 to 99.2), 84.8 to 85.6 (89.9 to 90.7).
# With a quarter of the weight for reach 100 % sharing gives 84.4 to 84.6.
@pytest.mark.parametrize(("sharing", "floor"), [(0.6, 95.4), (1.0, 84.6)])
def test_backlog_where_most_leases_share_a_gpu(dsn: str, sharing: float, floor: float) -> None:
    """Harder mixes: most devices get a share that leaves what few others could take."""
    trace = generate_trace(60, seed=1, demand=1.3, sharing=sharing)
    report = _run(dsn, trace, Plan(seed=1, demand_percent=130, connections=1))
    assert report.check.violations == ()
    bound = bound_percent(trace.machines, backlog_jobs(trace, demand_percent=130, seed=report.seed))
    assert floor <= report.gpus_allocated_percent <= bound


# Less than seed 1 gave: 99.6 (bound 99.76), 98.6 (98.64), 90.3 (90.45). Without prices six seeds
# gave at most 98.8, 98.0 and 85.6.
@pytest.mark.parametrize(("sharing", "floor"), [(None, 99.2), (0.6, 98.1), (1.0, 88.5)])
def test_backlog_with_prices(dsn: str, sharing: float | None, floor: float) -> None:
    """A round of the planner between two rounds of polls: more than any claim can know alone."""
    trace = generate_trace(60, seed=1, demand=1.3, sharing=sharing)
    jobs = backlog_jobs(trace, demand_percent=130, seed=1)

    async def drive(fleet: Fleet, _trace: Trace, _watch: Watch) -> Driven:
        await fleet.spawn(jobs)
        await catch_up(fleet)
        planner = Planner(fleet.clients[0])
        rng, asking = Random(1), list(fleet.nodes)
        while asking:
            done = await planner.run_once()
            assert done is not None
            rng.shuffle(asking)
            asking = await fleet.poll_each(asking, 1)
        return Driven(mode="backlog")

    plan = Plan(seed=1, demand_percent=130, connections=1)
    playing = demo_run(dsn, trace, facts_of(trace), plan, lambda _stage, _fleet: None, drive=drive)
    report = asyncio.run(playing)
    assert report.check.violations == ()
    bound = bound_percent(trace.machines, jobs)
    assert floor <= report.gpus_allocated_percent <= bound


def test_backlog_beside_a_live_planner(replay: Replaying) -> None:
    result = replay("--planner", "--bound")
    assert result.exit_code == 0, (result.output, result.exception)
    for words in ("rounds; read p50", "at most", "gap", "every constraint"):
        assert words in result.stdout


def test_backlog_with_several_connections_and_claims_of_several(dsn: str) -> None:
    trace = generate_trace(20, seed=2, demand=1.3)
    report = _run(dsn, trace, Plan(seed=2, demand_percent=130, connections=4, qty=3))
    assert report.check.violations == ()
    assert report.timing.claims == report.check.grants > report.timing.claim_calls
    assert "ready" not in {reason.code for reason in report.pending}


def test_timed_run_ends_every_lease_as_recorded(dsn: str) -> None:
    trace = generate_trace(20, seed=3, demand=0.5, span=600)
    report = _run(dsn, trace, Plan(mode="timed", seed=3, speedup=2000))
    assert report.check.violations == ()
    assert report.timed is not None
    failed = sum(job.phase == "Failed" for job in trace.jobs)
    assert report.timed.outcomes["failed"] == failed
    assert report.timed.outcomes["completed"] == len(trace.jobs) - failed
    assert report.gpus_allocated == 0
    assert report.timed.peak_gpu_percent > 0


def test_replay_from_files_leaves_nothing_behind(
    replay: Replaying, dsn: str, tmp_path: Path, scratch: str
) -> None:
    chart = tmp_path / "run.png"
    named = ("--database", scratch)
    result = replay(*named, "--json", "--seeds", "1,2", "--chart", str(chart))
    assert result.exit_code == 0, (result.output, result.exception)
    content: dict[str, Any] = json.loads(result.stdout)
    assert [run["seed"] for run in content["runs"]] == [1, 2]
    spread = content["summary"]["gpus_allocated_percent"]
    assert spread["low"] <= spread["median"] <= spread["high"]
    assert all(run["check"]["violations"] == [] for run in content["runs"])
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert not _exists(dsn, scratch)


def test_violations_fail_the_run(replay: Replaying, monkeypatch: pytest.MonkeyPatch) -> None:
    granted = Fleet._granted

    def forget_devices(self: Fleet, node: Any, claims: Any) -> Any:
        return granted(self, node, [replace(claim, assignment=None) for claim in claims])

    monkeypatch.setattr(Fleet, "_granted", forget_devices)
    result = replay()
    assert result.exit_code == 1
    assert "violations in" in result.stdout
