"""AMD GPUs through AMD SMI, whose Python package `amdsmi` comes with ROCm."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

from hwqueue.types import Gpu
from hwqueue.worker.visible import is_listed, listed_devices

_log = logging.getLogger("hwqueue.worker")

_NAMESPACE = uuid5(NAMESPACE_DNS, "amd.hwqueue")
_MIB = 1024 * 1024
_Device = tuple[str, Gpu]


def detect_amd_gpus(environment: Mapping[str, str]) -> dict[str, Gpu]:
    """The GPUs by what `HIP_VISIBLE_DEVICES` calls them; none without the library or a driver.

    What `ROCR_VISIBLE_DEVICES`, and `HIP_VISIBLE_DEVICES` or else `CUDA_VISIBLE_DEVICES`, hide
    from this process is left out, and so is, with a warning, a device that cannot be read.
    """
    try:
        import amdsmi  # noqa: PLC0415  (loaded late, and only where it is)
    except (ImportError, OSError, KeyError) as error:  # the last two: no libamd_smi.so
        _log.debug("no AMD GPUs: %s", error)
        return {}
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        _log.debug("no AMD GPUs: %s", error)
        return {}
    try:
        handles = list(amdsmi.amdsmi_get_processor_handles())
        devices = [_read_device(amdsmi, index, handle) for index, handle in enumerate(handles)]
    except amdsmi.AmdSmiException as error:
        _log.warning("GPUs are not declared, AMD SMI failed: %s", error)
        return {}
    finally:
        amdsmi.amdsmi_shut_down()
    shown = _listed(devices, environment.get("ROCR_VISIBLE_DEVICES"))
    hip = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    # HIP counts what ROCr shows it
    found = _listed([device for _, device in shown], hip)
    return {str(index): device[1] for index, device in found if device is not None}


def _listed(devices: list[_Device | None], value: str | None) -> list[tuple[int, _Device | None]]:
    """The devices that a `..._VISIBLE_DEVICES` value lists, with their numbers."""
    entries = listed_devices(value, len(devices), [device[0] for device in devices if device])
    return [
        (index, device)
        for index, device in enumerate(devices)
        if is_listed(entries, index, (device[0] if device else "",))
    ]


def _read_device(amdsmi: Any, index: int, handle: Any) -> _Device | None:
    """What AMD SMI calls a GPU, and the GPU; None, with a warning, if it cannot be read."""
    name = ""
    try:
        name = str(amdsmi.amdsmi_get_gpu_device_uuid(handle))
        model = str(amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        memory_mib = _memory_mib(amdsmi, handle)
    except amdsmi.AmdSmiException as error:
        _log.warning("GPU %d%s is not declared: %s", index, name and f" ({name})", error)
        return None
    return name, Gpu(resource_id=_id_of(name), model=None if model == "N/A" else model, memory_mib=memory_mib)


def _memory_mib(amdsmi: Any, handle: Any) -> int | None:
    """None where the device shares the machine's memory and has no size of its own."""
    try:
        total = amdsmi.amdsmi_get_gpu_memory_total(handle, amdsmi.AmdSmiMemoryType.VRAM)
    except amdsmi.AmdSmiException as error:
        if "NOT_SUPPORTED" in str(error):
            return None
        raise
    return int(total) // _MIB or None


def _id_of(name: str) -> UUID:
    """The device's own id; one made from its name where that is no UUID."""
    try:
        return UUID(name)
    except ValueError:
        return uuid5(_NAMESPACE, name)
