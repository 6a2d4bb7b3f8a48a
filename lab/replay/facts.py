"""The checker's view of a recorded cluster: the files are parsed again, apart from the replay."""

from __future__ import annotations

import csv
from pathlib import Path

from hwqueue.demo.check import JobFacts, NodeFacts


def facts_from_files(
    nodes: Path, pods: Path, *, ignore_gpu_spec: bool = False
) -> tuple[dict[str, NodeFacts], dict[str, JobFacts]]:
    """Read the two trace files afresh."""
    machines = {}
    for row in _records(nodes):
        model = row.get("gpu_model", row.get("model", ""))
        labels = {"pool": "gpu" if int(row["gpu"]) > 0 else "cpu"}
        if model:
            labels["gpu_model"] = model
        name = row.get("node", row.get("sn", ""))
        machines[name] = NodeFacts(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), labels)
    jobs = {}
    for row in _records(pods):
        spec = "" if ignore_gpu_spec else row["gpu_spec"]
        jobs[row.get("pod", row.get("name", ""))] = JobFacts(
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            frozenset(filter(None, spec.split("|"))),
        )
    return machines, jobs


def _records(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))
