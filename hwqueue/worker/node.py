"""What a node tells the database about itself when it registers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import uuid4

from hwqueue.types import Gpu, NodeSpec
from hwqueue.worker.detect import Machine, detect_machine, label_of_models
from hwqueue.worker.settings import WorkerSettings

_MOST_ANNOUNCED = 10_000
_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.:@/-]*")


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The node as it is registered.

    Attributes:
        spec: The argument of `register_node`, with an instance id of this process.
        gpu_names: What `CUDA_VISIBLE_DEVICES` calls its GPUs, by position.
        is_divided: Whether the machine has GPUs of which the worker may see those named alone.
    """

    spec: NodeSpec
    gpu_names: tuple[str, ...]
    is_divided: bool = False


async def describe_node(settings: WorkerSettings, tasks: Collection[str]) -> NodeDescription:
    """What the settings say, and what the machine says where they say nothing.

    Args:
        tasks: Names of the tasks that the worker has handlers for.
    """
    machine = await asyncio.to_thread(detect_machine) if settings.detect else None
    return combine(settings, machine, tasks)


def combine(
    settings: WorkerSettings, machine: Machine | None, tasks: Collection[str] | None = None
) -> NodeDescription:
    """Put settings and detected facts together; the settings win."""
    capacity = dict(settings.capacity or {})
    labels = dict(machine.labels) if machine else {}
    gpus = settings.gpus or ()
    gpu_names = names_of(gpus)
    if machine is not None and settings.capacity is None:
        capacity = dict(machine.capacity)
        if settings.isolates_cores:
            # then 1000 are a core, not one of its threads
            capacity["cpu_milli"] = min(capacity["cpu_milli"], 1000 * len(machine.cores))
    if machine is not None and settings.gpus is None:
        gpus = machine.gpus
        gpu_names = machine.gpu_names
    elif machine is not None:
        labels.pop("gpu_model", None)
        labels |= label_of_models(gpus)
    is_divided = settings.share[1] > 1 and bool(gpus)
    if settings.share[1] > 1:
        capacity = {key: _part(amount, settings.share) for key, amount in capacity.items()}
        mine = positions_of_share(gpus, settings.share)
        gpus = tuple(gpus[at] for at in mine)
        gpu_names = tuple(gpu_names[at] for at in mine)
    spec = NodeSpec(
        name=settings.name,
        instance_id=str(uuid4()),
        heartbeat_timeout=settings.heartbeat_timeout,
        labels={**labels, **settings.own_labels},
        rack=settings.rack,
        cpu_milli=capacity.pop("cpu_milli", None),
        memory_mib=capacity.pop("memory_mib", None),
        custom=capacity,
        # cores that several processes declare would be counted once for each
        cores=machine.cores if machine and settings.share[1] == 1 else (),
        gpus=gpus,
        cpu_isolation=settings.cpu_isolation,
        gpu_exclusivity=settings.gpu_exclusivity,
        default_cpu_isolation=settings.default_cpu_isolation,
        gpu_share_mode=settings.gpu_share_mode,
        queues=announceable(settings.queues, 100),
        tasks=None if tasks is None else announceable(tasks, 200),
        concurrency=settings.concurrency,
    )
    return NodeDescription(spec=spec, gpu_names=gpu_names, is_divided=is_divided)


def _part(amount: int, share: tuple[int, int]) -> int:
    """What one of several processes gets; the first ones get what is left over."""
    index, count = share
    return amount // count + int(index < amount % count)


def positions_of_share(gpus: Sequence[Gpu], share: tuple[int, int]) -> list[int]:
    """Where in the list the GPUs of one process are: every so-many-th, with its parts."""
    index, count = share
    listed = {gpu.resource_id for gpu in gpus}
    owners = [gpu.parent_resource_id if gpu.parent_resource_id in listed else gpu.resource_id for gpu in gpus]
    turns = {owner: turn for turn, owner in enumerate(dict.fromkeys(owners))}
    return [at for at, owner in enumerate(owners) if turns[owner] % count == index]


def announceable(names: Collection[str], most_chars: int) -> list[str] | None:
    """The names to announce; None when the database takes no such list, or such a name."""
    good = all(len(name) <= most_chars and _NAME.fullmatch(name) for name in names)
    return sorted(names) if good and len(names) <= _MOST_ANNOUNCED else None


def names_of(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """What `CUDA_VISIBLE_DEVICES` calls given GPUs: whole ones by PCI order, parts by id."""
    whole = [gpu for gpu in gpus if gpu.parent_resource_id is None]
    return tuple(
        f"MIG-{gpu.resource_id}" if gpu.parent_resource_id is not None else str(whole.index(gpu))
        for gpu in gpus
    )
