"""Calls that a walk makes: what each is, when it makes sense, and what it may do to every lease.

What a call should do is told here a second time, from what was seen before it; nothing is asked of
the queue. A new call is a class with `make`, and `can` and `wrong` where it is not as for most.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from tests.calls import Row
from tests.direct import Direct
from tests.walk.gangs import ticked
from tests.walk.grants import claim_timeout, granted_wrong
from tests.walk.names import QUEUE, lease_id, node_id
from tests.walk.seen import FINISHED, WAITING, LeaseSeen, Seen, span
from tests.walk.sweeps import next_event, unlike


@dataclass(frozen=True)
class Outcome:
    """What a call gave, or the SQLSTATE with which it was refused."""

    value: Any = None
    refused: str | None = None


class Step(ABC):
    """One whole call."""

    name: str
    refusals: ClassVar[frozenset[str]] = frozenset()  # the SQLSTATEs that it may be refused with

    def can(self, seen: Seen) -> bool:
        """Whether it is worth a try."""
        return True

    @abstractmethod
    def make(self, direct: Direct, seen: Seen) -> Any:
        """Make the call."""

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """What the call did that it must not, or did not that it must: as a rule no lease changes."""
        return unlike(before, after)


class OfLease(Step):
    """A call about one lease."""

    verb: ClassVar[str]

    def __init__(self, lease: str) -> None:
        self.name = f"{self.verb} {lease}"
        self.lease = lease_id(lease)

    def can(self, seen: Seen) -> bool:
        """Whether the lease is there."""
        return self.lease in seen.leases

    def of(self, seen: Seen) -> LeaseSeen:
        """The lease."""
        return seen.leases[self.lease]

    @abstractmethod
    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """The lease after the call; None: the call must be refused."""

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Nothing changes but this lease, and that as it should."""
        should = self.expected(before, self.of(before))
        if (should is None) != (outcome.refused is not None):
            return [f"refused with {outcome.refused}" if outcome.refused else "was not refused"]
        return unlike(before, after, {} if should is None else {self.lease: should})


class OfNode(Step):
    """A call about a node, or by it."""

    verb: ClassVar[str]

    def __init__(self, node: str) -> None:
        self.name = f"{self.verb} {node}"
        self.node = node_id(node)

    def can(self, seen: Seen) -> bool:
        """Whether the node is registered."""
        return self.node in seen.nodes


class Claim(OfNode):
    """A node asks for work."""

    verb = "claim"

    def __init__(self, node: str, qty: int = 1) -> None:
        super().__init__(node)
        self.name += f" x{qty}" if qty > 1 else ""
        self.qty = qty

    def make(self, direct: Direct, seen: Seen) -> list[Row]:
        return direct.claim(QUEUE, self.node, seen.nodes[self.node]["epoch"], self.qty)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Each grant is of the best that the node may run, and none is left out."""
        return granted_wrong(before, after, self.node, outcome.value, qty=self.qty)


class Settle(OfLease):
    """The holder of a claim ends it."""

    refusals: ClassVar[frozenset[str]] = frozenset({"QHL01", "QHL02", "QHL03"})

    def can(self, seen: Seen) -> bool:
        """Whether it runs."""
        return super().can(seen) and self.of(seen).state == "claimed"

    def token(self, seen: Seen) -> int:
        """The token that the call brings."""
        token = self.of(seen).token
        assert token is not None
        return token


class Complete(Settle):
    """A claim ends well."""

    verb = "complete"

    def make(self, direct: Direct, seen: Seen) -> str:
        return direct.complete(self.lease, self.token(seen))

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Completed, even if it was asked to stop."""
        return lease.ended("completed", lease.attempts)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """It is gone where the queue keeps nothing."""
        if before.keeps_completed or outcome.refused:
            return super().wrong(before, after, outcome)
        return unlike(before, after, gone=frozenset({self.lease}))


class Fail(Settle):
    """A claim ends in an error; there may be another attempt."""

    verb = "fail"
    retry = True

    def make(self, direct: Direct, seen: Seen) -> str:
        return direct.fail(self.lease, self.token(seen), retry=self.retry)

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Cancelled if it was, dead without attempts left, else put off or put back."""
        if lease.stop_reason == "cancelled":
            return lease.ended("cancelled", lease.attempts)
        if not self.retry or lease.attempts >= lease.most:
            return lease.ended("failed", lease.attempts)
        delay = timedelta(seconds=before.queue["retry"].get("base", 0))
        return before.lost(lease, _put_back(lease, lease.attempts, before.now, delay))


class GiveUp(Fail):
    """A claim ends in an error that no other attempt can mend."""

    verb = "give up"
    retry = False


class Release(Settle):
    """A claim is handed back; it uses up no attempt."""

    verb = "release"

    def __init__(self, lease: str, delay: timedelta = timedelta(0)) -> None:
        super().__init__(lease)
        self.delay = delay

    def make(self, direct: Direct, seen: Seen) -> str:
        return direct.release(self.lease, self.token(seen), self.delay)

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Put back, unless it was cancelled."""
        if lease.stop_reason == "cancelled":
            return lease.ended("cancelled", lease.attempts)
        return before.lost(lease, _put_back(lease, lease.attempts - 1, before.now, self.delay))


