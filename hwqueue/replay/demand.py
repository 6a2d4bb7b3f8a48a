"""Which jobs a run spawns, in which order, and when."""

from __future__ import annotations

import random
from collections import Counter

from hwqueue.replay.model import WHOLE_GPU, Job, Trace

DAY_SECONDS = 86_400
BUSY_DAY_JOBS = 10


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


def recording_start(trace: Trace) -> int:
    """Return the second at which arrivals begin in bulk: the first day with at least 10 new jobs.

    Jobs created before were already running when the recording began; a trace without such a day
    starts with its first job.
    """
    days = Counter(job.created_at // DAY_SECONDS for job in trace.jobs)
    busy = [day for day, count in days.items() if count >= BUSY_DAY_JOBS]
    first = min(job.created_at for job in trace.jobs)
    return max(first, min(busy) * DAY_SECONDS) if busy else first
