"""Which jobs a run spawns, and the made-up cluster."""

from collections import Counter
from dataclasses import replace

import pytest

from hwqueue.demo.generate import add_labels, generate_trace, impossible_jobs
from hwqueue.demo.mapping import placement
from hwqueue.demo.model import Job, Machine, Trace
from hwqueue.demo.timed import recording_start
from lab.replay.demand import backlog_jobs

pytestmark = pytest.mark.embedded

JOB = Job("j", 1000, 1024, 1, 500, (), "LS", "Running", 0, 0, 60)


def _trace(jobs: int, gpus: int) -> Trace:
    named = tuple(replace(JOB, name=f"j{number}") for number in range(jobs))
    return Trace(machines=(Machine("n", 8000, 8192, gpus, "T4"),), jobs=named)


def test_demand_takes_each_job_before_it_draws_again() -> None:
    chosen = backlog_jobs(_trace(10, gpus=8), demand_percent=130, seed=1)
    counts = Counter(job.name for job in chosen)
    assert sum(job.gpu_demand for job in chosen) == 10_500  # first sum at or over 1.3 x 8 GPUs
    assert len(counts) == 10


def test_demand_below_the_trace_takes_a_part_of_it() -> None:
    chosen = backlog_jobs(_trace(100, gpus=4), demand_percent=50, seed=1)
    assert len(chosen) == len({job.name for job in chosen}) == 4


def test_the_seed_decides() -> None:
    trace = _trace(50, gpus=16)
    first = backlog_jobs(trace, demand_percent=130, seed=1)
    assert first == backlog_jobs(trace, demand_percent=130, seed=1)
    assert first != backlog_jobs(trace, demand_percent=130, seed=2)


def test_without_gpu_demand_each_job_runs_once() -> None:
    trace = _trace(5, gpus=4)
    cpu_only = replace(trace, jobs=tuple(replace(j, num_gpu=0, gpu_milli=0) for j in trace.jobs))
    assert len(backlog_jobs(cpu_only, demand_percent=130, seed=1)) == 5


def test_recording_starts_with_the_first_busy_day() -> None:
    early = [replace(JOB, created_at=day * 86_400 + 5) for day in (0, 3, 9)]
    bulk = [replace(JOB, created_at=20 * 86_400 + 100 + second) for second in range(10)]
    machines = (Machine("n", 8000, 8192, 1, "T4"),)
    assert recording_start(Trace(machines, tuple(early + bulk))) == 20 * 86_400
    assert recording_start(Trace(machines, tuple(early))) == 5


def test_generated_cluster_has_the_published_proportions() -> None:
    trace = generate_trace(1523, seed=1, demand=1.0)
    gpus = Counter[str]()
    for machine in trace.machines:
        gpus[machine.gpu_model or "cpu"] += machine.gpus
    published = {"G2": 4392, "T4": 842, "P100": 265, "G3": 312, "V100M32": 204, "A10": 2}
    assert {model: gpus[model] for model in published} == published
    kinds = Counter(job.kind for job in trace.jobs)
    assert kinds["1 gpu"] / len(trace.jobs) == pytest.approx(3911 / 8152, abs=0.03)
    assert kinds["share"] / len(trace.jobs) == pytest.approx(3078 / 8152, abs=0.03)
    constrained = sum(1 for job in trace.jobs if job.gpu_models)
    assert constrained / (len(trace.jobs) - kinds["cpu"]) == pytest.approx(0.338, abs=0.03)


@pytest.mark.parametrize("sharing", [0.0, 0.6, 1.0])
def test_generated_jobs_share_devices_as_asked(sharing: float) -> None:
    trace = generate_trace(1523, seed=1, sharing=sharing)
    kinds = Counter(job.kind for job in trace.jobs)
    with_gpus = len(trace.jobs) - kinds["cpu"]
    assert kinds["share"] / with_gpus == pytest.approx(sharing, abs=0.03)
    assert kinds["cpu"] / len(trace.jobs) == pytest.approx(1088 / 8152, abs=0.03)
    assert not any(job.gpu_models for job in trace.jobs)
    assert trace == generate_trace(1523, seed=1, sharing=sharing)


def test_small_generated_cluster_keeps_every_model() -> None:
    trace = generate_trace(20, seed=1)
    assert {machine.gpu_model for machine in trace.machines} == {
        "G2", "T4", "P100", "V100M16", "G3", "V100M32", "A10", None,
    }  # fmt: skip
    assert len({machine.name for machine in trace.machines}) == len(trace.machines)


def test_placements_say_what_a_job_needs() -> None:
    labelled = add_labels(generate_trace(20, seed=3), seed=3)
    assert all({"zone", "disk"} <= machine.labels.keys() for machine in labelled.machines)
    assert any(job.tags for job in labelled.jobs)
    assert any(job.prefer_tags for job in labelled.jobs)
    job = replace(JOB, gpu_models=("T4", "P100"), tags={"zone": "a"}, prefer_tags={"disk": "nvme"})
    assert placement(job) == {
        "require": [
            {"label": "gpu_model", "op": "in", "values": ["T4", "P100"]},
            {"tags": {"zone": "a"}},
        ],
        "prefer": [{"weight": 100, "when": {"tags": {"disk": "nvme"}}}],
        "resources": {"cpu_milli": 1000, "memory_mib": 1024, "gpu_milli": 500},
    }
    whole = placement(replace(JOB, num_gpu=4, gpu_milli=1000))
    assert whole["resources"] == {"cpu_milli": 1000, "memory_mib": 1024, "gpu": 4}
    assert len({job.name for job in impossible_jobs()}) == 4
