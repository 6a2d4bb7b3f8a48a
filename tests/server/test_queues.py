"""Queues over HTTP: list, make, set, stop and let go on; and the defaults of tasks."""

from urllib.parse import quote

import httpx
import pytest

from hwqueue.client import Client
from tests.server.conftest import V1, Http, claims, ok, problem


async def test_from_made_to_paused(http: Http) -> None:
    body = {"queue": "films/2030", "policy": {"max_attempts": 3, "retry": {"kind": "none"}}}
    assert ok(await http.post(f"{V1}/queues", json=body), 201)["queue"] == "films/2030"
    ok(await http.post(f"{V1}/queues", json=body), 201)
    other = body | {"policy": {"max_attempts": 4}}
    problem(await http.post(f"{V1}/queues", json=other), 409, "QHQ02")
    url = f"{V1}/queues/films/2030"
    made = ok(await http.get(url))
    assert (made["paused"], made["pending"], made["policy"]["max_attempts"]) == (False, 0, 3)
    ok(await http.patch(f"{url}/policy", json={"claim_timeout": 90, "ageing_step": 0.5}))
    policy = ok(await http.get(url))["policy"]
    assert (policy["claim_timeout"], policy["ageing_step"]) == (90, 0.5)
    assert policy["max_attempts"] == 3
    assert ok(await http.post(f"{url}/pause")) == {"queue": "films/2030", "paused": True}
    assert ok(await http.get(url))["paused"] is True
    assert ok(await http.post(f"{url}/resume")) == {"queue": "films/2030", "paused": False}
    assert ok(await http.get(url))["paused"] is False
    assert made["queue"] in {queue["queue"] for queue in ok(await http.get(f"{V1}/queues"))["items"]}


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


async def test_failed_leases_run_again(http: Http, sql: Client, queue: str) -> None:
    for task in ("draw", "draw", "paint"):
        sql.spawn_lease(queue, task)
    for claim in claims(sql, queue, qty=3):
        sql.fail_lease(claim.lease_id, claim.claim_token, error={}, retry=False)
    url = f"{V1}/queues/{queue}/requeue-failed"
    assert ok(await http.post(url, json={"since": "2999-01-01T00:00:00Z"})) == {"requeued": 0}
    assert ok(await http.post(url, json={"task": "draw", "limit": 1})) == {"requeued": 1}
    assert ok(await http.post(url)) == {"requeued": 2}


@pytest.mark.parametrize("name", ["draw", "media/film.draw", "a:b@c-d"])
async def test_from_set_to_dropped(http: Http, sql: Client, queue: str, name: str) -> None:
    url = f"{V1}/tasks/{name}"
    body = {"placement": {"resources": {"gpu": 1}}, "max_attempts": 1, "labels": None}
    stored = {"placement": {"resources": {"gpu": 1}}, "max_attempts": 1}
    assert ok(await http.put(url, json=body)) == {"task": name, "defaults": stored}
    tasks = {each["task"]: each for each in ok(await http.get(f"{V1}/tasks"))["items"]}
    assert tasks[name]["defaults"] == stored
    lease = {"queue": queue, "task": name}
    spawned = ok(await http.post(f"{V1}/leases", json=lease), 201)
    assert sql.get_lease(spawned["lease_id"]).max_attempts == 1
    assert ok(await http.put(url, json={})) == {"task": name, "defaults": {}}
    assert ok(await http.delete(url)) == {"task": name, "dropped": True}
    assert ok(await http.delete(url)) == {"task": name, "dropped": False}
    assert ok(await http.put(f"{V1}/tasks/{quote(name, safe='')}", json={}))["task"] == name
