"""The oracle's rules about who runs where, on small clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

import pytest

from tests.oracle.cluster import Cluster, Lease, Running, Service
from tests.oracle.facts import Node
from tests.oracle.occupancy import Broken, Rule, broken_now, may_run, preference

SPACE = UUID("0f0a1c1e-6a0b-5c38-9b4e-0d9c3f1a7e52")
DB = {"exprs": [{"label": "app", "op": "in", "values": ["db"]}]}
WEB = {"exprs": [{"label": "app", "op": "in", "values": ["web"]}]}
ZONE = "label:zone"


def id_of(name: str) -> UUID:
    """The id of a node, lease or service of this name."""
    return uuid5(SPACE, name)


def node(name: str, zone: str | None = None, **spec: Any) -> Node:
    """A node, in a zone or in none."""
    labels = {"zone": zone} if zone else {}
    return Node.from_spec(id_of(name), {"labels": labels, **spec})


def lease(name: str, app: str, *require: Mapping[str, Any], **facts: Any) -> Lease:
    """A lease of an app, with requirements or a whole placement."""
    placement = facts.pop("placement", {"require": list(require)})
    return Lease(id_of(name), placement, {"app": app}, **facts)


def cluster(nodes: Sequence[Node], *running: Running, **facts: Any) -> Cluster:
    """The nodes with what runs on them."""
    return Cluster({n.node_id: n for n in nodes}, running, **facts)


A, B, C = node("a", "z1"), node("b", "z2"), node("c")
TOWARD_DB = {"leases": DB, "domain": ZONE}
AWAY_DB = {**TOWARD_DB, "away": True}


def feasible(one: Lease, state: Cluster) -> set[str]:
    """The names of the nodes that may run it."""
    known = {"a": A, "b": B, "c": C}
    return {name for name, at in known.items() if not may_run(one, at, state)}


def test_toward() -> None:
    """In the zone of a match; not where the zone is unknown, unless that is let pass."""
    state = cluster([A, B, C], Running(lease("db", "db"), A.node_id))
    assert feasible(lease("new", "web", TOWARD_DB), state) == {"a"}
    assert feasible(lease("new", "web", {**TOWARD_DB, "unknown": "pass"}), state) == {"a", "c"}
    assert may_run(lease("new", "web", TOWARD_DB), B, state) == {Rule.TOWARD}


def test_toward_what_is_leaving() -> None:
    """It counts away, not toward."""
    state = cluster([A, B, C], Running(lease("db", "db"), A.node_id, is_leaving=True))
    assert feasible(lease("new", "web", TOWARD_DB), state) == set()
    assert feasible(lease("new", "web", AWAY_DB), state) == {"b", "c"}


def test_all_terms_are_met_by_the_same_leases() -> None:
    """Two leases that each meet one term do not help."""
    other = {"leases": {"labels": {"tier": "1"}}, "domain": ZONE}
    half = [
        Running(lease("db", "db"), A.node_id),
        Running(Lease(id_of("x"), {}, {"tier": "1"}), A.node_id),
    ]
    new = lease("new", "web", TOWARD_DB, other)
    assert feasible(new, cluster([A, B, C], *half)) == set()
    both = Running(Lease(id_of("y"), {}, {"app": "db", "tier": "1"}), B.node_id)
    assert feasible(new, cluster([A, B, C], *half, both)) == {"b"}


def test_the_first_of_a_group() -> None:
    """It may start where it has a domain, once; a member anywhere ends that."""
    new = lease("new", "db", TOWARD_DB)
    assert feasible(new, cluster([A, B, C])) == {"a", "b"}
    assert feasible(lease("new", "web", TOWARD_DB), cluster([A, B, C])) == set()
    assert feasible(new, cluster([A, B, C], Running(lease("1", "db"), B.node_id))) == {"b"}
    outside = Running(lease("1", "db"), C.node_id)
    assert feasible(new, cluster([A, B, C], outside)) == set()
    of_another_tenant = Running(lease("1", "db", tenant="t"), B.node_id)
    assert feasible(new, cluster([A, B, C], of_another_tenant)) == {"a", "b"}


def test_away_is_symmetric() -> None:
    """What runs keeps out what it is away from, and does not meet itself."""
    holder = lease("holder", "web", AWAY_DB)
    state = cluster([A, B, C], Running(holder, A.node_id))
    assert may_run(lease("new", "db"), A, state) == {Rule.KEPT_OUT}
    assert feasible(lease("new", "db"), state) == {"b", "c"}
    assert feasible(lease("new", "db", tenant="t"), state) == {"a", "b", "c"}
    assert feasible(holder, cluster([A, B, C], Running(lease("db", "db"), A.node_id))) == {"b", "c"}
    sibling = lease("one", "db", AWAY_DB)
    assert feasible(sibling, cluster([A, B, C])) == {"a", "b", "c"}


@pytest.mark.parametrize("tenants", ["*", ["t"]])
def test_tenants(tenants: Any) -> None:
    """Terms look at the own tenant unless they say otherwise."""
    state = cluster([A, B, C], Running(lease("db", "db", tenant="t"), A.node_id))
    assert feasible(lease("new", "web", AWAY_DB), state) == {"a", "b", "c"}
    assert feasible(lease("new", "web", {**AWAY_DB, "tenants": tenants}), state) == {"b", "c"}


def test_a_lease_as_target() -> None:
    """Where it runs, else where it last succeeded; pending: nowhere."""
    toward = {"lease": str(id_of("db")), "domain": ZONE}
    new = lease("new", "web", toward)
    assert feasible(new, cluster([A, B, C])) == set()
    assert feasible(new, cluster([A, B, C], Running(lease("db", "db"), B.node_id))) == {"b"}
    state = cluster([A, B, C], succeeded={id_of("db"): A.node_id})
    assert feasible(new, state) == {"a"}
    assert feasible(lease("new", "web", {**toward, "away": True}), state) == {"a", "b", "c"}


def test_a_service_as_target() -> None:
    """Its failure domain, else the queue's; there a node without rack is its own."""
    service = id_of("service")
    racked = node("a", rack=1)
    near = node("b", rack=1)
    away = lease("new", "web", {"service": str(service), "away": True})
    member = lease("db", "db", service_id=service)
    state = cluster([racked, near, C], Running(member, racked.node_id))
    assert may_run(away, near, state) == {Rule.AWAY}
    assert not may_run(away, C, state)
    state = cluster([racked, near, C], Running(member, C.node_id))
    assert may_run(away, C, state) == {Rule.AWAY}
    by_node = {service: Service(failure_domain="node")}
    state = cluster([racked, near], Running(member, racked.node_id), services=by_node)
    assert not may_run(away, near, state)


