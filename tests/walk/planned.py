"""A planner that assigns any lease to any node, and proposes a gang, beside nodes that claim."""

from datetime import timedelta
from uuid import UUID

from tests.direct import Direct
from tests.oracle.capacity import fits
from tests.oracle.cluster import Cluster
from tests.oracle.occupancy import may_run
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.gangs import reserved
from tests.walk.names import lease_id, node_id
from tests.walk.promises import books_open_nodes
from tests.walk.proposals import Lead, OfPlanner, Propose
from tests.walk.seen import Seen
from tests.walk.sweeps import unlike
from tests.walk.world import IN_ZONE, World, gpus, needs

_HOLD = timedelta(seconds=3)
_ALONE = Cluster({}, (), {}, {})


class Assign(OfPlanner):
    """A node for a single lease."""

    def __init__(self, lease: str, node: str, lag: tuple[int, int] = (0, 0)) -> None:
        super().__init__(f"assign {lease} to {node}", lag)
        self.lease, self.node = lease_id(lease), node_id(node)

    def make(self, direct: Direct, seen: Seen) -> str:
        places = [{"lease": str(self.lease), "node": str(self.node)}]
        fence = self.fence(seen)
        return str(direct.row("reserve_leases", places=places, hold=_HOLD, **fence)["verdict"])

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """It is reserved if the node could claim it now, were it its turn; nothing else happens."""
        should = self.refusal() or self._verdict(before)
        wrong = [] if outcome.value == should else [f"{outcome.value}, not {should}"]
        if should != "reserved":
            return wrong + unlike(before, after)
        one = reserved(before.leases[self.lease], after.leases[self.lease], before.now + _HOLD)
        wrong += [] if one.node == self.node else [f"reserved on {one.node}"]
        return wrong + unlike(before, after, {self.lease: one})

    def _verdict(self, seen: Seen) -> str:
        lease = seen.leases[self.lease]
        if lease.state != "pending":
            return "taken"
        facts, place = seen.facts[self.lease], seen.places[self.node]
        if not seen.is_open(self.node) or may_run(facts, place, _ALONE):
            return "does_not_suit"
        if lease.deadline is not None and lease.deadline <= seen.now:
            return "taken"
        return "reserved" if fits(facts.placement, place, seen.claims) else "no_room"


def keeps_its_place(before: Seen, after: Seen) -> list[str]:
    """What is reserved in vain is where it was in line, and so is whatever else has not run."""
    places = {UUID(row["lease_id"]): row["position"] for row in before.rows["lease"]}
    return [
        f"{after.leases[key]} was at {places[key]} in line, not at {position}"
        for key, (_, position) in after.order.items()
        if before.leases[key].state in ("pending", "reserved") and position != places[key]
    ]


# Two devices for three leases and a gang. One lease has attempts behind it when it is assigned
# again, one suits one node alone, one is late before its reservation is over.
PLANNED = World(
    "planned",
    policy={"retry": {"kind": "fixed", "base": 0, "jitter": 0}},
    nodes={"n": gpus(1, "n"), "m": {**gpus(1, "m"), "labels": {"zone": "a"}}},
    leases={
        "a": needs(gpu=1),
        "b": {"placement": {**IN_ZONE, "resources": {"gpu": 1}}},
        "c": {"deadline_in": 2},
    },
    gangs={"g": {"members": "de", "each": needs(gpu=1)}},
    first=[Lead("one"), Assign("a", "n")],
    steps=[
        *(Assign(lease, node) for lease, node in ("an", "am", "bn", "bm", "cn")),
        Assign("b", "m", (1, 0)),
        Propose("g", ""),
        s.Claim("n"),
        s.Claim("m"),
        s.Complete("b"),
        s.Fail("a"),
        s.Cancel("a"),
        o.Cordon("n"),
        o.RestartAlike("m"),
        s.Wait(),
        s.Reap(),
    ],
    promises=[keeps_its_place, books_open_nodes],
    near=2,
)
