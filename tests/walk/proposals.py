"""A planner that assigns leases and proposes gangs, beside nodes that claim."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from tests.direct import Direct
from tests.oracle.capacity import fits
from tests.oracle.cluster import Cluster
from tests.oracle.occupancy import may_run
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.gangs import has_room, reserved
from tests.walk.names import QUEUE, gang_id, lease_id, node_id
from tests.walk.promises import books_open_nodes
from tests.walk.seen import Row, Seen, time
from tests.walk.sweeps import unlike
from tests.walk.world import IN_ZONE, World, every, gpus, needs

_LEAD = timedelta(seconds=5)
_PLACES = ("rack 0", "rack 1", "nowhere")
_WORTH = {"device_worth": [0.0] * 50 + [0.5] * 51}


class Lead(s.Step):
    """A planner asks whether it leads."""

    def __init__(self, holder: str) -> None:
        self.name = f"lead {holder}"
        self.holder = holder

    def make(self, direct: Direct, seen: Seen) -> int | None:
        epoch: int | None = direct.value("lead_planner", holder=self.holder, ttl=_LEAD)
        return epoch

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """It does, if no other one does; a new one has a higher epoch."""
        was = _planner(before)
        if was is None:
            should: int | None = 1
        elif was["holder"] == self.holder:
            should = was["epoch"]
        else:
            should = was["epoch"] + 1 if time(was["expires_at"]) <= before.now else None
        wrong = [] if outcome.value == should else [f"epoch {outcome.value}, not {should}"]
        return wrong + unlike(before, after)


class OfPlanner(s.Step):
    """What a planner writes; `lag`: how many epochs and rounds ago it thought of it."""

    def __init__(self, name: str, lag: tuple[int, int]) -> None:
        old = {(0, 0): "", (1, 0): ", deposed", (0, 1): ", of an old round"}[lag]
        self.name = f"{name}{old}"
        self.lag = lag

    def can(self, seen: Seen) -> bool:
        """Whether there was a planner, and something older than what is there."""
        found = _planner(seen)
        epochs, rounds = self.lag
        return found is not None and found["epoch"] >= epochs and found["round"] >= rounds

    def fence(self, seen: Seen) -> dict[str, int]:
        """The epoch and the round that it names."""
        found = _planner(seen)
        assert found is not None
        epochs, rounds = self.lag
        return {"epoch": found["epoch"] - epochs, "round": found["round"] + 1 - 2 * rounds}

    def refusal(self) -> str | None:
        """Why it is refused, whatever it says."""
        return {(1, 0): "deposed", (0, 1): "old_round"}.get(self.lag)


class Propose(OfPlanner):
    """A place for a gang."""

    def __init__(self, gang: str, place: str, lag: tuple[int, int] = (0, 0)) -> None:
        super().__init__(f"propose {gang} in {place}", lag)
        self.gang = gang_id(gang)
        self.place = place

    def make(self, direct: Direct, seen: Seen) -> str:
        return str(direct.value("reserve_gang", gang=self.gang, place=self.place, **self.fence(seen)))

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """The gang is reserved if any place has room for it, and nothing else happens."""
        gang = before.gangs[self.gang]
        should = self.refusal()
        if should is None and gang.state != "waiting":
            should = "not_waiting"
        elif should is None and gang.is_changed:
            should = "busy"
        elif should is None:
            should = "reserved" if has_room(gang, before.leases, before) else "no_room"
        wrong = [] if outcome.value == should else [f"{outcome.value}, not {should}"]
        if should != "reserved":
            return wrong + unlike(before, after)
        members = [key for key in gang.members if before.leases[key].state == "scheduled"]
        leases = {
            key: reserved(before.leases[key], after.leases[key], before.now + gang.hold) for key in members
        }
        gangs = {**before.gangs, self.gang: replace(gang, state="reserved", tries=0)}
        return wrong + unlike(before, after, leases, gangs=gangs)


class Price(OfPlanner):
    """What a device is worth."""

    def make(self, direct: Direct, seen: Seen) -> str:
        fence = self.fence(seen)
        return str(direct.value("set_prices", queue=QUEUE, prices=_WORTH, ttl=timedelta(hours=1), **fence))

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """No lease and no gang has changed."""
        should = self.refusal() or "set"
        wrong = [] if outcome.value == should else [f"{outcome.value}, not {should}"]
        is_set = before.rows["queue_price"] != after.rows["queue_price"]
        wrong += [f"{outcome.value}, but prices were set"] if is_set and should != "set" else []
        return wrong + unlike(before, after)


def _planner(seen: Seen) -> Row | None:
    return next(iter(seen.rows["planner"]), None)


_M = {**gpus(1, "m"), "rack": 1}

# Two gangs, of which each is to be in one rack, and a single lease; two planners that do not agree.
PROPOSALS_OF_ALL = World(
    "proposals",
    nodes={"n": {**gpus(2, "n"), "rack": 0}, "m": _M},
    leases={"s": needs(gpu=1)},
    gangs={
        "g": {"members": "ab", "each": needs(gpu=1), "together": "rack"},
        "h": {"members": "cd", "each": needs(gpu=1)},
    },
    first=[Lead("one")],
    steps=[
        Lead("two"),
        *(Propose(gang, place) for gang in "gh" for place in _PLACES[:2]),
        Propose("g", "nowhere"),
        Propose("g", "rack 0", (1, 0)),
        Propose("h", "", (0, 1)),
        Price("price", (0, 0)),
        Price("price", (1, 0)),
        s.Claim("n", 2),
        s.Claim("m"),
        *every(s.Complete, "ac"),
        s.Release("b"),
        s.Complete("s"),
        o.Leave("m"),
        o.Arrive("m", _M),
        s.Wait(),
        s.Reap(),
    ],
    is_slow=True,
    near=3,
)


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
        for key, (_, _, position) in after.order.items()
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
