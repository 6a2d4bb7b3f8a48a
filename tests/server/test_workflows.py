"""Workflows and runs over HTTP: define, submit, look, follow, change."""

from typing import Any
from uuid import uuid4

import httpx
import psycopg

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.server.conftest import V1, Http, Serving, claims, ok, problem
from tests.server.test_events import following

RUNS, WORKFLOWS = f"{V1}/runs", f"{V1}/workflows"


def spec_of(queue: str, **more: Any) -> dict[str, Any]:
    """Two steps, the second of which comes after the first; named like their queue."""
    steps = [
        {"name": "a", "task": "first", "params": {"n": {"$input": ["n"], "default": 0}}},
        {"name": "b", "task": "second", "params": {"x": {"$result": "a", "default": 0}}},
    ]
    return {"name": queue, "queue": queue, "steps": steps} | more


def settle(sql: Client, queue: str, *, fails: bool = False) -> None:
    """Claim the step that is released, and end it."""
    [claim] = claims(sql, queue)
    if fails:
        sql.fail_lease(claim.lease_id, claim.claim_token, error={"message": "no"}, retry=False)
    else:
        sql.complete_lease(claim.lease_id, claim.claim_token, result={"done": 1})


async def submitted(http: Http, queue: str, **body: Any) -> str:
    """The path of a run of `spec_of`."""
    run = ok(await http.post(RUNS, json={"spec": spec_of(queue), **body}), 201)
    return f"{RUNS}/{run['run_id']}"


async def test_from_defined_to_completed(http: Http, sql: Client, queue: str) -> None:
    answer = await http.post(WORKFLOWS, json=spec_of(queue))
    assert ok(answer, 201) == {"workflow": queue, "version": 1, "created": True}
    assert answer.headers["location"] == f"{WORKFLOWS}/{queue}"
    assert not ok(await http.post(WORKFLOWS, json=spec_of(queue)))["created"]
    ok(await http.post(WORKFLOWS, json=spec_of(queue, priority=3)), 201)
    found = ok(await http.get(f"{WORKFLOWS}/{queue}?version=1"))
    assert (found["version"], found["step_count"], "priority" in found["spec"]) == (1, 2, False)
    assert ok(await http.get(f"{WORKFLOWS}/{queue}"))["version"] == 2
    listed = {each["workflow"]: each for each in ok(await http.get(WORKFLOWS))["items"]}
    assert listed[queue]["version"] == 2
    body = {"input": {"n": 1}, "options": {"priority": 5, "labels": {"app": "x"}, "version": 1}}
    answer = await http.post(f"{WORKFLOWS}/{queue}/runs", json=body)
    run = ok(answer, 201)
    newest, first = ok(await http.get(f"{WORKFLOWS}/{queue}/versions"))["items"]
    assert (newest["version"], newest["run_counts"]) == (2, {})
    assert (first["version"], first["run_counts"]) == (1, {"running": 1})
    assert answer.headers["location"] == f"{RUNS}/{run['run_id']}"
    settle(sql, queue)
    steps = ok(await http.get(f"{RUNS}/{run['run_id']}/steps"))["items"]
    assert [(step["step"], step["state"]) for step in steps] == [("a", "completed"), ("b", "running")]
    assert (steps[0]["result"], steps[1]["waits_for"]) == ({"done": 1}, [])
    settle(sql, queue)
    found = ok(await http.get(f"{RUNS}/{run['run_id']}?wait=1"))
    assert (found["state"], found["version"], found["input"]) == ("completed", 1, {"n": 1})
    assert (found["step_counts"], found["priority"]) == ({"completed": 2}, 5)


async def test_signals(http: Http, queue: str) -> None:
    steps = [{"name": "ok", "kind": "wait", "signal": "approved"}]
    run = await submitted(http, queue, spec=spec_of(queue, steps=steps))
    [step] = ok(await http.get(f"{run}/steps"))["items"]
    assert (step["kind"], step["headline"]) == ("wait", "waits for signal approved")
    problem(await http.post(f"{run}/signals/other"), 422, "QHF06")
    sent = {"payload": {"by": "ann"}, "key": "k"}
    assert ok(await http.get(f"{run}/signals")) == {"items": []}
    for created in (True, False):
        answer = ok(await http.post(f"{run}/signals/approved", json=sent))
        assert answer == {"created": created, "state": "completed"}
    [kept] = ok(await http.get(f"{run}/signals"))["items"]
    assert [kept[key] for key in ("name", "key", "taken_by")] == ["approved", "k", "ok"]
    [step] = ok(await http.get(f"{run}/steps"))["items"]
    assert (step["state"], step["result"]) == ("completed", {"by": "ann"})
    problem(await http.post(f"{run}/signals/approved"), 409, "QHF04")
    steps[0]["signal"] = "order/7"
    for path in ("order/7", "order%2F7"):
        run = await submitted(http, queue, spec=spec_of(queue, steps=steps))
        assert ok(await http.post(f"{run}/signals/{path}"))["state"] == "completed"
    steps[0]["signal"] = "order/../7"  # no path can carry it
    found = problem(await http.post(RUNS, json={"spec": spec_of(queue, steps=steps)}), 422, "QHA01")
    assert found["field"] == "spec.steps[0].signal"


