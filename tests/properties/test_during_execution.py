"""Requirements during execution: after each edit a lease may run on, or not, as the oracle says."""

from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.oracle.cluster import Cluster, Lease, Running
from tests.oracle.facts import Node
from tests.oracle.occupancy import still_holds
from tests.properties.test_occupancy import lease_of
from tests.sql.api import Api
from tests.sql.api import Node as Registered

QUEUE = "lasting-{}"
GRACE = timedelta(seconds=60)
HOLDERS = 3
_examples = count()

zones = st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])
specs = st.fixed_dictionaries({"labels": zones}, optional={"rack": st.sampled_from([0, 1])})
apps = st.sampled_from([{"app": "x"}, {"app": "y"}])
domains = st.sampled_from(["node", "rack", "label:zone"])
ways = st.fixed_dictionaries(
    {}, optional={"away": st.just(True), "unknown": st.sampled_from(["pass", "fail"])}
)
# the number of a lease stands for its id
others = st.one_of(
    st.builds(lambda labels, d: {"leases": {"labels": labels}, "domain": d}, apps, domains),
    st.builds(lambda number, d: {"lease": number, "domain": d}, st.integers(0, 2), domains),
)
exprs = st.one_of(
    st.builds(lambda term, way: term | way, others, ways),
    st.sampled_from([{"label": "zone", "op": "in", "values": ["a"]}, {"rack": [0]}]),
)
required = st.one_of(
    exprs,
    st.lists(st.lists(exprs, min_size=1, max_size=2), min_size=2, max_size=2).map(
        lambda branches: {"any": branches}
    ),
)
edits = st.one_of(
    st.tuples(st.just("register"), st.integers(0, 1), specs),
    st.tuples(st.sampled_from(["complete", "fail", "cancel"]), st.integers(0, 2), st.none()),
)


# all examples share a database, and each leaves terms behind
@settings(max_examples=min(10, settings().max_examples), deadline=None)
@given(
    fleet=st.tuples(
        st.lists(specs, min_size=2, max_size=2),
        st.lists(st.tuples(st.integers(0, 1), apps), min_size=HOLDERS, max_size=HOLDERS),
    ),
    asked=st.tuples(required, apps),
    changes=st.lists(edits, min_size=1, max_size=4),
)
def test_a_running_lease_stays_as_long_as_the_oracle_lets_it(
    conn: psycopg.Connection,
    clock: Clock,
    fleet: tuple[list[dict[str, Any]], list[tuple[int, dict[str, str]]]],
    asked: tuple[dict[str, Any], dict[str, str]],
    changes: list[tuple[str, int, Any]],
) -> None:
    clock.freeze()
    world = World(conn, *fleet)
    try:
        world.adopt_lasting(*asked)
        world.direct.settle_terms()
        world.check()
        for kind, number, spec in changes:
            world.edit(kind, number, spec)
            clock.advance(timedelta(seconds=1))
            world.direct.reap()
            world.check()
    finally:
        world.close()


class World:
    """Two nodes, three leases that run there, and one that may have to leave."""

    def __init__(
        self, conn: psycopg.Connection, specs: list[dict[str, Any]], there: list[tuple[int, dict[str, str]]]
    ) -> None:
        self.api, self.direct = Api(conn), Direct(conn)
        self.queue = QUEUE.format(next(_examples))
        self.direct.create_queue(self.queue)
        self.nodes: list[Registered] = [self.api.node(**spec) for spec in specs]
        facts = {
            node.node_id: Node.from_spec(node.node_id, spec)
            for node, spec in zip(self.nodes, specs, strict=True)
        }
        self.claims = [
            self.direct.adopt(self.queue, self.nodes[place].node_id, {"labels": labels})
            for place, labels in there
        ]
        running = tuple(
            Running(lease_of(claim["lease_id"], {"labels": labels}), self.nodes[place].node_id)
            for claim, (place, labels) in zip(self.claims, there, strict=True)
        )
        self.cluster = Cluster(facts, running)
        self.lease: Lease
        self.expr: dict[str, Any]

    def adopt_lasting(self, expr: dict[str, Any], labels: dict[str, str]) -> None:
        """Have the lease run on the first node, whether it may or not."""
        self.expr = self._with_ids(expr)
        lasting = self.expr | {"during": "execution", "grace": GRACE.total_seconds()}
        options = {"labels": labels, "placement": {"require": [lasting]}}
        row = self.direct.adopt(self.queue, self.nodes[0].node_id, options)
        self.lease = lease_of(row["lease_id"], {**options, "placement": {"require": [self.expr]}})

    def _with_ids(self, expr: Any) -> Any:
        if isinstance(expr, list):
            return [self._with_ids(part) for part in expr]
        if "any" in expr:
            return {"any": self._with_ids(expr["any"])}
        if "lease" in expr:
            return expr | {"lease": str(self.claims[expr["lease"]]["lease_id"])}
        return expr

    def edit(self, kind: str, number: int, spec: Any) -> None:
        """Register a node as another, or end a lease."""
        if kind == "register":
            node = self.nodes[number]
            self.api.node(node.node_id, name=node.name, **spec)
            facts = {**self.cluster.nodes, node.node_id: Node.from_spec(node.node_id, spec)}
            self.cluster = replace(self.cluster, nodes=facts)
            return
        claim = self.claims[number]
        found = [one for one in self.cluster.running if one.lease.lease_id == claim["lease_id"]]
        if not found:
            return
        [ended] = found
        left = tuple(one for one in self.cluster.running if one is not ended)
        succeeded: dict[UUID, UUID] = dict(self.cluster.succeeded)
        if kind == "complete":
            self.direct.complete(claim["lease_id"], claim["claim_token"])
            succeeded[ended.lease.lease_id] = ended.node_id
        elif kind == "fail":
            self.direct.fail(claim["lease_id"], claim["claim_token"], retry=False)
        else:
            self.direct.cancel(claim["lease_id"])
            left = (*left, replace(ended, is_leaving=True))
        self.cluster = replace(self.cluster, running=left, succeeded=succeeded)

    def check(self) -> None:
        """Compare: the lease is to stop, in a minute, or it is not."""
        node = self.cluster.nodes[self.nodes[0].node_id]
        may_stay = still_holds(self.expr, self.lease, node, self.cluster)
        event("may stay" if may_stay else "has to leave")
        found = self.direct.conn.execute(
            "select stop_reason from hwqueue.claim where lease_id = %s", [self.lease.lease_id]
        ).fetchone()
        assert found == ((None,) if may_stay else ("placement_broken",))

    def close(self) -> None:
        """Leave nothing behind that another example would count."""
        self.direct.drop_queue(self.queue)
        for node in self.nodes:
            self.direct.deregister(node.node_id)
