"""What the machine is found to be: from made-up /sys folders and a made-up NVML."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from uuid import UUID

import psutil
import pytest

from hwqueue.types import Gpu
from hwqueue.worker import detect
from hwqueue.worker.amd import detect_amd_gpus
from hwqueue.worker.node import combine, positions_of_share
from hwqueue.worker.settings import WorkerSettings
from tests.unit.fake_amdsmi import MI300X, FakeAmdSmi
from tests.unit.fake_nvml import GPUS, OLD_PARTS, PARTS, FakeNvml

UUIDS = [f"8f5b6c1e-0000-4000-8000-00000000000{n}" for n in range(3)]
A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def install_nvml(monkeypatch: pytest.MonkeyPatch, nvml: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_gpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(GPUS)
    install_nvml(monkeypatch, nvml)
    assert detect.detect_gpus({}) == (
        Gpu(resource_id=UUID(UUIDS[0]), model=A100, memory_mib=80 * 1024),
        Gpu(resource_id=UUID(UUIDS[1]), model="NVIDIA H100 PCIe", memory_mib=80 * 1024),
        Gpu(resource_id=UUID(UUIDS[2]), model=T4, memory_mib=15 * 1024),
    )
    assert nvml.open == 0


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


def test_a_gpu_in_mig_mode_without_parts_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, FakeNvml(GPUS, empty={1}))
    assert [str(gpu.resource_id) for gpu in detect.detect_gpus({})] == [UUIDS[0], UUIDS[2]]


def test_parts_without_ids_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_nvml(monkeypatch, FakeNvml(OLD_PARTS))
    assert detect.detect_gpus({}) == ()
    assert "caf9b0/2/0 is no UUID; update the driver" in caplog.text


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("2", [2]), ("0,2", [0, 2]), (f"GPU-{UUIDS[2]}", [2]), (f" GPU-{UUIDS[0]} ", [0]), ("", [])],
)
def test_hidden_gpus_are_left_out(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[int]
) -> None:
    install_nvml(monkeypatch, FakeNvml(GPUS))
    found = detect.detect_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [str(gpu.resource_id) for gpu in found] == [UUIDS[index] for index in expected]


@pytest.mark.parametrize(
    ("visible", "sizes"),
    [
        ("MIG-7d17cad5-cb54-53b8-8a5d-3ba0fdb3f22c", ["2g.10gb"]),
        ("MIG-37b7,GPU-b08b", ["1g.5gb", T4]),
        ("0", ["3g.20gb", "2g.10gb", "1g.5gb"]),
        ("GPU-ce5b3123-f4f2-6250-8428-40617e5f9b9d", ["1g.10gb+me", "1c.3g.40gb"]),
        ("GPU-90155500", []),
    ],
)
def test_hidden_parts_are_left_out(
    monkeypatch: pytest.MonkeyPatch, visible: str, sizes: list[str]
) -> None:
    install_nvml(monkeypatch, FakeNvml(PARTS))
    found = detect.detect_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [str(gpu.model).rpartition("MIG ")[2] for gpu in found] == sizes


def test_no_library_and_no_driver_mean_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, None)  # what an import of a missing module runs into
    assert detect.detect_gpus({}) == ()
    install_nvml(monkeypatch, FakeNvml(GPUS, driver=False))
    assert detect.detect_gpus({}) == ()


def test_a_failing_device_declares_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(PARTS)

    def fail(_handle: object) -> str:
        raise nvml.NVMLError("GPU is lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetName", fail)
    install_nvml(monkeypatch, nvml)
    assert detect.detect_gpus({}) == ()
    assert nvml.open == 0


def test_the_library_has_what_is_used_of_it() -> None:
    nvml = pytest.importorskip("pynvml")
    used = [name for name in vars(FakeNvml) if name.lower().startswith("nvml")]
    assert len(used) > 10
    assert [name for name in used if not hasattr(nvml, name)] == []


def test_labels_name_the_model_only_when_there_is_one() -> None:
    first, second = Gpu(resource_id=UUIDS[0], model=A100), Gpu(resource_id=UUIDS[1], model=T4)
    assert detect.detect_labels(()).keys() == {"os", "arch"}
    assert detect.detect_labels((first, first))["gpu_model"] == A100
    assert "gpu_model" not in detect.detect_labels((first, second))


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", []), ("", [])]
)
def test_cpu_lists(text: str, cpus: list[int]) -> None:
    assert detect.parse_cpu_list(text) == cpus


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_threads_and_numa_come_from_sys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_no_sys_means_no_cores(tmp_path: Path) -> None:
    assert detect.detect_cores(tmp_path, tmp_path) == ()


def test_a_container_limits_the_capacity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    total = psutil.virtual_memory().total
    free_of_limits = detect.detect_capacity(tmp_path)
    assert free_of_limits == {"cpu_milli": 8000, "memory_mib": total >> 20}

    write(tmp_path / "cpu.max", "250000 100000\n")
    write(tmp_path / "memory.max", f"{512 << 20}\n")
    assert detect.detect_capacity(tmp_path) == {"cpu_milli": 2500, "memory_mib": 512}

    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "memory.max", "max\n")
    assert detect.detect_capacity(tmp_path) == free_of_limits


def test_this_machine_describes_itself() -> None:
    machine = detect.detect_machine()
    assert machine.labels["os"]
    assert machine.capacity["cpu_milli"] >= 1000
    assert machine.capacity["memory_mib"] > 0


MACHINE = detect.Machine(
    labels={"os": "linux", "arch": "x86_64"},
    capacity={"cpu_milli": 8000, "memory_mib": 1024},
    cores=({"core": 0, "numa": 0, "threads": [0]},),
    gpus=(Gpu(resource_id=UUID(UUIDS[0]), model=A100, memory_mib=81920),),
    gpu_names=(f"GPU-{UUIDS[0]}",),
)


def test_detected_facts_fill_what_the_settings_leave_open() -> None:
    node = combine(
        WorkerSettings(dsn="x", name="n", labels={"region": "eu", "os": "mine"}), MACHINE
    )
    assert node.spec.labels == {"os": "mine", "arch": "x86_64", "region": "eu"}
    assert (node.spec.cpu_milli, node.spec.memory_mib) == (8000, 1024)
    assert node.spec.gpus == MACHINE.gpus
    assert node.gpu_names == (f"GPU-{UUIDS[0]}",)


def test_given_facts_win_over_detected_ones() -> None:
    gpus = (Gpu(resource_id=UUIDS[1]), Gpu(resource_id=UUIDS[2]))
    settings = WorkerSettings(dsn="x", name="n", capacity={"license": 2}, gpus=gpus)
    node = combine(settings, MACHINE)
    assert (node.spec.cpu_milli, node.spec.memory_mib) == (None, None)
    assert node.spec.custom == {"license": 2}
    assert node.gpu_names == ("0", "1")
    assert combine(WorkerSettings(dsn="x", gpus=()), MACHINE).spec.gpus == ()


def test_several_processes_divide_what_there_is() -> None:
    """Nothing twice, nothing lost, and each sees its own GPUs alone."""
    gpus = tuple(Gpu(resource_id=UUID(int=n), model="T4") for n in range(5))
    machine = replace(
        MACHINE,
        gpus=gpus,
        gpu_names=tuple("01234"),
        capacity={"cpu_milli": 8000, "memory_mib": 10},
    )
    nodes = [
        combine(WorkerSettings(dsn="x", name=f"n-{index}", share=(index, 4)), machine)
        for index in range(4)
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


def test_parts_go_where_their_device_goes() -> None:
    whole = tuple(Gpu(resource_id=UUID(int=n), partitionable=True) for n in range(2))
    parts = tuple(
        Gpu(resource_id=UUID(int=10 + n), parent_resource_id=UUID(int=n % 2)) for n in range(4)
    )
    apart = tuple(
        Gpu(resource_id=UUID(int=20 + n), parent_resource_id=UUID(int=9)) for n in range(2)
    )
    gpus = (*whole, *parts, *apart)
    first, second = (positions_of_share(gpus, (index, 2)) for index in range(2))
    assert first == [0, 2, 4, 6]
    assert second == [1, 3, 5, 7]


def test_given_gpus_decide_the_label() -> None:
    given = (Gpu(resource_id=UUIDS[1], model="MI300X"),)
    labels = combine(WorkerSettings(dsn="x", gpus=given), MACHINE).spec.labels
    assert labels == {**MACHINE.labels, "gpu_model": "MI300X"}


def test_nothing_is_declared_without_detection() -> None:
    spec = combine(WorkerSettings(dsn="x", name="n", detect=False), None).spec
    assert (spec.labels, spec.cpu_milli, spec.gpus, spec.cores) == ({}, None, (), ())


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


def test_parts_of_gpus_are_named_by_their_id() -> None:
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
    assert machine.gpu_names == ("0", "1")
    assert machine.labels["gpu_model"] == MI300X
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
    ],
)
def test_hidden_amd_gpus_are_left_out(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], names: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdSmi())
    assert list(detect_amd_gpus(environment)) == names


@pytest.mark.parametrize("smi", [None, FakeAmdSmi(driver=False), FakeAmdSmi(fails=True)])
def test_without_amd_smi_there_are_no_amd_gpus(
    monkeypatch: pytest.MonkeyPatch, smi: FakeAmdSmi | None
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    assert detect_amd_gpus({}) == {}
    assert smi is None or smi.open == 0
