"""When two states are the same: every row, but for what only grows or is drawn by chance.

Ids are the world's own and stay. Times become seconds from now, those long past become one; places
in line and transaction ids become their order. What is left out tells apart only how two states
came about: histories, versions, figures.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from tests.walk.seen import Row, Seen, span, time


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Tables that record what was and that no call decides by; what upkeep has looked at, and when.
LEFT_OUT = _names("""
    attempt undone_end minute_stat sample run_total traced_run
    queue_signal prune_cursor installation
    class_fleet test_clock idempotency death
""")
# Columns that count up, and times at which something was written.
_GROWS = _names("""
    version updates claim_token claim_count claim_no range_id fleet_id floor_id judged_xid
    next_after_xid
    node_epoch registered_at created_at claimed_at finished_at stop_by stop_detail moved
    blocked_to_version server_started_at storage_path error moved_xid next_constrained_class
    recovered_to drawn_before set_at set_by silent_since
""")
# Where a lease ran counts once it has completed there.
_RAN_ON = _names("node_id")
# A lease's row while its entry, its claim or its end says it.
_ELSEWHERE = _names("position available_at") | _RAN_ON
_XIDS = _names("created_xid written_xid dropped_xid")
_XID_MARKS = _names("classes_seen next_xid publish_after_xid")
_UNSEEN = _names("unseen classes_unseen")
_POSITIONS = _names("position positions safe_position drawn_position")
# Marks in time, and where else reap has come to.
_MARKS = _names("claims_from deadlines_from scheduled_from next_from")
_TURNS = _names("""
    reaped_at full_scan_at estimated_at counted_to count_next_to count_next_after_xid class_id
    watched_node watched_class judged_profile checked_lease arrivals_from steps_from
    lanes_from next_lane counted_from counted_as counted_on deliveries_from changes_from next_change
    kept_from next_arrival gangs_from replacements_from terms_from clock_steps
""")
# Of one table: how often something was tried or lost, when it is tried next says what that changes;
# and what counts up there alone.
_OF_TABLE = {
    "gang": _names("position tries losses reason"),
    "lane": _names("head"),  # where scans start; broken_lanes checks it
    "outcome": _names("assignment"),
    "reap_cursor": _TURNS,
    "everywhere": _names("swept_at"),
    "everywhere_node": _names("tries failures starts reason"),
    "choice": _names("checked_at"),
    "replacement": _names("tries reason old_token"),
    "placement_check": _names("claim_no"),
    "planner": _names("epoch round"),
    "queue_price": _names("epoch round"),
}
# Times of which only counts that they are over; and those of which it may count since when.
_SINCE = _names("""
    cordoned_at paused_at dropped_at deregistered_at published_at retired_at stopped_at
""")
_AGES = _names("eligible_at check_at expires_at")
# What nobody asks of a node that has left: when it lived, and whether it had anything to fetch.
_GONE: Row = {"seen_at": "2000-01-01T00:00:00+00:00", "has_reserved": False}
_DRAWN = 7  # the version of ids that the queue draws; the world's own are of another one
_FAR_SECONDS = 600.0  # no world looks further ahead

Key = tuple[Any, ...]
Normal = Callable[[Any], Any]


def key_of(seen: Seen, memory: float) -> Key:
    """The state, to be compared with others of the same world.

    Args:
        memory: How many seconds something may be past before it no longer matters how long.
    """
    normal = _normals(seen, memory)
    drawn = _drawn(seen)
    tables = {
        table: sorted(
            _row(table, {**row, **_told(table, row, seen, memory), **_named(row, drawn)}, normal)
            for row in rows
            if drawn.get(row.get("lease_id"), True)
        )
        for table, rows in sorted(seen.rows.items())
        if table not in LEFT_OUT
    }
    # a gang that has changed twice is looked at once
    tables["team_change"] = sorted(
        {
            f"{drawn.get(row['team_id'], row['team_id'])} {normal('retry_at', row['retry_at'])}"
            for row in seen.rows["team_change"]
        }
    )
    # what is noted of a lane is added up
    noted: Counter[int] = Counter()
    for row in seen.rows["lane_change"]:
        noted[row["lane_id"]] += row["delta"]
    tables["lane_change"] = sorted(map(repr, noted.items()))
    if seen.queue["preempt"]:  # who was not fetched within ten minutes is not tried there; where a victim was
        tables["attempt"] = sorted(
            {
                f"{row['lease_id']} {row['node_id']} {normal('ended_at', row['ended_at'])}"
                for row in seen.rows["attempt"]
                if (row["error"] or {}).get("reason") == "claim_expired" and row["outcome"] == "released"
            }
        )
        tables["lease"] += [
            f"{row['lease_id']} {normal('position', row['position'])}"
            for row in seen.rows["lease"]
            if seen.leases[UUID(row["lease_id"])].state == "claimed"
        ]
    return tuple((table, tuple(rows)) for table, rows in tables.items())


def _drawn(seen: Seen) -> dict[Any, str]:
    """Names for ids that are drawn by chance: the leases of everywhere tasks, by their nodes.

    Empty: it has ended, and another one has followed it.
    """
    names = {
        row["lease_id"]: f"{row['everywhere_id']} on {row['node_id']}" for row in seen.rows["everywhere_node"]
    }
    ended = {row["lease_id"] for row in seen.rows["outcome"]}
    return dict.fromkeys((one for one in ended if UUID(one).version == _DRAWN), "") | names


def _named(row: Row, drawn: dict[Any, str]) -> Row:
    return {column: drawn[row[column]] for column in ("lease_id", "team_id") if row.get(column) in drawn}


def _told(table: str, row: Row, seen: Seen, memory: float) -> Row:
    """What is so by a row's figures, which count up themselves: is it over, is it of that claim."""
    claims = {claim["lease_id"]: claim["claim_token"] for claim in seen.rows["claim"]}
    if table == "node_state" and UUID(row["node_id"]) not in seen.nodes:
        return _GONE
    if table == "everywhere":
        return {"is_finished": row["finished_at"] is not None}
    if table == "gang":
        reason = row["reason"]
        return {"behind": reason if reason in ("behind_earmark", "busy", "waits_for_preemption") else None}
    if table == "replacement":
        return {"is_held": claims.get(row["old_lease"]) == row["old_token"]}
    if table == "placement_check":
        token = claims.get(row["lease_id"])
        is_held = token is not None and token % 2**31 == row["claim_no"]
        broken = {one["at"]: _seconds(seen, one["since"], memory) for one in row["broken"]}
        return {"is_held": is_held, "broken": broken}
    return {}


