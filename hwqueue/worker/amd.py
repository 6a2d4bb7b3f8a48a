"""AMD GPUs through AMD SMI, whose Python package `amdsmi` comes with ROCm."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

from hwqueue.types import Gpu

_log = logging.getLogger("hwqueue.worker")

_NAMESPACE = uuid5(NAMESPACE_DNS, "amd.hwqueue")
_MIB = 1024 * 1024


def detect_amd_gpus(environment: Mapping[str, str]) -> dict[str, Gpu]:
    """The GPUs by what `HIP_VISIBLE_DEVICES` calls them; none without the library or a driver.

    What `HIP_VISIBLE_DEVICES`, or else `CUDA_VISIBLE_DEVICES`, hides from this process is left
    out.
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
    hip = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    visible = None if hip is None else [entry.strip() for entry in hip.split(",")]
    try:
        return {
            str(index): _read_device(amdsmi, handle)
            for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())
            if visible is None or str(index) in visible
        }
    except amdsmi.AmdSmiException as error:
        _log.warning("GPUs are not declared, AMD SMI failed: %s", error)
        return {}
    finally:
        amdsmi.amdsmi_shut_down()


def _read_device(amdsmi: Any, handle: Any) -> Gpu:
    name = str(amdsmi.amdsmi_get_gpu_device_uuid(handle))
    memory = amdsmi.amdsmi_get_gpu_memory_total(handle, amdsmi.AmdSmiMemoryType.VRAM)
    return Gpu(
        resource_id=_id_of(name),
        model=str(amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"]),
        memory_mib=int(memory) // _MIB,
    )


def _id_of(name: str) -> UUID:
    """The device's own id; one made from its name where that is no UUID."""
    try:
        return UUID(name)
    except ValueError:
        return uuid5(_NAMESPACE, name)