async def test_an_update_of_steps_that_wait(http: Http, queue: str) -> None:
    run = await submitted(http, queue)
    body: dict[str, Any] = {"changes": {"app_version": "2.0", "affinity_tags": {"zone": "west"}}}
    [seen] = ok(await http.post(f"{run}/update/preview", json=body))["items"]
    assert (seen["step"], seen["changed"], seen["nodes_matching"]) == ("b", True, 0)
    [found] = ok(await http.post(f"{run}/update", json=body))["items"]
    assert {key: seen[key] for key in found} == found
    body = {"changes": {"app_version": None}, "steps": ["b"]}
    [found] = ok(await http.post(f"{run}/update", json=body))["items"]
    assert [rule["label"] for rule in found["placement"]["require"]] == ["zone"]
    assert found["came_from"]["require"] == [["update"]]
    problem(await http.post(f"{run}/update", json=body | {"steps": ["a"]}), 409, "QHF04")
    problem(await http.post(f"{run}/update", json=body | {"steps": []}), 422, "QHA01")
    wrong = {"changes": {"affinity_tags": {"zone": "east"}, "placement": {"require": 7}}}
    problem(await http.post(f"{run}/update/preview", json=wrong), 422, "QHC03")


async def test_changes(http: Http, sql: Client, queue: str) -> None:
    run = await submitted(http, queue)
    assert ok(await http.post(f"{run}/pause"))["state"] == "paused"
    assert ok(await http.post(f"{run}/resume"))["state"] == "running"
    problem(await http.post(f"{run}/retry"), 409, "QHF04")
    settle(sql, queue, fails=True)
    assert ok(await http.get(run))["reason"] == "step_failed"
    problem(await http.post(f"{run}/cancel"), 409, "QHF04")
    preview = ok(await http.post(f"{run}/retry/preview", json={"mode": "all"}))["items"]
    assert [(step["step"], step["state"]) for step in preview] == [("a", "failed"), ("b", "skipped")]
    problem(await http.post(f"{run}/retry/preview", json={"steps": ["none"]}), 422, "QHF06")
    assert ok(await http.get(run))["state"] == "failed", "a preview changes nothing"
    step = ok(await http.get(f"{run}/steps"))["items"][0]
    problem(await http.post(f"{V1}/leases/{step['lease_id']}/requeue"), 409, "QHF05")
    assert ok(await http.post(f"{run}/retry", json={"steps": ["a"]}))["state"] == "running"
    skip = {"result": {"by": "hand"}, "reason": "known"}
    assert ok(await http.post(f"{run}/steps/a/skip", json=skip))["state"] == "running"
    problem(await http.post(f"{run}/steps/none/skip"), 422, "QHF06")
    assert ok(await http.post(f"{run}/cancel", json={"reason": "no"}))["state"] == "cancelled"
    again = {"mode": "all", "input": {"n": 9}}
    answer = ok(await http.post(f"{run}/retry", json=again))
    assert answer == {"run_id": run.rpartition("/")[2], "state": "running"}
    assert ok(await http.get(run))["input"] == {"n": 9}


