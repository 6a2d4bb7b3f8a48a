"""What the machine says about itself: labels, capacity, cores, GPUs.

Labels are few on purpose: nodes with equal labels share one profile in the database, so a label
that is different on every machine (a host name, a serial number) would cost each its own.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from hwqueue.types import Gpu
from hwqueue.worker.amd import detect_amd_gpus
from hwqueue.worker.cgroup import CGROUP_ROOT, OWN_CGROUP, cgroup_limits, read
from hwqueue.worker.visible import is_listed, listed_devices

_log = logging.getLogger("hwqueue.worker")

_MIB = 1024 * 1024
_NUMA_ROOT = Path("/sys/devices/system/node")
_CPU_ROOT = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found.

    Attributes:
        labels: `os` ("linux", "darwin"), `arch` ("x86_64", "arm64") and, when all GPUs are of one
            model, `gpu_model`.
        capacity: `cpu_milli` (1000 per logical CPU that this process may use) and `memory_mib`.
        cores: Physical cores as `{"core": n, "numa": n, "threads": [cpu, ...]}`; empty where the
            system does not tell.
        gpus: NVIDIA GPUs, of those in MIG mode their parts instead; AMD GPUs where there are none.
        gpu_names: What `CUDA_VISIBLE_DEVICES` calls them; HIP reads that, too.
    """

    labels: Mapping[str, str]
    capacity: Mapping[str, int]
    cores: tuple[Mapping[str, Any], ...]
    gpus: tuple[Gpu, ...]
    gpu_names: tuple[str, ...]


def detect_machine() -> Machine:
    """Look at the machine this process runs on."""
    named = {cuda_name(gpu): gpu for gpu in detect_gpus()} or detect_amd_gpus(os.environ)
    gpus = tuple(named.values())
    return Machine(
        labels=detect_labels(gpus),
        capacity=detect_capacity(),
        cores=detect_cores(),
        gpus=gpus,
        gpu_names=tuple(named),
    )


def detect_labels(gpus: tuple[Gpu, ...] = ()) -> dict[str, str]:
    """The labels listed at `Machine.labels`."""
    labels = {"os": platform.system().lower(), "arch": platform.machine().lower()}
    return labels | label_of_models(gpus)


def label_of_models(gpus: tuple[Gpu, ...]) -> dict[str, str]:
    """The label `gpu_model`, when all GPUs are of one model."""
    models = {gpu.model for gpu in gpus if gpu.model is not None}
    return {"gpu_model": models.pop()} if len(models) == 1 else {}


def detect_capacity(cgroup_root: Path = CGROUP_ROOT, own_cgroup: Path = OWN_CGROUP) -> dict[str, int]:
    """CPU time and memory that this process may use.

    The limits of its control group (version 1 or 2: a container's, a systemd unit's) count where
    they are lower than the machine's, and so does the CPU affinity that the process was started
    with.
    """
    limits = cgroup_limits(cgroup_root, own_cgroup)
    return {
        "cpu_milli": min((len(_usable_cpus()) * 1000, *limits.cpu_milli)),
        "memory_mib": min((psutil.virtual_memory().total, *limits.memory_bytes)) // _MIB,
    }


def detect_cores(numa_root: Path = _NUMA_ROOT, cpu_root: Path = _CPU_ROOT) -> tuple[Mapping[str, Any], ...]:
    """Physical cores, their NUMA node and their hardware threads, from Linux's `/sys`.

    psutil knows neither NUMA nor which threads share a core. Empty where `/sys` says nothing. A
    core is named by the lowest of its threads; threads this process may not use are left out.
    """
    numa_of = _numa_of_cpu(numa_root)
    usable = _usable_cpus()
    cores: dict[int, set[int]] = {}
    for cpu in usable:
        siblings = read(cpu_root / f"cpu{cpu}/topology/thread_siblings_list")
        if not siblings.strip():
            return ()
        cores.setdefault(min(parse_cpu_list(siblings)), set()).add(cpu)
    return tuple(
        {"core": core, "numa": numa_of.get(core, 0), "threads": sorted(threads)}
        for core, threads in sorted(cores.items())
    )


