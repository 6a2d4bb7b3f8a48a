"""Random histories of leases with limits: whatever happens, places are counted right and never exceeded."""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token

pytestmark = pytest.mark.usefixtures("sound")

MOST, DEPTH, BURST, SHARED = 2, 4, 2, 3
RATE = {"count": 60, "per": "1 min", "burst": BURST}
LIMITS: dict[str, Row] = {
    "by_key": {"slots": MOST, "by": "key"},
    "shared": {"slots": SHARED},
    "fair": {"fair": True, "by": "key"},
    "rate": {"rate": RATE, "by": "key"},
    "pace": {"rate": RATE},
}
ALLOWED = {"by_key": MOST, "shared": SHARED, "fair": DEPTH, "rate": BURST, "pace": BURST}
CHAINS = [
    "by_key",
    "shared",
    "by_key shared",
    "fair",
    "fair shared",
    "rate",
    "rate shared",
    "by_key pace",
    "",
]
GONE = {"QHL01", "QHL02", "QHL03", "QHL04", "QHL07"}
PLACES = """
    select split_part(r.name, '-', 2), k.key, count(*)
    from (select h.lane_id from hwqueue.lease l cross join hwqueue.held_lanes(l.lanes, l.lanes_passed) h
          where not exists (select from hwqueue.outcome o where o.lease_id = l.lease_id)
            and not exists (select from hwqueue.claim c where c.lease_id = l.lease_id)
          union all
          select i from hwqueue.claim c cross join unnest(c.lanes) i) p
    join hwqueue.lane k using (lane_id) join hwqueue.limit_rule r using (limit_id)
    group by r.name, k.lane_id
"""
LEFT = """
    select count(*) from (select from hwqueue.ready union all select from hwqueue.scheduled
                          union all select from hwqueue.claim) e
"""


class World:
    """Two queues and nodes, limits of their own, and one random step after the other."""

    def __init__(self, api: Api, clock: Clock, seed: int) -> None:
        self.api, self.clock, self.chance, self.seed = api, clock, Random(seed), seed
        for name, spec in LIMITS.items():
            api.rows("create_limit", name=f"l{seed}-{name}", spec=spec)
        self.queues = [api.queue(retry={"kind": "fixed", "base": 1}), api.queue(retain_completed="0 s")]
        self.nodes: list[Node] = [api.node(concurrency=100) for _ in range(2)]
        self.claims: list[Row] = []

    def step(self) -> None:
        acts: dict[Callable[[], object], int] = {
            self.spawn: 16,
            self.spawn_many: 3,
            self.claim: 30,
            self.complete: 12,
            self.complete_many: 6,
            self.settle: 10,
            self.change: 14,
            self.pass_time: 8,
        }
        self.chance.choices(list(acts), list(acts.values()))[0]()
        if self.chance.random() < 0.5:
            self.clock.advance(timedelta(seconds=0.1))
        assert self.api.conn.execute("select * from hwqueue.broken_lanes()").fetchall() == []
        for name, key, count in self.api.conn.execute(PLACES).fetchall():
            assert count <= ALLOWED[name], (name, key, count)

    def spawn(self) -> None:
        self.call("spawn_lease", queue=self.chance.choice(self.queues), task="t", options=self.options())

    def spawn_many(self) -> None:
        leases = [{"task": "t", "options": self.options()} for _ in range(self.chance.randint(2, 8))]
        self.call("spawn_leases", queue=self.chance.choice(self.queues), leases=leases)

    def claim(self) -> None:
        queues = self.chance.sample(self.queues, self.chance.randint(1, 2))
        qty = self.chance.choice([1, 1, 3, 20])
        node = self.chance.choice(self.nodes)
        self.claims += self.call("claim_task", queues=queues, **node.who, qty=qty)

    def complete(self) -> None:
        for claim in self.taken(1):
            self.call("complete_lease", **token(claim))

    def complete_many(self) -> None:
        claims = self.taken(5)
        leases = [row["lease_id"] for row in claims]
        self.call("complete_leases", lease_ids=leases, tokens=[row["claim_token"] for row in claims])

    def settle(self) -> None:
        how: Row = self.chance.choice([{"error": {}}, {"error": {}, "retry": False}, {}, {"delay": "3 s"}])
        for claim in self.taken(1):
            self.call("fail_lease" if "error" in how else "release_lease", **token(claim), **how)

    def change(self) -> None:
        """Cancel, requeue or update some lease."""
        rows = self.api.conn.execute(
            "select lease_id from hwqueue.lease join hwqueue.queue using (queue_id)"
            " where name = any (%s) order by 1",
            [self.queues],
        ).fetchall()
        soon = (self.clock.now() + timedelta(seconds=self.chance.choice([-1, 2, 10]))).isoformat()
        changes: Row = self.chance.choice(
            [{"priority": 3}, {"queue": self.chance.choice(self.queues)}, {"available_at": soon}]
        )
        act = self.chance.choice(["cancel_lease", "requeue_lease", "update_lease"])
        if rows:
            more = {"changes": changes} if act == "update_lease" else {}
            self.call(act, lease=self.chance.choice(rows)[0], **more)

    def pass_time(self) -> None:
        self.clock.advance(timedelta(seconds=self.chance.choice([0.2, 1, 1, 1, 1, 1, 5, 60])))
        self.call("reap")

    def options(self) -> Row:
        limits = {
            f"l{self.seed}-{name}": self.chance.choice("ab") if "by" in LIMITS[name] else None
            for name in self.chance.choice(CHAINS).split()
        }
        options: Row = {"limits": limits}
        if self.chance.random() < 0.2:
            options["delay"] = "2 s"
        if self.chance.random() < 0.1:
            options["deadline"] = (self.clock.now() + timedelta(seconds=4)).isoformat()
        return options

    def taken(self, count: int) -> list[Row]:
        """Some of the claims, which are the caller's now."""
        self.chance.shuffle(self.claims)
        taken, self.claims = self.claims[:count], self.claims[count:]
        return taken

    def call(self, function: str, **arguments: Any) -> list[Row]:
        """A call that may find its lease gone."""
        try:
            with self.api.conn.transaction():
                return self.api.rows(function, **arguments)
        except psycopg.Error as error:
            if error.sqlstate not in GONE:
                raise
            return []

    def drain(self) -> None:
        """Whatever waits runs, without any more spawns."""
        for _ in range(200):
            self.clock.advance(timedelta(seconds=2))
            self.call("reap")
            self.api.complete(*self.call("claim_task", queues=self.queues, **self.nodes[0].who, qty=100))
            if not self.api.one(LEFT):
                return
        raise AssertionError("something waits for ever")


def test_places_are_counted_right(api: Api, clock: Clock) -> None:
    for seed in range(8):
        world = World(api, clock, seed)
        for _ in range(60):
            world.step()
        world.drain()
