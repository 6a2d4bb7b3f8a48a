"""A stand-in for AMD SMI with two GPUs; it answers as its documentation says."""

from __future__ import annotations

from enum import Enum
from types import ModuleType

MI300X = "AMD Instinct MI300X"


class FakeAmdSmi(ModuleType):
    """Answers as `amdsmi` does.

    Attributes:
        open: How often it was opened and not closed again.
        names: Of its GPUs; the second is no UUID.
    """

    class AmdSmiException(Exception):
        pass

    class AmdSmiMemoryType(Enum):
        VRAM = 0

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.open = 0
        self.names = ["1fff74a1-0000-1000-80ff-0123456789ab", "GPU-e6476bf961040a89"]

    def amdsmi_init(self) -> None:
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return self.names

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return handle

    def amdsmi_get_gpu_asic_info(self, _handle: str) -> dict[str, str]:
        return {"market_name": MI300X, "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]"}

    def amdsmi_get_gpu_memory_total(self, _handle: str, kind: AmdSmiMemoryType) -> int:
        assert kind is self.AmdSmiMemoryType.VRAM
        return 196592 << 20
