"""Rules about who runs where: claim_task, match_nodes, explain_lease and the oracle agree."""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.calls import TASK, Row
from tests.direct import Direct
from tests.oracle.cluster import Cluster, Lease, Running
from tests.oracle.facts import Node
from tests.oracle.occupancy import may_run, preference
from tests.properties.cluster import CONTRADICTORY, ONLY_AFFINITY, apart
from tests.properties.strategies import IDS, NODE_IDS

QUEUE = "example"
ZONE, RACK = "label:zone", "rack"
SERVICES = tuple(str(uuid5(IDS, f"service-{number}")) for number in range(2))
LEASES = tuple(str(uuid5(IDS, f"lease-{number}")) for number in range(4))

# Nodes whose facts are others when they are read for the whole fleet.
FACTS = """
  select n.node_id
  from hwqueue.lease l
  join hwqueue.placement_class c on c.class_id = l.class_id
  cross join lateral hwqueue.recount_terms(c, l.lease_id, clock_timestamp()) known
  join hwqueue.node n on n.deregistered_at is null
  left join lateral hwqueue.fleet_facts(c, known, clock_timestamp()) f on f.node_id = n.node_id
  cross join lateral hwqueue.term_facts(c, n, clock_timestamp()) read
  where l.lease_id = %s and coalesce(f.facts, '[]') <> read and hwqueue.terms_reason(
    c, l.lease_id, n, read, false, false, clock_timestamp()) is distinct from 'unpublished'
"""

Options = dict[str, Any]
_examples = count()


def some(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Options]:
    """A dictionary that has each of the parts or not."""
    return st.fixed_dictionaries({}, optional=parts)


specs = st.lists(
    st.builds(
        lambda labels, rack: {"labels": labels} | ({} if rack is None else {"rack": rack}),
        some(zone=st.sampled_from(["a", "b"])),
        st.sampled_from([None, 0, 1]),
    ),
    min_size=1,
    max_size=4,
)
apps = st.sampled_from(["x", "y"])
selectors: st.SearchStrategy[Options] = st.one_of(
    st.just({"labels": {}}),
    apps.map(lambda app: {"labels": {"app": app}}),
    apps.map(lambda app: {"exprs": [{"label": "app", "op": "not_in", "values": [app]}]}),
    st.just({"exprs": [{"label": "tier", "op": "exists"}]}),
    st.just({"same": "task"}),
)
domains = st.sampled_from(["node", RACK, ZONE])
ways = some(away=st.just(True), unknown=st.sampled_from(["pass", "fail"]))
tenants = st.sampled_from(["*", ["", "t"], ["t"]])
terms = st.one_of(
    st.builds(
        lambda selector, domain, more: {"leases": selector, "domain": domain, **more},
        selectors,
        domains,
        some(away=st.just(True), unknown=st.sampled_from(["pass", "fail"]), tenants=tenants),
    ),
    st.builds(lambda one, more: {"service": one, **more}, st.sampled_from(SERVICES), ways),
    st.builds(
        lambda one, domain, more: {"service": one, "domain": domain, **more},
        st.sampled_from(SERVICES),
        domains,
        ways,
    ),
    st.builds(
        lambda one, domain, more: {"lease": one, "domain": domain, **more},
        st.sampled_from(LEASES),
        domains,
        ways,
    ),
    st.just({"label": "zone", "op": "in", "values": ["a"]}),
)
spreads = st.one_of(
    st.builds(
        lambda domain, skew, selector, more: {"domain": domain, "max_skew": skew, "select": selector, **more},
        domains,
        st.integers(1, 2),
        selectors,
        some(min_domains=st.just(2), count_nodes=st.just({"affinity": "ignore"})),
    ),
    st.builds(
        lambda domain, most, selector: {"domain": domain, "max_per_domain": most, "select": selector},
        domains,
        st.integers(1, 2),
        selectors,
    ),
)
preferences = st.builds(
    lambda weight, when: {"weight": weight, "when": when}, st.sampled_from([-3, 1, 2]), terms
)
identities = {
    "labels": some(app=apps, tier=st.just("1")),
    "tenant": st.just("t"),
    "service_id": st.sampled_from(SERVICES),
}
newcomers = some(
    **identities,
    placement=some(
        require=st.lists(terms, max_size=3),
        spread=st.lists(spreads, max_size=2),
        prefer=st.lists(preferences, max_size=2),
        strength=st.sampled_from([3, 40]),
    ),
)
holders = some(**identities, placement=some(require=st.lists(terms, max_size=2)))
places = st.integers(0, 3)
runs = st.lists(st.tuples(places, holders, st.booleans()), max_size=4).map(
    lambda drawn: [
        (place, {**options, "lease_id": lease}, is_leaving)
        for (place, options, is_leaving), lease in zip(drawn, LEASES, strict=False)
    ]
)


