"""How long do large gangs wait behind small work, and how full is the cluster meanwhile?"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from benchmarks.core.load import RanDryError
from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import databases, machine
from benchmarks.core.spread import Spread, percentile
from lab.gangs.holding import HoldAndWait
from lab.gangs.jobs import Cluster, Job, made_up
from lab.gangs.simulation import Seen, Simulation, Way

LARGE = 8  # nodes of a gang, at least

WAYS: Mapping[str, tuple[type[Simulation], Way]] = {
    "hold and wait": (HoldAndWait, Way(0)),
    "all or none": (Simulation, Way(0)),
    "earmark": (Simulation, Way(1)),
}

_NOTES = (
    "waits of jobs that arrive in the last three quarters of the time; what has not started waits"
    " until the end",
    "of the nodes that have room for a single lease, the fullest asks first",
)


def gangs(
    ctx: typer.Context,
    *,
    jobs: Annotated[int, typer.Option(help="Singles and gangs of a run", min=4)] = 2000,
    loads: Annotated[list[float], typer.Option(help="Demand over GPU time; may be repeated")] = [
        1.0,
        1.1,
    ],
    seeds: Annotated[list[int], typer.Option(help="A run for each; may be repeated")] = [
        1,
        2,
        3,
    ],
    racks: Annotated[int, typer.Option(help="Racks", min=1)] = 8,
    nodes: Annotated[int, typer.Option(help="Nodes of a rack", min=2)] = 16,
    gpus: Annotated[int, typer.Option(help="GPUs of a node", min=1)] = 8,
    tick: Annotated[float, typer.Option(help="Seconds between two calls of reap", min=0.1)] = 5,
) -> Answer:
    """Minutes that gangs of 8 nodes or more wait, beside singles that never stop coming.

    Simulated time, the queue's own functions; 3 % of the jobs are gangs, in one rack each, which
    ask for 70 % of the GPU time.
    """
    run = Run.of(ctx)
    cluster = Cluster(racks, nodes, gpus)
    figures = []
    for load in loads:
        with databases(run.dsn, len(WAYS) * len(seeds)) as dsns:
            unused = iter(dsns)
            for name, (kind, way) in WAYS.items():
                runs = []
                for seed in seeds:
                    made = made_up(cluster, jobs, load, seed)
                    with kind(next(unused), cluster, tick, way) as simulation:
                        runs.append(told(made, simulation.run(made)))
                    run.tell(f"load {load:g}, {name}, seed {seed}: {runs[-1]}")
                figures.append(_figure(f"load {load:g}, {name}", runs))
            facts = machine(dsns[0])
    compared = f"waits and use of {cluster.size:,} GPUs, {jobs:,} jobs a run"
    return Answer("gangs", compared, tuple(figures), ctx.params, facts, _NOTES)


def told(jobs: Sequence[Job], seen: Seen) -> dict[str, float]:
    """What one run tells: waits in minutes, shares in per cent.

    Raises: RanDryError when no gang, or no single lease, arrives late enough.
    """
    late = [job for job in jobs if job.arrives >= seen.ended_at / 4]
    waits = {job: (seen.started.get(job, seen.ended_at) - job.arrives) / 60 for job in late}
    large = [job for job in late if job.nodes >= LARGE] or [job for job in late if job.nodes]
    single = [waits[job] for job in late if not job.nodes]
    if not large or not single:
        raise RanDryError("too few jobs: no gang, or no single lease, is measured; raise --jobs")
    return {
        "large p50 min": percentile([waits[job] for job in large], 50),
        "large p95 min": percentile([waits[job] for job in large], 95),
        "large started %": 100 * sum(job in seen.started for job in large) / len(large),
        "singles p50 min": percentile(single, 50),
        "singles p95 min": percentile(single, 95),
        "busy %": 100 * seen.busy / seen.measured,
        "held idle %": 100 * seen.held / seen.measured,
    }


def _figure(name: str, runs: Sequence[Mapping[str, float]]) -> Figure:
    first, *others = runs[0]
    spreads = {each: Spread.of([run[each] for run in runs]) for each in (first, *others)}
    return Figure(f"{name}: large gangs wait", "p50 min", spreads.pop(first), more=spreads)
