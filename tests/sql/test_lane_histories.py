"""Random histories of leases with limits: whatever happens, places are counted right and never exceeded."""

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token

pytestmark = pytest.mark.usefixtures("sound")

MOST, DEPTH, BURST, SHARED = 2, 4, 2, 3
RATE = {"count": 60, "per": "1 min", "burst": BURST}
LIMITS: dict[str, Row] = {
    "by_key": {"slots": MOST, "by": "key", "turn": "3 s"},
    "by_tenant": {"slots": 1, "by": "tenant"},
    "shared": {"slots": SHARED},
    "fair": {"fair": True, "by": "key", "weights": {"b": 0.5}},
    "rate": {"rate": RATE, "by": "key"},
    "pace": {"rate": RATE},
}
ALLOWED = {"by_key": MOST, "by_tenant": 1, "shared": SHARED, "fair": DEPTH, "rate": BURST, "pace": BURST}
CHAINS = [
    "by_key",
    "shared",
    "by_key shared",
    "fair",
    "fair shared",
    "rate",
    "rate shared",
    "by_key pace",
    "fair pace",
    "by_key by_tenant shared",
    "by_tenant",
    "",
]
GONE = {"QHL01", "QHL02", "QHL03", "QHL04", "QHL07", "QHM01", "QHM03", "QHN03", "QHQ01"}
PLACES = """
    select regexp_replace(r.name, '^.*-', ''), k.key, k.lane_id,
           coalesce(k.closed_until > hwqueue.clock(), false), count(*)
    from (select h.lane_id from hwqueue.lease l cross join hwqueue.held_lanes(l.lanes, l.lanes_passed) h
          where not exists (select from hwqueue.outcome o where o.lease_id = l.lease_id)
            and not exists (
              select from hwqueue.claim c where c.lease_id = l.lease_id and c.is_reserved is null)
          union all
          select i from hwqueue.claim c cross join unnest(c.lanes) i) p
    join hwqueue.lane k using (lane_id) join hwqueue.limit_rule r using (limit_id)
    where r.dropped_at is null
    group by r.name, k.lane_id
"""
STARTED = """
    select i.lane_id from hwqueue.lease l cross join unnest(l.lanes[cardinality(l.lanes) :]) i
    join hwqueue.limit_rule r using (limit_id)
    where l.lease_id = any (%s) and i.lane_id & 3 = 2 and r.dropped_at is null
"""
READY = """
    select lease_id from hwqueue.ready join hwqueue.queue using (queue_id)
    where name = any (%s) order by position limit 2
"""
LEFT = """
    select count(*) from (select from hwqueue.ready union all select from hwqueue.scheduled
                          union all select from hwqueue.claim) e
"""
IN_USE = (
    "select (select count(*) from hwqueue.lane where used <> 0) + (select count(*) from hwqueue.lane_change)"
)


