"""Gangs and everywhere tasks over HTTP: spawn, look, end, and what another tenant is told."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import NodeSpec, QueuePolicy
from tests.server.conftest import V1, Http, Token, ok, problem, reap

GANGS = f"{V1}/gangs"


async def test_from_spawned_to_reserved(http: Http, sql: Client, queue: str) -> None:
    body = {
        "queue": queue,
        "members": [
            {"task": "lead", "params": {"n": 1}, "options": {"headers": {"mine": 1}}},
            {"task": "work", "count": 2, "options": {"affinity_tags": {"of": queue}}},
        ],
        "options": {
            "together": ["rack", "node", "fleet"],
            "min_size": 2,
            "hold": 60,
            "priority": 4,
            "labels": {"app": "x"},
            "claim_timeout": 30,
            "max_run": 3600,
            "on_lost": "continue",
        },
    }
    answer = await http.post(GANGS, json=body)
    gang = ok(answer, 201)
    url = f"{GANGS}/{gang['gang_id']}"
    assert answer.headers["location"] == url
    assert [member["ordinal"] for member in gang["members"]] == [0, 1, 2]
    lease = ok(await http.get(f"{V1}/leases/{gang['members'][0]['lease_id']}"))
    assert (lease["params"], lease["priority"], lease["labels"]) == ({"n": 1}, 4, {"app": "x"})
    assert (lease["headers"]["mine"], lease["headers"]["gang_size"]) == (1, 3)
    found = ok(await http.get(url))
    assert (found["state"], found["hold"]) == ("waiting", 60.0)
    assert found["together"] == ["rack", "node", "fleet"]
    assert [member["state"] for member in found["members"]] == ["scheduled"] * 3
    assert (found["min_size"], found["missing"], found["on_lost"]) == (2, 0, "continue")

    spec = NodeSpec(name=f"n-{queue}", instance_id="1", labels={"of": queue})
    node_id = uuid4()
    epoch = sql.register_node(node_id, spec)
    reap(sql)
    found = ok(await http.get(url))
    assert (found["state"], found["members"][1]["labels"]) == ("reserved", {"of": queue})
    assert found["members"][1]["reserved_until"] is not None
    sql.claim_task([queue], node_id, epoch, qty=3)
    reap(sql)
    [listed] = ok(await http.get(f"{GANGS}?state=running"))["items"]
    assert (listed["gang_id"], listed["size"]) == (gang["gang_id"], 3)
    sql.cancel_gang(gang["gang_id"])
    sql.deregister_node(node_id)


async def test_what_is_no_cursor(http: Http, queue: str) -> None:
    gang = str(uuid4())
    for cursor in ("x", gang, f"2026-01-01,{queue}", "0001-01-01T00:00:00+14:00," + gang):
        problem(await http.get(GANGS, params={"before": cursor}), 422)


async def test_why_it_waits(http: Http, sql: Client, queue: str) -> None:
    options = {"together": "rack", "hold": 60}
    member = {"task": "work", "count": 2, "options": {"affinity_tags": {"of": queue}}}
    body = {"queue": queue, "members": [member], "options": options}
    ahead = ok(await http.post(f"{GANGS}/what-if", json=body))
    assert (ahead["size"], ahead["kinds"][0]["nodes"], ahead["places"]) == (2, 0, [])
    gang_id = ok(await http.post(GANGS, json=body), 201)["gang_id"]
    spec = NodeSpec(name=f"n-{queue}", instance_id="1", labels={"of": queue}, slots=2, rack=1)
    node_id = uuid4()
    epoch = sql.register_node(node_id, spec)
    held = sql.spawn_lease(queue, "evaluate", max_run=timedelta(hours=1)).lease_id
    sql.claim_task([queue], node_id, epoch)
    found = ok(await http.get(f"{GANGS}/{gang_id}/explanation"))
    assert (found["gang_id"], found["code"]) == (gang_id, "insufficient_capacity")
    assert (found["places"][0]["place"], found["places"][0]["room"]) == ("rack 1", 1)
    told = {way["way"]: way for way in found["ways"]}
    assert [claim["lease_id"] for claim in told["stop"]["claims"]] == [str(held)]
    assert told["wait"]["until"] > told["stop"]["claims"][0]["since"]
    problem(await http.post(f"{GANGS}/what-if", json=body | {"queue": "none"}), 404, "QHQ01")
    sql.deregister_node(node_id)
    sql.cancel_gang(gang_id)


async def test_a_gang_is_cancelled(http: Http, sql: Client, queue: str) -> None:
    body = {"queue": queue, "members": [{"task": "train", "count": 2}]}
    problem(await http.post(GANGS, json=body | {"queue": "none"}), 404, "QHQ01")
    url = f"{GANGS}/{ok(await http.post(GANGS, json=body), 201)['gang_id']}"
    assert ok(await http.post(f"{url}/cancel", json={"reason": "no"}))["state"] == "cancelling"
    reap(sql)
    assert ok(await http.post(f"{url}/cancel"))["state"] == "cancelled"
    assert ok(await http.get(url))["finished_at"] is not None


EVERYWHERE = f"{V1}/everywhere"


async def test_everywhere_from_spawned_to_stopped(http: Http, sql: Client, queue: str) -> None:
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


async def test_everywhere_a_token_of_a_tenant(guarded: Http, token: Token, sql: Client, queue: str) -> None:
    """It spawns where the policy names its tenant."""
    options = {"affinity_tags": {"of": queue}}
    body: dict[str, Any] = {"queue": queue, "task": "agent", "options": options}
    for role in ("producer", "operator"):
        headers = token(role, "film")
        problem(await guarded.post(EVERYWHERE, json=body, headers=headers), 403, "QHA03")
    everybody = await guarded.post(EVERYWHERE, json=body, headers=token("producer"))
    assert "lacks the scope" in problem(everybody, 403)["detail"]
    sql.set_queue_policy(queue, QueuePolicy(everywhere_tenants=["film"], everywhere_limit=1))
    film = token("producer", "film")
    made = ok(await guarded.post(EVERYWHERE, json=body, headers=film), 201)
    problem(await guarded.post(EVERYWHERE, json=body, headers=film), 409, "QHT03")
    stop = f"{EVERYWHERE}/{made['everywhere_id']}/stop"
    assert ok(await guarded.post(stop, headers=film))["state"] == "stopping"
