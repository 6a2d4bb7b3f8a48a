"""Tokens of workers over HTTP: each opens the nodes that are its own, and nothing of any other's."""

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, product
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node
from tests.sql.logins import WORKER, Logins

_numbers = count(1)


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


@dataclass
class Bound:
    """A node that a token has registered."""

    api: Api
    name: str
    token: str
    node: UUID
    secret: str = ""
    epoch: int = 0

    def register(self, instance: str = "first", **spec: Any) -> None:
        """Register it with a secret of its own."""
        self.secret = f"secret-{next(_numbers)}"
        self.epoch = self.api.value("register_bound_node", **self.registration(instance, **spec))

    def registration(self, instance: str = "first", **spec: Any) -> Row:
        """The arguments of a registration."""
        about = {"name": self.name, "instance_id": instance, **spec}
        secret = digest(self.secret or "none")
        return {"token_sha256": digest(self.token), "node": self.node, "spec": about, "secret_sha256": secret}

    def key(self, **changed: Any) -> Row:
        """What opens it."""
        return {
            "token_sha256": digest(self.token),
            "node": self.node,
            "secret_sha256": digest(self.secret),
            **changed,
        }

    def enter(self) -> int:
        """Open it."""
        return int(self.api.value("enter_node", **self.key()))

    @property
    def own(self) -> Node:
        """The node, as claims name it."""
        return Node(self.node, self.epoch, self.name)


def make_token(api: Api, *nodes: str, **more: Any) -> str:
    """A token of a worker that is bound to these nodes."""
    name = f"worker-{next(_numbers)}"
    api.rows("create_token", name=name, secret_sha256=digest(name), role="worker", nodes=list(nodes), **more)
    return name


@pytest.fixture
def bound(api: Api) -> Bound:
    """A registered node; its token may register two more."""
    name = f"edge-{next(_numbers)}"
    made = Bound(api, name, make_token(api, name, f"{name}.*"), uuid4())
    made.register()
    return made


def test_a_token_is_bound_to_names(api: Api) -> None:
    token = make_token(api, "gpu-1", "edge-*", "a.*")
    assert api.row("check_token", secret_sha256=digest(token))["role"] == "worker"
    assert next(row for row in api.rows("list_tokens") if row["name"] == token)["nodes"] == [
        "gpu-1", "edge-*", "a.*",
    ]  # fmt: skip
    refused = ("gpu-10", "gpu", "edge", "Edge-1", "ab", "")
    for name in refused:
        found = Bound(api, name, token, uuid4())
        assert api.refused("QHN07", "register_bound_node", **found.registration()).field == "spec.name"
    for name in ("gpu-1", f"edge-{uuid4()}", "a.b"):
        Bound(api, name, token, uuid4()).register()


def test_bad_bindings(api: Api) -> None:
    good = {"name": "new", "secret_sha256": bytes(32), "role": "worker", "nodes": ["a"]}
    for nodes in (None, [], ["*"], [""], ["a*b"], ["a b"], [None], ["a"] * 101, [["a"]], ["n" * 254]):
        assert api.fault("create_token", **good | {"nodes": nodes}) == "p_nodes"
    assert api.fault("create_token", **good | {"role": "admin"}) == "p_nodes"
    assert api.fault("create_token", **good, tenant="film") == "p_tenant"


def test_a_registration_makes_the_secret_before_it_void(bound: Bound) -> None:
    assert bound.enter() == bound.epoch
    before = bound.key()
    bound.register()  # the same instance, whose answer was lost
    assert bound.enter() == bound.epoch
    bound.api.refused("QHN03", "enter_node", **before)
    bound.register("second")
    assert bound.epoch == 2
    bound.api.refused("QHN03", "enter_node", **before)


def test_a_token_opens_no_node_of_another(api: Api, bound: Bound, logins: Logins) -> None:
    """In the words for a node that is not there; one with the same names, of a login, of nobody."""
    twin = Bound(api, bound.name, make_token(api, bound.name, f"{bound.name}.*"), bound.node)
    _, sql_worker = logins.api(WORKER)
    of_login = sql_worker.node(name=f"{bound.name}.sql")
    of_owner = api.node(name=f"{bound.name}.own")
    told = set()
    for node, secret in product(
        (bound.node, of_login.node_id, of_owner.node_id, uuid4()), (bound.secret, "x")
    ):
        key = twin.key(node=node, secret_sha256=digest(secret))
        refusal = api.refused("QHN01", "enter_node", **key)
        told.add((refusal.message.replace(str(node), "N"), refusal.hint))
    assert len(told) == 1
    for node, name in (
        (bound.node, bound.name),
        *((each.node_id, each.name) for each in (of_login, of_owner)),
    ):
        api.refused("QHN07", "register_bound_node", **Bound(api, name, twin.token, node).registration())
    assert bound.enter() == bound.epoch


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_what_a_token_that_ended_had_goes_to_the_next(api: Api, clock: Clock, end: str) -> None:
    name = f"edge-{next(_numbers)}"
    first = Bound(api, name, make_token(api, name, expires_at=clock.now() + timedelta(hours=1)), uuid4())
    first.register()
    api.rows("attest_node", node=first.node, domain="d", any_instance=True)
    second = Bound(api, name, make_token(api, name), first.node)
    api.refused("QHN07", "register_bound_node", **second.registration("second"))
    if end == "revoked":
        api.rows("revoke_token", name=first.token)
    else:
        clock.advance(timedelta(hours=1))
    api.refused("QHN07", "enter_node", **first.key())
    assert api.value("register_bound_node", **first.registration()) is None
    second.register("second")
    assert api.used(second.own)["attestations"][0]["suspended_at"] is not None


def test_a_node_that_an_operator_took_out_is_registered_again(api: Api, bound: Bound) -> None:
    api.rows("deregister_node", node=bound.node)
    api.refused("QHN01", "enter_node", **bound.key())
    bound.register()
    assert bound.enter() == bound.epoch == 2


def test_a_node_that_was_handed_over_is_the_tokens_no_more(api: Api, logins: Logins) -> None:
    name = f"edge-{next(_numbers)}"
    _, server = logins.api(WORKER)
    login, _ = logins.api(WORKER)
    bound = Bound(server, name, make_token(api, name), uuid4())
    bound.register()
    api.rows("hand_over_node", node=bound.node, login=login)
    with pytest.raises(Exception, match="is not registered"):
        bound.enter()
    with pytest.raises(Exception, match="is not for node"):
        bound.register()


def test_nothing_is_adopted_where_a_worker_would_hand_it_back(api: Api, bound: Bound) -> None:
    work = {"queue": api.queue(), "task": "work"}
    assert api.fault("adopt_lease", **work, node=bound.node) == "p_node"


def test_a_stolen_token_keeps_no_claims(api: Api, bound: Bound) -> None:
    claim = api.running(api.queue(), bound.own)
    refused = bound.registration("thief", keep_claims=True)
    assert api.fault("register_bound_node", **refused) == "spec.keep_claims"
    bound.register("thief")
    assert api.state(claim["lease_id"]) == "pending"


def test_any_instance_is_trusted_only_of_a_token_for_one_node(api: Api, bound: Bound) -> None:
    attested = {"node": bound.node, "domain": "d"}
    assert api.fault("attest_node", **attested, any_instance=True) == "p_any_instance"
    api.rows("attest_node", **attested)
    alone = Bound(api, name := f"edge-{next(_numbers)}", make_token(api, name), uuid4())
    alone.register()
    api.rows("attest_node", node=alone.node, domain="d", any_instance=True)
