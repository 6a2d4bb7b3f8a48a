"""What the oracle finds broken; all else that it says is compared with the database and with upstream."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

from tests.oracle.cluster import Cluster, Lease, Running, Service
from tests.oracle.facts import Node
from tests.oracle.occupancy import Broken, Rule, broken_now

SPACE = UUID("0f0a1c1e-6a0b-5c38-9b4e-0d9c3f1a7e52")
DB = {"exprs": [{"label": "app", "op": "in", "values": ["db"]}]}
ZONE = "label:zone"


def id_of(name: str) -> UUID:
    """The id of a node, lease or service of this name."""
    return uuid5(SPACE, name)


def node(name: str, zone: str | None = None, **spec: Any) -> Node:
    labels = {"zone": zone} if zone else {}
    return Node.from_spec(id_of(name), {"labels": labels, **spec})


def lease(name: str, app: str, *require: Mapping[str, Any], **facts: Any) -> Lease:
    """A lease of an app, with requirements or a whole placement."""
    placement = facts.pop("placement", {"require": list(require)})
    return Lease(id_of(name), placement, {"app": app}, **facts)


def cluster(nodes: Sequence[Node], *running: Running, **facts: Any) -> Cluster:
    """The nodes with what runs on them."""
    return Cluster({n.node_id: n for n in nodes}, running, **facts)


A, B = node("a", "z1"), node("b", "z2")
TOWARD_DB = {"leases": DB, "domain": ZONE}
AWAY_DB = {**TOWARD_DB, "away": True}


def test_what_is_broken_now() -> None:
    """Away for every pair, max_per_domain for those that carry it; toward and skew never."""
    holder, match = lease("holder", "web", AWAY_DB, TOWARD_DB), lease("match", "db")
    together = cluster([A, B], Running(holder, A.node_id), Running(match, A.node_id, True))
    because = f"{match.lease_id} runs in the same place"
    assert broken_now(together) == {Broken(Rule.AWAY, holder.lease_id, because)}
    apart = cluster([A, B], Running(holder, A.node_id), Running(match, B.node_id))
    assert broken_now(apart) == set()
    limit = {"spread": [{"domain": ZONE, "max_per_domain": 1, "select": DB}]}
    first, second = lease("1", "db", placement=limit), lease("2", "db", placement=limit)
    late = cluster([A, B], Running(first, A.node_id), Running(match, A.node_id))
    assert broken_now(late) == set()
    crowd = cluster([A, B], Running(first, A.node_id), Running(second, A.node_id))
    assert {item.rule for item in broken_now(crowd)} == {Rule.MAX_PER_DOMAIN}
    assert {item.lease_id for item in broken_now(crowd)} == {first.lease_id, second.lease_id}


def test_what_a_service_keeps_away_from() -> None:
    """In the other's failure domain, though neither lease says so."""
    one, other = id_of("one"), id_of("other")
    services = {one: Service("node", (other,)), other: Service(ZONE)}
    keeps, kept = lease("keeps", "x", service_id=one), lease("kept", "y", service_id=other)
    for there, rules in ((node("c", "z1"), {Rule.AWAY}), (B, set())):
        running = Running(keeps, A.node_id), Running(kept, there.node_id)
        assert {each.rule for each in broken_now(cluster([A, there], *running, services=services))} == rules
