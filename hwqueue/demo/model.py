"""What a replay works on, machines and jobs wherever they came from, and how it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WHOLE_GPU = 1000  # thousandths of one device


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of the cluster."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str | None
    extra_labels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, Any]:
        """Node labels: `pool`, `gpu_model` where there are GPUs, and the machine's extra ones."""
        pool: dict[str, Any] = {"pool": "gpu" if self.gpus else "cpu"}
        if self.gpu_model is not None:
            pool["gpu_model"] = self.gpu_model
        return pool | dict(self.extra_labels)


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of work; times are seconds from the start of the trace.

    `gpu_milli` counts thousandths per device: 1000 for whole GPUs, less for a share of one, 0
    without GPUs. An empty `gpu_models` means any. `scheduled_at` is None for work that was never
    placed.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    gpu_models: tuple[str, ...]
    qos: str
    phase: str
    created_at: int
    scheduled_at: int | None
    deleted_at: int
    tags: Mapping[str, Any] = field(default_factory=dict)
    prefer_tags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpu_demand(self) -> int:
        """Thousandths of GPUs it holds while it runs."""
        return self.num_gpu * self.gpu_milli

    @property
    def kind(self) -> str:
        """`cpu`, `share`, or the number of whole GPUs: how the report groups jobs."""
        if not self.num_gpu:
            return "cpu"
        return "share" if self.gpu_milli < WHOLE_GPU else f"{self.num_gpu} gpu"

    @property
    def words(self) -> str:
        """What it asks for, in one line."""
        parts = [f"{self.cpu_milli / 1000:g} cores", f"{self.memory_mib / 1024:.4g} GiB"]
        if self.num_gpu:
            parts.insert(0, f"{self.gpu_demand / WHOLE_GPU:g} GPU")
        if self.gpu_models:
            parts.append("|".join(self.gpu_models))
        parts += [f"{key}={value}" for key, value in self.tags.items()]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster and the work recorded on it."""

    machines: tuple[Machine, ...]
    jobs: tuple[Job, ...]

    @property
    def gpus(self) -> int:
        """GPU devices of all machines: the denominator of every "allocated" figure."""
        return sum(machine.gpus for machine in self.machines)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one run goes; `scope` and `node_prefix` keep its nodes apart from others in the database.

    speedup: Of a timed run: seconds of the trace that pass in one.
    """

    seed: int = 1
    speedup: float = 10_000.0
    connections: int = 2
    queue: str = "demo"
    scope: str = "demo"
    node_prefix: str = ""
