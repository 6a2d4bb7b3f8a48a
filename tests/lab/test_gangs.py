"""Gangs on a made-up cluster: what arrives, and that the queue runs all of it."""

import pytest

from benchmarks.core.run import Run
from lab.gangs.jobs import Cluster, made_up
from lab.gangs.question import gangs
from lab.gangs.simulation import Simulation, Way
from tests.benchmarks.asking import ask

pytestmark = pytest.mark.embedded

SMALL = Cluster(racks=2, nodes=2, gpus=2)
DAY = Cluster(racks=8, nodes=16, gpus=8)


def test_jobs_ask_for_what_they_should() -> None:
    jobs = made_up(DAY, 40_000, 1.1, seed=1)
    seconds = {job: job.runs * job.gpus * max(1, job.nodes) for job in jobs}
    asked = sum(seconds.values())
    assert asked / (DAY.size * jobs[-1].arrives) == pytest.approx(1.1, rel=0.1)
    assert sum(seconds[job] for job in jobs if job.nodes) / asked == pytest.approx(0.7, rel=0.1)
    assert {job.nodes for job in jobs} == {0, 2, 4, 8, 16}
    assert made_up(DAY, 100, 1.1, seed=1) == made_up(DAY, 100, 1.1, seed=1)


def test_what_has_room_starts_when_it_arrives(dsn: str) -> None:
    jobs = made_up(SMALL, 40, 0.05, seed=2)
    with Simulation(dsn, SMALL, 1, Way(earmarks=1)) as simulation:
        seen = simulation.run(jobs)
    waits = {job: seen.started[job] - job.arrives for job in jobs}
    assert {wait for job, wait in waits.items() if not job.nodes} == {0}
    assert [wait <= 2 for job, wait in waits.items() if job.nodes] == [True, True]  # two ticks
    assert 0 < seen.busy / seen.measured < 0.3
    assert seen.held == 0


def test_a_full_cluster(run: Run) -> None:
    sizes = ["--racks", "2", "--nodes", "2", "--gpus", "2", "--tick", "300"]
    [answer] = ask(gangs, run, *sizes, "--jobs", "40", "--loads", "1.2", "--seeds", "3")
    held, without, kept = answer.figures
    assert held.more["held idle %"].median > 0
    assert without.more["busy %"].median > 50
    assert without.more["singles p95 min"].median > 0
    assert without.more["held idle %"].median == 0
    assert kept.more["held idle %"].median > 0
