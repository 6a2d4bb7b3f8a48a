"""Check a run's grants against the input, by other means than the queue's.

Nothing of the queue is used: what each job may ask for is worked out again, and every device is
added up grant by grant. The only things taken from the run are which lease went where, with which
devices, and when it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a machine is."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    labels: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a job insists on; empty `models` means any, `gpu_milli` is per device."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: frozenset[str]
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """A lease that begins (`starts`) or stops running; moves of one node are in order."""

    node: str
    lease: str
    job: str
    starts: bool
    assignment: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the database says at the end, to be compared with the moves."""

    running: Mapping[str, str]  # lease -> node
    gpu_milli: Mapping[str, Sequence[int]]  # node -> thousandths used, device by device


def violations(
    nodes: Mapping[str, NodeFacts], jobs: Mapping[str, JobFacts], moves: Iterable[Move], recorded: Recorded
) -> list[str]:
    """Return one sentence for every rule that was broken; an empty list is a clean run."""
    found: list[str] = []
    usage = {name: _Usage(facts) for name, facts in nodes.items()}
    running: dict[str, Move] = {}
    for move in moves:
        where = f"lease {move.lease} ({move.job}) on {move.node}"
        if move.starts:
            if move.lease in running:
                found.append(f"{where}: still runs on {running[move.lease].node}")
            running[move.lease] = move
            job = jobs[move.job]
            found += [f"{where}: {text}" for text in _mismatches(nodes[move.node], job)]
            found += [f"{where}: {text}" for text in usage[move.node].take(move, job)]
        elif running.pop(move.lease, None) is None:
            found.append(f"{where}: ended without running")
        else:
            usage[move.node].release_room(move.lease)
    return found + _differences(running, usage, recorded)


class _Usage:
    """What one node has given away, device by device."""

    def __init__(self, facts: NodeFacts) -> None:
        self._facts = facts
        self._cpu = 0
        self._memory = 0
        self.devices = [0] * facts.gpus
        self._held: dict[str, tuple[JobFacts, list[int]]] = {}

    def take(self, move: Move, job: JobFacts) -> list[str]:
        devices, found = self._devices(move.assignment or {}, job)
        self._held[move.lease] = job, devices
        self._cpu += job.cpu_milli
        self._memory += job.memory_mib
        for device in devices:
            self.devices[device] += job.gpu_milli
            if self.devices[device] > 1000:
                found.append(f"GPU {device} is given away to {self.devices[device]} of 1000")
        if self._cpu > self._facts.cpu_milli:
            found.append(f"CPU is given away to {self._cpu} of {self._facts.cpu_milli}")
        if self._memory > self._facts.memory_mib:
            found.append(f"memory is given away to {self._memory} of {self._facts.memory_mib}")
        return found

    def release_room(self, lease: str) -> None:
        job, devices = self._held.pop(lease)
        self._cpu -= job.cpu_milli
        self._memory -= job.memory_mib
        for device in devices:
            self.devices[device] -= job.gpu_milli

    def _devices(self, assignment: Mapping[str, Any], job: JobFacts) -> tuple[list[int], list[str]]:
        given = [int(gpu["index"]) for gpu in assignment.get("gpus") or []]
        known = [index for index in given if 0 <= index < self._facts.gpus]
        found = []
        if known != given or len(set(given)) != len(given):
            found.append(f"devices {given} are not {len(given)} of the node's {self._facts.gpus}")
        if len(given) != job.gpus:
            found.append(f"got {len(given)} GPUs instead of {job.gpus}")
        if job.gpus and assignment.get("gpu_milli") != job.gpu_milli:
            found.append(f"got {assignment.get('gpu_milli')} of a GPU instead of {job.gpu_milli}")
        for key, wanted in (("cpu_milli", job.cpu_milli), ("memory_mib", job.memory_mib)):
            if (assignment.get(key) or 0) != wanted:
                found.append(f"got {key} {assignment.get(key)} instead of {wanted}")
        return known, found


def _mismatches(node: NodeFacts, job: JobFacts) -> list[str]:
    model = node.labels.get("gpu_model")
    found = []
    if job.models and model not in job.models:
        found.append(f"runs on model {model}, but only {'|'.join(sorted(job.models))} may do")
    for key, value in job.tags.items():
        if node.labels.get(key) != value:
            found.append(f"needs {key}={value}, but the node has {node.labels.get(key)}")
    return found


def _differences(running: Mapping[str, Move], usage: Mapping[str, _Usage], recorded: Recorded) -> list[str]:
    """Compare what the moves add up to with what the database says."""
    seen = {lease: move.node for lease, move in running.items()}
    found = []
    for lease in sorted(seen.keys() | recorded.running.keys()):
        here, there = seen.get(lease), recorded.running.get(lease)
        if here != there:
            found.append(f"lease {lease}: runs on {here}, but the database says {there}")
    for node, mine in usage.items():
        theirs = list(recorded.gpu_milli.get(node, []))
        if mine.devices != theirs:
            found.append(f"{node}: GPUs are used {mine.devices}, but the database says {theirs}")
    return found


def gpu_milli_in_use(jobs: Mapping[str, JobFacts], moves: Iterable[Move]) -> int:
    """Add up the thousandths of GPUs still held after all moves."""
    held: Counter[str] = Counter()
    for move in moves:
        demand = jobs[move.job].gpus * jobs[move.job].gpu_milli
        held[move.lease] += demand if move.starts else -demand
    return held.total()
