"""How much of the GPUs any assignment could give away: what a backlog run is measured against.

The linear program is the planner's (`hwqueue.planner.program`), over an idle cluster: nobody can
allocate more. Needs OR-tools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hwqueue.demo.model import WHOLE_GPU, Job, Machine
from hwqueue.planner import Demand, Pool, Program


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that differ in nothing that matters here."""

    gpus: int
    cpu_milli: int
    memory_mib: int
    gpu_model: str | None
    labels: str


@dataclass(frozen=True, slots=True)
class Shape:
    """Jobs that ask for the same; `share` is 0 for whole devices."""

    num_gpu: int
    share: int
    cpu_milli: int
    memory_mib: int
    gpu_models: tuple[str, ...]
    tags: str


def bound_percent(machines: Sequence[Machine], jobs: Sequence[Job]) -> float:
    """The GPUs that could be allocated to these jobs at most, in percent; 0 without GPUs."""
    devices = sum(machine.gpus for machine in machines)
    if not devices:
        return 0.0
    kinds = Counter(_kind(machine) for machine in machines if machine.gpus)
    a_machine = {_kind(machine): machine for machine in machines}
    shapes = Counter(_shape(job) for job in jobs if job.num_gpu)
    a_job = {_shape(job): job for job in jobs}
    pools = [
        Pool(
            cpu_milli=nodes * kind.cpu_milli,
            memory_mib=nodes * kind.memory_mib,
            free={WHOLE_GPU: nodes * kind.gpus},
        )
        for kind, nodes in kinds.items()
    ]
    demands = [
        Demand(
            count=count,
            gpus=shape.num_gpu,
            share=shape.share,
            cpu_milli=shape.cpu_milli,
            memory_mib=shape.memory_mib,
            pools=tuple(number for number, kind in enumerate(kinds) if _suits(a_job[shape], a_machine[kind])),
        )
        for shape, count in shapes.items()
    ]
    return min(100.0, 100 * Program(pools, demands).solve().bound / devices)


def _kind(machine: Machine) -> Kind:
    return Kind(
        machine.gpus,
        machine.cpu_milli,
        machine.memory_mib,
        machine.gpu_model,
        repr(sorted(machine.labels.items())),
    )


def _shape(job: Job) -> Shape:
    return Shape(
        job.num_gpu,
        job.gpu_milli if job.gpu_milli < WHOLE_GPU else 0,
        job.cpu_milli,
        job.memory_mib,
        job.gpu_models,
        repr(sorted(job.tags.items())),
    )


def _suits(job: Job, machine: Machine) -> bool:
    """Whether the machine could run the job when it is idle."""
    return (
        job.num_gpu <= machine.gpus
        and job.cpu_milli <= machine.cpu_milli
        and job.memory_mib <= machine.memory_mib
        and (not job.gpu_models or machine.gpu_model in job.gpu_models)
        and all(machine.labels.get(key) == value for key, value in job.tags.items())
    )
