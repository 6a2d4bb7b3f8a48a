"""What claims go by to be quick never tells otherwise than a close look at everything.

That is what they remember of the fleet for max_skew, and the look at all classes at once that finds
those which are blocked.

Two sessions do at random whatever moves a count or a place, often in transactions that stay open;
after every step both are asked about every class on every node, and so are the nodes themselves.
"""

import os
from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pytest

from hwqueue.testing import Clock, install_clock
from tests.calls import Row
from tests.direct import Direct
from tests.properties.strategies import IDS

QUEUE = "quick"
SEED = int(os.environ.get("HWQUEUE_STORM_SEED", "0"))
STEPS = int(os.environ.get("HWQUEUE_QUICK_STEPS", "120"))
SSD = {"label": "disk", "op": "in", "values": ["ssd"]}
_Y = {"leases": {"labels": {"app": "y"}}}
# Leases that others ask for by id.
NAMED = [str(uuid5(IDS, f"quick-named-{n}")) for n in range(6)]
PLACEMENTS: list[dict[str, Any]] = [
    {"require": [_Y | {"domain": "rack", "away": True}]},
    {"require": [_Y | {"domain": "label:zone"}]},
    {"spread": [{"domain": "rack", "max_per_domain": 1, "select": {"labels": {"app": "x"}}}]},
    {"spread": [{"domain": "rack", "max_skew": 1, "select": {"labels": {"app": "x"}}}]},
    {"spread": [{"domain": "node", "max_skew": 1, "select": {"labels": {"app": "x"}}}]},
    {
        "require": [SSD],
        "spread": [
            {"domain": "label:zone", "max_skew": 1, "select": {"labels": {"app": "x"}}},
            {"domain": "rack", "max_skew": 2, "select": {"labels": {"app": "y"}}},
        ],
    },
    {
        "require": [SSD],
        "spread": [
            {
                "domain": "rack",
                "max_skew": 1,
                "min_domains": 3,
                "select": {"labels": {"app": "y"}},
                "count_nodes": {"affinity": "ignore"},
            }
        ],
    },
    {},
    *({"require": [{"lease": named, "domain": "rack"}]} for named in NAMED[:3]),
    *({"require": [{"lease": named, "domain": "label:zone", "away": True}]} for named in NAMED[3:]),
]
NODES = 8
_COMPARED = """
  with counted as materialized (
    select c.class_id, c, s.value, t.now,
           hwqueue.spread_counts(s.value, c, null, t.now) as counts
    from (select hwqueue.clock() as now) t
    cross join hwqueue.placement_class c
    cross join lateral jsonb_array_elements(c.spread) s
    where s.value ? 'max_skew'
  )
  select k.class_id, n.name, k.value,
         hwqueue.spread_reason(k.value, k.c, f.facts, null, k.now) as known,
         hwqueue.spread_reason(k.value, k.c, f.facts, k.counts, k.now) as found
  from counted k
  cross join hwqueue.node n
  join hwqueue.node_state l on l.node_id = n.node_id
  cross join lateral (select hwqueue.term_facts(k.c, n, k.now) as facts offset 0) f
  where n.deregistered_at is null and hwqueue.is_live(n, l, k.now) and not f.facts @> '[null]'
    and hwqueue.expr_reason((k.c).required, n.labels, n.rack, n.node_id, '{}', null) is null
"""
_BLOCKED = """
  select b.class_id, n.name
  from (select hwqueue.clock() as now) t
  cross join hwqueue.node n
  join hwqueue.node_state l on l.node_id = n.node_id
  cross join lateral hwqueue.blocked_classes(
    array(select class_id from hwqueue.placement_class), n, t.now) f0
  cross join lateral unnest(f0.blocked) b(class_id)
  join hwqueue.placement_class c on c.class_id = b.class_id
  cross join lateral (select hwqueue.term_facts(c, n, t.now) as facts offset 0) f
  where n.deregistered_at is null and hwqueue.is_live(n, l, t.now)
    and hwqueue.terms_reason(c, null, n, f.facts, true, true, t.now) is null
"""
_CLASSES = "select class_id from hwqueue.placement_class where spread <> '[]'"


