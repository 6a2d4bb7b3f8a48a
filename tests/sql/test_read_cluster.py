"""The oracle's view of who runs where, read from the tables."""

from datetime import timedelta
from uuid import UUID, uuid4

import psycopg

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.oracle.cluster import Cluster
from tests.oracle.tables import read_cluster


def test_read_cluster(conn: psycopg.Connection, clock: Clock) -> None:
    """Nodes with their facts, claims with their leases; who is leaving, who is live."""
    direct, node, service = Direct(conn), uuid4(), uuid4()
    direct.create_queue("q", {"claim_timeout": 60})
    spec = {"name": "n", "instance_id": "i", "labels": {"zone": "a"}, "heartbeat_timeout": 30}
    direct.register(node, spec)
    facts = {"tenant": "t", "labels": {"app": "web"}, "service_id": str(service)}
    staying = direct.adopt("q", node, facts)["lease_id"]
    stopping = direct.adopt("q", node, {"placement": {"require": [{"node": str(node)}]}})["lease_id"]
    done = direct.adopt("q", node)
    direct.cancel(stopping)
    direct.complete(done["lease_id"], done["claim_token"])

    cluster = read_cluster(conn, clock.now())
    assert cluster.nodes[node].labels == {"zone": "a"}
    assert cluster.nodes[node].is_live
    assert cluster.succeeded == {done["lease_id"]: node}
    leases = {claim.lease.lease_id: claim for claim in cluster.running}
    assert (leases[staying].lease.labels, leases[staying].lease.tenant) == ({"app": "web"}, "t")
    assert leases[staying].lease.service_id == service
    assert not leases[staying].is_leaving
    assert leases[stopping].lease.placement == {"require": [{"node": [str(node)]}]}
    assert leases[stopping].is_leaving

    clock.advance(timedelta(seconds=31))
    assert not read_cluster(conn, clock.now()).nodes[node].is_live
    assert leaving(read_cluster(conn, clock.now())) == {stopping}
    clock.advance(timedelta(seconds=30))
    assert leaving(read_cluster(conn, clock.now())) == {staying, stopping}


def leaving(cluster: Cluster) -> set[UUID]:
    """The leases that only count for away."""
    return {claim.lease.lease_id for claim in cluster.running if claim.is_leaving}
