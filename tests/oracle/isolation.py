"""Who may have which cores and devices: isolation, told a second time, in Python.

Cores and devices are looked at one by one, from the assignments of the claims that run; nothing is
kept from one question to the next.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

FULL = 1000
Assignment = Mapping[str, Any]


@dataclass(frozen=True)
class IsolatingNode:
    """What a node declares. `cores`: NUMA node by core; None when cores are not counted."""

    cores: Mapping[int, int] | None
    honoured: frozenset[str]
    default_cpu: str
    is_exclusive: bool
    parents: Mapping[UUID, UUID | None]
    cpu_milli: int | None

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Read the JSON that `register_node` takes."""
        classes = {"best_effort", "shared", *spec["cpu_isolation"], *spec["gpu_exclusivity"]}
        counts = classes & {"whole_core", "strict_isolated"}
        return cls(
            cores={core["core"]: core["numa"] for core in spec["cores"]} if counts else None,
            honoured=frozenset(classes),
            default_cpu=spec["default_cpu_isolation"],
            is_exclusive=spec["gpu_share_mode"] == "exclusive",
            parents={
                UUID(gpu["resource_id"]): UUID(gpu["parent_resource_id"])
                if "parent_resource_id" in gpu
                else None
                for gpu in spec["gpus"]
            },
            cpu_milli=spec["capacity"].get("cpu_milli"),
        )

    def cpu_class(self, placement: Mapping[str, Any]) -> str:
        """The CPU class that the placement comes to here."""
        asked = placement.get("isolation", {}).get("cpu")
        return self.default_cpu if asked is None else str(asked)

    def gpu_class(self, placement: Mapping[str, Any]) -> str:
        """The GPU class that it comes to."""
        default = "device_exclusive" if self.is_exclusive else "shared"
        return str(placement.get("isolation", {}).get("gpu") or default)


def core_use(node: IsolatingNode, running: Iterable[Assignment]) -> list[int]:
    """Thousandths of each core that are taken; a claim that is pinned to none is on all of them."""
    used: Counter[int] = Counter()
    for given in running:
        if given.get("unpinned"):
            used.update(list(node.cores or ()))
        used.update(dict(zip(given.get("cores", ()), given.get("core_milli", ()), strict=True)))
    return [used[core] for core in node.cores or ()]


def device_use(node: IsolatingNode, running: Iterable[Assignment]) -> list[int]:
    """Thousandths of each device that are taken."""
    used: Counter[UUID] = Counter()
    for given in running:
        for gpu in given.get("gpus", ()):
            used[UUID(gpu["resource_id"])] += given["gpu_milli"]
    return [used[gpu] for gpu in node.parents]


def may_run(placement: Mapping[str, Any], node: IsolatingNode, running: Sequence[Assignment]) -> bool:
    """Whether the node may claim such a lease now."""
    isolation, asked = placement.get("isolation", {}), placement.get("resources", {})
    if not set(isolation.values()) <= node.honoured:
        return False
    if node.is_exclusive and (isolation.get("gpu") == "shared" or "gpu_milli" in asked):
        return False
    if node.cpu_milli is not None:
        taken = sum(given.get("cpu_milli", 0) for given in running)
        if taken + _cpu_needed(placement, node) > node.cpu_milli:
            return False
    return _cores_suffice(placement, node, running) and _devices_suffice(placement, node, running)


def misgiven(
    placement: Mapping[str, Any], node: IsolatingNode, others: Sequence[Assignment], given: Assignment
) -> list[str]:
    """What is wrong with what a claim was just given, others running already."""
    wrong = _misgiven_devices(placement, node, others, given)
    if given.get("cpu_milli", 0) != (_cpu_needed(placement, node) if node.cpu_milli else 0):
        wrong.append(f"cpu_milli of {given}")
    if node.cores is None:
        return wrong + (["cores of a node that counts none"] if "cores" in given else [])
    use = dict(zip(node.cores, core_use(node, others), strict=True))
    taken = dict(zip(given["cores"], given["core_milli"], strict=True))
    numa = {node.cores[core] for core in taken}
    if given["numa"] != sorted(numa) or given["cpu_isolation"] != node.cpu_class(placement):
        wrong.append(f"numa or class of {given}")
    if sorted(given["cpus"]) != sorted(cpu for core in taken for cpu in (core, core + 100)):
        wrong.append(f"threads of {given}")
    if any(milli < 1 or use[core] + milli > FULL for core, milli in taken.items()):
        wrong.append(f"cores in use: {given}")
    return wrong + _misgiven_cores(placement, node, use, taken)


