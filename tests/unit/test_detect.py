"""What the machine is found to be: from made-up /sys folders and a made-up NVML."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import psutil
import pytest

from hwqueue.types import Gpu
from hwqueue.worker import detect
from hwqueue.worker.amd import detect_amd_gpus
from hwqueue.worker.node import combine, positions_of_share
from hwqueue.worker.settings import WorkerSettings
from tests.unit.fake_amdsmi import MI300X, FakeAmdSmi
from tests.unit.fake_nvml import GPUS, PARTS, FakeNvml

UUIDS = [f"8f5b6c1e-0000-4000-8000-00000000000{n}" for n in range(3)]
A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def install_nvml(monkeypatch: pytest.MonkeyPatch, nvml: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_gpus_are_read_and_there_are_none_without_library_or_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(GPUS)
    install_nvml(monkeypatch, nvml)
    assert detect.detect_gpus({}) == (
        Gpu(resource_id=UUID(UUIDS[0]), model=A100, memory_mib=80 * 1024),
        Gpu(resource_id=UUID(UUIDS[1]), model="NVIDIA H100 PCIe", memory_mib=80 * 1024),
        Gpu(resource_id=UUID(UUIDS[2]), model=T4, memory_mib=15 * 1024),
    )
    assert nvml.open == 0
    install_nvml(monkeypatch, None)  # what an import of a missing module runs into
    assert detect.detect_gpus({}) == ()
    install_nvml(monkeypatch, FakeNvml(GPUS, driver=False))
    assert detect.detect_gpus({}) == ()


def test_of_gpus_in_mig_mode_the_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(PARTS)
    install_nvml(monkeypatch, nvml)
    found = detect.detect_gpus({})
    first, second = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
    assert [(gpu.model, gpu.memory_mib) for gpu in found] == [
        (f"{first} MIG 3g.20gb", 20 << 10),
        (f"{first} MIG 2g.10gb", 10 << 10),
        (f"{first} MIG 1g.5gb", 5 << 10),
        (first, 40 << 10),
        (f"{second} MIG 1g.10gb+me", 10 << 10),
        (f"{second} MIG 1c.3g.40gb", 40 << 10),
        (T4, 15 << 10),
    ]
    split = [UUID(nvml.devices[index].uuid.removeprefix("GPU-")) for index in (0, 2)]
    parents = [gpu.parent_resource_id for gpu in found]
    assert parents == [split[0]] * 3 + [None] + [split[1]] * 2 + [None]
    assert [detect.cuda_name(gpu) for gpu in found] == re.findall(
        r"MIG-[0-9a-f-]{36}|GPU-5d5b[0-9a-f-]+|GPU-b08b[0-9a-f-]+", PARTS
    )
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2", [2]),
        ("0,2", [0, 2]),
        (f"GPU-{UUIDS[2]}", [2]),
        (f" GPU-{UUIDS[0]} ", [0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,-1,1", [2]),
        ("0,3,1", [0]),
        (f"1,GPU-0000,{UUIDS[2]}", [1]),
        (f"GPU-{UUIDS[1]},2,what,0", [1, 2]),
    ],
)
def test_hidden_gpus_are_left_out(monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[int]) -> None:
    install_nvml(monkeypatch, FakeNvml(GPUS))
    found = detect.detect_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [str(gpu.resource_id) for gpu in found] == [UUIDS[index] for index in expected]


@pytest.mark.parametrize(
    ("listing", "call", "bad", "named"),
    [
        (GPUS, "nvmlDeviceGetHandleByIndex", 1, "GPU 1 is not declared"),
        (GPUS, "nvmlDeviceGetMigMode", 0, f"GPU 0 (GPU-{UUIDS[0]}) is not declared"),
        (GPUS, "nvmlDeviceGetName", 2, f"GPU 2 (GPU-{UUIDS[2]}) is not declared"),
        (GPUS, "nvmlDeviceGetMemoryInfo", 1, f"GPU 1 (GPU-{UUIDS[1]}) is not declared"),
        (PARTS, "nvmlDeviceGetMemoryInfo", "MIG-7d17", "part 2 of GPU fcf41002"),
        (PARTS, "nvmlDeviceGetMigDeviceHandleByIndex", 4, "part 4 of GPU fcf41002"),
    ],
)
def test_a_device_that_fails_is_left_out_alone(
    *,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    listing: str,
    call: str,
    bad: int | str,
    named: str,
) -> None:
    nvml = FakeNvml(listing)
    install_nvml(monkeypatch, nvml)
    sound = detect.detect_gpus({})
    answer = getattr(nvml, call)

    def fail(*args: Any) -> Any:
        """Of the device `bad`: the number or place in the call, else the beginning of a name."""
        asked = args[-1] if isinstance(args[-1], int) else args[-1].uuid
        name = nvml.devices[bad].uuid if isinstance(bad, int) and isinstance(asked, str) else bad
        if asked == name or (isinstance(asked, str) and asked.startswith(str(name))):
            raise nvml.NVMLError("GPU is lost")
        return answer(*args)

    monkeypatch.setattr(nvml, call, fail)
    left = detect.detect_gpus({})
    assert len(left) == len(sound) - 1
    assert set(left) < set(sound)
    assert named in caplog.text
    assert "GPU is lost" in caplog.text
    assert nvml.open == 0


def test_the_library_has_what_is_used_of_it() -> None:
    nvml = pytest.importorskip("pynvml")
    used = [name for name in vars(FakeNvml) if name.lower().startswith("nvml")]
    assert len(used) > 10
    assert [name for name in used if not hasattr(nvml, name)] == []


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_threads_and_numa_come_from_sys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert detect.detect_cores(tmp_path, tmp_path) == ()
    write(tmp_path / "node/node0/cpulist", "0-1,4-5\n")
    write(tmp_path / "node/node1/cpulist", "2-3,6-7\n")
    for cpu in range(8):
        siblings = f"{cpu % 4},{cpu % 4 + 4}\n"
        write(tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 4, 6}, raising=False)
    assert detect.detect_cores(tmp_path / "node", tmp_path / "cpu") == (
        {"core": 0, "numa": 0, "threads": [0, 4]},
        {"core": 1, "numa": 0, "threads": [1]},
        {"core": 2, "numa": 1, "threads": [2, 6]},
    )


UNIT = "system.slice/w.service"
V1 = f"4:memory:/{UNIT}\n3:cpu,cpuacct:/{UNIT}\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "250000 100000", "memory.max": f"{512 << 20}"}, (2500, 512)),
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, None),
        ("", {}, None),
        (
            f"0::/{UNIT}\n",
            {f"{UNIT}/cpu.max": "150000 100000", f"{UNIT}/memory.max": f"{256 << 20}"},
            (1500, 256),
        ),
        (  # what is above the group holds, too
            f"0::/{UNIT}\n",
            {f"{UNIT}/memory.max": "max", "system.slice/memory.max": f"{300 << 20}"},
            (8000, 300),
        ),
        (f"0::/../{UNIT}\n", {f"{UNIT}/memory.max": f"{256 << 20}"}, (8000, 256)),
        (  # the group of another container
            f"0::/{UNIT}\n",
            {"user.slice/memory.max": f"{256 << 20}"},
            None,
        ),
        (
            V1,
            {
                f"memory/{UNIT}/memory.limit_in_bytes": f"{128 << 20}",
                f"cpu,cpuacct/{UNIT}/cpu.cfs_quota_us": "50000",
                f"cpu,cpuacct/{UNIT}/cpu.cfs_period_us": "100000",
            },
            (500, 128),
        ),
        (  # a container that has its own group at the root of the mounts
            V1,
            {
                "memory/memory.limit_in_bytes": f"{128 << 20}",
                "cpu/cpu.cfs_quota_us": "200000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            (2000, 128),
        ),
        (
            V1,
            {
                f"memory/{UNIT}/memory.limit_in_bytes": "9223372036854771712",
                f"cpu/{UNIT}/cpu.cfs_quota_us": "-1",
                f"cpu/{UNIT}/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        (  # version 2 beside controllers of version 1
            f"0::/{UNIT}\n4:memory:/{UNIT}\n",
            {f"memory/{UNIT}/memory.limit_in_bytes": f"{128 << 20}"},
            (8000, 128),
        ),
    ],
)
def test_its_control_group_limits_the_capacity(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own: str,
    files: dict[str, str],
    expected: tuple[int, int] | None,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    write(tmp_path / "own", own)
    for name, text in files.items():
        write(tmp_path / "groups" / name, f"{text}\n")
    found = detect.detect_capacity(tmp_path / "groups", tmp_path / "own")
    cpu_milli, memory_mib = expected or (8000, psutil.virtual_memory().total >> 20)
    assert found == {"cpu_milli": cpu_milli, "memory_mib": memory_mib}


MACHINE = detect.Machine(
    labels={"os": "linux", "arch": "x86_64"},
    capacity={"cpu_milli": 8000, "memory_mib": 1024},
    cores=({"core": 0, "numa": 0, "threads": [0]},),
    gpus=(Gpu(resource_id=UUID(UUIDS[0]), model=A100, memory_mib=81920),),
    gpu_names=(f"GPU-{UUIDS[0]}",),
)


def test_detected_facts_fill_what_the_settings_leave_open_and_given_ones_win() -> None:
    node = combine(WorkerSettings(dsn="x", name="n", labels={"region": "eu", "os": "mine"}), MACHINE)
    assert node.spec.labels == {"os": "mine", "arch": "x86_64", "region": "eu"}
    assert (node.spec.cpu_milli, node.spec.memory_mib) == (8000, 1024)
    assert (node.spec.gpus, node.gpu_names) == (MACHINE.gpus, (f"GPU-{UUIDS[0]}",))
    gpus = (Gpu(resource_id=UUIDS[1]), Gpu(resource_id=UUIDS[2]))
    settings = WorkerSettings(dsn="x", name="n", capacity={"license": 2}, gpus=gpus)
    node = combine(settings, MACHINE)
    assert (node.spec.cpu_milli, node.spec.memory_mib) == (None, None)
    assert (node.spec.custom, node.gpu_names) == ({"license": 2}, ("0", "1"))
    assert combine(WorkerSettings(dsn="x", gpus=()), MACHINE).spec.gpus == ()
    other = (Gpu(resource_id=UUIDS[1], model="MI300X"),)
    labels = combine(WorkerSettings(dsn="x", gpus=other), MACHINE).spec.labels
    assert labels == {**MACHINE.labels, "gpu_model": "MI300X"}
    spec = combine(WorkerSettings(dsn="x", name="n", detect=False), None).spec
    assert (spec.labels, spec.cpu_milli, spec.gpus, spec.cores) == ({}, None, (), ())


def test_several_processes_divide_what_there_is() -> None:
    """Nothing twice, nothing lost, and each sees its own GPUs alone."""
    gpus = tuple(Gpu(resource_id=UUID(int=n), model="T4") for n in range(5))
    machine = replace(
        MACHINE, gpus=gpus, gpu_names=tuple("01234"), capacity={"cpu_milli": 8000, "memory_mib": 10}
    )
    nodes = [
        combine(WorkerSettings(dsn="x", name=f"n-{index}", share=(index, 4)), machine) for index in range(4)
    ]
    assert [node.spec.cpu_milli for node in nodes] == [2000] * 4
    assert [node.spec.memory_mib for node in nodes] == [3, 3, 2, 2]
    assert [node.spec.gpus for node in nodes] == [gpus[index::4] for index in range(4)]
    assert [node.gpu_names for node in nodes] == [("0", "4"), ("1",), ("2",), ("3",)]
    assert {node.spec.cores for node in nodes} == {()}
    none = combine(WorkerSettings(dsn="x", gpus=gpus[:1], share=(1, 2)), machine)
    assert (none.spec.gpus, none.gpu_names, none.is_divided) == ((), (), True)
    assert not combine(WorkerSettings(dsn="x", gpus=(), share=(1, 2)), machine).is_divided
    assert not combine(WorkerSettings(dsn="x"), machine).is_divided


def test_parts_go_where_their_device_goes_and_are_named_by_their_id() -> None:
    whole = tuple(Gpu(resource_id=UUID(int=n), partitionable=True) for n in range(2))
    parts = tuple(Gpu(resource_id=UUID(int=10 + n), parent_resource_id=UUID(int=n % 2)) for n in range(4))
    apart = tuple(Gpu(resource_id=UUID(int=20 + n), parent_resource_id=UUID(int=9)) for n in range(2))
    gpus = (*whole, *parts, *apart)
    first, second = (positions_of_share(gpus, (index, 2)) for index in range(2))
    assert first == [0, 2, 4, 6]
    assert second == [1, 3, 5, 7]
    gpus = (
        Gpu(resource_id=UUIDS[0], partitionable=True),
        Gpu(resource_id=UUIDS[1], parent_resource_id=UUIDS[0]),
        Gpu(resource_id=UUIDS[2]),
    )
    node = combine(WorkerSettings(dsn="x", gpus=gpus), None)
    assert node.gpu_names == ("0", f"MIG-{UUIDS[1]}", "1")
    assert node.spec.as_json()["gpus"][:2] == [
        {"resource_id": UUIDS[0], "partitionable": True},
        {"resource_id": UUIDS[1], "parent_resource_id": UUIDS[0]},
    ]


def test_classes_are_declared_with_cores() -> None:
    settings = WorkerSettings(
        dsn="x",
        cpu_isolation=("whole_core",),
        gpu_exclusivity=("device_exclusive",),
        default_cpu_isolation="whole_core",
        gpu_share_mode="exclusive",
    )
    spec = combine(settings, MACHINE).spec
    assert spec.cores == MACHINE.cores
    assert (spec.cpu_isolation, spec.gpu_exclusivity) == (("whole_core",), ("device_exclusive",))
    assert (spec.default_cpu_isolation, spec.gpu_share_mode) == ("whole_core", "exclusive")
    assert spec.cpu_milli == 1000, "of cores, not of their threads"
    assert combine(WorkerSettings(dsn="x"), MACHINE).spec.cpu_milli == 8000


def test_amd_gpus_are_read_where_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = FakeAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install_nvml(monkeypatch, None)
    machine = detect.detect_machine()
    assert [(gpu.model, gpu.memory_mib) for gpu in machine.gpus] == [(MI300X, 196592)] * 2
    first, second = (gpu.resource_id for gpu in machine.gpus)
    assert str(first) == smi.names[0]
    assert second == detect_amd_gpus({})["1"].resource_id, "made up, and always the same"
    assert (machine.gpu_names, machine.labels["gpu_model"]) == (("0", "1"), MI300X)
    assert smi.open == 0
    install_nvml(monkeypatch, FakeNvml(GPUS))
    assert {gpu.model for gpu in detect.detect_machine().gpus} == {A100, T4, "NVIDIA H100 PCIe"}


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ["0", "1"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["0"]),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 0"}, ["0", "1"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "1,-1,0"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": "GPU-e64"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["0"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
    ],
)
def test_hidden_amd_gpus_are_left_out(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], names: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdSmi())
    assert list(detect_amd_gpus(environment)) == names
