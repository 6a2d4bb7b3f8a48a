"""What one snapshot of a storm shows: the oracle's verdict, and that of verify_invariants.

Rules about who runs where hold between edits of nodes: whoever ran there already stays. So what has
been decided is kept beside the queue's tables: each claim with the snapshot that its transaction
began with, each node with the transaction that moved it last. What is broken is excused only if
such a move was seen by none of the claims that take part.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tests.oracle.cluster import Cluster
from tests.oracle.isolation import IsolatingNode, core_use, device_use, misgiven
from tests.oracle.occupancy import Broken, Rule, broken_now
from tests.oracle.tables import cluster_of
from tests.properties.storm_work import KNOWN_SERVICES

Conn = psycopg.Connection[Any]
Specs = Mapping[UUID, Mapping[str, Any]]
Row = dict[str, Any]

ASSIGNED = """
  select c.lease_id, c.assignment, c.is_earmark, s.was_reserved, p.placement, o.tier, o.rank
  from hwqueue.claim c
  join storm.claim s on s.lease_id = c.lease_id
  join hwqueue.placement_class p on p.class_id = c.class_id
  cross join lateral (
    select l.tier, l.rank from hwqueue.lease l
    left join hwqueue.replacement r on r.lease_id = c.lease_id and c.is_earmark
    where l.lease_id in (c.lease_id, r.old_lease) order by l.tier, l.rank limit 1) o
  where c.node_id = %s
"""
_NOTES = """
create schema storm;
create table storm.claim (
  lease_id uuid primary key, seen pg_snapshot not null, was_reserved boolean not null
);
create table storm.move (node_id uuid primary key, xid xid8 not null);

create function storm.note_claim() returns trigger language plpgsql security definer as $$
begin
  insert into storm.claim
  values (new.lease_id, current_setting('storm.seen')::pg_snapshot, new.is_reserved is true)
  on conflict (lease_id) do update set seen = excluded.seen, was_reserved = excluded.was_reserved;
  return null;
end $$;
create trigger storm after insert on hwqueue.claim
for each row execute function storm.note_claim();

create function storm.note_move() returns trigger language plpgsql security definer as $$
begin
  insert into storm.move values (new.node_id, pg_current_xact_id())
  on conflict (node_id) do update set xid = excluded.xid;
  return null;
end $$;
create trigger storm_new after insert on hwqueue.node
for each row execute function storm.note_move();
create trigger storm_moved after update on hwqueue.node for each row
when ((old.labels, old.rack, old.deregistered_at)
      is distinct from (new.labels, new.rack, new.deregistered_at))
execute function storm.note_move();
"""
_CLAIMS = """
  select c.lease_id, c.node_id, c.assignment, c.stop_requested_at, c.is_earmark, p.placement
  from hwqueue.claim c
  join hwqueue.placement_class p on p.class_id = c.class_id
"""
# More run than a limit lets, in a lane that somebody has counted.
_CROWDED = """
  select r.name, k.key, count(*) as places, r.most
  from hwqueue.claim c cross join unnest(c.lanes) i
  join hwqueue.lane k on k.lane_id = i
  join hwqueue.limit_rule r using (limit_id)
  group by k.lane_id, r.limit_id having count(*) > r.most
"""
# Who claims in the same transaction as a move has made it, and sees it.
_UNSEEN = """
  select c.lease_id from storm.claim s
  join hwqueue.claim c on c.lease_id = s.lease_id
  join storm.move m on m.node_id = %s
  where not pg_visible_in_snapshot(m.xid, s.seen)
"""
_LOADS = """
  select distinct on (u.node_id) u.* from hwqueue.node_load u order by u.node_id, u.version desc
"""


@dataclass(frozen=True)
class Seen:
    """One instant: who runs where, what was given to whom, and what verify_invariants found."""

    cluster: Cluster
    claims: list[Row]
    loads: dict[UUID, Row]
    unseen: dict[UUID, set[UUID]]  # by node: claims that do not know of its last move
    verified: list[Row]
    crowded: list[Row]


def install_notes(conn: Conn) -> None:
    """Have claims and moves noted from now on."""
    conn.execute(_NOTES)


def stamp(conn: Conn) -> None:
    """Note what the next transaction of this session will have seen at the least."""
    conn.execute("select set_config('storm.seen', pg_current_snapshot()::text, false)")


@contextmanager
def snapshot(conn: Conn) -> Iterator[None]:
    """A transaction that sees one instant."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read, read only")
        yield


def look(conn: Conn, *, verify: bool = True) -> Seen:
    """Read everything in one snapshot."""
    with snapshot(conn), conn.cursor(row_factory=dict_row) as cursor:
        now = cursor.execute("select hwqueue.clock() as now").fetchone()
        assert now is not None
        cluster = cluster_of(conn, now["now"], KNOWN_SERVICES)
        claims = cursor.execute(_CLAIMS).fetchall()
        loads = {row["node_id"]: row for row in cursor.execute(_LOADS)}
        unseen = {
            node: {row["lease_id"] for row in cursor.execute(_UNSEEN, [node])} for node in cluster.nodes
        }
        query = "select rule, subject, detail from hwqueue.verify_invariants()"
        verified = cursor.execute(query).fetchall() if verify else []
        crowded = cursor.execute(_CROWDED).fetchall()
    # Expired claims count for max_per_domain: a heartbeat may bring them back. Earmarks do not run.
    stopped = {row["lease_id"] for row in claims if row["stop_requested_at"] is not None}
    earmarks = {row["lease_id"] for row in claims if row["is_earmark"]}
    running = tuple(
        replace(claim, is_leaving=claim.lease.lease_id in stopped)
        for claim in cluster.running
        if claim.lease.lease_id not in earmarks
    )
    return Seen(replace(cluster, running=running), claims, loads, unseen, verified, crowded)


