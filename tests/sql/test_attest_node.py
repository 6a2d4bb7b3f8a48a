"""attest_node and revoke_attestation: what asks for trust runs only where somebody vouches."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.sql.api import NOBODY, Api, Node
from tests.sql.placed import codes, reasons, running_placed, spawn_placed, stop

pytestmark = pytest.mark.thorough

PROD = [{"trust": "acme.prod"}]
A, B = {"trust": "a"}, {"trust": "b"}
X = {"label": "x", "op": "exists"}
MINUTE = timedelta(minutes=1)


def attest(api: Api, node: Node, domain: str, **more: Any) -> None:
    api.rows("attest_node", node=node.node_id, domain=domain, **more)


def revoke(api: Api, node: Node, domain: str) -> bool:
    """Take it back."""
    return bool(api.value("revoke_attestation", node=node.node_id, domain=domain))


def test_who_is_not_attested_gets_nothing(api: Api) -> None:
    queue, node, other = api.queue(), api.node(), api.node()
    lease = spawn_placed(api, queue, require=PROD)
    plain = api.spawn(queue)
    assert api.claimed(node, queue, qty=9) == [plain]
    [reason] = reasons(api, node, require=PROD)
    assert (reason["code"], reason["permanent"]) == ("trust_not_attested", True)
    assert '"acme.prod"' in reason["message"]
    hint = api.row("claim_hint", queues=[queue], node=node.node_id)
    assert hint["reasons"] == {"trust_not_attested": 1}
    attest(api, other, "acme.prod")
    assert codes(api, other, require=PROD) == []
    assert api.claimed(node, queue) == []
    assert api.claimed(other, queue) == [lease]
    late = spawn_placed(api, queue, require=PROD)
    attest(api, node, "acme.prod")  # judged before, it is judged again
    assert api.claimed(node, queue) == [late]
    waiting = spawn_placed(api, queue, require=PROD)
    assert revoke(api, node, "acme.prod")
    assert not revoke(api, node, "acme.prod")
    assert api.claimed(node, queue) == []
    attest(api, node, "acme.prod")
    assert api.claimed(node, queue) == [waiting]


@pytest.mark.parametrize("domain", ["Acme.prod", "acme.prod ", "acme", "acme.prod.eu", "é"])
def test_byte_for_byte(api: Api, queue: str, node: Node, domain: str) -> None:
    attest(api, node, domain)
    spawn_placed(api, queue, require=[{"trust": "acme.prod"}])
    spawn_placed(api, queue, require=[{"trust": "e\u0301"}])
    mine = spawn_placed(api, queue, require=[{"trust": domain}])
    assert api.claimed(node, queue, qty=9) == [mine]


def test_an_attestation_expires(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """To the moment, with nobody editing anything."""
    attest(api, node, "acme.prod", expires_at=clock.now() + MINUTE)
    first, second = (spawn_placed(api, queue, require=PROD) for _ in range(2))
    clock.advance(MINUTE - timedelta(microseconds=1))
    claim = api.granted(first, node, queue)
    clock.advance(timedelta(microseconds=1))
    assert api.claimed(node, queue) == []
    assert codes(api, node, require=PROD) == ["trust_not_attested"]
    assert api.verdicts(node, claim) == ["ok"]  # trust holds at the claim
    attest(api, node, "acme.prod")
    assert api.claimed(node, queue) == [second]


def test_inside_any(api: Api, clock: Clock) -> None:
    """Any branch that holds is enough, and none that has expired."""
    queue, node, labelled = api.queue(), api.node(), api.node(labels={"x": 1})
    require = [{"any": [[A], [B], [X]]}]
    assert api.claimed(labelled, queue) == []
    leases = [spawn_placed(api, queue, require=require) for _ in range(4)]
    assert api.claimed(labelled, queue) == leases[:1]
    assert api.claimed(node, queue) == []
    assert codes(api, node, require=require) == ["required_affinity_unsatisfiable"]
    attest(api, node, "a", expires_at=clock.now() + MINUTE)
    assert api.claimed(node, queue) == leases[1:2]
    clock.advance(MINUTE)
    assert api.claimed(node, queue) == []
    attest(api, node, "b", expires_at=clock.now() + MINUTE)
    assert api.claimed(node, queue) == leases[2:3]
    clock.advance(MINUTE)
    assert api.claimed(node, queue) == []
    assert api.claimed(labelled, queue) == leases[3:]


def test_inside_any_beside_what_runs(api: Api, clock: Clock) -> None:
    """Trust that has expired is no branch that holds, where the others ask about other leases."""
    queue, node = api.queue(), api.node(rack=77)
    with_others = {"leases": {"labels": {"app": "absent"}}, "domain": "rack"}
    require = [{"any": [[A], [with_others]]}]
    leases = [spawn_placed(api, queue, require=require) for _ in range(2)]
    Direct(api.conn).settle_terms()
    attest(api, node, "a", expires_at=clock.now() + MINUTE)
    assert api.claimed(node, queue) == leases[:1]
    clock.advance(MINUTE)
    assert api.claimed(node, queue) == []
    attest(api, node, "a")
    assert api.claimed(node, queue) == leases[1:]


def test_nested_lists(api: Api) -> None:
    """A domain required deep inside counts, as all at the top do; a tag of that name is no domain."""
    queue, node = api.queue(), api.node(labels={"deep": {"trust": "b"}})
    both = spawn_placed(api, queue, require=[A, B])
    inner = {"any": [[B, X], [{"any": [[A], [B]]}]]}
    lease = spawn_placed(api, queue, require=[{"any": [[inner], [X]]}])
    tagged = spawn_placed(api, queue, require=[{"tags": {"deep": {"trust": "b"}}}])
    assert api.claimed(node, queue, qty=9) == [tagged]
    attest(api, node, "a")
    assert codes(api, node, require=[A, B]) == ["trust_not_attested"]
    assert api.claimed(node, queue, qty=9) == [lease]
    attest(api, node, "b")
    assert api.claimed(node, queue) == [both]


def test_revoking_asks_what_needs_it_to_stop(api: Api, queue: str, node: Node, clock: Clock) -> None:
    attest(api, node, "a")
    attest(api, node, "b")
    needs_a, needs_b, either, plain = (
        running_placed(api, queue, node, **({"require": require} if require else {}))
        for require in ([A], [B], [{"any": [[A], [B]]}], [])
    )
    assert revoke(api, node, "a")
    now = clock.now()
    assert stop(api, needs_a) == ("preempted", 'trust "a" is revoked', now, now)
    assert api.verdicts(node, needs_a) == ["preempted"]
    assert api.verdicts(node, needs_b, either, plain) == ["ok"] * 3
    assert revoke(api, node, "b")
    assert api.verdicts(node, either) == ["preempted"]
    assert api.verdicts(node, plain) == ["ok"]
    api.node(node.node_id, name=node.name, labels={"x": 1})
    attest(api, node, "a")
    unlabelled = running_placed(api, queue, node, require=[X])
    api.node(node.node_id, name=node.name, labels={})  # a relabel never evicts
    assert revoke(api, node, "a")
    assert api.verdicts(node, unlabelled) == ["ok"]


def test_what_is_listed(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    node, until = api.node(), datetime(9999, 12, 31, 20, tzinfo=UTC)
    conn.execute("set time zone 'Asia/Tokyo'")  # where that is another year
    attest(api, node, "b")
    attest(api, node, "a")
    attest(api, node, "a", expires_at=until)
    [(user, _)] = conn.execute("select session_user, set_config('TimeZone', 'UTC', false)")
    first, second = api.used(node)["attestations"]
    assert (first["domain"], first["expires_at"]) == ("a", until.isoformat())
    assert (second["domain"], second["expires_at"]) == ("b", None)
    for each in (first, second):
        assert (each["attested_by"], datetime.fromisoformat(each["attested_at"])) == (user, clock.now())


def test_it_outlives_an_instance_but_not_a_registration(api: Api, queue: str, node: Node) -> None:
    """If the operator who attests it says so; else see test_confirm_node.py."""
    attest(api, node, "acme.prod", any_instance=True)
    again = api.node(node.node_id, name=node.name, instance_id="second")
    lease = spawn_placed(api, queue, require=PROD)
    assert api.claimed(again, queue) == [lease]
    api.rows("deregister_node", node=node.node_id)
    last = api.node(node.node_id, name=node.name, instance_id="third")
    spawn_placed(api, queue, require=PROD)
    assert api.claimed(last, queue) == []
    assert api.used(last)["attestations"] == []


def test_many_classes_behind_it(api: Api, queue: str, node: Node) -> None:
    """What the node is not trusted for does not keep it from the rest, nor go before it."""
    attest(api, node, "b")
    spawn_placed(api, queue, require=[A])
    plain = [api.spawn(queue, f"t{number}") for number in range(3)]
    trusted = spawn_placed(api, queue, require=[B])
    last = api.spawn(queue)
    assert api.claimed(node, queue, qty=9) == [*plain, trusted, last]


@pytest.mark.parametrize("function", ["attest_node", "revoke_attestation"])
def test_bad_domains_and_unknown_nodes(api: Api, node: Node, function: str) -> None:
    api.rows("attest_node", node=node.node_id, domain="é" * 127 + "x")  # the longest that may be
    for domain in (None, "", "x" * 256, "é" * 128):
        assert api.fault(function, node=node.node_id, domain=domain) == "p_domain"
    api.rows("deregister_node", node=node.node_id)
    for gone in (NOBODY, node.node_id):
        refusal = api.refused("QHN01", function, node=gone, domain="a")
        assert refusal.detail["node_id"] == str(gone)


def test_an_expiry_that_has_passed_or_that_nobody_could_read(api: Api, node: Node, clock: Clock) -> None:
    for moment in (clock.now(), "10000-01-01 00:00:00+00", "-infinity"):
        assert api.fault("attest_node", node=node.node_id, domain="a", expires_at=moment) == "p_expires_at"
