"""Decides a case about a gang on the database, in the words of SCHEMA.md.

Kubernetes' coscheduling plugin decides pod by pod, hwqueue about all members at once. So members
that are missing, gated, or fit nowhere become members that no node may run, and what a pod is told
becomes what a tick does to its gang.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.calls import Row
from tests.cases.model import Case, Item, node_id
from tests.cases.run import QUEUE
from tests.direct import Direct

Options = Mapping[str, Any]

_NOWHERE: Options = {"placement": {"require": [{"node": str(node_id("nowhere"))}]}}
_NO_SUCH_OPTION = "QHA01"
_NO_GANG = "QHG01"


@dataclass(frozen=True)
class _Scene:
    """The nodes of a case, and what its lease is a member of; `gang`: None if of none."""

    direct: Direct
    case: Case
    epochs: Mapping[str, int]
    gang: Item | None
    others: tuple[Item, ...]  # members of the same gang

    @property
    def placed(self) -> int:
        """How many of the others have a node."""
        return sum("node" in other for other in self.others)

    def is_reserved(self, members: Sequence[Options]) -> bool:
        """Whether a tick finds room for all of them."""
        rows = self.direct.spawn_gang(QUEUE, members)
        self.direct.reap()
        found = self.direct.row("get_gang", gang=rows[0]["gang_id"])
        holding = {member["state"] for member in found["members"]} == {"claimed"}
        assert holding == (found["state"] == "reserved")
        assert holding or not self.direct.rows("list_leases", filter={"state": "claimed"})
        return holding

    def claims(self) -> list[Row]:
        """What all nodes get when they ask."""
        asked = [(node_id(name), epoch) for name, epoch in self.epochs.items()]
        return [row for node in asked for row in self.direct.claim(QUEUE, *node, 1000)]

    def is_refused(self, call: Callable[[], object], sqlstate: str) -> bool:
        """Whether a call is refused with that code."""
        try:
            call()
        except psycopg.DatabaseError as error:
            if error.sqlstate == sqlstate:
                return True
            raise
        return False


def decide(direct: Direct, case: Case) -> str:
    """What becomes of the case's lease or gang."""
    direct.create_queue(QUEUE)
    nodes = case.nodes or ({"name": "somewhere"},)
    epochs = {
        node["name"]: direct.register(
            node_id(node["name"]),
            {"name": node["name"], "instance_id": "case", "capacity": _amounts(node)},
        )
        for node in nodes
    }
    about = case.lease or {"namespace": case.gangs[0]["namespace"], "gang": case.gangs[0]["name"]}
    of_gang = (about["namespace"], about.get("gang"))
    found = [gang for gang in case.gangs if (gang["namespace"], gang["name"]) == of_gang]
    others = [m for m in case.members if (m["namespace"], m.get("gang")) == of_gang]
    scene = _Scene(direct, case, epochs, next(iter(found), None), tuple(others))
    if "gang" in about and not found:
        return _unknown(scene)
    [stage] = case.stages
    return _DECISIONS[stage](scene)


def _unknown(scene: _Scene) -> str:
    """No lease joins a gang: nothing names one."""
    options = {"gang_id": str(node_id("gang"))}
    refused = scene.is_refused(lambda: scene.direct.spawn(QUEUE, options), _NO_SUCH_OPTION)
    return "deny" if refused else "allow"


def _admit(scene: _Scene) -> str:
    """May it be tried at all?"""
    if scene.gang is None:
        scene.direct.spawn(QUEUE)
        return "allow" if scene.claims() else "deny"
    there = 1 + sum(not other.get("gated") for other in scene.others)
    size = max(scene.gang["min_member"], 1 + len(scene.others))
    needed = _amounts(scene.gang, "min_resources")
    share = {key: -(-amount // size) for key, amount in needed.items()}
    each = {"placement": {"resources": share}} if share else {}
    members = [each] * there + [_NOWHERE] * (size - there)
    return "allow" if scene.is_reserved(members) else "deny"


def _permit(scene: _Scene) -> str:
    """It has a place: does its handler begin?"""
    if scene.gang is None:
        scene.direct.spawn(QUEUE)
        [claim] = scene.claims()
        alone = scene.is_refused(lambda: _status(scene, claim), _NO_GANG)
        return "not_a_gang" if alone else "allow"
    there = 1 + scene.placed
    missing = max(0, scene.gang["min_member"] - there)
    if not scene.is_reserved([{}] * there + [_NOWHERE] * missing):
        return "wait"
    first, *rest = scene.claims()
    assert len(rest) == scene.placed
    return "allow" if _status(scene, first)["ready"] else "wait"


def _status(scene: _Scene, claim: Row) -> Row:
    return scene.direct.row("gang_status", lease=claim["lease_id"], token=claim["claim_token"])


def _resources(scene: _Scene) -> str:
    """Is there room for what the gang needs at least? It may be cut up as it will: by CPUs."""
    assert scene.gang is not None
    for member in scene.case.members:
        if "node" in member and member not in scene.others:
            options = {"placement": {"resources": _amounts(member, "request")}}
            scene.direct.adopt(QUEUE, node_id(member["node"]), options)
    needed = _amounts(scene.gang, "min_resources")
    one: Options = {"placement": {"resources": {"cpu_milli": 1000}}}
    scene.direct.spawn_gang(QUEUE, [one] * (needed.pop("cpu_milli") // 1000))
    assert not needed, f"not translated: {needed}"
    scene.direct.reap()
    return "allow" if scene.claims() else "deny"


def _give_up(scene: _Scene) -> str:
    """The lease fits nowhere: does its gang keep what it has?"""
    assert scene.gang is not None
    missing = max(0, scene.gang["min_member"] - scene.placed)
    if scene.placed > 1 and not missing:
        assert scene.is_reserved([{}] * scene.placed)
        scene.claims()
        scene.direct.spawn(QUEUE, _NOWHERE)
        scene.direct.reap()
        held = scene.direct.rows("list_leases", filter={"state": "claimed"})
        return "keep" if len(held) == scene.placed else "reject_gang"
    is_kept = scene.is_reserved([{}] * scene.placed + [_NOWHERE] * max(missing, 1))
    return "keep" if is_kept else "reject_gang"


def _amounts(item: Item, field: str = "capacity") -> dict[str, int]:
    """Amounts in hwqueue's units; only CPUs are known."""
    found = item.get(field) or {}
    assert found.keys() <= {"cpu"}, f"not translated: {found}"
    return {"cpu_milli": round(1000 * found["cpu"])} if found else {}


_DECISIONS: Mapping[str, Callable[[_Scene], str]] = {
    "gang_admit": _admit,
    "gang_permit": _permit,
    "gang_resources": _resources,
    "gang_give_up": _give_up,
}
