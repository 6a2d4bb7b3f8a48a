"""Leases over HTTP, and what names may stand in paths."""

import asyncio
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from hwqueue.client import Client
from hwqueue.testing import Clock
from hwqueue.types import NodeSpec
from hwqueue.wire import CpuIsolation, WireIntent, encode
from tests.server.conftest import NOBODY, V1, Http, Serving, claims, ok, problem


async def spawned(http: Http, queue: str, **rest: Any) -> dict[str, Any]:
    """Spawn a lease; all that is known about it."""
    body = {"queue": queue, "task": "draw", **rest}
    made = ok(await http.post(f"{V1}/leases", json=body), 201)
    found: dict[str, Any] = ok(await http.get(f"{V1}/leases/{made['lease_id']}"))
    return found


def claimed(sql: Client, queue: str) -> dict[str, Any]:
    """Claim what is next on a node of its own; how to settle it."""
    [claim] = claims(sql, queue)
    return {"lease_id": claim.lease_id, "claim_token": claim.claim_token}


async def test_spawn_and_get(http: Http, queue: str) -> None:
    options = {
        "placement": {"resources": {"gpu": 1}},
        "affinity_tags": {"gpu": True},
        "priority": 5,
        "tenant": "film",
        "labels": {"app": "render"},
        "delay": 60,
        "retry": {"kind": "fixed", "base": 2.5},
        "max_attempts": 2,
        "claim_timeout": 30,
        "deadline": "2999-01-31T12:00:00+01:00",
        "headers": {"trace": "abc"},
        "notify": False,
    }
    lease = await spawned(http, queue, params={"frame": 7}, options=options)
    assert (lease["queue"], lease["task_name"], lease["state"]) == (queue, "draw", "scheduled")
    assert (lease["params"], lease["placement"]["resources"]) == ({"frame": 7}, {"gpu": 1})
    assert lease["placement"]["require"] == [{"label": "gpu", "op": "in", "values": [True]}]
    assert (lease["priority"], lease["tenant"], lease["labels"]) == (5, "film", {"app": "render"})
    assert lease["deadline"] == "2999-01-31T11:00:00Z"
    assert (lease["max_attempts"], lease["headers"]) == (2, {"trace": "abc"})
    assert lease["attempts"] == []


async def test_an_answer_says_what_the_spawn_lacks(http: Http, sql: Client, queue: str) -> None:
    for node in sql.list_nodes():
        sql.deregister_node(node.node_id)
    sql.register_node(uuid4(), NodeSpec(name="n", instance_id="1", tasks=["draw"]))
    body = {"queue": queue, "task": "drwa"}
    told = ok(await http.post(f"{V1}/leases", json=body), 201)["warnings"]
    assert told == ['no live node has a handler for task "drwa"; did you mean draw?']
    assert ok(await http.post(f"{V1}/everywhere", json=body), 201)["warnings"] == told
    gang = {"queue": queue, "members": [{"task": "drwa"}, {"task": "draw"}]}
    assert ok(await http.post(f"{V1}/gangs", json=gang), 201)["warnings"] == told
    sql.reap()
    known = ok(await http.post(f"{V1}/leases", json=body), 201)["warnings"]
    assert known == ['no live node could run it at the last look: none serves task "drwa" in this queue']
    batch = {"queue": queue, "leases": [{"task": "drwa"}]}
    [made] = ok(await http.post(f"{V1}/leases/batch", json=batch), 201)["items"]
    assert made["warnings"] is None
    draw = ok(await http.post(f"{V1}/leases", json=body | {"task": "draw"}), 201)
    assert draw["warnings"] == []


