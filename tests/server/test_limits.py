"""Limits over HTTP: made, changed, closed, looked at, dropped."""

from hwqueue.client import Client
from tests.server.conftest import V1, Http, ok, problem

ALL = f"{V1}/limits"


async def test_from_made_to_dropped(http: Http, sql: Client) -> None:
    sql.create_queue("q")
    name = "per/user"
    url = f"{ALL}/{name}"
    spec = {"slots": 2, "by": "key"}
    for changed in (True, False):
        made = await http.post(ALL, json={"name": name, "spec": spec})
        assert (made.status_code, made.json()) == (201, {"name": name, "changed": changed})
    problem(await http.post(ALL, json={"name": name, "spec": {"slots": 1}}), 409, "QHM02")
    problem(await http.post(ALL, json={"name": "no", "spec": {"slots": "many"}}), 422, "QHM03")
    assert ok(await http.patch(url, json={"changes": {"slots": 1}}))["spec"] == {**spec, "slots": 1}
    lease = {"queue": "q", "task": "t", "options": {"limits": {name: "u42"}}}
    assert (await http.post(f"{V1}/leases", json=lease)).status_code == 201
    problem(await http.post(f"{V1}/leases", json={**lease, "options": {"limits": [name]}}), 422, "QHM03")
    closed = ok(await http.post(f"{url}/throttle", json={"key": "u42", "retry_after": 60}))["closed_until"]
    [listed] = ok(await http.get(ALL))["items"]
    assert (listed["name"], listed["kind"], listed["closed_until"]) == (name, "slots", closed)
    [lane] = ok(await http.get(f"{url}/lanes", params={"order": "wait", "limit": 5}))["items"]
    assert (lane["key"], lane["parked"], lane["closed_until"]) == ("u42", 1, closed)
    assert ok(await http.post(f"{url}/throttle", json={"key": "u42"})) == {"closed_until": None}
    for changed in (True, False):
        assert ok(await http.delete(url)) == {"name": name, "changed": changed}
    problem(await http.get(f"{url}/lanes"), 404, "QHM01")
