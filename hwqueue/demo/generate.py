"""Make up a cluster and its work in the proportions that the OpenB trace was published with.

Only counts and percentiles are used: node shapes per model, the mix of job kinds, the shares of a
GPU asked for, CPU and memory percentiles per kind, and how often a job insists on a model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hwqueue.demo.model import WHOLE_GPU, Job, Machine, Trace

Points = Sequence[tuple[float, float]]  # (fraction, value), ascending: an inverse distribution


@dataclass(frozen=True, slots=True)
class NodeShape:
    """How many of 1,523 published nodes have this model, GPU count, cores and memory."""

    count: int
    model: str | None
    gpus: int
    cores: int
    memory_gib: int


NODE_SHAPES = (
    NodeShape(549, "G2", 8, 96, 384),
    NodeShape(387, "T4", 2, 104, 512),
    NodeShape(17, "T4", 4, 96, 384),
    NodeShape(109, "P100", 2, 16, 120),
    NodeShape(22, "P100", 2, 64, 256),
    NodeShape(3, "P100", 1, 8, 60),
    NodeShape(28, "V100M16", 4, 32, 128),
    NodeShape(19, "V100M16", 1, 8, 32),
    NodeShape(8, "V100M16", 8, 64, 256),
    NodeShape(39, "G3", 8, 128, 768),
    NodeShape(21, "V100M32", 8, 96, 768),
    NodeShape(9, "V100M32", 4, 48, 368),
    NodeShape(2, "A10", 1, 128, 1024),
    NodeShape(162, None, 0, 32, 256),
    NodeShape(34, None, 0, 64, 256),
    NodeShape(114, None, 0, 96, 512),
)

KINDS = {"cpu": 1088, "share": 3078, "1": 3911, "2": 16, "4": 15, "8": 44}

SHARES = {810: 1078, 470: 750, 320: 328, 650: 253, 230: 140, 460: 128, 590: 75, 160: 74, 550: 72}

CPU_MILLI: dict[str, Points] = {
    "cpu": ((0, 4000), (0.1, 8000), (0.5, 12500), (0.9, 32000), (1, 32000)),
    "share": ((0, 1000), (0.1, 3200), (0.5, 4000), (0.9, 11900), (1, 12000)),
    "1": ((0, 1000), (0.1, 3200), (0.5, 11400), (0.9, 16000), (1, 24200)),
    "2": ((0, 4000), (0.1, 6000), (0.5, 16200), (1, 30200)),
    "4": ((0, 24000), (0.1, 32000), (0.5, 32200), (1, 60200)),
    "8": ((0, 64200), (0.1, 64200), (0.5, 88000), (1, 96000)),
}

MEMORY_MIB: dict[str, Points] = {
    "cpu": ((0, 8192), (0.1, 30720), (0.5, 51200), (0.9, 57344), (1, 65536)),
    "share": ((0, 2048), (0.1, 5632), (0.5, 15360), (0.9, 47104), (1, 47104)),
    "1": ((0, 2048), (0.1, 5632), (0.5, 48128), (0.9, 64512), (1, 125952)),
    "2": ((0, 32768), (0.1, 43008), (0.5, 66560), (1, 160768)),
    "4": ((0, 98304), (0.1, 131072), (0.5, 132096), (1, 320512)),
    "8": ((0, 262144), (0.5, 327680), (1, 380000)),
}

MODEL_SPECS = {
    ("T4",): 1291,
    ("G2",): 331,
    ("P100",): 279,
    ("V100M16", "V100M32"): 163,
    ("P100", "V100M16", "V100M32"): 103,
    ("G3",): 86,
    ("G2", "P100", "T4", "V100M16", "V100M32"): 39,
}
SPEC_FRACTION = 0.338  # of the jobs that ask for one GPU or a share of one

RUN_SECONDS: Points = ((0, 10), (0.1, 73), (0.25, 175), (0.5, 616), (0.75, 2241), (1, 7764))
PHASES = {"Running": 5193, "Failed": 1870, "Succeeded": 192}
QOS = {"LS": 4647, "BE": 3398, "Burstable": 100, "Guaranteed": 7}

ZONES = ("east-1", "east-2", "west-1")


def generate_trace(
    nodes: int, *, seed: int, demand: float = 1.0, span: int = 0, sharing: float | None = None
) -> Trace:
    """Generate a cluster of about `nodes` machines and jobs that ask for `demand` times its GPUs.

    At least one machine of every model is made. Jobs arrive evenly over `span` seconds. sharing: of
    the jobs with GPUs, the fraction that share one, none of which insist on a model, as in the
    published variants; None: as recorded, with models.
    """
    mix = KINDS if sharing is None else _sharing_mix(sharing)
    specs = SPEC_FRACTION if sharing is None else 0.0
    rng = random.Random(seed)
    machines = _machines(nodes)
    wanted = demand * WHOLE_GPU * sum(machine.gpus for machine in machines)
    jobs: list[Job] = []
    asked = 0
    while asked < wanted:
        jobs.append(_job(rng, f"job-{len(jobs):05d}", span, mix, specs))
        asked += jobs[-1].gpu_demand
    return Trace(machines=machines, jobs=tuple(jobs))


def demo_trace(*, seed: int) -> Trace:
    """Generate what `hwqueue demo` shows: 61 labelled machines, and four jobs that none can run.

    Jobs arrive within half an hour and run for 80 to 150 minutes, so that the cluster fills up.
    """
    trace = add_labels(generate_trace(60, seed=seed, demand=1.6, span=1800), seed=seed)
    jobs = tuple(
        replace(job, deleted_at=job.created_at + min(9000, max(4800, job.deleted_at - job.created_at)))
        for job in trace.jobs
    )
    return replace(trace, jobs=jobs + impossible_jobs())


def add_labels(trace: Trace, *, seed: int) -> Trace:
    """Spread machines over zones and disks; some jobs then need a zone, others prefer a disk."""
    rng = random.Random(seed)
    machines = tuple(
        replace(
            machine,
            extra_labels={"zone": ZONES[number % len(ZONES)], "disk": "nvme" if number % 2 else "sata"},
        )
        for number, machine in enumerate(trace.machines)
    )
    return Trace(machines=machines, jobs=tuple(_with_wishes(rng, job) for job in trace.jobs))


def impossible_jobs() -> tuple[Job, ...]:
    """Return jobs that no generated machine can run, each for a reason of its own."""
    plain = Job("", 4000, 8192, 1, WHOLE_GPU, (), "LS", "Running", 0, 0, 600)
    return (
        replace(plain, name="needs-h100", gpu_models=("H100",)),
        replace(plain, name="needs-16-gpus", num_gpu=16),
        replace(plain, name="needs-zone-south", tags={"zone": "south-9"}),
        replace(plain, name="needs-4-tib-memory", memory_mib=4 * 1024 * 1024),
    )


def _machines(nodes: int) -> tuple[Machine, ...]:
    counts = _shares_of(nodes)
    numbers: dict[str, int] = {}
    machines = []
    for shape, count in zip(NODE_SHAPES, counts, strict=True):
        family = (shape.model or "cpu").lower()
        for _ in range(count):
            number = numbers[family] = numbers.get(family, 0) + 1
            machines.append(
                Machine(
                    name=f"{family}-{number:02d}",
                    cpu_milli=shape.cores * 1000,
                    memory_mib=shape.memory_gib * 1024,
                    gpus=shape.gpus,
                    gpu_model=shape.model,
                )
            )
    return tuple(machines)


def _shares_of(nodes: int) -> list[int]:
    """Scale the published counts down by largest remainder, keeping every model alive."""
    total = sum(shape.count for shape in NODE_SHAPES)
    exact = [shape.count * nodes / total for shape in NODE_SHAPES]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: nodes - sum(counts)]:
        counts[i] += 1
    for model in dict.fromkeys(shape.model for shape in NODE_SHAPES):
        mine = [i for i, shape in enumerate(NODE_SHAPES) if shape.model == model]
        if not any(counts[i] for i in mine):
            counts[max(mine, key=lambda i: exact[i])] = 1
    return counts


def _sharing_mix(sharing: float) -> dict[str, float]:
    """The kinds of jobs when this fraction of those with GPUs share one; the rest as recorded."""
    whole = {kind: count for kind, count in KINDS.items() if kind not in ("cpu", "share")}
    gpu_jobs = KINDS["share"] + sum(whole.values())
    scale = (1 - sharing) * gpu_jobs / sum(whole.values())
    shared = {"cpu": float(KINDS["cpu"]), "share": sharing * gpu_jobs}
    return shared | {kind: count * scale for kind, count in whole.items()}


def _job(rng: random.Random, name: str, span: int, mix: Mapping[str, float], specs: float) -> Job:
    kind = _pick(rng, mix)
    size = rng.random()  # one draw for both: memory grows with CPU
    num_gpu = int({"cpu": "0", "share": "1"}.get(kind, kind))
    created = rng.randint(0, span)
    constrained = kind in ("share", "1") and rng.random() < specs
    return Job(
        name=name,
        cpu_milli=_at(CPU_MILLI[kind], size, step=100),
        memory_mib=_at(MEMORY_MIB[kind], size, step=256),
        num_gpu=num_gpu,
        gpu_milli={"cpu": 0, "share": _pick(rng, SHARES)}.get(kind, WHOLE_GPU),
        gpu_models=_pick(rng, MODEL_SPECS) if constrained else (),
        qos=_pick(rng, QOS),
        phase=_pick(rng, PHASES),
        created_at=created,
        scheduled_at=created,
        deleted_at=created + _at(RUN_SECONDS, rng.random()),
    )


def _with_wishes(rng: random.Random, job: Job) -> Job:
    draw = rng.random()
    if draw < 0.10 and not job.gpu_models:  # a rare model may not be in every zone
        return replace(job, tags={"zone": rng.choice(ZONES)})
    return replace(job, prefer_tags={"disk": "nvme"}) if draw < 0.25 else job


def _pick(rng: random.Random, weights: Mapping[Any, float]) -> Any:
    return rng.choices(list(weights), weights=list(weights.values()))[0]


def _at(points: Points, fraction: float, step: int = 1) -> int:
    """Read the inverse distribution at `fraction`, rounded down to a multiple of `step`."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if fraction <= x1:
            value = y0 + (y1 - y0) * (fraction - x0) / (x1 - x0)
            return int(value) // step * step
    return int(points[-1][1])
