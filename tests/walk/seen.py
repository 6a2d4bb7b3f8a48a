"""What one look at the tables shows: where each lease is, who holds it, what nodes are.

Read from the rows themselves, not by the queue's own functions.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import inf
from typing import Any
from uuid import UUID

from tests.oracle.cluster import Cluster, Lease, Running, Service
from tests.oracle.facts import Claim, Node, Usage

Row = dict[str, Any]
Dump = Mapping[str, list[Row]]
WAITING = ("pending", "scheduled")
FINISHED = ("completed", "failed", "cancelled")
NEVER = datetime.max.replace(tzinfo=UTC)  # when a member that waits for its gang is due


@dataclass(frozen=True)
class LeaseSeen:
    """A lease as it is now.

    `attempts` are used up, that of the claim included, of `most`. `grants`: claims so far. `due`:
    from when on it is, or was, claimable. `expires_at` and what follows are of the claim. What is
    reserved or earmarked uses up no attempt yet. `gang`: the gang that it starts with; a lease of
    an everywhere task is its own. `tier`: the lowest comes first, whatever its priority.
    """

    state: str
    attempts: int
    grants: int
    priority: int
    most: int
    deadline: datetime | None = None
    due: datetime | None = None
    node: UUID | None = None
    token: int | None = None
    expires_at: datetime | None = None
    stop_at: datetime | None = None
    stop_reason: str | None = None
    gang: UUID | None = None
    tier: int = 0

    def ended(self, state: str, attempts: int, due: datetime | None = None) -> "LeaseSeen":
        """The same lease without its claim."""
        kept = (self.grants, self.priority, self.most, self.deadline)
        return LeaseSeen(state, attempts, *kept, due, gang=self.gang, tier=self.tier)

    def back(self, attempts: int) -> "LeaseSeen":
        """The same lease put back: claimable at once, or waiting for its gang."""
        if self.gang is not None:
            return self.ended("scheduled", attempts, NEVER)
        return self.ended("pending", attempts)


@dataclass(frozen=True)
class GangSeen:
    """A gang as it is now.

    `order`: the lowest is tried first. `is_changed`: a tick is still to look at it. `spare`: how
    many members may wait while the others run; `missing`: how many do. `is_behind`: it waits for
    room that is kept for another one. `is_put_off`: those before it are tried first, this once.
    """

    state: str
    members: tuple[UUID, ...]
    on_lost: str
    hold: timedelta
    next_try_at: datetime
    tries: int
    losses: int
    has_started: bool
    order: tuple[int, int, int]
    is_changed: bool
    spare: int
    missing: int
    together: tuple[str, ...] = ()
    is_behind: bool = False
    is_put_off: bool = False

    @property
    def is_tried(self) -> bool:
        """Whether a tick looks for room for it, or for what it lacks."""
        return self.state == "waiting" or (self.state == "running" and self.missing > 0)

    def goes_on(self, counts: Mapping[str, int]) -> bool:
        """Whether it goes on without members that are lost, which it does once it may begin."""
        begins = counts["scheduled"] <= self.spare and not counts["reserved"] + counts["cancelled"]
        goes = self.state == "running" or (self.state == "reserved" and begins)
        return self.on_lost == "continue" and goes

    @property
    def standing(self) -> tuple[Any, ...]:
        """What a call may change; when it is tried next counts while it is."""
        tried = (self.tries, self.next_try_at) if self.is_tried else None
        return (self.state, self.losses, self.missing, self.has_started, tried)


@dataclass(frozen=True)
class Seen:
    """One state: the rows of every table, and what they mean."""

    rows: Dump

    @cached_property
    def now(self) -> datetime:
        """The queue's time."""
        [clock] = self.rows["test_clock"]
        hours, minutes, seconds = clock["offset_by"].split(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
        return datetime.fromisoformat(clock["frozen_at"]) + offset

    @cached_property
    def leases(self) -> dict[UUID, LeaseSeen]:
        """Every lease, whatever its state."""
        entries: dict[str, list[LeaseSeen]] = {row["lease_id"]: [] for row in self.rows["lease"]}
        [installation] = self.rows["installation"]
        records = {
            row["lease_id"]: row
            | {
                "most": row["max_attempts"] or self.queue["max_attempts"],
                "generation": installation["generation"],
            }
            for row in self.rows["lease"]
        }
        for state, table in (("pending", "ready"), ("scheduled", "scheduled")):
            for row in self.rows[table]:
                entries[row["lease_id"]].append(_waiting(state, row, records[row["lease_id"]]))
        for row in self.rows["claim"]:
            entries[row["lease_id"]].append(_claimed(row, records[row["lease_id"]]))
        for row in self.rows["outcome"]:
            if row["lease_id"] in records:  # else it went when it completed
                entries[row["lease_id"]].append(_finished(row, records[row["lease_id"]]))
        found = {}
        for lease, record in records.items():
            listed = entries[lease] or [_nowhere(record)]
            found[UUID(lease)] = listed[0]
        return found

    @cached_property
    def gangs(self) -> dict[UUID, GangSeen]:
        """Every gang, whatever its state."""
        changed = {row["team_id"] for row in self.rows["team_change"]}
        return {
            UUID(row["gang_id"]): GangSeen(
                state=row["state"],
                members=tuple(map(UUID, row["members"])),
                on_lost=row["on_lost"],
                hold=span(row["hold"]),
                next_try_at=time(row["next_try_at"]),
                tries=row["tries"],
                losses=row["losses"],
                has_started=row["started_at"] is not None,
                order=(row["tier"], row["rank"], row["position"]),
                is_changed=row["gang_id"] in changed,
                spare=row["size"] - (row["min_size"] or row["size"]),
                missing=row["missing"],
                together=tuple(row["together"]),
                is_behind=row["reason"] == "behind_earmark",
                is_put_off=row["reason"] == "busy",
            )
            for row in self.rows["gang"]
        }

    def lost(self, lease: LeaseSeen, back: LeaseSeen) -> LeaseSeen:
        """What a claim that is lost comes to: `back`, or failed if its gang goes on without it."""
        gang = self.gangs.get(lease.gang) if lease.gang and lease.state == "claimed" else None
        if gang is None or back.state != "scheduled":
            return back
        counts = Counter(self.leases[member].state for member in gang.members)
        return back.ended("failed", back.attempts) if gang.goes_on(counts) else back

    @cached_property
    def preempting(self) -> frozenset[UUID]:
        """Leases with earmarks that others were asked to stop for."""
        gangs = [
            gang
            for row in self.rows["gang"]
            if row["reason"] == "waits_for_preemption"
            for gang in row["members"]
        ]
        alone = [
            row["lease_id"]
            for row in self.rows["replacement"]
            if not row["old_lease"] and not row["service_id"]
        ]
        return frozenset(
            lease for lease in map(UUID, gangs + alone) if self.leases[lease].state == "earmarked"
        )

    def turn(self, lease: UUID) -> tuple[int, float]:
        """What a lease or its earmark comes before: those of later tiers, of its own by priority."""
        one = self.leases[lease]
        return (one.tier, -inf if lease in self.preempting else -one.priority)

    @cached_property
    def taken_instead(self) -> frozenset[UUID]:
        """Leases and gangs of choices of which another alternative was taken."""
        return frozenset(
            UUID(one)
            for row in self.rows["choice"]
            for one in row["members"]
            if row["taken"] not in (None, one)
        )

    @cached_property
    def nodes(self) -> dict[UUID, Row]:
        """What is written of each registered node: `live_until` and `epoch`, too."""
        states = {row["node_id"]: row for row in self.rows["node_state"]}
        return {
            UUID(row["node_id"]): row
            | {
                "epoch": states[row["node_id"]]["node_epoch"],
                "live_until": time(states[row["node_id"]]["seen_at"]) + span(row["heartbeat_timeout"]),
            }
            for row in self.rows["node"]
            if row["deregistered_at"] is None
        }

    def is_live(self, node: UUID) -> bool:
        """Whether the node gave a sign of life in time."""
        return bool(self.nodes[node]["live_until"] > self.now)

    def is_open(self, node: UUID) -> bool:
        """Whether the node lives and may get something new."""
        return self.is_live(node) and self.nodes[node]["cordoned_at"] is None

    @cached_property
    def queue(self) -> Row:
        """The world's queue."""
        [queue] = self.rows["queue"]
        return queue

    @property
    def keeps_completed(self) -> bool:
        """Whether completed leases stay for a time."""
        return span(self.queue["retain_completed"]) > timedelta(0)

    @cached_property
    def order(self) -> dict[UUID, tuple[int, int, int]]:
        """The place of each pending lease: the lowest comes first."""
        return {
            lease: (row["tier"], -self.leases[lease].priority, row["position"])
            for row in self.rows["ready"]
            for lease in [UUID(row["lease_id"])]
        }

    @cached_property
    def facts(self) -> dict[UUID, Lease]:
        """What each lease asks, for the oracle."""
        classes = {row["class_id"]: row for row in self.rows["placement_class"]}
        return {
            UUID(row["lease_id"]): Lease(
                lease_id=UUID(row["lease_id"]),
                placement=classes[row["class_id"]]["placement"],
                labels=row["labels"] or classes[row["class_id"]]["labels"],
                tenant=classes[row["class_id"]]["tenant"],
                task=classes[row["class_id"]]["task_name"],
                service_id=_uuid(classes[row["class_id"]]["service_id"]),
                queue_domain=self.queue["failure_domain"],
            )
            for row in self.rows["lease"]
        }

    @cached_property
    def places(self) -> dict[UUID, Node]:
        """What the nodes are and have, for the oracle."""
        return {node: _node(row, self.is_live(node)) for node, row in self.nodes.items()}

    @cached_property
    def claims(self) -> list[Claim]:
        """What runs and what it was given, for the oracle."""
        return [
            Claim(
                UUID(row["lease_id"]),
                UUID(row["node_id"]),
                self.facts[UUID(row["lease_id"])].placement,
                row["assignment"],
            )
            for row in self.rows["claim"]
        ]

    @cached_property
    def backed(self) -> list[Claim]:
        """The same without earmarks, whose room others may still use."""
        kept = {UUID(row["lease_id"]) for row in self.rows["claim"] if row["is_earmark"]}
        return [claim for claim in self.claims if claim.lease_id not in kept]

    @cached_property
    def kept(self) -> dict[UUID, Usage]:
        """The usage that is written for each node."""
        found = {}
        for row in sorted(self.rows["node_load"], key=lambda row: row["version"]):
            found[UUID(row["node_id"])] = Usage(
                row["cpu_used"], row["memory_used"], tuple(row["gpu_used"]), row["custom_used"]
            )
        return found

    @cached_property
    def cluster(self) -> Cluster:
        """Who runs where, for the oracle; what was asked to stop or has expired is leaving."""
        return self._cluster(lambda one: _is_over(one.expires_at, self.now))

    @cached_property
    def kept_cluster(self) -> Cluster:
        """The same, but what has expired stays: a heartbeat may bring it back."""
        return self._cluster(lambda one: False)

    def _cluster(self, is_over: Callable[[LeaseSeen], bool]) -> Cluster:
        running = self._running(is_over)
        return Cluster(self.places, running, self._services(), self._succeeded())

    def _running(self, is_over: Callable[[LeaseSeen], bool]) -> tuple[Running, ...]:
        return tuple(
            Running(
                self.facts[lease], seen.node, is_leaving=_is_over(seen.stop_at, self.now) or is_over(seen)
            )
            for lease, seen in self.leases.items()
            if seen.node is not None
        )

    def _services(self) -> dict[UUID, Service]:
        return {
            UUID(row["service_id"]): Service(row["failure_domain"], tuple(map(UUID, row["away_from"])))
            for row in self.rows["service"]
        }

    def _succeeded(self) -> dict[UUID, UUID]:
        return {
            UUID(row["lease_id"]): UUID(row["node_id"])
            for row in self.rows["outcome"]
            if row["state"] == "completed"
        }


def time(text: str) -> datetime:
    """A moment as the rows have it."""
    return NEVER if text == "infinity" else datetime.fromisoformat(text)


def span(text: str) -> timedelta:
    """A span as the rows have it, of days at most."""
    days, _, clock = text.rpartition(" day")
    hours, minutes, seconds = clock.removeprefix("s").split(":") if clock.strip("s ") else "000"
    return timedelta(days=int(days or 0), hours=int(hours), minutes=int(minutes), seconds=float(seconds))


def _is_over(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment <= now


def _time(text: str | None) -> datetime | None:
    return None if text is None else time(text)


def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)


def nth_claim(token: int, generation: int) -> int:
    """Which claim of its lease has the token; 0: there was none."""
    return (token - generation) // 2 + 1 if token else 0


def _waiting(state: str, row: Row, record: Row) -> LeaseSeen:
    is_parked = row.get("held_by") == "limit"  # it may run when its turn comes
    column = "eligible_at" if state == "pending" else "available_at"
    return LeaseSeen(
        state="pending" if is_parked else state,
        attempts=row["attempt_count"],
        grants=row["claim_count"],
        priority=record["priority"],
        most=record["most"],
        deadline=_time(row["deadline"]),
        due=time(record["created_at"] if is_parked else row[column]),
        gang=_uuid(record["team_id"]),
        tier=row["tier"],
    )


def _claimed(row: Row, record: Row) -> LeaseSeen:
    is_reserved = bool(row["is_reserved"])
    held = "earmarked" if row["is_earmark"] else "reserved"
    return LeaseSeen(
        state=held if is_reserved else "claimed",
        attempts=row["attempt"] - is_reserved,
        grants=nth_claim(row["claim_token"], record["generation"]),
        priority=record["priority"],
        most=record["most"],
        deadline=_time(record["deadline"]),
        node=UUID(row["node_id"]),
        token=row["claim_token"],
        expires_at=time(row["expires_at"]),
        stop_at=_time(row["stop_requested_at"]),
        stop_reason=row["stop_reason"],
        gang=_uuid(record["team_id"]),
        tier=record["tier"],
    )


def _finished(row: Row, record: Row) -> LeaseSeen:
    return LeaseSeen(
        state=row["state"],
        attempts=row["attempt"],
        grants=nth_claim(row["claim_token"], record["generation"]),
        priority=record["priority"],
        most=record["most"],
        deadline=_time(record["deadline"]),
        gang=_uuid(record["team_id"]),
        tier=record["tier"],
    )


def _nowhere(record: Row) -> LeaseSeen:
    """An open lease without an entry: no state of the queue's, a rule says so."""
    return LeaseSeen("nowhere", 0, 0, record["priority"], record["most"])


def _node(row: Row, is_live: bool) -> Node:
    declared = {key: row[key] for key in ("cpu_milli", "memory_mib") if row[key] is not None}
    taints: Sequence[Any] = row["taints"] + row["operator_taints"]
    return Node(
        node_id=UUID(row["node_id"]),
        labels=row["labels"],
        rack=row["rack"],
        resources=frozenset(map(UUID, row["resources"])),
        capacity=declared | row["custom"],
        gpus=tuple(map(UUID, row["gpu_ids"])),
        slots=row["slots"],
        taints=tuple(taints),
        is_live=is_live,
    )
