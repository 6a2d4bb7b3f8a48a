"""The parts of a replay: jobs, cluster, check, trace files; and the bound of a backlog run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwqueue.demo.check import JobFacts, Move, NodeFacts, Recorded, gpu_milli_in_use, violations
from hwqueue.demo.generate import add_labels, generate_trace, impossible_jobs
from hwqueue.demo.mapping import placement
from hwqueue.demo.model import Job, Machine
from lab.replay.bound import bound_percent
from lab.replay.trace import TraceError, read_trace

pytestmark = pytest.mark.embedded

JOB = Job("j", 1000, 1024, 1, 500, (), "LS", "Running", 0, 0, 60)


def test_generated_cluster_has_the_published_proportions() -> None:
    trace = generate_trace(1523, seed=1, demand=1.0)
    gpus = Counter[str]()
    for machine in trace.machines:
        gpus[machine.gpu_model or "cpu"] += machine.gpus
    published = {"G2": 4392, "T4": 842, "P100": 265, "G3": 312, "V100M32": 204, "A10": 2}
    assert {model: gpus[model] for model in published} == published
    kinds = Counter(job.kind for job in trace.jobs)
    assert kinds["1 gpu"] / len(trace.jobs) == pytest.approx(3911 / 8152, abs=0.03)
    assert kinds["share"] / len(trace.jobs) == pytest.approx(3078 / 8152, abs=0.03)
    constrained = sum(1 for job in trace.jobs if job.gpu_models)
    assert constrained / (len(trace.jobs) - kinds["cpu"]) == pytest.approx(0.338, abs=0.03)


@pytest.mark.parametrize("sharing", [0.0, 0.6, 1.0])
def test_generated_jobs_share_devices_as_asked(sharing: float) -> None:
    trace = generate_trace(1523, seed=1, sharing=sharing)
    kinds = Counter(job.kind for job in trace.jobs)
    with_gpus = len(trace.jobs) - kinds["cpu"]
    assert kinds["share"] / with_gpus == pytest.approx(sharing, abs=0.03)
    assert kinds["cpu"] / len(trace.jobs) == pytest.approx(1088 / 8152, abs=0.03)
    assert not any(job.gpu_models for job in trace.jobs)
    assert trace == generate_trace(1523, seed=1, sharing=sharing)


def test_placements_say_what_a_job_needs() -> None:
    labelled = add_labels(generate_trace(20, seed=3), seed=3)
    assert all({"zone", "disk"} <= machine.labels.keys() for machine in labelled.machines)
    assert any(job.tags for job in labelled.jobs)
    assert any(job.prefer_tags for job in labelled.jobs)
    job = replace(JOB, gpu_models=("T4", "P100"), tags={"zone": "a"}, prefer_tags={"disk": "nvme"})
    assert placement(job) == {
        "require": [{"label": "gpu_model", "op": "in", "values": ["T4", "P100"]}, {"tags": {"zone": "a"}}],
        "prefer": [{"weight": 100, "when": {"tags": {"disk": "nvme"}}}],
        "resources": {"cpu_milli": 1000, "memory_mib": 1024, "gpu_milli": 500},
    }
    whole = placement(replace(JOB, num_gpu=4, gpu_milli=1000))
    assert whole["resources"] == {"cpu_milli": 1000, "memory_mib": 1024, "gpu": 4}
    assert len({job.name for job in impossible_jobs()}) == 4


NODES = {"n1": NodeFacts(8000, 4096, 2, {"gpu_model": "T4", "zone": "a"})}
JOBS = {
    "share": JobFacts(1000, 512, 1, 600, frozenset({"T4"})),
    "whole": JobFacts(1000, 512, 2, 1000, frozenset()),
    "other": JobFacts(1000, 512, 1, 600, frozenset({"G2"})),
    "zoned": JobFacts(1000, 512, 1, 100, frozenset(), {"zone": "b"}),
    "big": JobFacts(9000, 512, 0, 0, frozenset()),
    "fat": JobFacts(0, 9000, 0, 0, frozenset()),
}


def _move(lease: str, job: str, *devices: int, starts: bool = True, **changes: Any) -> Move:
    facts = JOBS[job]
    assignment = {
        "cpu_milli": facts.cpu_milli,
        "memory_mib": facts.memory_mib,
        "gpus": [{"index": device} for device in devices],
        "gpu_milli": facts.gpu_milli,
    }
    return Move("n1", lease, job, starts, assignment | changes)


def _check(*moves: Move, gpu_milli: list[int] | None = None) -> list[str]:
    running: dict[str, str] = {}
    for move in moves:
        if move.starts:
            running[move.lease] = move.node
        else:
            running.pop(move.lease, None)
    return violations(NODES, JOBS, moves, Recorded(running, {"n1": gpu_milli or [0, 0]}))


def test_right_grants_pass_and_a_device_is_free_again_after_the_end() -> None:
    assert not _check(_move("a", "share", 0), _move("b", "share", 1), gpu_milli=[600, 600])
    ended = _move("a", "share", 0, starts=False)
    assert not _check(_move("a", "share", 0), ended, _move("b", "share", 0), gpu_milli=[600, 0])
    assert gpu_milli_in_use(JOBS, [_move("a", "share", 0), _move("b", "whole", 0, 1), ended]) == 2000


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([_move("a", "share", 0), _move("b", "share", 0)], "GPU 0 is given away to 1200 of 1000"),
        ([_move("a", "share", 1), _move("b", "whole", 0, 1)], "GPU 1 is given away to 1600"),
        ([_move("a", "other", 0)], "runs on model T4, but only G2 may do"),
        ([_move("a", "zoned", 0)], "needs zone=b, but the node has a"),
        ([_move("a", "big")], "CPU is given away to 9000 of 8000"),
        ([_move("a", "fat")], "memory is given away to 9000 of 4096"),
        ([_move("a", "whole", 0)], "got 1 GPUs instead of 2"),
        ([_move("a", "whole", 0, 0)], "devices [0, 0] are not 2"),
        ([_move("a", "share", 2)], "devices [2] are not 1 of the node's 2"),
        ([_move("a", "share", 0, gpu_milli=500)], "got 500 of a GPU instead of 600"),
        ([_move("a", "share", 0, cpu_milli=0)], "got cpu_milli 0 instead of 1000"),
        ([_move("a", "share", 0), _move("a", "share", 1)], "still runs on n1"),
        ([_move("a", "share", 0, starts=False)], "ended without running"),
        ([replace(_move("a", "share", 0), assignment=None)], "got 0 GPUs instead of 1"),
    ],
)
def test_wrong_grants_are_found(moves: list[Move], message: str) -> None:
    assert any(message in text for text in _check(*moves))


def test_the_database_must_agree() -> None:
    moves = [_move("a", "share", 0)]
    silent = Recorded({}, {"n1": [0, 0]})
    found = violations(NODES, JOBS, moves, silent)
    assert "lease a: runs on n1, but the database says None" in found
    assert "n1: GPUs are used [600, 0], but the database says [0, 0]" in found


NODE_FILE = "node,cpu_milli,memory_mib,gpu,gpu_model\nn1,96000,393216,8,G2\nn2,32000,262144,0,\n"
POD_HEADER = (
    "pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,scheduled_time,deletion_time\n"
)
POD = "p1,4000,8192,1,460,T4|G2|T4,LS,Running,10,12,99\n"


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text(NODE_FILE)
    return path


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    path = tmp_path / "pods.csv"
    path.write_text(POD_HEADER + POD)
    return path


def test_reads_both_files(nodes: Path, pods: Path) -> None:
    trace = read_trace(nodes, pods)
    assert trace.machines == (Machine("n1", 96000, 393216, 8, "G2"), Machine("n2", 32000, 262144, 0, None))
    assert trace.jobs == (Job("p1", 4000, 8192, 1, 460, ("T4", "G2"), "LS", "Running", 10, 12, 99),)
    assert (trace.gpus, trace.machines[0].labels) == (8, {"pool": "gpu", "gpu_model": "G2"})
    assert (trace.machines[1].labels, trace.jobs[0].kind) == ({"pool": "cpu"}, "share")
    assert read_trace(nodes, pods, ignore_gpu_spec=True).jobs[0].gpu_models == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("node,cpu_milli\nn1,5\n", "column memory_mib, gpu, gpu_model is missing"),
        (NODE_FILE.splitlines()[0] + "\n", "has a header but no rows"),
        (NODE_FILE + "n3,1,1\n", "row 4: has 3 cells, but the header has 5"),
        (NODE_FILE + "n1,1,1,0,\n", "row 4, column node: 'n1' was already in row 2"),
        (NODE_FILE + "n3,lots,1,0,\n", "row 4, column cpu_milli: 'lots' is not a whole number"),
        (NODE_FILE + "n3,1,1,0,T4\n", "row 4, column gpu_model: 'T4' names a model"),
    ],
)
def test_bad_node_files(nodes: Path, pods: Path, text: str, message: str) -> None:
    nodes.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(nodes, pods)
    assert str(caught.value).startswith(str(nodes))
    assert message in str(caught.value)


MACHINE = Machine("m", 16_000, 16_384, 2, "T4")
WHOLE = Job("j", 1000, 1024, 1, 1000, (), "LS", "Running", 0, 0, 60)


def shares(*millis: int) -> list[Job]:
    """Jobs that ask for such shares."""
    return [replace(WHOLE, gpu_milli=milli) for milli in millis]


@pytest.mark.parametrize(
    ("jobs", "percent"),
    [
        ([], 0),
        ([replace(WHOLE, num_gpu=0, gpu_milli=0)], 0),
        ([WHOLE], 50),
        ([WHOLE] * 3, 100),
        ([replace(WHOLE, num_gpu=2)], 100),
        ([replace(WHOLE, num_gpu=3)], 0),
        (shares(810, 810, 810), 81),
        (shares(810, 190, 810, 150), 98),
        (shares(600, 600, 600, 400), 80),
        (shares(500, 500, 500, 500, 500), 100),
        # in fractions: two thirds of a device with 700 and 250, a third with four times 250
        ([WHOLE, *shares(700, 700, 250, 250)], 50 * (1 + 2 / 3 * 0.95 + 1 / 3)),
        # cpu and memory, of all nodes of a kind together
        ([replace(WHOLE, cpu_milli=16_000)] * 2, 50),
        ([replace(WHOLE, cpu_milli=12_000)] * 2, 100 * 16 / 24),
        ([replace(WHOLE, memory_mib=16_384)] * 2, 50),
        ([replace(WHOLE, cpu_milli=16_001)], 0),
        # models and tags
        ([replace(WHOLE, gpu_models=("A100", "T4")), replace(WHOLE, gpu_models=("A100",))], 50),
        ([replace(WHOLE, tags={"zone": "a"}), replace(WHOLE, tags={"zone": "b"})], 0),
        ([replace(WHOLE, tags={"gpu_model": "T4"})], 50),
    ],
)
def test_one_machine(jobs: Sequence[Job], percent: float) -> None:
    assert bound_percent([MACHINE], jobs) == pytest.approx(percent, abs=0.01)


def test_kinds_of_nodes_are_told_apart() -> None:
    other = replace(MACHINE, name="n", gpu_model="A100", gpus=1)
    wanted = [replace(WHOLE, gpu_models=("A100",))] * 3
    assert bound_percent([MACHINE, other], wanted) == pytest.approx(100 / 3, abs=0.01)
    assert bound_percent([MACHINE, other], [*wanted, WHOLE]) == pytest.approx(200 / 3, abs=0.01)
    spread = [replace(WHOLE, cpu_milli=10_000)] * 3
    roomy = replace(MACHINE, name="o", cpu_milli=20_000, gpus=2)
    assert bound_percent([roomy, MACHINE], spread) == pytest.approx(75, abs=0.01)