def faults(seen: Seen, specs: Specs, *, verify: bool = True) -> list[str]:
    """Every promise that is broken at that instant."""
    broken = broken_now(seen.cluster)
    wrong = [f"{item}" for item in broken if not _is_excused(item, seen)]
    wrong += _overcommitted(seen, specs)
    wrong += [f"more than a limit lets: {row}" for row in seen.crowded]
    return wrong + (_disagreements(broken, seen) if verify else [])


def misgrant(mine: Row, others: Sequence[Row], spec: Mapping[str, Any]) -> list[str]:
    """What is wrong with the room that a claim was just given on its node."""
    node, wrong = IsolatingNode.from_spec(spec), []
    for some in _beside(mine, others):
        held = [row["assignment"] or {} for row in some]
        faults = misgiven(mine["placement"], node, held, mine["assignment"] or {})
        if not faults:
            return []
        wrong += [f"{fault} of {mine} beside {held}" for fault in faults]
    return wrong


def _beside(mine: Row, others: Sequence[Row]) -> list[Sequence[Row]]:
    """What a claim may have been granted beside: all earmarks, or all but those that it passed.

    It passes those that come after it in order, from one of them on.
    """
    passed = {_place(row) for row in others if row["is_earmark"] and _place(row) > _place(mine)}
    return [others] + [
        [row for row in others if not row["is_earmark"] or _place(row) < place] for place in sorted(passed)
    ]


def _place(row: Row) -> tuple[int, int]:
    return row["tier"], row["rank"]


def _is_excused(item: Broken, seen: Seen) -> bool:
    nodes = {c.node_id for c in seen.cluster.running if c.lease.lease_id in item.among}
    return any(item.among <= seen.unseen.get(node, set()) for node in nodes)


def _disagreements(broken: Iterable[Broken], seen: Seen) -> list[str]:
    """Where verify_invariants finds more than the oracle, or less."""
    pairs = {
        (item.lease_id, other)
        for item in broken
        if item.rule == Rule.AWAY
        for other in item.among - {item.lease_id}
    }
    crowds = {str(min(map(str, item.among))) for item in broken if item.rule != Rule.AWAY}
    found = {
        (UUID(row["subject"]), UUID(row["detail"]["from"])) for row in seen.verified if row["rule"] == "away"
    }
    crowded = {row["subject"] for row in seen.verified if row["rule"] == "max_per_domain"}
    others = [row for row in seen.verified if row["rule"] not in ("away", "max_per_domain")]
    wrong = [f"verify_invariants: {row}" for row in others]
    if pairs != found:
        wrong.append(f"away: the oracle finds {pairs}, verify_invariants {found}")
    if crowds != crowded:
        wrong.append(f"max_per_domain: the oracle finds {crowds}, verify_invariants {crowded}")
    return wrong


def _overcommitted(seen: Seen, specs: Specs) -> list[str]:
    """Nodes that have given more than they have, or whose usage is not what they have given.

    An earmark may be on what others still use, so that only the usage counts it.
    """
    wrong = []
    for node_id, spec in specs.items():
        on_node = [row for row in seen.claims if row["node_id"] == node_id]
        here = [row for row in on_node if not row["is_earmark"]]
        given = [row["assignment"] or {} for row in here]
        facts = IsolatingNode.from_spec(spec)
        pinned = core_use(facts, [one for one in given if "cores" in one])
        devices = device_use(facts, given)
        if max([0, *pinned, *devices]) > 1000:
            wrong.append(f"node {spec['name']}: {pinned} of cores, {devices} of devices are taken")
        for key in ("cpu_milli", "memory_mib", "license"):
            used = sum(_amount(one, key) for one in given)
            if used > spec["capacity"].get(key, used if key != "license" else 0):
                wrong.append(f"node {spec['name']}: {used} {key} are taken")
        if len(here) > spec.get("slots", len(here)):
            wrong.append(f"node {spec['name']}: {len(here)} leases in {spec['slots']} slots")
        wrong += [
            f"lease {row['lease_id']} was given {row['assignment']} for {row['placement']}"
            for row in on_node
            if not _is_given(row, facts)
        ]
        if node_id in seen.loads:
            load = seen.loads[node_id]
            held = [row["assignment"] or {} for row in on_node]
            cores, devices = core_use(facts, held), device_use(facts, held)
            if (load["core_used"], load["gpu_used"]) != (cores, devices):
                wrong.append(f"node {spec['name']} keeps {load}, it is {cores} and {devices}")
    return wrong


def _amount(given: Row, key: str) -> int:
    amounts = (given.get("custom") or {}) if key == "license" else given
    return int(amounts.get(key, 0))


def _is_given(row: Row, node: IsolatingNode) -> bool:
    """Whether the claim has the amounts and the devices that it asked for."""
    asked, given = row["placement"].get("resources", {}), row["assignment"] or {}
    counted: dict[str, Callable[[], bool]] = {
        "cpu_milli": lambda: node.cpu_milli is None or given.get("cpu_milli", 0) >= asked["cpu_milli"],
        "gpu": lambda: len(given.get("gpus", ())) == asked["gpu"] and given["gpu_milli"] == 1000,
        "gpu_milli": lambda: len(given.get("gpus", ())) == 1 and given["gpu_milli"] == asked["gpu_milli"],
        "license": lambda: _amount(given, "license") == asked["license"],
    }
    return all(holds() for key, holds in counted.items() if key in asked)
