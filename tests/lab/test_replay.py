"""Replays over real connections: allocation, the independent check, timed runs."""

import asyncio
import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from hwqueue.cli.main import app
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


def test_the_planner_ends_with_the_replay_that_is_told_to(dsn: str) -> None:
    code = (
        "import sys, time\n"
        "from lab.replay.planning import live_planner\n"
        "with live_planner(sys.argv[1], 'q') as planner:\n"
        "    print(planner.process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    replaying = subprocess.Popen([sys.executable, "-c", code, dsn], stdout=subprocess.PIPE, text=True)
    with replaying:
        assert replaying.stdout is not None
        planner = int(replaying.stdout.readline())
        replaying.terminate()
        assert replaying.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(planner, signal.SIGTERM)  # it is not there any more


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


def test_replay_prints_a_report_and_an_html_chart(replay: Replaying, tmp_path: Path) -> None:
    chart = tmp_path / "run.html"
    result = replay("--ignore-gpu-spec", "--chart", str(chart))
    assert result.exit_code == 0, (result.output, result.exception)
    for words in ("GPUs allocated", "GPUs by model", "Why leases stay pending", "every constraint"):
        assert words in result.stdout
    assert "<svg" in chart.read_text()


def test_in_place_only_into_an_unused_database(replay: Replaying, dsn: str) -> None:
    for _ in range(2):  # it clears up behind itself, so that it can be run again
        result = replay("--in-place")
        assert result.exit_code == 0, (result.output, result.exception)
    CliRunner().invoke(app, ["--dsn", dsn, "queue", "create", "mine"])
    refused = replay("--in-place")
    assert refused.exit_code == 2
    assert "the database is in use: it has 1 queues" in refused.stderr


def test_a_role_that_may_not_create_databases_is_told_what_to_do(replay: Replaying, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create role hwqueue_replay_poor login password 'poor'")
    try:
        poor = psycopg.conninfo.make_conninfo(dsn, user="hwqueue_replay_poor", password="poor")
        refused = replay(dsn=poor)
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute("drop role hwqueue_replay_poor")
    assert refused.exit_code == 2
    assert "may not create one" in refused.stderr
    assert "--in-place" in refused.stderr


def test_bad_input_creates_nothing(replay: Replaying, dsn: str, tmp_path: Path, scratch: str) -> None:
    for args in (["--seeds", "1,x"], ["--chart", "run.pdf"], ["--keep", "--seeds", "1,2"]):
        assert replay(*args).exit_code == 2
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(nodes.read_text().replace("96000", "lots", 1))
    refused = replay("--database", scratch, "--keep")
    assert refused.exit_code == 2
    assert "column cpu_milli: 'lots' is not a whole number" in refused.stderr
    assert not _exists(dsn, scratch)


def test_a_chart_without_matplotlib_is_refused_at_once(
    replay: Replaying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    refused = replay("--chart", str(tmp_path / "run.png"))
    assert refused.exit_code == 2
    assert "make setup installs it" in refused.stderr


def test_violations_fail_the_run(replay: Replaying, monkeypatch: pytest.MonkeyPatch) -> None:
    granted = Fleet._granted

    def forget_devices(self: Fleet, node: Any, claims: Any) -> Any:
        return granted(self, node, [replace(claim, assignment=None) for claim in claims])

    monkeypatch.setattr(Fleet, "_granted", forget_devices)
    result = replay()
    assert result.exit_code == 1
    assert "violations in" in result.stdout


def test_an_error_in_the_middle_of_a_run_is_told_in_one_line(
    replay: Replaying, dsn: str, monkeypatch: pytest.MonkeyPatch, scratch: str
) -> None:

    async def lose_connection(self: Fleet, *_args: Any) -> Any:
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(Fleet, "poll", lose_connection)
    result = replay("--database", scratch)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the connection is lost\n")
    assert not _exists(dsn, scratch)