# All examples share a database, and each leaves terms behind: late ones take longer.
@settings(max_examples=min(150, settings().max_examples))
@given(specs=specs, running=runs, new=newcomers)
def test_claim_match_and_oracle_agree(
    conn: psycopg.Connection, specs: list[Options], running: list[tuple[int, Options, bool]], new: Options
) -> None:
    """Whatever runs, wherever, and is leaving or not."""
    direct = Direct(conn)
    running, new = renamed((running, new))
    epochs = register(direct, specs)
    try:
        there = adopt(direct, list(epochs), running)
        nodes = [Node.from_spec(*pair) for pair in zip(epochs, specs, strict=True)]
        cluster = Cluster({node.node_id: node for node in nodes}, tuple(there))
        check(direct, cluster, epochs, new)
    finally:
        direct.drop_queue(QUEUE)
        for node in epochs:
            direct.deregister(node)


def renamed(drawn: Any) -> Any:
    """The same with lease ids that no example before had."""
    text, example = json.dumps(drawn), next(_examples)
    for number, lease in enumerate(LEASES):
        text = text.replace(lease, str(uuid5(IDS, f"lease-{number}-{example}")))
    return json.loads(text)


def check(direct: Direct, cluster: Cluster, epochs: Mapping[UUID, int], new: Options) -> None:
    """Compare the answers of each node, and the preference score."""
    try:
        lease_id = direct.spawn(QUEUE, new)["lease_id"]
    except psycopg.DatabaseError as error:
        if error.sqlstate != CONTRADICTORY:
            raise
        event("contradictory")
        return
    assert direct.conn.execute(FACTS, [lease_id]).fetchall() == []  # counted anew
    direct.settle_terms()
    lease = lease_of(lease_id, new)
    expected = {n: not may_run(lease, node, cluster) for n, node in cluster.nodes.items()}
    event(f"{sum(expected.values())} of {len(expected)} may run it")
    claimed = {node: takes(direct, node, epoch) for node, epoch in epochs.items()}
    assert claimed == expected
    assert direct.conn.execute(FACTS, [lease_id]).fetchall() == []
    assert direct.could_take(lease_id) == {node for node, may in expected.items() if may}
    asked = {key: value for key, value in new.items() if key != "placement"}
    asked |= {"queue": QUEUE, "task": TASK}
    assert apart(direct.conn, new.get("placement", {}), asked) == []
    rows = direct.match(new.get("placement", {}), asked)
    assert {row["node_id"]: row["eligible"] for row in rows} == expected
    for row in rows:
        score = preference(lease, cluster.nodes[row["node_id"]], cluster)
        assert row["score"] == pytest.approx(score)


def takes(direct: Direct, node: UUID, epoch: int) -> bool:
    """Whether the node is given the lease, which it gives back."""
    with direct.conn.transaction(force_rollback=True):
        return bool(direct.claim(QUEUE, node, epoch))


def register(direct: Direct, specs: Sequence[Options]) -> dict[UUID, int]:
    direct.create_queue(QUEUE, ONLY_AFFINITY)
    for number, spec in enumerate(specs):
        spec |= {"name": f"n{number}", "instance_id": "i"}
    return {node: direct.register(node, spec) for node, spec in zip(NODE_IDS, specs, strict=False)}


def adopt(
    direct: Direct, nodes: Sequence[UUID], running: Sequence[tuple[int, Options, bool]]
) -> list[Running]:
    """Have the leases run where they are said to; what is contradictory runs nowhere."""
    there = []
    for place, options, is_leaving in running:
        node = nodes[place % len(nodes)]
        try:
            row: Row = direct.adopt(QUEUE, node, options)
        except psycopg.DatabaseError as error:
            if error.sqlstate != CONTRADICTORY:
                raise
            continue
        if is_leaving:
            direct.cancel(row["lease_id"])
        there.append(Running(lease_of(row["lease_id"], options), node, is_leaving))
    return there


def lease_of(lease_id: UUID, options: Options) -> Lease:
    """The lease as the oracle knows it."""
    service = options.get("service_id")
    return Lease(
        lease_id,
        options.get("placement", {}),
        options.get("labels", {}),
        options.get("tenant", ""),
        TASK,
        UUID(service) if service else None,
    )