class World:
    """Three queues, two nodes and limits of their own, and one random step after the other."""

    def __init__(self, api: Api, clock: Clock, seed: int) -> None:
        self.api, self.clock, self.chance, self.seed = api, clock, Random(seed), seed
        for name, spec in LIMITS.items():
            api.rows("create_limit", name=self.limit(name), spec=spec)
        self.allowed = ALLOWED.copy()
        self.slots: dict[str, int] = {}  # of tenants that have some
        self.through: dict[int, int] = {}  # how many hold a place in each lane
        self.starts: dict[int, list[datetime]] = defaultdict(list)
        self.queues = [
            api.queue(retry={"kind": "fixed", "base": 1}),
            api.queue(retain_completed="0 s"),
            api.queue(limits=[self.limit("shared")], max_attempts=1),
        ]
        self.nodes: list[Node] = [api.node(concurrency=100) for _ in range(2)]
        self.claims: list[Row] = []
        self.adopted = self.adopts = 0  # ever, and in this step

    def step(self) -> None:
        acts: dict[Callable[[], object], int] = {
            self.spawn: 16,
            self.spawn_many: 3,
            self.claim: 30,
            self.complete: 12,
            self.complete_many: 6,
            self.settle: 10,
            self.change: 14,
            self.operate: 6,
            self.pass_time: 8,
        }
        [act] = self.chance.choices(list(acts), list(acts.values()))
        act()
        if self.chance.random() < 0.5:
            self.clock.advance(timedelta(seconds=0.1))
        assert self.api.conn.execute("select * from hwqueue.broken_lanes()").fetchall() == []
        before, self.through = self.through, {}
        for name, key, lane, is_closed, count in self.api.conn.execute(PLACES).fetchall():
            allowed = 0 if is_closed else self.most(name, key)
            known = before.get(lane, self.adopted)  # a lane has no row until somebody looks at it
            assert count <= max(allowed, known) + self.adopts, (name, key, count, act)
            self.through[lane] = count
        self.adopts = 0

    def spawn(self) -> None:
        self.call("spawn_lease", queue=self.chance.choice(self.queues), task="t", options=self.options())

    def spawn_many(self) -> None:
        leases = [{"task": "t", "options": self.options()} for _ in range(self.chance.randint(2, 8))]
        self.call("spawn_leases", queue=self.chance.choice(self.queues), leases=leases)

    def claim(self) -> None:
        queues = self.chance.sample(self.queues, self.chance.randint(1, 3))
        qty = self.chance.choice([1, 1, 3, 20])
        node = self.chance.choice(self.nodes)
        claims = self.call("claim_task", queues=queues, **node.who, qty=qty)
        self.claims += claims
        for (lane,) in self.api.conn.execute(STARTED, [[row["lease_id"] for row in claims]]).fetchall():
            starts = self.starts[lane]
            starts.append(self.clock.now())
            for count, start in enumerate(reversed(starts), 1):
                assert count <= BURST + (starts[-1] - start).total_seconds() + 0.01, starts

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

    def operate(self) -> None:
        """What operators do: to limits, queues and nodes."""
        acts = [self.resize, self.close, self.pause, self.restart, self.drop_limit, self.drop_queue]
        acts += [self.change_tenant] * 2
        self.chance.choice([*acts, self.adopt, self.plan])()

    def resize(self) -> None:
        name = self.chance.choice(["by_key", "by_tenant", "shared"])
        slots = self.chance.randint(1, 4)
        if self.call("set_limit", name=self.limit(name), changes={"slots": slots}):
            self.allowed[name] = slots

    def change_tenant(self) -> None:
        """Its slots, which it may have for the first time or once more, or its row."""
        name, slots = self.chance.choice("ab"), self.chance.choice([None, 1, 2, 3])
        self.slots.pop(name, None)
        if slots is None and self.chance.random() < 0.5:
            self.call("drop_tenant", name=name)
        else:
            self.call("set_tenant", name=name, changes={"slots": slots, "weight": self.chance.choice([1, 9])})
            self.slots |= {name: slots} if slots else {}

    def close(self) -> None:
        name = self.chance.choice(list(LIMITS))
        until = {"retry_after": "3 s"} if self.chance.random() < 0.8 else {}
        key = self.chance.choice("ab") if "by" in LIMITS[name] else None
        self.call("throttle_limit", name=self.limit(name), key=key, **until)

    def pause(self) -> None:
        self.call(self.chance.choice(["pause_queue", "resume_queue"]), queue=self.chance.choice(self.queues))

    def restart(self) -> None:
        """A node comes back; what it held has ended."""
        place = self.chance.randrange(2)
        self.nodes[place] = self.api.node(self.nodes[place].node_id, instance_id=uuid4().hex, concurrency=100)

    def drop_limit(self) -> None:
        name = self.chance.choice(["by_tenant", "fair", "pace"])
        self.call("drop_limit", name=self.limit(name))

    def drop_queue(self) -> None:
        """Drop it with all that is in it, and make another one."""
        place = self.chance.randrange(2)
        self.call("drop_queue", queue=self.queues[place], force=True)
        self.queues[place] = self.api.queue()

    def adopt(self) -> None:
        """Work that runs already: it counts, and may be one more than there may be."""
        self.adopts = 1
        self.adopted += 1
        node = self.chance.choice(self.nodes).node_id
        queue = self.chance.choice(self.queues)
        self.claims += self.call("adopt_lease", queue=queue, node=node, task="t", options=self.options())

    def plan(self) -> None:
        """A planner books room for a lease that may run; whether its node comes for it in time or not."""
        epoch = self.api.value("lead_planner", holder="me", ttl="1 h")
        leases = self.api.conn.execute(READY, [self.queues]).fetchall()
        places = [{"lease": str(lease), "node": str(self.nodes[0].node_id)} for (lease,) in leases]
        if places:
            self.call("reserve_leases", places=places, hold="2 s", round=1, epoch=epoch)

    def pass_time(self) -> None:
        self.clock.advance(timedelta(seconds=self.chance.choice([0.2, 1, 1, 1, 1, 1, 5, 60])))
        self.call("reap")
        if self.chance.random() < 0.2:
            self.call("prune")

    def options(self) -> Row:
        limits = {
            self.limit(name): self.chance.choice("ab") if LIMITS[name].get("by") == "key" else None
            for name in self.chance.choice(CHAINS).split()
        }
        options: Row = {"limits": limits}
        if self.chance.random() < 0.4:
            options["tenant"] = self.chance.choice("ab")
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

    def limit(self, name: str) -> str:
        """What a limit of this world is called."""
        return f"l{self.seed}-{name}"

    def most(self, name: str, key: str) -> int:
        """How many may be through in a lane."""
        if name == "tenant slots":
            return self.slots.get(key, 10**9)
        return self.allowed[name] // (2 if (name, key) == ("fair", "b") else 1)

    def call(self, function: str, **arguments: Any) -> list[Row]:
        """A call that may find its lease, its limit or its queue gone."""
        try:
            with self.api.conn.transaction():
                return self.api.rows(function, **arguments)
        except psycopg.Error as error:
            if error.sqlstate not in GONE:
                raise
            return []

    def drain(self) -> None:
        """Whatever waits runs, without any more spawns; then nothing is left to count."""
        for queue in self.queues:
            self.call("resume_queue", queue=queue)
        for _ in range(200):
            self.clock.advance(timedelta(seconds=2))
            self.call("reap")
            self.call("prune")
            self.api.complete(*self.call("claim_task", queues=self.queues, **self.nodes[0].who, qty=100))
            if not self.api.one(LEFT):
                break
        else:
            raise AssertionError("something waits for ever")
        self.call("reap")
        assert self.api.one(IN_USE) == 0
        for queue in self.queues:
            self.call("drop_queue", queue=queue)
        for name in "ab":
            self.call("drop_tenant", name=name)
        for name in LIMITS:
            self.call("drop_limit", name=self.limit(name))
        self.clock.advance(timedelta(hours=3))
        for _ in range(3):
            self.call("prune")


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(25, 10_000, 25))]
)
def test_places_are_counted_right(api: Api, clock: Clock, first: int) -> None:
    for seed in range(first, first + 25):
        world = World(api, clock, seed)
        for _ in range(60):
            world.step()
        world.drain()