class Extend(Settle):
    """A worker that knows that it takes long moves the end of its claim."""

    verb = "extend"
    span = timedelta(seconds=100)

    def make(self, direct: Direct, seen: Seen) -> None:
        direct.extend(self.lease, self.token(seen), self.span)

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Extended; one that was cancelled by no more than its timeout."""
        is_cancelled = lease.stop_reason == "cancelled"
        most = claim_timeout(before, self.lease) if is_cancelled else self.span
        return replace(lease, expires_at=before.now + min(self.span, most))


class Late(OfLease):
    """Whoever held the claim before settles with a token that is over."""

    verb = "late complete"
    refusals = Settle.refusals

    def can(self, seen: Seen) -> bool:
        """Whether there was a claim before."""
        return super().can(seen) and self.of(seen).grants > (self.of(seen).token is not None)

    def token(self, seen: Seen) -> int:
        """The last token that is over."""
        lease = self.of(seen)
        if lease.token is not None:
            return lease.token - 1
        ended = [row for row in seen.rows["outcome"] if row["lease_id"] == str(self.lease)]
        put_back = [row for row in seen.rows["lease"] if row["lease_id"] == str(self.lease)]
        return int([*ended, *put_back][0]["claim_token"])

    def make(self, direct: Direct, seen: Seen) -> Any:
        return direct.complete(self.lease, self.token(seen))

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """It is refused."""
        return None


class LateInBatch(Late):
    """The same in a batch, beside whatever else the node holds: only that changes."""

    verb = "late in a batch"

    def make(self, direct: Direct, seen: Seen) -> list[Row]:
        late = {"lease_id": self.lease, "claim_token": self.token(seen)}
        return direct.complete_many([late])

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Nothing changes, and the verdict says so."""
        told = [] if outcome.value else ["no verdict on a token that is over"]
        return told + unlike(before, after)


class LateFail(Late):
    """The same with an error."""

    verb = "late fail"

    def make(self, direct: Direct, seen: Seen) -> str:
        return direct.fail(self.lease, self.token(seen))


class Cancel(OfLease):
    """An operator does not want the lease any more."""

    verb = "cancel"
    refusals = frozenset({"QHL03"})

    def make(self, direct: Direct, seen: Seen) -> str:
        return direct.cancel(self.lease)

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Cancelled at once if it waits; a claim is asked to stop, and ends in its timeout.

        So is one that is reserved or kept: whoever fetches or sweeps it ends it.
        """
        if lease.state in ("completed", "failed"):
            return None
        if lease.node is None:
            return lease.ended("cancelled", lease.attempts)
        assert lease.expires_at is not None
        return replace(
            lease,
            stop_reason="cancelled",
            stop_at=min(lease.stop_at or before.now, before.now),
            expires_at=min(lease.expires_at, before.now + claim_timeout(before, self.lease)),
        )


class Requeue(OfLease):
    """An operator gives a dead lease a fresh set of attempts."""

    verb = "requeue"
    refusals = frozenset({"QHL03", "QHL07"})

    def can(self, seen: Seen) -> bool:
        """Whether it is over, well or badly."""
        return super().can(seen) and self.of(seen).state in FINISHED

    def make(self, direct: Direct, seen: Seen) -> str:
        return direct.requeue(self.lease)

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Pending, with no attempt used, and without a deadline that is over."""
        if lease.state == "completed":
            return None
        is_late = lease.deadline is not None and lease.deadline <= before.now
        return replace(lease, state="pending", attempts=0, deadline=None if is_late else lease.deadline)