@pytest.mark.parametrize("path", ["leases", "runs", "workflows/{}/runs"])
async def test_an_idempotency_key_spawns_once(http: Http, queue: str, path: str) -> None:
    """Of a header or of an option; a submission is a spawn, too."""
    spec = {"name": queue, "queue": queue, "steps": [{"name": "a", "task": "draw"}]}
    ok(await http.post(f"{V1}/workflows", json=spec), 201)
    kinds: dict[str, tuple[dict[str, Any], str]] = {
        "leases": ({"queue": queue, "task": "draw", "params": {"frame": 7}}, "params"),
        "runs": ({"spec": spec, "input": {"frame": 7}}, "input"),
        "workflows/{}/runs": ({"input": {"frame": 7}}, "input"),
    }
    (body, changed), url, header = kinds[path], f"{V1}/{path.format(queue)}", {"Idempotency-Key": "k1"}
    first = ok(await http.post(url, json=body, headers=header), 201)
    again = ok(await http.post(url, json=body, headers=header), 200)
    assert again == first | {"created": False}
    as_option = body | {"options": {"idempotency_key": "k1"}}
    assert ok(await http.post(url, json=as_option), 200) == again
    other = body | {changed: {"frame": 8}}
    problem(await http.post(url, json=other, headers=header), 422, "QHT01")
    two = as_option | {"options": {"idempotency_key": "k2"}}
    found = problem(await http.post(url, json=two, headers=header), 422, "QHA01")
    assert found["field"] == "options.idempotency_key"


async def test_two_keys_are_refused(http: Http, queue: str) -> None:
    body = {"queue": queue, "task": "draw"}
    for keys in (("a", "b"), ("a", "a")):
        headers = [("Idempotency-Key", key) for key in keys]
        found = problem(await http.post(f"{V1}/leases", json=body, headers=headers), 422)
        assert found["field"] == "idempotency-key"
    assert ok(await http.get(f"{V1}/leases", params={"queue": queue}))["items"] == []


async def test_a_batch_has_no_key_of_its_own(http: Http, queue: str) -> None:
    """It would be taken for one, and a second try would spawn all again."""
    lease = {"task": "draw", "options": {"idempotency_key": "mine"}}
    body = {"queue": queue, "leases": [lease]}
    url, headers = f"{V1}/leases/batch", {"Idempotency-Key": "k"}
    found = problem(await http.post(url, json=body, headers=headers), 422)
    assert "options.idempotency_key" in found["hint"]
    [made] = ok(await http.post(url, json=body), 201)["items"]
    [again] = ok(await http.post(url, json=body), 201)["items"]
    assert again == made | {"created": False}


async def test_a_params_blob_goes_in_and_comes_out(http: Http, queue: str) -> None:
    blob = encode(WireIntent(cpu_isolation=CpuIsolation.WHOLE_CORE))
    lease = await spawned(http, queue, options={"wire": b64encode(blob).decode()})
    assert lease["wire"] == b64encode(blob).decode()
    assert lease["placement"]["isolation"] == {"cpu": "whole_core"}
    body = {"queue": queue, "task": "draw", "options": {"wire": "\\xff"}}
    problem(await http.post(f"{V1}/leases", json=body), 422, "QHW01")


@pytest.mark.parametrize("name", ["a/b c?", "a%2Fb 100 %", "two\nlines", "größe#1"])
async def test_a_signal_may_have_any_name(http: Http, queue: str, name: str) -> None:
    """Quoted as a whole, as clients quote what they put into a path."""
    url = f"{V1}/leases/{(await spawned(http, queue))['lease_id']}/signals"
    assert ok(await http.post(f"{url}/{quote(name, safe='')}", json={"key": "k"}))["created"]
    again = await http.post(f"{url}/{quote(name)}", json={"key": "k"})
    assert not ok(again)["created"]


