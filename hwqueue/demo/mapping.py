"""Say a machine and a job in the queue's words: registrations and leases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

from hwqueue.demo.model import WHOLE_GPU, Job, Machine
from hwqueue.types import Gpu, LeaseSpec, NodeSpec, SpawnOptions

NAMESPACE = UUID("6f70656e-622d-4265-a706-c61792d6e6f6")
TASK = "replay"
PRIORITY_OF_QOS = {"Guaranteed": 3, "LS": 2, "Burstable": 1, "BE": 0}

# Nobody renews these claims and no node beats: a replay must not time out while it is looked at.
FOREVER = timedelta(days=1)


def node_id(machine: Machine, scope: str) -> UUID:
    """Return the node id of a machine; `scope` keeps two replays in one database apart."""
    return uuid5(NAMESPACE, f"{scope}/{machine.name}")


def gpu_id(machine: Machine, scope: str, index: int) -> UUID:
    """Return the resource id of one device of a machine."""
    return uuid5(NAMESPACE, f"{scope}/{machine.name}/gpu/{index}")


def node_spec(machine: Machine, scope: str, prefix: str, queue: str) -> NodeSpec:
    """Build the registration of a machine, named `prefix` + its name, which polls that queue."""
    return NodeSpec(
        name=prefix + machine.name,
        instance_id=scope,
        heartbeat_timeout=FOREVER,
        labels=machine.labels,
        cpu_milli=machine.cpu_milli,
        memory_mib=machine.memory_mib,
        gpus=[
            Gpu(resource_id=gpu_id(machine, scope, index), model=machine.gpu_model)
            for index in range(machine.gpus)
        ],
        queues=[queue],
    )


def placement(job: Job) -> dict[str, Any]:
    """Build the placement of a job: models and tags required, preferences, and what it needs."""
    resources: dict[str, Any] = {"cpu_milli": job.cpu_milli, "memory_mib": job.memory_mib}
    if job.num_gpu and job.gpu_milli < WHOLE_GPU:
        resources["gpu_milli"] = job.gpu_milli
    elif job.num_gpu:
        resources["gpu"] = job.num_gpu
    require: list[dict[str, Any]] = []
    if job.gpu_models:
        require.append({"label": "gpu_model", "op": "in", "values": list(job.gpu_models)})
    if job.tags:
        require.append({"tags": dict(job.tags)})
    wanted: dict[str, Any] = {"require": require, "resources": resources}
    if job.prefer_tags:
        wanted["prefer"] = [{"weight": 100, "when": {"tags": dict(job.prefer_tags)}}]
    return wanted


def lease_spec(job: Job, number: int, options: SpawnOptions) -> LeaseSpec:
    """Build one `spawn_leases` item; `number` tells a job's redrawn copies apart in `params`."""
    return LeaseSpec(
        task=TASK,
        params={"job": job.name, "number": number},
        options={**options, "placement": placement(job)},
    )
