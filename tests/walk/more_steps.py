"""Calls about the defaults of tasks and about gangs, and settlements that name a time."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from tests.calls import TASK, Row
from tests.direct import Direct
from tests.walk.names import QUEUE, gang_id
from tests.walk.seen import FINISHED, LeaseSeen, Seen, time
from tests.walk.steps import Outcome, Release, Spawn, Step
from tests.walk.sweeps import unlike


class SnoozeUntil(Release):
    """A handler puts its lease off until a time, that many seconds after the walk began."""

    verb = "snooze"

    def _at(self, seen: Seen) -> datetime:
        [clock] = seen.rows["test_clock"]
        return time(clock["frozen_at"]) + self.delay

    def make(self, direct: Direct, seen: Seen) -> str:
        """Hand it back in a batch, with the time; claim nothing."""
        node = self.of(seen).node
        assert node is not None
        settlement = {
            "lease_id": str(self.lease),
            "claim_token": self.token(seen),
            "outcome": "release",
            "available_at": self._at(seen).isoformat(),
        }
        [settled] = direct.rows(
            "settle_and_claim",
            node=node,
            epoch=seen.nodes[node]["epoch"],
            settle=[settlement],
            queues=[QUEUE],
            qty=0,
        )
        return str(settled["verdict"])

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Put back; claimable at once if that time is over."""
        if lease.stop_reason == "cancelled":
            return lease.ended("cancelled", lease.attempts)
        at = self._at(before)
        if at <= before.now:
            return lease.ended("pending", lease.attempts - 1)
        return lease.ended("scheduled", lease.attempts - 1, at)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """The verdict says so, too."""
        said = [] if outcome.value == "ok" else [f"its verdict is {outcome.value}"]
        return said + super().wrong(before, after, outcome)


class SetTask(Step):
    """An operator sets what spawns of the task have by default; with nothing: drops that."""

    def __init__(self, defaults: Mapping[str, Any] | None) -> None:
        self.name = "drop task" if defaults is None else f"set task {dict(defaults)}"
        self.defaults = defaults

    def make(self, direct: Direct, seen: Seen) -> Any:
        if self.defaults is None:
            return direct.value("drop_task", task=TASK)
        return direct.value("set_task", task=TASK, defaults=self.defaults)


class SpawnByTask(Spawn):
    """A producer spawns a lease of a task that may have defaults."""

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """It has the defaults that are set now; its own options win."""
        defaults: Row = next((row["defaults"] for row in before.rows["task"]), {})
        options = defaults | self.options
        found = after.leases[self.lease]
        attempts = options.get("max_attempts", before.queue["max_attempts"])
        placements = {row["class_id"]: row["placement"] for row in after.rows["placement_class"]}
        [asked] = [
            placements[row["class_id"]] for row in after.rows["lease"] if row["lease_id"] == str(self.lease)
        ]
        wrong = super().wrong(before, after, outcome)
        if (found.priority, found.most) != (options.get("priority", 0), attempts):
            wrong.append(f"spawned with {found}, not by {options}")
        if bool(asked) != ("placement" in options):
            wrong.append(f"spawned with the placement {asked}, not by {options}")
        return wrong


class CancelGang(Step):
    """A producer does not want a gang any more."""

    def __init__(self, gang: str) -> None:
        self.name = f"cancel gang {gang}"
        self.gang = gang_id(gang)

    def can(self, seen: Seen) -> bool:
        """Whether it is open, and nobody has asked before."""
        return seen.gangs[self.gang].state not in (*FINISHED, "cancelling")

    def make(self, direct: Direct, seen: Seen) -> str:
        return str(direct.value("cancel_gang", gang=self.gang))

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """It is asked to end; its members are left to the next tick."""
        asked = replace(before.gangs[self.gang], state="cancelling")
        return unlike(before, after, gangs={**before.gangs, self.gang: asked})
