"""A planner that proposes everything, in time or late, beside a node that goes and comes back."""

from dataclasses import replace
from datetime import timedelta

from tests.direct import Direct
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.gangs import has_room, reserved
from tests.walk.names import QUEUE, gang_id
from tests.walk.seen import Row, Seen, time
from tests.walk.sweeps import unlike
from tests.walk.world import World, every, gpus, needs

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
