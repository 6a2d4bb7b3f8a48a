"""Requirements that hold as long as their leases run: relabels, taints, a partner that is lost."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.direct import Direct
from tests.walk import steps as s
from tests.walk.gangs import ticked
from tests.walk.names import lease_id
from tests.walk.operators import spec_of
from tests.walk.seen import LeaseSeen, Seen
from tests.walk.sweeps import Expected, unlike
from tests.walk.world import World, every

GRACE = timedelta(seconds=10)
IN_ZONE_A, WITH_C, C = lease_id("a"), lease_id("b"), lease_id("c")
LASTING_ONES = {IN_ZONE_A, WITH_C}


class MoveZone(s.OfNode):
    """The node registers with another zone."""

    verb = "move"

    def make(self, direct: Direct, seen: Seen) -> int:
        """Register it, in the other zone."""
        node = seen.nodes[self.node]
        zone = "b" if node["labels"]["zone"] == "a" else "a"
        return direct.register(self.node, spec_of(node) | {"labels": {"zone": zone}})

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """What runs there and may not is asked to stop after its grace; what may again is not."""
        here = {key for key in LASTING_ONES if before.leases[key].node == self.node}
        return unlike(before, after, judged(before, after, here))


class Taint(s.OfNode):
    """An operator wants the node empty."""

    verb = "taint"

    def can(self, seen: Seen) -> bool:
        """Whether it is not tainted."""
        return super().can(seen) and not seen.nodes[self.node]["operator_taints"]

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.rows("taint_node", node=self.node, taint={"key": "k", "effect": "no_execute"})

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """What runs there is asked to stop at once, whatever its grace."""
        asked = {
            key: replace(one, stop_at=before.now, stop_reason="preempted")
            for key, one in before.leases.items()
            if one.node == self.node and not _is_asked(one, before)
        }
        return unlike(before, after, asked)


class Untaint(s.OfNode):
    """The node may run all again; whoever was asked to stop stays asked."""

    verb = "untaint"

    def can(self, seen: Seen) -> bool:
        """Whether it is tainted."""
        return super().can(seen) and bool(seen.nodes[self.node]["operator_taints"])

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.rows("untaint_node", node=self.node, key="k")


class ReapLasting(s.Reap):
    """A sweep: it finds partners that are lost."""

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """Leases are swept as ever, and asked to stop where they may not go on."""
        leases, gangs = ticked(before, after)
        swept = {key: one for key, one in leases.items() if one.node is not None}
        leases |= {
            key: one
            for key, one in judged(before, after, LASTING_ONES).items()
            if _is_looked_at(before.leases[key], before)
            if key in swept
        }
        return unlike(before, after, leases, gangs=gangs)


def judged(before: Seen, after: Seen, leases: set[UUID]) -> Expected:
    """Those of these leases that run, with the stop that is right by what is so after the call."""
    found = {}
    for key in leases:
        one = before.leases[key]
        if one.state != "claimed" or _is_asked(one, before):
            continue
        if not _is_broken(key, one, after):
            found[key] = replace(one, stop_at=None, stop_reason=None)
        elif one.stop_at is None:
            at = before.now + (GRACE if key == IN_ZONE_A else timedelta(0))
            found[key] = replace(one, stop_at=at, stop_reason="placement_broken")
    return found


def _is_asked(lease: LeaseSeen, seen: Seen) -> bool:
    """Whether its worker may know already."""
    return lease.stop_at is not None and lease.stop_at <= seen.now


def _is_looked_at(lease: LeaseSeen, seen: Seen) -> bool:
    """Whether it has not expired."""
    return lease.expires_at is not None and lease.expires_at > seen.now


def _is_broken(key: UUID, lease: LeaseSeen, seen: Seen) -> bool:
    """Whether its requirement does not hold where it runs."""
    assert lease.node is not None
    if key == IN_ZONE_A:
        return bool(seen.nodes[lease.node]["labels"]["zone"] != "a")
    partner = seen.leases[C]
    ran = [row["node_id"] for row in seen.rows["outcome"] if row["lease_id"] == str(C)]
    if partner.state == "completed":
        return ran != [str(lease.node)]
    leaves = _is_asked(partner, seen) or not _is_looked_at(partner, seen)
    return partner.node != lease.node or leaves


def _lasts(expr: dict[str, Any], grace: int = 0) -> dict[str, Any]:
    more = {"grace": grace} if grace else {}
    return {"placement": {"require": [{**expr, "during": "execution", **more}]}}


_ZONE = {"label": "zone", "op": "in", "values": ["a"]}

# One must be in zone a, with ten seconds of grace, the other one with a third, by rack.
WHILE_RUNNING = World(
    "while_running",
    nodes={"n": {"rack": 0, "labels": {"zone": "a"}}, "m": {"rack": 1, "labels": {"zone": "a"}}},
    leases={"a": _lasts(_ZONE, 10), "b": _lasts({"lease": str(C), "domain": "rack"}), "c": {}},
    first=[s.Claim("n", 3), s.Claim("n")],
    steps=[
        s.Claim("n", 2),
        s.Claim("m"),
        s.Complete("c"),
        *every(s.Release, "abc"),
        MoveZone("n"),
        Taint("n"),
        Untaint("n"),
        s.Wait(),
        ReapLasting(),
    ],
    memory=10,
    is_slow=True,
    near=2,
)
