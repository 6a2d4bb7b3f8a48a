"""What must hold in every state: the queue's own recount, and by an oracle of its own."""

from collections import Counter
from typing import Any

from tests.oracle.capacity import check_claims, check_usage
from tests.oracle.occupancy import broken_now
from tests.walk.ground import Conn
from tests.walk.names import QUEUE
from tests.walk.seen import FINISHED, Row, Seen, time

_PLACES = ("ready", "scheduled", "claim", "outcome")
_ROUNDS = 12  # of claiming and completing until a world is empty
# the way to the end is undone before it returns
_VERIFY = """
  select v.rule, v.subject, v.detail from hwqueue.verify_invariants() v
  union all
  select 'can_end', l.lease_id::text, to_jsonb(l.state) from walk.left_open(%s, %s) l
"""
_READY = """
  select c.lease_id, g.ready from hwqueue.claim c
  cross join lateral hwqueue.gang_status(c.lease_id, c.claim_token) g
  where c.team_id is not null and c.is_reserved is not true
"""


def broken(conn: Conn, seen: Seen) -> list[str]:
    """Every rule that does not hold."""
    found = [f"{row}" for row in conn.execute(_VERIFY, [QUEUE, _ROUNDS])]
    found += _entries(seen) + _marks(seen) + _gangs(seen)
    if seen.gangs:
        found += _barriers(conn, seen)
    nodes = list(seen.places.values())
    found += check_claims(nodes, seen.backed)
    found += check_usage(nodes, seen.claims, seen.kept)
    return found + [f"{item.rule}: {item.because}" for item in broken_now(seen.kept_cluster)]


def _entries(seen: Seen) -> list[str]:
    """A lease waits, runs or has ended, one of them; attempts and tokens are those of the lease."""
    places = Counter(row["lease_id"] for table in _PLACES for row in seen.rows[table])
    wrong = [
        f"lease {row['lease_id']} is in {places[row['lease_id']]} places"
        for row in seen.rows["lease"]
        if places[row["lease_id"]] != 1
    ]
    wrong += [
        f"outcome of a lease that is {'there' if known else 'gone'}: {row}"
        for row in seen.rows["outcome"]
        for known in [any(one["lease_id"] == row["lease_id"] for one in seen.rows["lease"])]
        if known != (row["eligible_at"] is None or row["state"] != "completed")
    ]
    wrong += [
        f"{lease} has used up more than {lease.most} attempts"
        for lease in seen.leases.values()
        if not 0 <= lease.attempts <= lease.most
    ]
    return wrong + [
        f"claim of an older epoch: {row}"
        for row in seen.rows["claim"]
        if row["node_epoch"] != _epoch(seen, row["node_id"])
    ]


def _epoch(seen: Seen, node: str) -> Any:
    return next(row["node_epoch"] for row in seen.rows["node_state"] if row["node_id"] == node)


def _gangs(seen: Seen) -> list[str]:
    """A gang has room for those that it needs or for none, but for what the next tick looks at."""
    wrong = []
    for key, gang in seen.gangs.items():
        states = [seen.leases[lease].state for lease in gang.members]
        waits, holds = states.count("scheduled"), {"reserved", "claimed", "earmarked"} & set(states)
        lacks = waits > gang.spare or waits != gang.missing
        goes_on = gang.on_lost == "replace" and gang.has_started
        forbidden = {
            "waiting": bool(holds) and not goes_on,
            "earmarked": lacks or holds != {"earmarked"},
            "reserved": lacks or "earmarked" in holds,
            "running": lacks or waits + states.count("reserved") > gang.spare,
            **dict.fromkeys(FINISHED, bool(waits or holds)),
        }
        if forbidden.get(gang.state) and not gang.is_changed:
            wrong.append(f"gang {key} is {gang.state}, its members are {states}")
    return wrong


def _barriers(conn: Conn, seen: Seen) -> list[str]:
    """A handler may begin while enough members are there, and all that start with them."""
    found = []
    for lease, ready in conn.execute(_READY):
        found_in = seen.leases[lease].gang
        assert found_in is not None
        gang = seen.gangs[found_in]
        states = [seen.leases[one].state for one in gang.members]
        reserved = states.count("reserved")
        enough = states.count("scheduled") + reserved <= gang.spare
        if ready != (enough and (not reserved or gang.state == "running")):
            found.append(f"the gang of {lease} is {'' if ready else 'not '}ready: {states}")
    return found


def _marks(seen: Seen) -> list[str]:
    """Nothing lives below a mark at which a scan begins."""
    wrong = []
    for mark in seen.rows["low_water"]:
        below = zip(mark["tiers"], mark["ranks"], mark["positions"], strict=True)
        marks = {(tier, rank): position for tier, rank, position in below}
        wrong += [
            f"ready entry below its mark: {row}"
            for row in seen.rows["ready"]
            if mark["class_id"] in (0, row["class_id"])
            and row["position"] < marks.get((row["tier"], row["rank"]), 0)
        ]
    for mark in seen.rows["reap_cursor"][-1:]:
        wrong += _below(mark["claims_from"], seen.rows["claim"], "check_at")
        wrong += _below(mark["scheduled_from"], seen.rows["scheduled"], "available_at")
        wrong += [
            f"below the mark of lanes: {row}"
            for row in seen.rows["lane_change"]
            if row["change_id"] < mark["lanes_from"]
        ]
        late = [row for row in seen.rows["ready"] if row["deadline"] is not None]
        wrong += [
            f"below the mark of deadlines: {row}"
            for row in late
            if _is_below(max(row["deadline"], row["eligible_at"], key=time), mark["deadlines_from"])
        ]
    return wrong


def _below(mark: str, rows: list[Row], column: str) -> list[str]:
    return [f"below the mark of {column}: {row}" for row in rows if _is_below(row[column], mark)]


def _is_below(moment: str, mark: str) -> bool:
    return mark != "-infinity" and time(moment) < time(mark)