def _misgiven_cores(
    placement: Mapping[str, Any], node: IsolatingNode, use: Mapping[int, int], taken: Mapping[int, int]
) -> list[str]:
    """Amounts, and whether there was a choice that leaves more to others."""
    assert node.cores is not None
    wrong, idle = [], Counter(node.cores[core] for core, milli in use.items() if milli == 0)
    size, numa = Counter(node.cores.values()), {node.cores[core] for core in taken}
    kind, need = node.cpu_class(placement), _cpu_needed(placement, node)
    if kind == "best_effort":
        need = max(1, need)
        free, fewest = sorted((FULL - milli for milli in use.values()), reverse=True), 0
        while fewest < len(free) and sum(free[:fewest]) < need:
            fewest += 1
        if len(taken) != fewest:
            wrong.append(f"{len(taken)} cores, {fewest} would do")
        one = [FULL - milli for milli in use.values() if FULL - milli >= need]
        if one and min(one) != FULL - use[next(iter(taken))]:
            wrong.append("not the core where it leaves the least")
    if sum(taken.values()) != need or (kind != "best_effort" and set(taken.values()) != {FULL}):
        wrong.append(f"amounts {taken} for {need}")
    if kind == "strict_isolated":
        least = min((count for count in idle.values() if count * FULL >= need), default=None)
        if len(numa) != 1 or idle[next(iter(numa))] != least:
            wrong.append("not of the NUMA node with the fewest idle cores that suffice")
    if kind == "whole_core":
        touched = {one for one in size if idle[one] < size[one]}
        if sum(idle[one] for one in touched) * FULL >= need and not numa <= touched:
            wrong.append("a NUMA node broken without need")
    return wrong


def _cpu_needed(placement: Mapping[str, Any], node: IsolatingNode) -> int:
    milli = int(placement.get("resources", {}).get("cpu_milli", 0))
    if node.cpu_class(placement) == "best_effort":
        return milli
    return FULL * max(1, -(-milli // FULL))


def _cores_suffice(placement: Mapping[str, Any], node: IsolatingNode, running: Sequence[Assignment]) -> bool:
    if node.cores is None:
        return True
    use, need = core_use(node, running), _cpu_needed(placement, node)
    numa = [one for one, milli in zip(node.cores.values(), use, strict=True) if milli == 0]
    match node.cpu_class(placement):
        case "whole_core":
            return len(numa) * FULL >= need
        case "strict_isolated":
            return max(Counter(numa).values(), default=0) * FULL >= need
        case _:
            return sum(max(0, FULL - milli) for milli in use) >= max(1, need)


def _candidates(
    placement: Mapping[str, Any], node: IsolatingNode, running: Sequence[Assignment]
) -> set[UUID]:
    """Devices that such a lease may get."""
    use = dict(zip(node.parents, device_use(node, running), strict=True))
    split = {node.parents[gpu] for gpu, milli in use.items() if milli}
    if node.gpu_class(placement) == "partition_exclusive":
        return {
            gpu
            for gpu, parent in node.parents.items()
            if parent is not None and not use[gpu] and not use.get(parent)
        }
    need = placement["resources"].get("gpu_milli", FULL)
    return {
        gpu
        for gpu, parent in node.parents.items()
        if parent is None and gpu not in split and use[gpu] + need <= FULL
    }


def _devices_suffice(
    placement: Mapping[str, Any], node: IsolatingNode, running: Sequence[Assignment]
) -> bool:
    count = _devices_asked(placement)
    return not count or len(_candidates(placement, node, running)) >= count


def _devices_asked(placement: Mapping[str, Any]) -> int:
    asked = placement.get("resources", {})
    return 1 if "gpu_milli" in asked else int(asked.get("gpu", 0))


def _misgiven_devices(
    placement: Mapping[str, Any], node: IsolatingNode, others: Sequence[Assignment], given: Assignment
) -> list[str]:
    devices = [UUID(gpu["resource_id"]) for gpu in given.get("gpus", ())]
    if len(set(devices)) != len(devices) or len(devices) != _devices_asked(placement):
        return [f"{len(devices)} devices"]
    if not devices:
        return ["class without devices"] if "gpu_exclusivity" in given else []
    wrong = []
    if not set(devices) <= _candidates(placement, node, others):
        wrong.append(f"devices {devices} are not free for it")
    if given["gpu_milli"] != placement["resources"].get("gpu_milli", FULL):
        wrong.append("thousandths of devices")
    if given.get("gpu_exclusivity", "shared") != node.gpu_class(placement):
        wrong.append("GPU class")
    return wrong
