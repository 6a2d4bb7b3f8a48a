"""What a node may be granted now, told a second time: by the oracle and the queue's order."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from tests.calls import Row
from tests.oracle.capacity import fits
from tests.oracle.cluster import Cluster
from tests.oracle.occupancy import Rule, may_run, preference
from tests.walk.seen import LeaseSeen, Seen, span
from tests.walk.sweeps import Expected, changes, is_due, lost, may_become, same, unlike


def granted_wrong(
    before: Seen, after: Seen, node: UUID, rows: list[Row], *, qty: int = 1, settled: Expected | None = None
) -> list[str]:
    """What is wrong with what a node was granted, or not granted; `settled` was before that."""
    if fetched := _reserved_for(before, node)[:qty]:
        put_back = {key: lost(before.leases[key]) for key in fetched if not _may_fetch(before, key)}
        if len(put_back) < len(fetched):
            return _fetched_wrong(before, after, fetched, put_back, rows)
        settled = (settled or {}) | put_back
    granted: list[UUID] = [row["lease_id"] for row in rows]
    wrong = [line for row in rows for line in _misgranted(before, after, node, row)]
    for lease, (should, now) in changes(before, after, settled).items():
        if lease not in granted and not any(same(now, one) for one in may_become(should, before)):
            wrong.append(f"{now}, not {should}")
    if len(granted) > qty:
        wrong.append(f"granted {len(granted)}, asked for {qty}")
    if len(granted) < qty:
        # a claim that grants nothing ends what has expired after it has looked for work, not before
        beside = after if granted or settled else before
        return wrong + [
            f"not granted: {after.leases[lease]}"
            for lease in after.order
            if is_due(before.leases[lease], before) and not _forbidden(before, beside, lease, node)
        ]
    last = max(before.order.get(lease, (0, 0, 0)) for lease in granted)
    return wrong + [
        f"passed by: {after.leases[lease]}"
        for lease in after.order
        if is_due(before.leases[lease], before)
        and before.order.get(lease, last) < last
        and _are_alike(after, [lease, *granted])
        and not _forbidden(before, after if settled or qty > 1 else before, lease, node)
    ]


def _reserved_for(seen: Seen, node: UUID) -> list[UUID]:
    """What waits for the node's next claim, in its order."""
    return sorted(
        key
        for key, lease in seen.leases.items()
        if lease.state == "reserved" and lease.node == node and _ends_later(lease, seen)
    )


def _ends_later(lease: LeaseSeen, seen: Seen) -> bool:
    """Whether it is not over; one of a single lease goes on until somebody ends it."""
    return lease.gang is None or (lease.expires_at is not None and lease.expires_at > seen.now)


def _fetched_wrong(
    before: Seen, after: Seen, fetched: list[UUID], put_back: Expected, rows: list[Row]
) -> list[str]:
    """What is reserved comes first, and alone; its claim begins now, with the token that it had.

    What the node may not run any more is put back instead.
    """
    told = {row["lease_id"]: row["claim_token"] for row in rows}
    fetchable = [key for key in fetched if key not in put_back]
    should = {key: before.leases[key].token for key in fetchable}
    wrong = [] if told == should else [f"fetched {told}, not {should}"]
    began = {
        key: replace(
            before.leases[key],
            state="claimed",
            attempts=before.leases[key].attempts + 1,
            expires_at=before.now + claim_timeout(before, key),
        )
        for key in fetchable
    }
    return wrong + unlike(before, after, {**put_back, **began})


def _may_fetch(seen: Seen, key: UUID) -> bool:
    """Whether its node is not cordoned, it is in time, and nobody has asked it to stop."""
    lease = seen.leases[key]
    assert lease.node is not None
    is_over = any(at is not None and at <= seen.now for at in (lease.stop_at, lease.deadline))
    return seen.nodes[lease.node]["cordoned_at"] is None and not is_over


def _misgranted(before: Seen, after: Seen, node: UUID, row: Row) -> list[str]:
    """What is wrong with one grant."""
    key = row["lease_id"]
    lease, now = before.leases[key], after.leases[key]
    should = replace(
        lease,
        state="claimed",
        attempts=lease.attempts + 1,
        grants=lease.grants + 1,
        due=None,
        node=node,
        token=row["claim_token"],
        expires_at=before.now + claim_timeout(before, key),
        stop_at=now.stop_at,  # beside a taint that it tolerates for a time
        stop_reason=now.stop_reason,
    )
    wrong = [] if is_due(lease, before) else [f"granted {lease}"]
    wrong += [] if same(now, should) else [f"granted {now}, not {should}"]
    why = _forbidden(before, after, key, node)
    return wrong + ([f"granted in spite of {why}: {now}"] if why else [])


def _are_alike(seen: Seen, leases: list[UUID]) -> bool:
    """Whether only the order of the queue decides between them: none of them prefers anything."""
    return not any("prefer" in seen.facts[lease].placement for lease in leases)


def _forbidden(before: Seen, beside: Seen, lease: UUID, node: UUID) -> str:
    """Why the node may not run the lease beside all others that run then; empty if it may."""
    row = beside.nodes[node]
    if row["cordoned_at"] is not None:
        return "a cordon"
    if beside.queue["paused_at"] is not None:
        return "a pause"
    if lease in beside.taken_instead:
        return "another alternative"
    facts = beside.facts[lease]
    others = [
        claim
        for claim in beside.claims
        if claim.lease_id != lease and not _passes(beside, lease, claim.lease_id)
    ]
    if not fits(facts.placement, beside.places[node], others):
        return "no room"
    place = beside.places[node]
    rules = may_run(facts, place, _without(lease, beside.cluster)) - {Rule.MAX_PER_DOMAIN}
    # a limit counts what has expired: a heartbeat may bring it back
    rules |= may_run(facts, place, _without(lease, beside.kept_cluster)) & {Rule.MAX_PER_DOMAIN}
    if rules:
        return ", ".join(rules)
    return "patience" if _waits(before, beside, lease, node) else ""


def _passes(seen: Seen, lease: UUID, other: UUID) -> bool:
    """Whether the other has an earmark that the lease comes before."""
    return seen.leases[other].state == "earmarked" and seen.turn(lease) < seen.turn(other)


def _without(lease: UUID, cluster: Cluster) -> Cluster:
    running = tuple(claim for claim in cluster.running if claim.lease.lease_id != lease)
    return replace(cluster, running=running)


def _waits(before: Seen, beside: Seen, lease: UUID, node: UUID) -> bool:
    """Whether the lease waits for a better node that lives and is large enough."""
    facts = beside.facts[lease]
    if "prefer" not in facts.placement:
        return False
    scores = {
        other: preference(facts, place, beside.cluster)
        for other, place in beside.places.items()
        if (other == node or beside.is_open(other))
        and fits(facts.placement, place, [])
        and not may_run(facts, place, beside.cluster) & {Rule.NODE, Rule.TAINT}
    }
    best, here, worst = max(scores.values()), scores[node], min(scores.values())
    if best <= here:
        return False
    wait = span(before.queue["patience"]) * ((best - here) / (best - worst))
    due = before.leases[lease].due
    return due is not None and due + wait > before.now


def claim_timeout(seen: Seen, lease: UUID) -> timedelta:
    """How long a claim of the lease lasts without a heartbeat."""
    [row] = [row for row in seen.rows["lease"] if row["lease_id"] == str(lease)]
    return span(row["claim_timeout"] or seen.queue["claim_timeout"])