def _row(table: str, row: Row, normal: Callable[[str, Any], Any]) -> str:
    left_out = _GROWS
    if table == "lease":
        left_out |= _ELSEWHERE
    if table == "outcome" and row["state"] != "completed":
        left_out |= _RAN_ON
    left_out |= _OF_TABLE.get(table, frozenset())
    if table == "node_state":
        until = time(row["seen_at"]) + span(row["heartbeat_timeout"])
        row = {**row, "seen_at": until.isoformat()}
    return repr([normal(name, value) for name, value in sorted(row.items()) if name not in left_out])


def _normals(seen: Seen, memory: float) -> Callable[[str, Any], Any]:
    positions = sorted(row["position"] for row in seen.rows["ready"])
    turns = sorted(row["turn"] for row in seen.rows["scheduled"] if row["turn"] is not None)
    xids = sorted({int(x) for x in _values(seen, _XIDS)})
    classes = sorted(row["class_id"] for row in seen.rows["placement_class"])
    moments = sorted(_moments(seen))

    def order(ranked: list[int], value: Any) -> Any:
        if isinstance(value, list):
            return [order(ranked, item) for item in value]
        return bisect_left(ranked, int(value))

    def normal(column: str, value: Any) -> Any:  # noqa: PLR0911
        if value is None:
            return None
        if column in _POSITIONS:
            return order(positions, value)
        if column == "turn" and isinstance(value, int):  # of a limit it is a span
            return order(turns, value)
        if column in _XIDS or column in _XID_MARKS:
            return order(xids, value)
        if column in _UNSEEN:
            return sorted(bisect_left(xids, int(x)) for x in value if int(x) in xids)
        if column.endswith(("class_id", "_class")):
            return order(classes, value)
        if column in _SINCE:
            return True
        if column in _MARKS:
            return 0 if value == "-infinity" else bisect_left(moments, time(value))
        if column.endswith(("_at", "_until", "s_by", "n_by", "deadline")) and isinstance(value, str):
            return _seconds(seen, value, memory if column in _AGES else 0)
        return value

    return normal


def _moments(seen: Seen) -> Iterator[datetime]:
    """When each entry is looked at by reap."""
    yield from (time(row["check_at"]) for row in seen.rows["claim"])
    yield from (time(row["available_at"]) for row in seen.rows["scheduled"])
    late = [row for row in seen.rows["ready"] if row["deadline"] is not None]
    yield from (max(time(row["deadline"]), time(row["eligible_at"])) for row in late)


def _values(seen: Seen, columns: Iterable[str]) -> Iterable[Any]:
    for rows in seen.rows.values():
        for row in rows:
            yield from (row[column] for column in columns if row.get(column) is not None)


def _seconds(seen: Seen, text: str, memory: float) -> float | str:
    if text.endswith("infinity"):
        return text
    left = min(max((time(text) - seen.now).total_seconds(), -memory), _FAR_SECONDS)
    return left + 0.0  # now and long past are the same: neither -0.0 nor an integer
