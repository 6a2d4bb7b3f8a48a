"""Large requests: how large, how many, and that nobody else waits for them."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from limits import RateLimitItemPerHour

from hwqueue.client import AsyncClient, Client
from hwqueue.client import _arguments as arguments
from hwqueue.client._json import jsonb
from hwqueue.server.large_requests import LARGE_BODY_BYTES, LargeBodyRequest
from hwqueue.server.models.leases import SpawnBatch
from tests.server.conftest import JSON, V1, Http, Serving, Token, ok, problem

# Only so that a test that fails ends.
BOUND_SECONDS = 60.0


class Held:
    """Somewhere on the way of a request: who gets there waits until the test goes on."""

    def __init__(self) -> None:
        self.here = threading.Semaphore(0)
        self.goes_on = threading.Event()
        self.came: list[bytes] = []

    def __call__(self, body: bytes = b"") -> None:
        self.came.append(body)
        self.here.release()
        assert self.goes_on.wait(BOUND_SECONDS)

    async def somebody(self) -> None:
        """Wait until somebody has got there."""
        assert await asyncio.to_thread(self.here.acquire, timeout=BOUND_SECONDS)

    def is_empty(self) -> bool:
        """Whether nobody has got there whom the test did not wait for."""
        return not self.here.acquire(blocking=False)


def spawn(queue: str, **changes: Any) -> dict[str, Any]:
    return {"queue": queue, "task": "draw", "params": ["x" * (LARGE_BODY_BYTES + 1)], **changes}


def asking(http: Http, body: dict[str, Any], **options: Any) -> "asyncio.Task[httpx.Response]":
    """A spawn that is under way."""
    return asyncio.ensure_future(http.post(f"{V1}/leases", json=body, **options))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Holds who parses a large body."""
    held, read = Held(), LargeBodyRequest._read

    def slow(request: LargeBodyRequest) -> Any:
        held(request._body)
        return read(request)

    monkeypatch.setattr(LargeBodyRequest, "_read", slow)
    return held