@pytest.mark.parametrize("field", ["available_at", "deadline"])
async def test_a_time_may_be_seconds_from_now(
    http: Http, sql: Client, queue: str, *, clock: Clock, field: str
) -> None:
    """By the database's clock, alone and in a batch; nothing else is taken for a time."""
    now = datetime(2031, 5, 6, tzinfo=UTC)
    clock.freeze(now)
    lease: dict[str, Any] = {"task": "draw", "options": {field: 90.5}}
    one = ok(await http.post(f"{V1}/leases", json={"queue": queue, **lease}), 201)
    body = {"queue": queue, "leases": [lease]}
    [other] = ok(await http.post(f"{V1}/leases/batch", json=body), 201)["items"]
    for spawned in (one, other):
        found = getattr(sql.get_lease(spawned["lease_id"]), field)
        assert found == now + timedelta(seconds=90.5)
    # the last two are times, but some zones could not read them again
    edges = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"
    wrong: tuple[Any, ...] = (-1, 400_000_000, True, "90", "1h", [], *edges)
    for bad in wrong:
        lease = {"task": "draw", "options": {field: bad}}
        response = await http.post(f"{V1}/leases", json={"queue": queue, **lease})
        found = problem(response, 422, "QHA01")
        assert found["field"] == f"options.{field}"
        assert bad in edges or "or seconds from now" in found["detail"]
    assert len(sql.list_leases(queue=queue)) == 2


async def test_the_last_time_of_all_is_read_in_every_zone(serving: Serving, dsn: str, queue: str) -> None:
    last = "9999-12-31T23:59:59.999999Z"
    async with serving(dsn=make_conninfo(dsn, options="-c TimeZone=Pacific/Kiritimati")) as http:
        body = {"queue": queue, "task": "draw", "options": {"available_at": last}}
        ok(await http.post(f"{V1}/leases", json=body), 201)
        [lease] = ok(await http.get(f"{V1}/leases", params={"queue": queue}))["items"]
        assert lease["available_at"] == last


async def test_waiting_for_the_end(http: Http, sql: Client, queue: str) -> None:
    lease_id = (await spawned(http, queue))["lease_id"]
    at = f"{V1}/leases/{lease_id}"
    assert ok(await http.get(at, params={"wait": 0.01}))["state"] == "pending"
    claim = claimed(sql, queue)
    waiting = asyncio.create_task(http.get(at, params={"wait": 60}))
    await asyncio.sleep(0)
    await asyncio.to_thread(lambda: sql.complete_lease(**claim, result={"drawn": 7}))
    assert ok(await waiting)["result"] == {"drawn": 7}
    problem(await http.get(f"{V1}/leases/{NOBODY}", params={"wait": 60}), 404, "QHL04")
    for wrong in (-1, 61, "soon"):
        problem(await http.get(at, params={"wait": wrong}), 422, "QHA01")


NAMES = ["a/policy", "a/b/pause", "pause", "a/requeue-failed", "x:y@z.w-", "a//b", "a/../b", "a/."]


async def test_every_name_that_sql_lets_in(http: Http, sql: Client) -> None:
    """Encoded as one part of the path, none is taken for what is below another."""
    for made in {each for name in NAMES for each in (name, name.rpartition("/")[0] or "b")}:
        sql.create_queue(made)
    for name in NAMES:
        url = httpx.URL(f"http://localhost{V1}/queues/{quote(name, safe='')}")
        under = {verb: f"{url}/{verb}" for verb in ("pause", "resume", "policy", "requeue-failed")}
        assert ok(await http.get(url))["queue"] == name
        assert ok(await http.post(under["pause"])) == {"queue": name, "paused": True}
        ok(await http.patch(under["policy"], json={"claim_timeout": 90}))
        ok(await http.post(under["requeue-failed"]))
        queues = {queue["queue"]: queue for queue in ok(await http.get(f"{V1}/queues"))["items"]}
        assert [each for each in queues if queues[each]["paused"]] == [name]
        ok(await http.post(under["resume"]))
        page = await http.get(f"/queues/{quote(name, safe='')}")  # all were there when it was read first
        assert (page.status_code, f"Queue {name}" in page.text) == (200, True), name


async def test_a_plain_slash_before_a_verb(http: Http, sql: Client) -> None:
    sql.create_queue("plain/name")
    assert ok(await http.post(f"{V1}/queues/plain/name/pause"))["queue"] == "plain/name"
    assert (await http.get(f"{V1}/queues/plain/name/pause")).headers["allow"] == "POST"
    problem(await http.get(f"{V1}%2Fqueues/plain"), 404)
