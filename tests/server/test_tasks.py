"""Defaults of tasks over HTTP: list, set and drop."""

from typing import Any

import pytest

from hwqueue.client import Client
from tests.server.conftest import V1, Http, Token, ok, problem


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


async def test_a_slash_may_be_encoded(http: Http) -> None:
    assert ok(await http.put(f"{V1}/tasks/media%2Ffilm", json={}))["task"] == "media/film"


async def test_what_is_refused(http: Http) -> None:
    url = f"{V1}/tasks/draw"
    for body in ({"prio": 1}, {"tenant": "x"}, {"max_attempts": 0}, {"priority": 40_000}):
        assert (await http.put(url, json=body)).status_code == 422
    bad: dict[str, Any] = {"placement": {"requires": []}}
    problem(await http.put(url, json=bad), 422, "QHC03")


async def test_operators_set_and_viewers_see(guarded: Http, token: Token) -> None:
    url, body = f"{V1}/tasks/draw", {"priority": 1}
    for role, list_status, change_status in (
        ("producer", 403, 403),
        ("viewer", 200, 403),
        ("operator", 200, 200),
    ):
        bearer = token(role)
        assert (await guarded.get(f"{V1}/tasks", headers=bearer)).status_code == list_status
        assert (await guarded.put(url, json=body, headers=bearer)).status_code == change_status
        assert (await guarded.delete(url, headers=bearer)).status_code == change_status
