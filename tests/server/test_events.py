"""Events, lines of logs and runs over HTTP: in pages, and as streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import tenacity
from starlette.requests import HTTPConnection

from hwqueue.client import Client
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.server.auth import address_of
from tests.server.conftest import V1, Http, Serving, Token, live, ok, paged, problem
from tests.server.test_leases import claimed
from tests.sql.api import outlive

BOUND_SECONDS = 60.0


@contextmanager
def streamed(address: str, **options: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream as they come."""
    with httpx.stream("GET", address, timeout=BOUND_SECONDS, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers
        yield answer.iter_lines()


def sent_events(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """What of an event is told: `event`, `id`, `data`."""
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            found[name] = found.get(name, "") + value
        elif not line and found:
            yield found
            found = {}


@contextmanager
def following(url: str, path: str = "/events/stream", **options: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a stream as they come, each with its id and data."""
    with streamed(f"{url}{V1}{path}", **options) as lines:
        if path == "/events/stream":
            assert next(lines).startswith(":")  # open, so what happens from now on will come
        yield (each | {"data": json.loads(each["data"])} for each in sent_events(lines))


async def test_who_did_what_is_told(guarded: Http, token: Token, queue: str) -> None:
    headers = token("operator")
    ok(await guarded.post(f"{V1}/queues/{queue}/pause", headers=headers))
    ok(await guarded.post(f"{V1}/queues/{queue}/resume", headers=headers))
    me = ok(await guarded.get(f"{V1}/me", headers=headers))["actor"]
    params = {"queue": queue, "actor": me}
    page = ok(await guarded.get(f"{V1}/events", params=params, headers=headers))
    assert [event["code"] for event in page["items"]] == ["queue_resumed", "queue_paused"]
    assert {event["actor"] for event in page["items"]} == {me}
    params["code"] = "queue_paused"
    [only] = ok(await guarded.get(f"{V1}/events", params=params, headers=headers))["items"]
    assert only == page["items"][1]


async def test_pages_both_ways(http: Http, queue: str, conn: psycopg.Connection) -> None:
    for _ in range(2):
        ok(await http.post(f"{V1}/queues/{queue}/pause"))
        ok(await http.post(f"{V1}/queues/{queue}/resume"))

    async def all_of(**params: Any) -> list[str]:
        pages = await paged(http, f"{V1}/events", queue=queue, limit=2, **params)
        return [event["event_id"] for page in pages for event in page]

    outlive(conn)  # from the oldest on, what is not settled yet is not told
    newest_first = await all_of()
    assert len(newest_first) == 5
    assert await all_of(after=0) == newest_first[::-1]
    assert await all_of(after=newest_first[2]) == newest_first[1::-1]


def test_a_stream_tells_what_happens(url: str, sql: Client, queue: str) -> None:
    with following(url, params={"queue": queue, "code": ["queue_paused"]}) as events:
        sql.pause_queue(queue)
        sql.resume_queue(queue)
        first = next(events)
        assert (first["event"], first["data"]["queue"]) == ("queue_paused", queue)
        assert first["id"] == first["data"]["event_id"]
    sql.pause_queue(queue)
    resumed = {"Last-Event-ID": first["id"]}
    with following(url, params={"queue": queue}, headers=resumed) as events:
        assert [next(events)["event"] for _ in range(2)] == ["queue_resumed", "queue_paused"]


def test_there_is_room_for_so_many(url: str) -> None:
    with following(url):
        refused = httpx.get(f"{url}{V1}/events/stream", timeout=BOUND_SECONDS)
        assert problem(refused, 503)["retryable"] is True
        assert refused.headers["retry-after"]


def test_one_caller_cannot_have_all_streams(dsn: str, token: Token) -> None:
    one, other = token("viewer"), token("viewer")
    told = ServerSettings(dsn=dsn, auth="tokens", max_streams=3, max_streams_per_caller=2)
    with live(create_app(told)) as url:
        with following(url, headers=one), following(url, headers=one):
            stream = f"{url}{V1}/events/stream"
            refused = httpx.get(stream, headers=one, timeout=BOUND_SECONDS)
            assert problem(refused, 429)["retryable"] is True
            assert refused.headers["retry-after"]
            with following(url, headers=other):
                pass
        _follow_soon(url, headers=one)


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(AssertionError),
    wait=tenacity.wait_fixed(0.05),
    stop=tenacity.stop_after_delay(BOUND_SECONDS),
    reraise=True,
)
def _follow_soon(url: str, **options: Any) -> None:
    """Once the server has noticed that who followed before is gone."""
    with following(url, **options):
        pass


def test_who_guesses_is_told_apart_by_network() -> None:
    """Of IPv6: everybody has many addresses there."""
    same = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::"]
    others = ["2001:db8:1:3::1", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1", "", "testclient"]
    found = {host: address_of(_connection(host)) for host in same + others}
    assert found[same[0]] == found[same[1]] == "2001:db8:1:2::/64"
    assert len(set(found.values())) == 1 + len(others)


def _connection(host: str) -> HTTPConnection:
    return HTTPConnection({"type": "http", "client": (host, 1), "headers": []})


def test_a_stream_ends_with_its_token(dsn: str, sql: Client, token: Token, queue: str) -> None:
    headers = token("viewer")
    told = ServerSettings(dsn=dsn, auth="tokens", token_cache=timedelta(0))
    with live(create_app(told)) as url, following(url, headers=headers) as events:
        me = ok(httpx.get(f"{url}{V1}/me", headers=headers))["actor"]
        sql.revoke_token(me.removeprefix("token:"))
        for act in (sql.pause_queue, sql.resume_queue):
            act(queue)
            told_last = next(events, None)  # the first may have been under way
        assert told_last is None


async def test_what_cannot_be_asked(http: Http) -> None:
    for params in ({"actor": "nul\0"}, {"code": ["a", "nul\0"]}, {"code": ""}, {"code": "a" * 101}):
        for path in ("", "/stream"):
            problem(await http.get(f"{V1}/events{path}", params=params), 422, "QHA01")
    for last in ("x", "-1", "1" * 30):
        problem(await http.get(f"{V1}/events/stream", headers={"Last-Event-ID": last}), 422, "QHA01")


def log(sql: Client, claim: Mapping[str, Any], line: int, level: str = "info") -> None:
    entry = {"line": line, "at": "2030-01-31T12:00:00Z", "level": level, "message": str(line)}
    ids = {"lease_id": claim["lease_id"], "claim_token": claim["claim_token"]}
    assert sql.append_logs([{**ids, "lines": [entry]}]) == 1


def messages(events: Iterator[dict[str, Any]], count: int) -> list[str]:
    return [next(events)["data"]["message"] for _ in range(count)]


def test_lines_come_until_the_lease_has_ended(url: str, sql: Client, queue: str) -> None:
    lease = sql.spawn_lease(queue, "draw")
    claim = claimed(sql, queue)
    log(sql, claim, 1)
    path = f"/leases/{lease.lease_id}/logs/stream"
    with following(url, path) as events:
        assert messages(events, 1) == ["1"]
        problem(httpx.get(f"{url}{V1}{path}", timeout=BOUND_SECONDS), 503)  # it holds a slot
        log(sql, claim, 2, level="warning")
        second = next(events)
        assert (second["event"], second["id"]) == ("warning", second["data"]["cursor"])
        log(sql, claim, 3)
        sql.complete_lease(lease.lease_id, claim["claim_token"])
        assert messages(events, 1) == ["3"]
        assert next(events) == {"event": "ended", "data": {"state": "completed"}}
        assert next(events, None) is None
    with following(url, path, headers={"Last-Event-ID": second["id"]}) as events:
        assert messages(events, 1) == ["3"]


def test_a_lease_that_is_deleted_has_ended(
    url: str, sql: Client, queue: str, conn: psycopg.Connection
) -> None:
    lease = sql.spawn_lease(queue, "draw")
    claim = claimed(sql, queue)
    log(sql, claim, 1)
    with following(url, f"/leases/{lease.lease_id}/logs/stream") as events:
        assert messages(events, 1) == ["1"]
        with conn.transaction():  # no look finds it cancelled, but still there
            ours = Client.on(conn)
            ours.cancel_lease(lease.lease_id)
            ours.release_lease(lease.lease_id, claim["claim_token"])
            assert ours.delete_leases(queue, state="cancelled").changed == 1
        assert list(events) == [{"event": "ended", "data": {"state": "deleted"}}]


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
