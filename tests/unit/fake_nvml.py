"""A stand-in for NVML: it answers what `nvidia-smi -L` has printed on real machines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

GPUS = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-8f5b6c1e-0000-4000-8000-000000000000)
GPU 1: NVIDIA H100 PCIe (UUID: GPU-8f5b6c1e-0000-4000-8000-000000000001)
GPU 2: Tesla T4 (UUID: GPU-8f5b6c1e-0000-4000-8000-000000000002)
"""

# Two GPUs in MIG mode between two that are not; the names are those of drivers since R470.
PARTS = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-fcf41002-68b6-5900-d7d1-74026173bb44)
  MIG 3g.20gb     Device  0: (UUID: MIG-e07a497d-1bb6-5a42-b670-1c33bf55ab6e)
  MIG 2g.10gb     Device  1: (UUID: MIG-7d17cad5-cb54-53b8-8a5d-3ba0fdb3f22c)
  MIG 1g.5gb      Device  2: (UUID: MIG-37b7fdd7-f1cc-51f3-9a55-5f8c5ba60b1d)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-ce5b3123-f4f2-6250-8428-40617e5f9b9d)
  MIG 1g.10gb+me  Device  0: (UUID: MIG-90155500-9a09-5016-9746-95ef09bd78a6)
  MIG 1c.3g.40gb  Device  1: (UUID: MIG-6ffb4d9a-3b8e-5b0c-8f59-4a1ac9f0bb5e)
GPU 3: Tesla T4 (UUID: GPU-b08b8a1c-2c9e-1cf5-7cf0-4c2e0aa3b1f0)
"""

GIB_OF_MODEL = {"A100-SXM4-40GB": 40, "A100-SXM4-80GB": 80, "H100": 80, "T4": 15}
GPU_LINE = re.compile(r"GPU (\d+): (.+) \(UUID: (\S+)\)")
PART_LINE = re.compile(r"  MIG (\S+) +Device +(\d+): \(UUID: (\S+)\)")


@dataclass
class Device:
    """A GPU or a part of one."""

    uuid: str
    name: str
    gib: int
    in_mig_mode: bool = False
    parts: dict[int, Device] = field(default_factory=dict)


def read_listing(listing: str) -> list[Device]:
    """The GPUs of a listing."""
    devices: list[Device] = []
    for line in listing.splitlines():
        if whole := GPU_LINE.fullmatch(line):
            index, name, uuid = int(whole[1]), whole[2], whole[3]
            assert index == len(devices)
            gib = next(gib for model, gib in GIB_OF_MODEL.items() if model in name)
            devices.append(Device(uuid, name, gib))
        else:
            part = PART_LINE.fullmatch(line)
            assert part, line
            gpu = devices[-1]
            gpu.in_mig_mode = True
            gib = int(re.findall(r"(\d+)gb", part[1])[0])
            # places may be free between parts, as after one was destroyed
            gpu.parts[2 * int(part[2])] = Device(part[3], f"{gpu.name} MIG {part[1]}", gib)
    return devices


class FakeNvml(ModuleType):
    """Answers as `pynvml` does.

    Attributes:
        open: How often it was opened and not closed again.
    """

    NVML_DEVICE_MIG_DISABLE = 0
    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801  (the library's name)
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801
        pass

    class NVMLError_InvalidArgument(NVMLError):  # noqa: N801
        pass

    def __init__(self, listing: str, *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.devices = read_listing(listing)
        self.driver = driver
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        return self.devices[index]

    def nvmlDeviceGetMigMode(self, handle: Device) -> list[int]:  # noqa: N802
        if "T4" in handle.name:
            raise self.NVMLError_NotSupported
        return [int(handle.in_mig_mode), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: Device) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Device, index: int) -> Device:  # noqa: N802
        if index not in handle.parts:
            raise self.NVMLError_NotFound if index % 2 else self.NVMLError_InvalidArgument
        return handle.parts[index]

    def nvmlDeviceGetUUID(self, handle: Device) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Device) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: Device) -> Any:  # noqa: N802
        if handle.in_mig_mode:
            raise self.NVMLError("Insufficient Permissions")
        return SimpleNamespace(total=handle.gib << 30)
