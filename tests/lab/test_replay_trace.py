"""Reading the trace files: what is understood, and every way in which a file can be wrong."""

from pathlib import Path

import pytest

from hwqueue.demo.model import Job, Machine
from lab.replay.trace import TraceError, read_trace

NODES = "node,cpu_milli,memory_mib,gpu,gpu_model\nn1,96000,393216,8,G2\nn2,32000,262144,0,\n"
POD_HEADER = (
    "pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,scheduled_time,deletion_time\n"
)
POD = "p1,4000,8192,1,460,T4|G2|T4,LS,Running,10,12,99\n"


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text(NODES)
    return path


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    path = tmp_path / "pods.csv"
    path.write_text(POD_HEADER + POD)
    return path


def test_reads_both_files(nodes: Path, pods: Path) -> None:
    trace = read_trace(nodes, pods)
    assert trace.machines == (
        Machine("n1", 96000, 393216, 8, "G2"),
        Machine("n2", 32000, 262144, 0, None),
    )
    assert trace.jobs == (Job("p1", 4000, 8192, 1, 460, ("T4", "G2"), "LS", "Running", 10, 12, 99),)
    assert trace.gpus == 8
    assert trace.machines[0].labels == {"pool": "gpu", "gpu_model": "G2"}
    assert trace.machines[1].labels == {"pool": "cpu"}
    assert trace.jobs[0].kind == "share"


def test_published_column_names_further_columns_and_float_times(nodes: Path, pods: Path) -> None:
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model,note\nn1,96000,393216,8,G2,hello\n")
    pods.write_text(POD_HEADER.replace("pod,", "name,", 1) + POD.replace("10,12,99", "10.0,12.0,99.0"))
    trace = read_trace(nodes, pods)
    assert trace.machines[0].gpu_model == "G2"
    assert trace.jobs[0].deleted_at == 99


def test_ignore_gpu_spec(nodes: Path, pods: Path) -> None:
    assert read_trace(nodes, pods, ignore_gpu_spec=True).jobs[0].gpu_models == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("node,cpu_milli\nn1,5\n", "column memory_mib, gpu, gpu_model is missing"),
        (NODES.splitlines()[0] + "\n", "has a header but no rows"),
        (NODES + "n3,1,1\n", "row 4: has 3 cells, but the header has 5"),
        (NODES + "n1,1,1,0,\n", "row 4, column node: 'n1' was already in row 2"),
        (NODES + "n3,lots,1,0,\n", "row 4, column cpu_milli: 'lots' is not a whole number"),
        (NODES + "n3,1.5,1,0,\n", "row 4, column cpu_milli: '1.5' is not a whole number"),
        (NODES + "n3,NaN,1,0,\n", "row 4, column cpu_milli: 'NaN' is not a whole number"),
        (NODES + "n3,-1,1,0,\n", "row 4, column cpu_milli: '-1' is outside 0"),
        (NODES + f"n3,1,{'9' * 40},0,\n", "row 4, column memory_mib: '999"),
        (NODES + "n3,1,1,8,\n", "row 4, column gpu_model: '' names no model"),
        (NODES + "n3,1,1,0,T4\n", "row 4, column gpu_model: 'T4' names a model"),
        (NODES + ",1,1,0,\n", "row 4, column node: '' is empty"),
        (NODES + f"{'x' * 300},1,1,0,\n", "has 300 characters"),
        (NODES + "n\x003,1,1,0,\n", "holds control characters"),
        (NODES.replace("gpu_model", "gpu", 1), "column gpu_model is missing"),
        ("node," + NODES, "column node is there more than once"),
    ],
)
def test_bad_node_files(nodes: Path, pods: Path, text: str, message: str) -> None:
    nodes.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(nodes, pods)
    assert str(caught.value).startswith(str(nodes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1,460", "0,460", "column gpu_milli: '460' must be 0, because num_gpu is 0"),
        ("1,460", "1,0", "column gpu_milli: '0' must be 1 .. 1000"),
        ("1,460", "2,460", "column gpu_milli: '460' must be 1000, because num_gpu is 2"),
        ("1,460", "1,1001", "column gpu_milli: '1001' is outside 0 .. 1000"),
        ("T4|G2|T4", "T4||G2", "column gpu_spec: 'T4||G2' has an empty alternative"),
        ("LS", "Gold", "column qos: 'Gold' is not one of Guaranteed, LS, Burstable, BE"),
        ("Running", "Lost", "column pod_phase: 'Lost' is not one of"),
        ("10,12", "12,10", "column scheduled_time: '10' is outside 12"),
        ("12,99", "12,11", "column deletion_time: '11' is outside 12"),
        ("10,12,99", "10,,9", "column deletion_time: '9' is outside 10"),
    ],
)
def test_bad_pod_cells(nodes: Path, pods: Path, old: str, new: str, message: str) -> None:
    pods.write_text(POD_HEADER + POD.replace(old, new, 1))
    with pytest.raises(TraceError) as caught:
        read_trace(nodes, pods)
    assert f"{pods}, row 2, {message}" in str(caught.value)


def test_unreadable_files(nodes: Path, pods: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "absent.csv", pods)
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path, pods)
    pods.write_bytes(b"pod,\xff\xfe\n")
    with pytest.raises(TraceError, match="byte 4 is not UTF-8"):
        read_trace(nodes, pods)
    pods.write_text(POD_HEADER + '"p1\n')
    with pytest.raises(TraceError, match="is not valid CSV"):
        read_trace(nodes, pods)
