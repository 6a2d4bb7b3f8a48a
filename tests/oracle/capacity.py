"""What fits on a node, and whether its running claims hold more than it has."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.oracle.expressions import holds
from tests.oracle.facts import MILLI_PER_DEVICE, Claim, Node, Usage

GPU_KEYS = ("gpu", "gpu_milli")
BUILT_IN = ("cpu_milli", "memory_mib")


def eligible(placement: Mapping[str, Any], node: Node, running: Sequence[Claim]) -> bool:
    """Whether the node could claim such a lease now, given what already runs on it."""
    return holds(placement.get("require", []), node) and fits(placement, node, running)


def fits(placement: Mapping[str, Any], node: Node, running: Sequence[Claim]) -> bool:
    """Whether the node's free capacity and devices cover what the placement asks for."""
    here = [claim for claim in running if claim.node_id == node.node_id]
    if node.slots is not None and len(here) >= node.slots:
        return False
    used = _counted(claim.placement for claim in here)
    asked = _asked(placement)
    return all(
        used[key] + amount <= node.capacity.get(key, 0)
        for key, amount in asked.items()
        if key not in GPU_KEYS and amount > 0 and _is_counted(key, node)
    ) and _devices_fit(placement, node, here)


def check_claims(nodes: Iterable[Node], claims: Iterable[Claim]) -> list[str]:
    """Every broken promise among claims that run at the same time; empty means none.

    Looks at countables, slots, single devices and whether each claim was given what it asked for.
    Labels are not looked at: a relabel evicts nobody.
    """
    by_id = {node.node_id: node for node in nodes}
    broken: list[str] = []
    running: dict[UUID, list[Claim]] = {}
    for claim in claims:
        if claim.node_id not in by_id:
            broken.append(f"lease {claim.lease_id} runs on unknown node {claim.node_id}")
        running.setdefault(claim.node_id, []).append(claim)
    for node_id, node in by_id.items():
        here = running.get(node_id, [])
        broken += _overcommitted(node, here)
        for claim in here:
            broken += [f"lease {claim.lease_id}: {wrong}" for wrong in _misgiven(node, claim)]
    return broken


def check_usage(nodes: Iterable[Node], claims: Sequence[Claim], kept: Mapping[UUID, Usage]) -> list[str]:
    """Where the usage that the queue keeps for a node is not the sum of what runs there."""
    broken = []
    for node in nodes:
        given = [claim.assignment or {} for claim in claims if claim.node_id == node.node_id]
        used = _device_use(claim for claim in claims if claim.node_id == node.node_id)
        custom: Counter[str] = Counter()
        for assignment in given:
            custom.update(assignment.get("custom") or {})
        counted = Usage(
            cpu_milli=sum(assignment.get("cpu_milli", 0) for assignment in given),
            memory_mib=sum(assignment.get("memory_mib", 0) for assignment in given),
            gpu_milli=tuple(used[gpu] for gpu in node.gpus),
            custom=dict(custom),
        )
        if kept[node.node_id] != counted:
            broken.append(f"node {node.node_id} keeps {kept[node.node_id]}, it is {counted}")
    return broken


def _asked(placement: Mapping[str, Any]) -> Mapping[str, int]:
    resources: Mapping[str, int] = placement.get("resources") or {}
    return resources


def _counted(placements: Iterable[Mapping[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for placement in placements:
        total.update(_asked(placement))
    return total


def _is_counted(key: str, node: Node) -> bool:
    return key in node.capacity or key not in BUILT_IN


def _wanted_devices(placement: Mapping[str, Any], node: Node) -> set[UUID]:
    """Devices of this node that the lease names: on a lease that asks for GPUs it means those."""
    named = [
        expr["resource"]
        for expr in placement.get("require", [])
        if "resource" in expr and not expr.get("away", False)
    ]
    # as a user writes it, an id; as the database keeps it, a list of one
    ids = {UUID(item if isinstance(item, str) else item[0]) for item in named}
    return ids & set(node.gpus)


def _devices_fit(placement: Mapping[str, Any], node: Node, here: Sequence[Claim]) -> bool:
    count, share = (_asked(placement).get(key, 0) for key in GPU_KEYS)
    if not count and not share:
        return True
    need, devices = (share, 1) if share else (MILLI_PER_DEVICE, count)
    used = _device_use(here)
    free = {gpu for gpu in node.gpus if used[gpu] + need <= MILLI_PER_DEVICE}
    wanted = _wanted_devices(placement, node)
    return wanted <= free and len(wanted) <= devices <= len(free)


def _device_use(claims: Iterable[Claim]) -> Counter[UUID]:
    used: Counter[UUID] = Counter()
    for claim in claims:
        assignment = claim.assignment or {}
        for gpu in assignment.get("gpus", []):
            used[UUID(gpu["resource_id"])] += assignment["gpu_milli"]
    return used


def _overcommitted(node: Node, here: Sequence[Claim]) -> list[str]:
    broken = []
    if node.slots is not None and len(here) > node.slots:
        broken.append(f"node {node.node_id} runs {len(here)} claims in {node.slots} slots")
    for key, amount in _counted(claim.placement for claim in here).items():
        limit = node.capacity.get(key, 0)
        if key not in GPU_KEYS and _is_counted(key, node) and amount > limit:
            broken.append(f"node {node.node_id}: {amount} {key} of {limit} are taken")
    for gpu, milli in _device_use(here).items():
        if gpu not in node.gpus:
            broken.append(f"node {node.node_id} has no device {gpu}, yet it is assigned")
        elif milli > MILLI_PER_DEVICE:
            broken.append(f"node {node.node_id}: {milli} thousandths of device {gpu} are taken")
    return broken


def _misgiven(node: Node, claim: Claim) -> list[str]:
    """How the assignment differs from what the lease asked for."""
    asked = {key: amount for key, amount in _asked(claim.placement).items() if amount > 0}
    given = claim.assignment or {}
    wrong = _misgiven_devices(node, claim, asked, given)
    for key in BUILT_IN:
        want = asked.get(key, 0) if key in node.capacity else 0
        if given.get(key, 0) != want:
            wrong.append(f"was given {given.get(key, 0)} {key}, should be {want}")
    custom = {key: n for key, n in asked.items() if key not in (*BUILT_IN, *GPU_KEYS)}
    if (given.get("custom") or {}) != custom:
        wrong.append(f"was given {given.get('custom')}, asked for {custom}")
    return wrong


def _misgiven_devices(
    node: Node, claim: Claim, asked: Mapping[str, int], given: Mapping[str, Any]
) -> list[str]:
    wrong = []
    devices = [(gpu["index"], UUID(gpu["resource_id"])) for gpu in given.get("gpus", [])]
    count = 1 if "gpu_milli" in asked else asked.get("gpu", 0)
    if len(set(devices)) != count or len(devices) != count:
        wrong.append(f"was given the devices {devices}, asked for {count}")
    if any(index >= len(node.gpus) or node.gpus[index] != gpu for index, gpu in devices):
        wrong.append(f"indexes and ids of {devices} are not the node's")
    if count and given.get("gpu_milli") != asked.get("gpu_milli", MILLI_PER_DEVICE):
        wrong.append(f"was given {given.get('gpu_milli')} thousandths a device")
    if count and not _wanted_devices(claim.placement, node) <= {gpu for _, gpu in devices}:
        wrong.append("was not given the device it names")
    return wrong