async def test_others_are_answered_while_a_large_body_is_parsed_and_checked(
    http: Http, queue: str, reader: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = Held()

    def slow(value: Any, field: str) -> Any:
        checker()
        return jsonb(value, field)

    monkeypatch.setitem(arguments._ENCODERS, "jsonb", slow)
    sent = asking(http, spawn(queue))
    for held in (reader, checker):
        await held.somebody()
        ok(await http.get("/healthz"))
        assert not sent.done()
        held.goes_on.set()
    ok(await sent, 201)


async def test_nothing_large_is_written_in_the_event_loop(
    http: Http, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg would write it when it sends the statement."""
    threads = []

    def noted(value: Any, field: str) -> Any:
        made = jsonb(value, field)
        write = made.dumps
        assert write is not None

        def written(given: Any) -> Any:
            threads.append(threading.current_thread())
            return write(given)

        made.dumps = written
        return made

    monkeypatch.setitem(arguments._ENCODERS, "jsonb", noted)
    ok(await http.post(f"{V1}/leases", json=spawn(queue)), 201)
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("tenant", [None, "film"])
async def test_one_of_each_caller_at_a_time(
    serving: Serving, token: Token, queue: str, reader: Held, tenant: str | None
) -> None:
    """All tokens of a tenant are one caller."""
    one, other = token("producer", tenant=tenant), token("producer")
    again = token("producer", tenant=tenant) if tenant else one
    async with serving(auth="tokens", pool_size=8, pool_timeout=timedelta(seconds=60)) as http:
        first = asking(http, spawn(queue), headers=one)
        await reader.somebody()
        second = asking(http, spawn(queue, task="second"), headers=again)
        others = asking(http, spawn(queue, task="others"), headers=other)
        await reader.somebody()  # after `second` had its chance
        assert b'"others"' in reader.came[-1]
        ok(await http.post(f"{V1}/leases", json=spawn(queue, params=1), headers=one), 201)
        assert reader.is_empty()
        reader.goes_on.set()
        for sent in (first, second, others):
            ok(await sent, 201)


async def test_a_few_bytes_that_are_much_work_are_large(guarded: Http, token: Token, reader: Held) -> None:
    """Steps to be checked, leases to be made: the bytes of each are few."""
    steps = [{"name": f"s{number}", "task": "draw"} for number in range(300)]
    body = json.dumps({"spec": {"name": "many", "steps": steps}}, separators=(",", ":"))
    assert len(body) < LARGE_BODY_BYTES / 5
    url, headers = f"{V1}/workflows/check", JSON | token("producer")
    sent = asyncio.ensure_future(guarded.post(url, content=body, headers=headers))
    await reader.somebody()
    reader.goes_on.set()
    await sent


@pytest.mark.every_variant
@pytest.mark.parametrize(
    ("pool_size", "status", "words"),
    [(8, 429, "several large requests"), (2, 503, "too many large requests")],
)
async def test_who_waits_too_long_for_their_own_or_for_others(
    *, serving: Serving, token: Token, queue: str, reader: Held, pool_size: int, status: int, words: str
) -> None:
    """Large requests leave connections to others."""
    one = token("producer")
    other = one if status == 429 else token("producer")
    async with serving(auth="tokens", pool_size=pool_size) as http:
        http.app.state.services.large_requests._max_wait = 0.01
        first = asking(http, spawn(queue), headers=one)
        await reader.somebody()
        answer = await asking(http, spawn(queue), headers=other)
        assert words in problem(answer, status)["detail"]
        reader.goes_on.set()
        ok(await first, 201)


async def test_a_large_batch_is_what_was_sent(http: Http, queue: str, sql: Client) -> None:
    leases = [{"task": "draw", "params": {"ü": n, "text": "x" * 100}} for n in range(1000)]
    first, *_, last = SpawnBatch.model_validate({"queue": queue, "leases": leases}).leases
    assert first.options is last.options  # to copy what is left out would take longer than the rest
    sent = ok(await http.post(f"{V1}/leases/batch", json={"queue": queue, "leases": leases}), 201)
    ids = [item["lease_id"] for item in sent["items"]]
    assert [sql.get_lease(ids[n]).params for n in (0, 999)] == [leases[n]["params"] for n in (0, 999)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task": ""}, "task"),
        ({"options": {"priority": "x", "labels": {"a": 1}}}, "options.priority"),
        ({"params": ["x" * LARGE_BODY_BYTES, "\udfff"]}, "params[1]"),
        ({"params": ["x" * LARGE_BODY_BYTES, "a\0b"]}, "params[1]"),
    ],
)
async def test_what_is_wrong_with_a_large_one_is_named(
    http: Http, queue: str, changes: dict[str, Any], field: str
) -> None:
    body = json.dumps(spawn(queue, **changes))
    answer = await http.post(f"{V1}/leases", content=body, headers=JSON)
    assert problem(answer, 422, "QHA01")["field"] == field


async def test_too_much_that_is_wrong_is_counted_alone(http: Http, queue: str) -> None:
    """Naming it takes longer than reading the request, and nobody else is answered meanwhile."""
    unknown = {f"key{number}": 1 for number in range(20_000)}
    body = json.dumps({"queue": queue, "leases": [{"task": "draw", **unknown}]})
    assert len(body) > LARGE_BODY_BYTES
    answer = await http.post(f"{V1}/leases/batch", content=body, headers=JSON)
    found = problem(answer, 422, "QHA01")
    assert found["detail"] == "body: 20000 values are not as they must be"
    assert "errors" not in found


async def test_only_batches_may_be_as_large_as_batches(
    http: Http, sql: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = sql.spawn_lease(queue, "draw").lease_id
    large = b" " * 1_200_001
    for method, path in (
        ("POST", "leases"),
        ("PATCH", f"leases/{lease}"),
        ("POST", "match"),
        ("POST", "what-if"),
        ("POST", "queues"),
    ):
        url = f"{V1}/{path}"
        problem(await http.request(method, url, content=large, headers=JSON), 413)
        answer = await http.request(method, url, content=large[1:], headers=JSON)
        problem(answer, 422, "QHA01")
    url = f"{V1}/leases/batch"
    problem(await http.post(url, content=large, headers=JSON), 422, "QHA01")
    problem(await http.post(url, content=b" " * (8 * 2**20 + 1), headers=JSON), 413)


async def test_a_lease_of_the_usual_size_fits(http: Http, queue: str) -> None:
    """A queue takes params of 1 MiB unless its policy says otherwise."""
    ok(await http.post(f"{V1}/leases", json=spawn(queue, params="x" * (2**20 - 2))), 201)


async def test_a_placement_is_refused_for_its_size_alone(
    http: Http, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("it got to the client, which walks over it")

    for name in ("spawn_lease", "spawn_leases", "update_lease", "match_page"):
        monkeypatch.setattr(AsyncClient, name, asked)
    long: dict[str, Any] = {"require": [[]] * 22_000}
    one = {"task": "draw", "options": {"placement": long}}
    nobody = "01890a5d-ac96-774b-bcce-b302099a8057"
    for method, path, body, field in (
        ("POST", "leases", {"queue": queue, **one}, "options.placement"),
        ("POST", "leases/batch", {"queue": queue, "leases": [one]}, "leases[0].options.placement"),
        ("PATCH", f"leases/{nobody}", {"placement": long}, "placement"),
        ("POST", "match", {"placement": long}, "placement"),
    ):
        found = problem(await http.request(method, f"{V1}/{path}", json=body), 422, "QHA01")
        assert found["field"] == field
        assert "65536 characters" in found["detail"]


async def test_each_bearer_may_send_so_much(
    serving: Serving, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwqueue.server.rate_limits.RateLimitItemPerSecond", RateLimitItemPerHour)
    one, other = token("producer"), token("producer")

    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b" " * 600

    async with serving(auth="tokens", bytes_per_second=1000, max_body_bytes=1000) as http:
        url = f"{V1}/leases"
        for headers, content in ((one, b" " * 600), (other, pieces())):
            problem(await http.post(url, content=content, headers=JSON | headers), 422, "QHA01")
        for headers, content in ((one, b" " * 600), (other, pieces())):
            answer = await http.post(url, content=content, headers=JSON | headers)
            assert "bytes at most" in problem(answer, 429)["detail"]
            assert answer.headers["retry-after"] == "1"
        ok(await http.get(f"{V1}/me", headers=one))
        before, said = read, JSON | one | {"Content-Length": "600"}
        problem(await http.post(url, content=pieces(), headers=said), 429)
        assert read == before  # who has sent enough is not read
