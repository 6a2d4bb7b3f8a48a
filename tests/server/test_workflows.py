"""Runs over HTTP: names of signals, the stream of a run, and how many may wait."""

from typing import Any

import httpx
import psycopg

from hwqueue.client import Client
from tests.server.conftest import V1, Http, Serving, ok, problem
from tests.server.test_events import following

RUNS, WORKFLOWS = f"{V1}/runs", f"{V1}/workflows"


def spec_of(queue: str, **more: Any) -> dict[str, Any]:
    """A workflow with one step."""
    return {"name": queue, "queue": queue, "steps": [{"name": "a", "task": "first"}]} | more


async def submitted(http: Http, queue: str, **body: Any) -> str:
    """The path of a run of `spec_of`."""
    run = ok(await http.post(RUNS, json={"spec": spec_of(queue), **body}), 201)
    return f"{RUNS}/{run['run_id']}"


async def test_names_of_signals(http: Http, queue: str) -> None:
    steps = [{"name": "ok", "kind": "wait", "signal": "order/7"}]
    for path in ("order/7", "order%2F7"):
        run = await submitted(http, queue, spec=spec_of(queue, steps=steps))
        assert ok(await http.post(f"{run}/signals/{path}"))["state"] == "completed"
    steps[0]["signal"] = "order/../7"  # no path can carry it
    found = problem(await http.post(RUNS, json={"spec": spec_of(queue, steps=steps)}), 422, "QHA01")
    assert found["field"] == "spec.steps[0].signal"


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
    assert ok(httpx.get(f"{url}{RUNS}/{run}?wait=1"))["state"] == "cancelled"


async def test_waiting_is_limited_as_streams_are(serving: Serving, sql: Client, queue: str) -> None:
    lease = f"{V1}/leases/{sql.spawn_lease(queue, 'draw').lease_id}"
    async with serving(max_streams=0) as http:
        for path in (await submitted(http, queue), lease):
            problem(await http.get(f"{path}?wait=1"), 503)
