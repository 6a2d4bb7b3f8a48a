"""Attestations hold for the instance that was attested, until an operator confirms another."""

from typing import Any

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node
from tests.sql.logins import OPERATOR, WORKER, Logins
from tests.sql.placed import reasons, spawn_placed

PROD: list[Row] = [{"trust": "acme.prod"}]


def trusted(api: Api, **more: Any) -> Node:
    node = api.node()
    api.rows("attest_node", node=node.node_id, domain="acme.prod", **more)
    return node


def again(api: Api, node: Node, instance: str = "second", **spec: Any) -> Node:
    """The node, registered by another instance."""
    return api.node(node.node_id, name=node.name, instance_id=instance, **spec)


def attested(api: Api, node: Node) -> Row:
    """The node's only attestation as it is listed."""
    [only] = api.used(node)["attestations"]
    assert isinstance(only, dict)
    return only


def codes_of(api: Api, node: Node) -> list[str]:
    return [event["code"] for event in api.rows("list_events", filter={"node": str(node.node_id)})]


def test_another_instance_is_not_trusted_until_confirmed(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), trusted(api)
    lease = spawn_placed(api, queue, require=PROD)
    second = again(api, node)
    assert api.claimed(second, queue) == []
    [reason] = reasons(api, second, require=PROD)
    assert reason["code"] == "trust_not_attested"
    assert reason["message"] == (
        'trust "acme.prod" is not attested since it registered again as instance "second":'
        " hwqueue node confirm"
    )
    listed = attested(api, second)
    assert listed["suspended_why"] == 'it registered again as instance "second"'
    assert listed["suspended_at"] is not None
    near = api.row("explain_lease", lease=lease)["nearest"]
    [has] = [r["has"] for n in near if n["node"] == node.name for r in n["reasons"]]
    assert "since it registered again" in has
    assert api.value("confirm_node", node=node.node_id, instance_id="second") == 1
    assert attested(api, second)["suspended_at"] is None
    assert api.claimed(second, queue) == [lease]
    assert codes_of(api, node)[:2] == ["node_confirmed", "node_superseded"]
    assert "node_trust_suspended" in codes_of(api, node)


def test_the_same_instance_stays_trusted_until_another_one_was_there(api: Api) -> None:
    """Nobody knows what the other one did to the machine; what runs goes on with keep_claims."""
    queue, node = api.queue(), trusted(api)
    lease = spawn_placed(api, queue, require=PROD)
    same = again(api, node, "first", labels={"a": 1})
    claim = api.granted(lease, same, queue)
    assert api.value("confirm_node", node=node.node_id) == 0
    spawn_placed(api, queue, require=PROD)
    assert api.verdicts(again(api, node, keep_claims=True), claim) == ["ok"]
    assert api.claimed(again(api, node, "first"), queue) == []


def test_any_instance_of_the_login(api: Api, logins: Logins) -> None:
    """As where every trusted node has a login of its own."""
    login, owner = logins.api(WORKER)
    queue, node = api.queue(), owner.node()
    api.rows("attest_node", node=node.node_id, domain="acme.prod", any_instance=True)
    lease = spawn_placed(api, queue, require=PROD)
    second = again(owner, node)
    assert owner.claimed(second, queue) == [lease]
    assert attested(api, second)["any_instance"] is True
    other_login, other = logins.api(WORKER)
    api.rows("hand_over_node", node=node.node_id, login=other_login)
    spawn_placed(api, queue, require=PROD)
    assert other.claimed(second, queue) == []  # another login is another matter
    assert attested(api, second)["suspended_why"] == f'it was handed over to login "{other_login}"'
    api.rows("hand_over_node", node=node.node_id, login=login)
    assert owner.claimed(second, queue) == []
    assert api.value("confirm_node", node=node.node_id) == 1
    assert len(owner.claimed(second, queue)) == 1


def test_a_node_without_a_login_is_not_trusted_once_one_registers(api: Api) -> None:
    """With the same instance_id, too: it is not known who chose that."""
    queue, node = api.queue(), trusted(api, any_instance=True)
    api.conn.execute("update hwqueue.node_state set login = null")
    lease = spawn_placed(api, queue, require=PROD)
    same = again(api, node, "first")
    assert api.claimed(same, queue) == []
    api.value("confirm_node", node=node.node_id)
    assert api.claimed(same, queue) == [lease]


def test_attesting_again_confirms_that_domain(api: Api) -> None:
    node = trusted(api)
    api.rows("attest_node", node=node.node_id, domain="b")
    again(api, node)
    api.rows("attest_node", node=node.node_id, domain="b")
    suspended = {a["domain"]: a["suspended_at"] for a in api.used(node)["attestations"]}
    assert suspended["b"] is None
    assert suspended["acme.prod"] is not None
    assert api.value("confirm_node", node=node.node_id) == 1


def test_not_if_another_instance_came_since(api: Api, logins: Logins) -> None:
    """Between the operator's look and word; and who confirms is noted."""
    node = trusted(api)
    again(api, node)
    again(api, node, "third")
    refusal = api.refused("QHN03", "confirm_node", node=node.node_id, instance_id="second")
    assert refusal.detail["instance_id"] == "third"
    assert api.used(node)["instance_id"] == "third"
    login, operator = logins.api(OPERATOR)
    assert operator.value("confirm_node", node=node.node_id) == 1
    assert attested(api, node)["attested_by"] == login


def test_unknown_nodes(api: Api) -> None:
    """And one without attestations, of which nothing is told."""
    gone = api.node()
    again(api, gone)
    assert "node_trust_suspended" not in codes_of(api, gone)
    api.rows("deregister_node", node=gone.node_id)
    for node in (NOBODY, gone.node_id):
        api.refused("QHN01", "confirm_node", node=node)
    api.refused("QHN01", "hand_over_node", node=NOBODY, login=api.one("select session_user::text"))
