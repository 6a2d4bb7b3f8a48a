"""Follow what the handlers of a lease log, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from hwqueue.client import Client
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from tests.server.conftest import V1, live, problem
from tests.server.test_events import BOUND_SECONDS, sent_events
from tests.server.test_leases import claimed


@pytest.fixture
def url(dsn: str) -> Iterator[str]:
    """A server on a socket."""
    with live(create_app(ServerSettings(dsn=dsn, max_streams=1))) as address:
        yield f"{address}{V1}/leases"


@contextmanager
def following(url: str, lease_id: UUID, **options: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a lease's stream as they come."""
    address = f"{url}/{lease_id}/logs/stream"
    with httpx.stream("GET", address, timeout=BOUND_SECONDS, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield sent_events(answer.iter_lines())


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
    with following(url, lease.lease_id) as events:
        assert messages(events, 1) == ["1"]
        log(sql, claim, 2, level="warning")
        second = next(events)
        assert (second["event"], second["id"]) == ("warning", second["data"]["cursor"])
        log(sql, claim, 3)
        sql.complete_lease(lease.lease_id, claim["claim_token"])
        assert messages(events, 1) == ["3"]
        assert next(events) == {"event": "ended", "data": {"state": "completed"}}
        assert next(events, None) is None
    with following(url, lease.lease_id, headers={"Last-Event-ID": second["id"]}) as events:
        assert messages(events, 1) == ["3"]


def test_a_lease_that_is_deleted_has_ended(
    url: str, sql: Client, queue: str, conn: psycopg.Connection
) -> None:
    lease = sql.spawn_lease(queue, "draw")
    claim = claimed(sql, queue)
    log(sql, claim, 1)
    with following(url, lease.lease_id) as events:
        assert messages(events, 1) == ["1"]
        with conn.transaction():  # no look finds it cancelled, but still there
            ours = Client.on(conn)
            ours.cancel_lease(lease.lease_id)
            ours.release_lease(lease.lease_id, claim["claim_token"])
            assert ours.delete_leases(queue, state="cancelled").changed == 1
        assert list(events) == [{"event": "ended", "data": {"state": "deleted"}}]


def test_no_stream_for_a_lease_that_there_is_none_of(url: str) -> None:
    address = f"{url}/{uuid4()}/logs/stream"
    problem(httpx.get(address, timeout=BOUND_SECONDS), 404, "QHL04")


def test_it_holds_a_slot(url: str, sql: Client, queue: str) -> None:
    lease = sql.spawn_lease(queue, "draw")
    log(sql, claimed(sql, queue), 1)
    with following(url, lease.lease_id) as events:
        assert messages(events, 1) == ["1"]
        address = f"{url}/{lease.lease_id}/logs/stream"
        problem(httpx.get(address, timeout=BOUND_SECONDS), 503)