class Update(OfLease):
    """A producer changes its mind about a lease that waits."""

    verb = "update"
    refusals = frozenset({"QHL03", "QHL07"})

    def __init__(self, lease: str, priority: int) -> None:
        super().__init__(lease)
        self.name = f"update {lease} to {priority}"
        self.priority = priority

    def make(self, direct: Direct, seen: Seen) -> str:
        return direct.update(self.lease, {"priority": self.priority})

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """Of the new priority, claimable if it is due."""
        if lease.state not in WAITING:
            return None
        is_due = lease.due is not None and lease.due <= before.now
        state = "pending" if is_due else "scheduled"
        return replace(lease, priority=self.priority, state=state)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Its patience goes on."""
        was, now = self.of(before), self.of(after)
        starts_again = was.state == now.state and was.deadline is None and was.due != now.due
        again = [f"waits since {now.due}, it was {was.due}"] if starts_again else []
        return again + super().wrong(before, after, outcome)


class Spawn(Step):
    """A producer spawns a lease."""

    def __init__(self, lease: str, options: Mapping[str, Any] | None = None) -> None:
        self.name = f"spawn {lease}"
        self.lease = lease_id(lease)
        self.options = {"lease_id": str(self.lease)} | dict(options or {})

    def can(self, seen: Seen) -> bool:
        """Whether it is not there yet."""
        return self.lease not in seen.leases

    def make(self, direct: Direct, seen: Seen) -> Row:
        return direct.spawn(QUEUE, self.options)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """It is there, and nothing else has changed."""
        found = after.leases.get(self.lease)
        if found is None or found.state not in WAITING or found.attempts or found.grants:
            return [f"what was spawned is {found}"]
        return unlike(before, after)


class Adopt(Spawn):
    """Work that runs on a node already is recorded; it counts like any claim."""

    def __init__(self, lease: str, node: str) -> None:
        super().__init__(lease)
        self.name = f"adopt {lease} on {node}"
        self.node = node_id(node)

    def make(self, direct: Direct, seen: Seen) -> Row:
        return direct.adopt(QUEUE, self.node, self.options)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """It runs there, and nothing else has changed."""
        found = after.leases.get(self.lease)
        if found is None or (found.state, found.node) != ("claimed", self.node):
            return [f"what was adopted is {found}"]
        return unlike(before, after)


class Heartbeat(OfNode):
    """A node extends all that it holds."""

    verb = "heartbeat"

    def can(self, seen: Seen) -> bool:
        """Whether it would change anything."""
        return any(
            lease.node == self.node and lease.expires_at != _extended(seen, key, lease)
            for key, lease in seen.leases.items()
        )

    def make(self, direct: Direct, seen: Seen) -> list[Row]:
        """Give a sign of life."""
        held = [row for row in seen.rows["claim"] if row["node_id"] == str(self.node)]
        return direct.heartbeat(self.node, seen.nodes[self.node]["epoch"], held)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """Each claim is extended by its timeout, and the verdict says whether to stop."""
        held = {key: one for key, one in before.leases.items() if one.node == self.node}
        verdicts = {row["lease_id"]: row["verdict"] for row in outcome.value}
        should = {
            key: one.stop_reason if one.stop_at is not None and one.stop_at <= before.now else "ok"
            for key, one in held.items()
        }
        wrong = [f"verdicts {verdicts}, not {should}"] if verdicts != should else []
        later = {key: replace(one, expires_at=_extended(before, key, one)) for key, one in held.items()}
        return wrong + unlike(before, after, later)


class Reap(Step):
    """A sweep: all that is due happens."""

    name = "reap"

    def make(self, direct: Direct, seen: Seen) -> Row:
        return direct.reap()

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """What is due has happened, and nothing else."""
        leases, gangs = ticked(before, after)
        return unlike(before, after, leases, gangs=gangs)


class Wait(Step):
    """Time passes until something is due."""

    name = "wait"

    def can(self, seen: Seen) -> bool:
        """Whether time alone changes anything."""
        return next_event(seen, span(seen.queue["patience"])) is not None

    def make(self, direct: Direct, seen: Seen) -> None:
        """Move the clock to the next moment at which anything happens."""
        ahead = next_event(seen, span(seen.queue["patience"]))
        direct.conn.execute("update hwqueue.test_clock set offset_by = offset_by + %s", [ahead])


class Relay(OfNode):
    """A node completes all that it holds and claims the next, in one call."""

    verb = "settle and claim"

    def can(self, seen: Seen) -> bool:
        """Whether it holds anything."""
        return any(lease.node == self.node for lease in seen.leases.values())

    def make(self, direct: Direct, seen: Seen) -> list[Row]:
        held = [row for row in seen.rows["claim"] if row["node_id"] == str(self.node)]
        return direct.settle_and_claim(QUEUE, self.node, seen.nodes[self.node]["epoch"], held)

    def wrong(self, before: Seen, after: Seen, outcome: Outcome) -> list[str]:
        """All that it held is completed, and what it was granted it may run."""
        held = {
            key: one.ended("completed", one.attempts)
            for key, one in before.leases.items()
            if one.node == self.node
        }
        settled = [row for row in outcome.value if row["kind"] == "settled"]
        wrong = [f"settled: {row}" for row in settled if row["verdict"] != "ok"]
        claimed = [row for row in outcome.value if row["kind"] == "claimed"]
        return wrong + granted_wrong(before, after, self.node, claimed, settled=held)


def _put_back(lease: LeaseSeen, attempts: int, now: datetime, delay: timedelta) -> LeaseSeen:
    if not delay or lease.gang is not None:
        return lease.back(attempts)
    return lease.ended("scheduled", attempts, now + delay)


def _extended(seen: Seen, key: UUID, lease: LeaseSeen) -> datetime:
    assert lease.expires_at is not None
    return max(lease.expires_at, seen.now + claim_timeout(seen, key))