def detect_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """NVIDIA GPUs through NVML; none where its library or driver is missing.

    Of a GPU in MIG mode its parts are declared and not the GPU itself: nobody can have it whole.
    What `CUDA_VISIBLE_DEVICES` hides from this process is left out; a GPU that it lists brings its
    parts along. A device that NVML cannot read is left out, with a warning that names it.
    """
    try:
        import pynvml  # noqa: PLC0415  (loaded late: a node without GPUs needs no NVML)
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.debug("no NVIDIA GPUs: %s", error)
        return ()
    try:
        count = pynvml.nvmlDeviceGetCount()
        found = [(index, gpu) for index in range(count) for gpu in _read_devices(pynvml, index)]
    except pynvml.NVMLError as error:
        _log.warning("GPUs are not declared, NVML failed: %s", error)
        return ()
    finally:
        pynvml.nvmlShutdown()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    entries = listed_devices(visible, count, [name for _, gpu in found for name in _names(gpu)])
    return tuple(gpu for index, gpu in found if is_listed(entries, index, _names(gpu)))


def _read_devices(nvml: Any, index: int) -> list[Gpu]:
    """One GPU, or the parts of one that is in MIG mode; nothing, with a warning, if it fails."""
    name = f"GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = f"GPU {index} ({nvml.nvmlDeviceGetUUID(handle)})"
        if not _is_in_mig_mode(nvml, handle):
            return [_read_device(nvml, handle)]
        # Nothing else is asked of the GPU itself: how much memory it has only root is told.
        gpu = _uuid(nvml, handle)
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except (nvml.NVMLError, ValueError) as error:
        _log.warning("%s is not declared: %s", name, error)
        return []
    parts = [part for place in places if (part := _read_part(nvml, handle, place, gpu))]
    _log.info("GPU %s is in MIG mode and has %d parts", gpu, len(parts))
    return parts


def _is_in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        mode, _pending_mode = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(mode == nvml.NVML_DEVICE_MIG_ENABLE)


def _read_part(nvml: Any, handle: Any, place: int, gpu: UUID) -> Gpu | None:
    """The part of a GPU at a place; None where there is none, or, with a warning, if it fails."""
    try:
        part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
    except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
        return None  # no part has this place
    except nvml.NVMLError as error:
        _log.warning("part %d of GPU %s is not declared: %s", place, gpu, error)
        return None
    try:
        return _read_device(nvml, part, parent=gpu)
    except nvml.NVMLError as error:
        _log.warning("part %d of GPU %s is not declared: %s", place, gpu, error)
    except ValueError as error:  # MIG-GPU-<the GPU's>/1/0: drivers before R470
        _log.warning("a part of GPU %s is not declared: %s; update the driver", gpu, error)
    return None


def _read_device(nvml: Any, handle: Any, *, parent: UUID | None = None) -> Gpu:
    return Gpu(
        resource_id=_uuid(nvml, handle),
        model=str(nvml.nvmlDeviceGetName(handle)),
        memory_mib=_memory_mib(nvml, handle),
        parent_resource_id=parent,
    )


def _memory_mib(nvml: Any, handle: Any) -> int | None:
    """None where the device shares the machine's memory and has no size of its own."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB or None
    except nvml.NVMLError_NotSupported:
        return None


def _uuid(nvml: Any, handle: Any) -> UUID:
    """Raises: ValueError: its name holds no UUID."""
    name = str(nvml.nvmlDeviceGetUUID(handle))
    try:
        return UUID(name.removeprefix("GPU-").removeprefix("MIG-"))
    except ValueError as error:
        raise ValueError(f"its name {name} is no UUID") from error


def _names(device: Gpu) -> tuple[str, str]:
    """What `CUDA_VISIBLE_DEVICES` may call a device: its own name, or that of its GPU."""
    return cuda_name(device), f"GPU-{device.parent_resource_id}"


def cuda_name(device: Gpu) -> str:
    """What `CUDA_VISIBLE_DEVICES` calls a detected device."""
    kind = "GPU" if device.parent_resource_id is None else "MIG"
    return f"{kind}-{device.resource_id}"


def _usable_cpus() -> list[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(psutil.cpu_count() or 1))


def _numa_of_cpu(numa_root: Path) -> dict[int, int]:
    return {
        cpu: int(folder.name.removeprefix("node"))
        for folder in numa_root.glob("node[0-9]*")
        for cpu in parse_cpu_list(read(folder / "cpulist"))
    }


def parse_cpu_list(text: str) -> list[int]:
    """The kernel's list format: "0-3,8" is [0, 1, 2, 3, 8]."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus
