"""Decides a case about a gang on the database, in the words of SCHEMA.md.

Kubernetes' coscheduling plugin decides pod by pod, hwqueue about all members at once. So members
that are missing, gated, or fit nowhere become members that no node may run, with the highest ranks.
`min_member` becomes `min_size`, and what a pod is told becomes what a tick does to its gang. The
other gangs of a case wait beside it. What explain_gang and what_if_gang say must be what happens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tests.calls import TASK, Row
from tests.cases.model import Case, Item, namespace_of, node_id
from tests.cases.run import QUEUE
from tests.direct import Direct

Options = Mapping[str, Any]

_NOWHERE: Options = {"placement": {"require": [{"node": str(node_id("nowhere"))}]}}
_NO_SUCH_OPTION = "QHA01"
_NO_GANG = "QHG01"
_CLAIMED: Options = {"state": "claimed"}


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

    def is_reserved(self, members: Sequence[Options], least: int) -> bool:
        """Whether a tick finds room for as many of them as must start together."""
        if len(members) == 1:  # a gang has two at least
            members = [*members, _NOWHERE]
        options = {"min_size": least}
        drafts = [{"task": TASK, "options": member} for member in members]
        foreseen = self.direct.row("what_if_gang", queue=QUEUE, members=Jsonb(drafts), options=options)
        rows = self.direct.spawn_gang(QUEUE, members, **options)
        gang = rows[0]["gang_id"]
        self.direct.reap()
        found = self.direct.row("get_gang", gang=gang)
        held = sum("reserved_until" in member for member in found["members"])
        holding: bool = found["state"] == "reserved"
        told = self.direct.row("explain_gang", gang=gang)
        assert holding == (told["code"] == "reserved"), told["headline"]
        assert holding == (foreseen["code"] == "ready"), foreseen["headline"]
        assert held >= least if holding else not held
        return holding

    def beside(self) -> None:
        """Spawn the other gangs of the case with their members; they need nothing that counts."""
        for gang in self.case.gangs:
            members = [
                _NOWHERE if member.get("gated") else {}
                for member in self.case.members
                if (namespace_of(member), member.get("gang")) == (namespace_of(gang), gang["name"])
            ]
            lacking = max(2, gang["min_member"]) - len(members)
            if gang is not self.gang:
                members = sorted(members, key=bool) + [_NOWHERE] * lacking
                self.direct.spawn_gang(QUEUE, members, min_size=gang["min_member"])

    def runs_alone(self, options: Options | None = None) -> Row | None:
        """Spawn the lease outside of all gangs; its claim, if a node gets it."""
        lease = self.direct.spawn(QUEUE, options or {})["lease_id"]
        self.direct.reap()  # gangs have their turn before it, and take nothing that it needs
        able = self.direct.could_take(lease)
        found = [row for row in self.claims() if row["lease_id"] == lease]
        assert bool(found) == bool(able), "explain_lease says otherwise"
        return found[0] if found else None

    def held(self) -> set[UUID]:
        """What has room now."""
        return {row["lease_id"] for row in self.direct.rows("list_leases", filter=_CLAIMED)}

    def either(self, *decisions: str) -> str:
        """Which of the words for one thing the case has."""
        expected: str = self.case.expect["decision"]
        return expected if expected in decisions else decisions[0]

    def claims(self) -> list[Row]:
        """What all nodes get when they ask."""
        asked = [(node_id(name), epoch) for name, epoch in self.epochs.items()]
        # twice: what is reserved comes first, and alone
        return [row for node in 2 * asked for row in self.direct.claim(QUEUE, *node, 1000)]

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
            node_id(node["name"]), {"name": node["name"], "instance_id": "case", "capacity": _amounts(node)}
        )
        for node in nodes
    }
    about = case.lease or {**case.gangs[0], "gang": case.gangs[0]["name"]}
    of_gang = (namespace_of(about), about.get("gang"))
    found = [gang for gang in case.gangs if (namespace_of(gang), gang["name"]) == of_gang]
    others = [m for m in case.members if (namespace_of(m), m.get("gang")) == of_gang]
    scene = _Scene(direct, case, epochs, next(iter(found), None), tuple(others))
    if "gang" in about and not found:
        options = {"gang_id": str(node_id("gang"))}
        refused = scene.is_refused(lambda: scene.direct.spawn(QUEUE, options), _NO_SUCH_OPTION)
        return "deny" if refused else "allow"
    [stage] = case.stages
    scene.beside()
    return _DECISIONS[stage](scene)


def _admit(scene: _Scene) -> str:
    """May it be tried at all?"""
    if scene.gang is None:
        return "allow" if scene.runs_alone() else "deny"
    least = scene.gang["min_member"]
    there = 1 + sum(not other.get("gated") for other in scene.others)
    size = max(least, 1 + len(scene.others))
    if not scene.is_reserved([{}] * there + [_NOWHERE] * (size - there), least):
        return "deny"
    return _resources(scene) if scene.gang.get("min_resources") else "allow"


def _permit(scene: _Scene) -> str:
    """It has a place: does its handler begin?"""
    if scene.gang is None:
        claim = scene.runs_alone()
        assert claim is not None
        alone = scene.is_refused(lambda: _status(scene, claim), _NO_GANG)
        return scene.either("not_a_gang", "allow") if alone else "allow"
    there = 1 + scene.placed
    missing = max(0, scene.gang["min_member"] - there)
    least = scene.gang["min_member"]
    if not scene.is_reserved([{}] * there + [_NOWHERE] * missing, least):
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
    pieces = needed.pop("cpu_milli") // 1000
    assert not needed, f"not translated: {needed}"
    return "allow" if scene.is_reserved([one] * pieces, pieces) else "deny"


def _give_up(scene: _Scene) -> str:
    """The lease fits nowhere: does its gang keep what it has?"""
    if scene.gang is None:
        scene.direct.reap()
        held = scene.held()
        assert not scene.runs_alone(_NOWHERE)
        scene.direct.reap()
        return scene.either("not_a_gang", "keep") if scene.held() == held else "reject_gang"
    least = scene.gang["min_member"]
    missing = max(0, least - scene.placed)
    is_kept = scene.is_reserved([{}] * scene.placed + [_NOWHERE] * max(missing, 1), least)
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