def test_services_that_a_service_keeps_away_from() -> None:
    """Both ways, though neither lease says so."""
    one, other = id_of("one"), id_of("other")
    policy = {one: Service(failure_domain="node", away_from=(other,)), other: Service("node")}
    state = cluster([A, B, C], Running(lease("x", "db", service_id=other), A.node_id), services=policy)
    assert feasible(lease("new", "web", service_id=one), state) == {"b", "c"}
    state = cluster([A, B, C], Running(lease("x", "db", service_id=one), A.node_id), services=policy)
    assert feasible(lease("new", "web", service_id=other), state) == {"b", "c"}


def test_either_branch() -> None:
    """An any about leases holds if one of its branches does."""
    either = {"any": [[TOWARD_DB], [{"leases": WEB, "domain": "node"}]]}
    state = cluster([A, B, C], Running(lease("db", "db"), A.node_id), Running(lease("web", "web"), C.node_id))
    assert feasible(lease("new", "x", either), state) == {"a", "c"}


def test_max_per_domain() -> None:
    """Counts matches and itself if it matches; only those that carry it are limited."""
    limit = {"domain": ZONE, "max_per_domain": 1, "select": DB}
    carrier = lease("new", "db", placement={"spread": [limit]})
    other = lease("new", "web", placement={"spread": [limit]})
    state = cluster([A, B, C], Running(lease("1", "db"), A.node_id))
    assert feasible(carrier, state) == {"b"}
    assert feasible(other, state) == {"a", "b"}
    assert feasible(lease("new", "db"), state) == {"a", "b", "c"}
    leaving = cluster([A, B, C], Running(lease("1", "db"), A.node_id, is_leaving=True))
    assert feasible(carrier, leaving) == {"a", "b"}


def test_max_skew_counts_domains_of_live_nodes() -> None:
    """The zone of a dead node holds nothing down."""
    skew = {"domain": ZONE, "max_skew": 1, "select": DB}
    carrier = lease("new", "db", placement={"spread": [skew]})
    running = Running(lease("1", "db"), A.node_id)
    assert feasible(carrier, cluster([A, B, C], running)) == {"b"}
    dead = replace(B, is_live=False)
    assert "a" in feasible(carrier, cluster([A, dead, C], running))
    wide = lease("new", "db", placement={"spread": [{**skew, "min_domains": 2}]})
    assert "a" not in feasible(wide, cluster([A, dead, C], running))


def test_taints() -> None:
    """Hard ones filter, unless each is tolerated."""
    tainted = node("t", taints=[{"key": "k", "value": "10", "effect": "no_execute"}])
    state = cluster([tainted])
    assert may_run(lease("new", "db"), tainted, state) == {Rule.TAINT}
    for tolerated, toleration in (
        (True, {"op": "exists"}),
        (True, {"key": "k", "op": "gt", "value": "9"}),
        (False, {"key": "k", "op": "gt", "value": 10}),
        (False, {"key": "k", "op": "equal", "value": "10", "effect": "no_schedule"}),
    ):
        one = lease("new", "db", placement={"tolerate": [toleration]})
        assert (not may_run(one, tainted, state)) == tolerated


def test_trust() -> None:
    """Byte for byte."""
    trusting = replace(A, trusts=frozenset(["eu"]))
    assert not may_run(lease("new", "db", {"trust": "eu"}), trusting, cluster([trusting]))
    assert may_run(lease("new", "db", {"trust": "EU"}), trusting, cluster([trusting])) == {Rule.NODE}


def test_preferences() -> None:
    """Each term on its own, met or not, no matter how often; nobody starts a group."""
    prefer = [
        {"weight": 3, "when": TOWARD_DB},
        {"weight": 1, "when": {"leases": WEB, "domain": "node", "away": True}},
    ]
    one = lease("new", "db", placement={"prefer": prefer})
    state = cluster(
        [A, B],
        Running(lease("1", "db"), A.node_id),
        Running(lease("2", "db"), A.node_id),
        Running(lease("3", "web"), A.node_id),
    )
    assert preference(one, A, state) == 75
    assert preference(one, B, state) == 25
    assert preference(one, A, cluster([A, B])) == 25


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
