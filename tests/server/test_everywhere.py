"""Everywhere tasks over HTTP: spawn, look, stop, and what another tenant is told."""

from typing import Any
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import NodeSpec, QueuePolicy
from tests.server.conftest import V1, Http, Token, ok, problem

EVERYWHERE = f"{V1}/everywhere"


def reap(sql: Client) -> None:
    """As upkeep does about once a second; several times, since changes make others."""
    for _ in range(3):
        sql.reap()


async def test_from_spawned_to_stopped(http: Http, sql: Client, queue: str) -> None:
    node_id, own = uuid4(), str(uuid4())
    spec = NodeSpec(name=f"n-{queue}", instance_id="1", labels={"of": queue})
    epoch = sql.register_node(node_id, spec)
    options = {"everywhere_id": own, "affinity_tags": {"of": queue}, "claim_timeout": 30}
    body = {"queue": queue, "task": "agent", "params": {"n": 1}, "options": options}
    answer = await http.post(EVERYWHERE, json=body)
    assert ok(answer, 201) == {"everywhere_id": own, "created": True, "nodes": 1, "warnings": []}
    url = f"{EVERYWHERE}/{own}"
    assert answer.headers["location"] == url
    assert ok(await http.post(EVERYWHERE, json=body))["created"] is False
    problem(await http.post(EVERYWHERE, json=body | {"task": "other"}), 409, "QHE02")
    reap(sql)
    [lease] = ok(await http.get(url))["leases"]
    assert (lease["node"], lease["state"]) == (f"n-{queue}", "reserved")
    assert ok(await http.get(url, params={"after": lease["node_id"]}))["leases"] == []
    [claim] = sql.claim_task([queue], node_id, epoch)
    reap(sql)
    page = ok(await http.get(EVERYWHERE, params={"state": "active", "limit": 1}))
    assert (page["items"][0]["everywhere_id"], page["items"][0]["running"]) == (own, 1)
    stopped = ok(await http.post(f"{url}/stop", json={"running": "stop"}))
    assert stopped == {"everywhere_id": own, "state": "stopping"}
    sql.complete_lease(claim.lease_id, claim.claim_token)
    reap(sql)
    assert ok(await http.post(f"{url}/stop"))["state"] == "stopped"


async def test_what_is_refused(http: Http, queue: str) -> None:
    body: dict[str, Any] = {"queue": queue, "task": "agent"}
    for options, field in (
        ({"patience": 2}, "options.patience"),
        ({"mode": "often"}, "options.mode"),
    ):
        found = problem(await http.post(EVERYWHERE, json=body | {"options": options}), 422, "QHA01")
        assert found["field"] == field
    problem(await http.post(EVERYWHERE, json=body | {"queue": "none"}), 404, "QHQ01")
    problem(await http.get(f"{EVERYWHERE}/{uuid4()}"), 404, "QHE01")
    problem(await http.post(f"{EVERYWHERE}/{uuid4()}/stop"), 404, "QHE01")


async def test_a_token_of_a_tenant(guarded: Http, token: Token, sql: Client, queue: str) -> None:
    """It spawns where the policy names its tenant, and of others it is told that there are none."""
    film, games = token("producer", "film"), token("producer", "games")
    options = {"affinity_tags": {"of": queue}}
    body: dict[str, Any] = {"queue": queue, "task": "agent", "options": options}
    for role in ("producer", "operator"):
        headers = token(role, "film")
        problem(await guarded.post(EVERYWHERE, json=body, headers=headers), 403, "QHA03")
    everybody = await guarded.post(EVERYWHERE, json=body, headers=token("producer"))
    assert "lacks the scope" in problem(everybody, 403)["detail"]
    policy = QueuePolicy(everywhere_tenants=["film", "games"], everywhere_limit=1)
    sql.set_queue_policy(queue, policy)
    made = ok(await guarded.post(EVERYWHERE, json=body, headers=film), 201)
    problem(await guarded.post(EVERYWHERE, json=body, headers=film), 409, "QHT03")
    url = f"{EVERYWHERE}/{made['everywhere_id']}"
    assert ok(await guarded.get(url, headers=film))["tenant"] == "film"
    assert ok(await guarded.get(EVERYWHERE, headers=games))["items"] == []
    problem(await guarded.get(url, headers=games), 404, "QHE01")
    problem(await guarded.post(f"{url}/stop", headers=games), 404, "QHE01")
    body["options"] = options | {"tenant": "film"}
    assert problem(await guarded.post(EVERYWHERE, json=body, headers=games), 403)["field"] == (
        "options.tenant"
    )
    problem(await guarded.post(f"{url}/stop", headers=token("viewer")), 403)
    assert ok(await guarded.post(f"{url}/stop", headers=film))["state"] == "stopping"
