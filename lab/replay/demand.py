"""Which jobs a backlog run spawns, and in which order."""

from __future__ import annotations

import random

from hwqueue.demo.model import WHOLE_GPU, Job, Trace


def backlog_jobs(trace: Trace, *, demand_percent: float, seed: int) -> list[Job]:
    """Return the jobs of a backlog run in random order.

    The trace's jobs come first, shuffled, then jobs drawn from it again with replacement; the run
    takes as many as ask for `demand_percent` of the cluster's GPUs. Without any GPU demand: each
    job once.
    """
    rng = random.Random(seed)
    shuffled = rng.sample(trace.jobs, len(trace.jobs))
    target = demand_percent / 100 * trace.gpus * WHOLE_GPU
    if not target or not any(job.gpu_demand for job in shuffled):
        return shuffled
    chosen: list[Job] = []
    asked = 0
    while asked < target:
        number = len(chosen)
        chosen.append(shuffled[number] if number < len(shuffled) else rng.choice(trace.jobs))
        asked += chosen[-1].gpu_demand
    rng.shuffle(chosen)
    return chosen