async def test_items_of_a_map(http: Http, sql: Client, queue: str) -> None:
    items = {"name": "m", "kind": "map", "task": "t", "over": [1, 2, 3], "tolerate": 3}
    run = await submitted(http, queue, spec=spec_of(queue, steps=[items]))
    settle(sql, queue)
    settle(sql, queue, fails=True)
    url = f"{run}/steps/m/results"
    page = ok(await http.get(url, params={"limit": 2}))
    assert [(each["item"], each["state"]) for each in page["items"]] == [(0, "completed"), (1, "failed")]
    done, broken = page["items"]
    assert (done["result"], done["attempt"], done["lease_state"]) == ({"done": 1}, 1, "completed")
    assert done["node_name"] == f"n-{done['node_id']}"
    assert done["claimed_at"] <= done["finished_at"]
    assert ok(await http.get(f"{V1}/leases/{broken['lease_id']}"))["error"] == broken["error"]
    assert page["next"] == "1"
    failed = ok(await http.get(url, params={"state": "failed"}))["items"]
    assert [each["item"] for each in failed] == [1]
    [itself] = ok(await http.get(url, params={"after": -2}))["items"]
    assert (itself["item"], itself["state"], itself["lease_id"]) == (-1, "running", None)
    problem(await http.get(f"{run}/steps/none/results"), 422, "QHF06")
    problem(await http.get(url, params={"state": "pending"}), 422, "QHA01")


async def test_filters(http: Http, sql: Client, queue: str) -> None:
    first, second, third = [await submitted(http, queue, options={"labels": {"n": str(n)}}) for n in range(3)]
    sql.cancel_workflow_run(third.rpartition("/")[2])

    async def listed(**params: Any) -> list[str]:
        found = ok(await http.get(RUNS, params={"workflow": queue, **params}))["items"]
        return [f"{RUNS}/{each['run_id']}" for each in found]

    assert await listed() == [third, second, first]
    assert await listed(state="cancelled") == [third]
    assert await listed(label="n=1") == [second]
    at = ok(await http.get(second))["submitted_at"]
    assert await listed(submitted_from=at) == [third, second]
    assert await listed(submitted_before=at) == [first]


async def test_a_dry_run_says_where_steps_could_run(http: Http, sql: Client, queue: str) -> None:
    sql.register_node(uuid4(), NodeSpec(name=f"n-{queue}", instance_id="1", labels={"own": queue}))
    steps = [
        {"name": "a", "task": "first", "affinity_tags": {"own": queue}},
        {"name": "b", "task": "second", "affinity_tags": {"own": f"no-{queue}"}},
    ]
    body: dict[str, Any] = {"spec": spec_of(queue, steps=steps)}
    url = f"{WORKFLOWS}/check"
    there, nowhere = ok(await http.post(url, json=body))["items"]
    assert (there["step"], there["code"], there["nodes_free"]) == ("a", "ready", 1)
    assert (nowhere["nodes_matching"], nowhere["permanent"]) == (0, True)
    assert nowhere["came_from"] == {"require": [["step"]]}
    asks = body | {"options": {"affinity_tags": {"zone": "none"}}}
    asked = ok(await http.post(url, json=asks))["items"][0]
    assert (asked["nodes_matching"], asked["came_from"]) == (0, {"require": [["step"], ["submission"]]})
    refused = body | {"options": {"affinity_tags": {"own": "x"}}}
    problem(await http.post(url, json=refused), 422, "QHC04")
    problem(await http.post(url, json={"spec": "none"}), 404, "QHF01")
    ok(await http.post(WORKFLOWS, json=body["spec"]), 201)
    named = ok(await http.post(url, json={"spec": queue, "options": {"version": 1}}))["items"]
    assert [each["step"] for each in named] == ["a", "b"]
    assert ok(await http.get(RUNS, params={"workflow": queue}))["items"] == []


def test_a_stream_has_each_change_until_the_end(
    url: str, sql: Client, queue: str, conn: psycopg.Connection
) -> None:
    run = sql.submit_spec(spec_of(queue)).run_id
    path = f"/runs/{run}/stream"
    with following(url, path) as events:
        seen = [next(events)]
        assert httpx.get(f"{url}{V1}{path}").status_code == 503
        sql.pause_workflow_run(run)
        seen.append(next(events))
        sql.cancel_workflow_run(run)
        seen.append(next(events))
        assert {each["event"] for each in seen} == {"run"}
        assert [each["data"]["state"] for each in seen] == ["running", "paused", "cancelled"]
        assert next(events) == {"event": "ended", "data": {"state": "cancelled"}}
        assert next(events, None) is None
    again = {"Last-Event-ID": seen[-1]["id"]}
    with following(url, path, headers=again) as events:
        assert [each["event"] for each in events] == ["ended"]


async def test_waiting_is_limited_as_streams_are(serving: Serving, sql: Client, queue: str) -> None:
    lease = f"{V1}/leases/{sql.spawn_lease(queue, 'draw').lease_id}"
    async with serving(max_streams=0) as http:
        for path in (await submitted(http, queue), lease):
            problem(await http.get(f"{path}?wait=1"), 503)