class Half:
    """A session that works on every second node."""

    def __init__(self, dsn: str, number: int, choose: Random, clock: Clock) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=2s")
        self.direct = Direct(self.conn)
        self.choose, self.clock = choose, clock
        self.nodes = [uuid5(IDS, f"quick-{n}") for n in range(number, NODES, 2)]
        self.claims: list[Row] = []
        for node in self.nodes:
            self.register(node)

    def step(self) -> None:
        """One call, in a transaction that ends now, later, or never happened."""
        if self.conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            if self.choose.random() < 0.3:
                self.conn.execute("begin")
        elif self.choose.random() < 0.4:
            self.conn.execute(self.choose.choices(["commit", "rollback"], [3, 1])[0])
        kinds = {
            self.spawn: 5,
            self.claim: 14,
            self.end: 6,
            self.cancel: 1,
            self.pass_time: 2,
            self.beat: 4,
            self.move: 1,
            self.leave: 0.5,
            self.look: 4,
            self.upkeep: 2,
        }
        self.choose.choices(list(kinds), list(kinds.values()))[0]()

    def register(self, node: UUID) -> None:
        labels = self.choose.choice(
            [{"zone": "a", "disk": "ssd"}, {"zone": "b", "disk": "ssd"}, {"zone": "a"}, {}]
        )
        spec = {"name": str(node), "instance_id": "first", "labels": labels}
        self.direct.register(node, spec | {"rack": self.choose.randrange(4)})

    def epoch(self, node: UUID) -> int:
        """What it is by now: a registration may have been rolled back."""
        [(number,)] = self.conn.execute(
            "select node_epoch from hwqueue.node_state where node_id = %s", [node]
        ).fetchall()
        return int(number)

    def spawn(self) -> None:
        labels = {"app": self.choose.choice("xy")}
        one = {"labels": labels, "placement": self.choose.choice(PLACEMENTS)}
        self.direct.spawn_many(QUEUE, [one] * self.choose.choice([1, 4]))

    def claim(self) -> None:
        node = self.choose.choice(self.nodes)
        self.claims += self.direct.claim(QUEUE, node, self.epoch(node))

    def end(self) -> None:
        if self.claims:
            done = self.claims.pop(self.choose.randrange(len(self.claims)))
            self.direct.complete_many([done])  # what is lost by now is no matter

    def cancel(self) -> None:
        if self.claims:
            lease = self.choose.choice(self.claims)["lease_id"]
            known = self.conn.execute("select from hwqueue.claim where lease_id = %s", [lease]).fetchone()
            if known is not None:
                self.direct.cancel(lease)

    def pass_time(self) -> None:
        self.clock.advance(timedelta(seconds=self.choose.choice([1, 10, 20])))

    def beat(self) -> None:
        for node in self.choose.sample(self.nodes, 2):
            self.direct.heartbeat(node, self.epoch(node), self.claims)

    def move(self) -> None:
        self.register(self.choose.choice(self.nodes))

    def leave(self) -> None:
        node = self.choose.choice(self.nodes)
        known = self.conn.execute(
            "select from hwqueue.node where node_id = %s and deregistered_at is null", [node]
        ).fetchone()
        if known is not None:
            self.direct.deregister(node)
        self.register(node)

    def look(self) -> None:
        for (one,) in self.conn.execute(_CLASSES).fetchall():
            self.conn.execute("select hwqueue.refresh_fleet_cache(%s, hwqueue.clock())", [one])

    def upkeep(self) -> None:
        self.direct.reap()
        if self.choose.random() < 0.3:
            self.conn.execute("select hwqueue.prune()")


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(SEED + n, marks=pytest.mark.slow) for n in (1, 2))])
def test_it_agrees(conn: psycopg.Connection, dsn: str, seed: int) -> None:
    """A reason that is remembered is the reason that is found."""
    choose, clock, seen = Random(seed), install_clock(conn), Counter[Any]()
    clock.freeze()  # a seed's steps, and what they draw, are the same on a slow machine
    Direct(conn).create_queue(QUEUE, {"claim_timeout": 30, "tuning": {"notify": False}})
    for named in NAMED:
        Direct(conn).spawn(QUEUE, {"lease_id": named})
    # Drawn alone, a spread may come late in a run, or never.
    every = [{"labels": {"app": "x"}, "placement": one} for one in PLACEMENTS]
    Direct(conn).spawn_many(QUEUE, every)
    halves = [Half(dsn, number, choose, clock) for number in range(2)]
    try:
        for step in range(STEPS):
            half = choose.choice(halves)
            try:
                half.step()
            except psycopg.DatabaseError as error:  # held by the other, or gone with a rollback
                if error.sqlstate != "55P03" and not str(error.sqlstate).startswith("QH"):
                    raise
                half.conn.execute("rollback")
            for class_id, node, spread, known, found in conn.execute(_COMPARED):
                seen[known] += 1
                assert known in (found, "cache_miss"), (
                    f"seed {seed}, step {step}: class {class_id} on {node}: {spread}"
                )
            wrongly = conn.execute(_BLOCKED).fetchall()
            assert wrongly == [], f"seed {seed}, step {step}: not blocked"
    finally:
        for half in halves:
            half.conn.close()
    assert min(seen[None], seen["spread_exceeded"], seen["cache_miss"]) > 0, seen
