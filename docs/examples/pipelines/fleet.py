"""The machines that the pipelines are shown on: two regions, four racks, made up."""

from hwqueue import Taint
from hwqueue.testing import Fleet

GIB = 1024


def add_machines(fleet: Fleet) -> None:
    """Register them."""
    us = {"region": "us", "gpu": False, "arch": "amd64"}
    eu = {"region": "eu", "gpu": False, "arch": "amd64"}
    fleet.add("us-cpu-1", rack=1, labels=us, cpu_milli=16000, memory_mib=64 * GIB)
    fleet.add("us-cpu-2", rack=2, labels=us, cpu_milli=16000, memory_mib=64 * GIB)
    fleet.add("us-gpu-1", rack=2, labels={**us, "gpu": True}, gpus=4, gpu_model="H100")
    fleet.add("us-arm-1", rack=1, labels={**us, "arch": "arm64", "stage": "canary"}, cpu_milli=8000)
    fleet.add("us-video-1", rack=1, labels={**us, "gpu": True, "encoder": "nvenc"}, gpus=1)
    fleet.add("us-sim-1", rack=2, labels={**us, "scratch": "lustre-2"}, custom={"solver_licence": 2})
    bank = {**eu, "owner": "bank"}
    fleet.add("eu-cpu-1", rack=3, labels=eu, cpu_milli=16000)
    fleet.add("eu-cpu-2", rack=4, labels=eu, cpu_milli=16000)
    fleet.add("eu-gpu-1", rack=4, labels={**eu, "gpu": True}, gpus=2, gpu_model="H100")
    only_the_bank = Taint(key="owner", value="bank", effect="no_schedule")
    fleet.add("eu-bank-1", rack=3, labels=bank, cpu_milli=8000, taints=[only_the_bank])
