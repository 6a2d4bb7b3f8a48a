"""What is around every request: size, rate, headers, ids, the log."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from limits import parse

from hwqueue.client import Client
from hwqueue.logs import JsonFormatter
from tests.server.conftest import JSON, V1, Http, Serving, Slow, Token, ok, problem


async def test_a_request_that_is_too_large(serving: Serving) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 300

    async with serving(max_body_bytes=1000) as http:
        problem(await http.post(f"{V1}/leases", content=b" " * 1001, headers=JSON), 413)
        problem(await http.post(f"{V1}/leases", content=b" " * 1000, headers=JSON), 422, "QHA01")
        problem(await http.post(f"{V1}/leases", content=pieces(), headers=JSON), 413)  # it does not say so


async def test_a_request_that_does_not_arrive(serving: Serving) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with serving(body_timeout=timedelta(seconds=0.1)) as http:
        answer = await http.post(f"{V1}/leases", content=pieces(), headers=JSON)
        problem(answer, 408)
        assert answer.headers["connection"] == "close"


async def test_what_one_has_already_is_not_sent_again(http: Http, sql: Client, queue: str, node: str) -> None:
    lease = sql.spawn_lease(queue, "draw").lease_id
    spec = {"name": queue, "queue": queue, "steps": [{"name": "a", "task": "t"}]}
    one, of_queue = f"leases/{lease}", f"leases?queue={queue}"
    run = f"runs/{sql.submit_spec(spec).run_id}"
    for path in (one, of_queue, f"nodes/{node}", f"queues/{queue}", run):
        url = f"{V1}/{path}"
        first = await http.get(url)
        tag = first.headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await http.get(url, headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert again.headers["x-request-id"]
        other = await http.get(url, headers={"If-None-Match": '"other"'})
        assert (ok(other), other.headers["etag"]) == (ok(first), tag)
    url = f"{V1}/leases/{lease}"
    tag = (await http.get(url)).headers["etag"]
    sql.update_lease(lease, priority=7)
    assert ok(await http.get(url, headers={"If-None-Match": tag}))["priority"] == 7


async def test_only_content_is_tagged(http: Http) -> None:
    refused = await http.get(f"{V1}/leases/x", headers={"If-None-Match": "*"})
    assert (refused.status_code, "etag" in refused.headers) == (404, False)
    made = await http.post(f"{V1}/queues", json={"queue": "tagged"}, headers={"If-None-Match": "*"})
    assert (made.status_code, "etag" in made.headers) == (201, False)


async def test_strangers_do_not_keep_all_connections(
    serving: Serving, token: Token, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwqueue.server.rate_limits._UNKNOWN_TOKENS", parse("20/hour"))
    known = token("producer")
    async with serving(auth="tokens", pool_timeout=timedelta(seconds=60)) as http:
        ok(await http.get(f"{V1}/me", headers=known))
        check = Slow(monkeypatch, "check_token")
        guesses = [
            asyncio.ensure_future(http.get(f"{V1}/me", headers={"Authorization": f"Bearer guess-{number}"}))
            for number in range(50)
        ]
        await check.begun.wait()
        body = {"queue": queue, "task": "draw"}
        ok(await http.post(f"{V1}/leases", json=body, headers=known), 201)
        check.goes_on.set()
        answers = await asyncio.gather(*guesses)
    assert {answer.status_code for answer in answers} == {401, 429}


async def test_strangers_wait_no_longer_than_others(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start nobody is known, and the database may not answer."""
    check = Slow(monkeypatch, "check_token")
    async with serving(auth="tokens", pool_timeout=timedelta(seconds=1)) as http:
        first = asyncio.ensure_future(http.get(f"{V1}/me", headers={"Authorization": "Bearer first"}))
        await check.begun.wait()
        async with asyncio.timeout(60):
            problem(await http.get(f"{V1}/me", headers={"Authorization": "Bearer next"}), 503)
        check.goes_on.set()
        problem(await first, 401)


async def test_who_is_not_asked_has_a_rate_by_address(serving: Serving) -> None:
    """All machines of a site may be in one network of IPv6."""
    async with serving(rate_limit="1/hour") as http:
        for address in ("2001:db8:1:2::1", "2001:db8:1:2::2", "10.0.0.1"):
            async with Http(http.app, address) as caller:
                ok(await caller.get(f"{V1}/me"))
                problem(await caller.get(f"{V1}/me"), 429)


async def test_an_address_cannot_try_tokens_without_end(
    serving: Serving, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was let in is not locked out by others: behind a proxy everybody has its address."""
    monkeypatch.setattr("hwqueue.server.rate_limits._UNKNOWN_TOKENS", parse("3/hour"))
    known = token("viewer")
    async with serving(auth="tokens", token_cache=timedelta(0)) as http:
        ok(await http.get(f"{V1}/me", headers=known))
        for number in range(3):
            headers = {"Authorization": f"Bearer guess-{number}"}
            problem(await http.get(f"{V1}/me", headers=headers), 401)
        problem(await http.get(f"{V1}/me", headers={"Authorization": "Bearer more"}), 429)
        ok(await http.get(f"{V1}/me", headers=known))
        async with Http(http.app, "10.0.0.9") as elsewhere:
            problem(await elsewhere.get(f"{V1}/me", headers={"Authorization": "Bearer x"}), 401)


async def test_browsers_are_told_to_be_careful(http: Http) -> None:
    for path in ("/healthz", f"{V1}/leases", "/api/nothing", f"{V1}/openapi.json"):
        headers = (await http.get(path)).headers
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "access-control-allow-origin" not in headers


async def test_pages_of_named_origins_may_call(serving: Serving, token: Token) -> None:
    async with serving(auth="tokens", cors_origins=("https://ops.example",)) as http:
        preflight = {
            "Origin": "https://ops.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        answer = await http.options(f"{V1}/leases", headers=preflight)
        assert answer.headers["access-control-allow-origin"] == "https://ops.example"
        assert "access-control-allow-credentials" not in answer.headers
        other = await http.options(f"{V1}/leases", headers=preflight | {"Origin": "https://x.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.every_variant
@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("abc-123", True), ("A" * 64, True), ("", False), ("a b", False), ("A" * 65, False), ('x"}', False)],
)
async def test_a_good_request_id_is_kept_and_a_bad_one_replaced(
    http: Http, given: str, is_kept: bool
) -> None:
    response = await http.get("/healthz", headers={"X-Request-ID": given})
    assert response.headers["x-request-id"]
    assert (response.headers["x-request-id"] == given) is is_kept


async def test_the_log_has_a_line_for_each_request(
    serving: Serving, token: Token, caplog: pytest.LogCaptureFixture
) -> None:
    headers = token("viewer")
    with caplog.at_level(logging.INFO, "hwqueue.access"):
        async with serving(auth="tokens") as http:
            await http.get(f"{V1}/leases?task=secret", headers=headers)
            await http.get(f"{V1}/nothing")
    records = [r for r in caplog.records if r.name == "hwqueue.access"]
    lines = [JsonFormatter().format(r) for r in records]
    first, second = map(json.loads, lines)
    assert (first["method"], first["path"], first["status"]) == ("GET", f"{V1}/leases", 200)
    assert first["actor"].startswith("token:viewer-")
    assert first["ms"] >= 0
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert (second["status"], second["actor"]) == (404, None)
    assert "secret" not in "".join(lines)


async def test_nobody_can_write_lines_into_the_log(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hwqueue.access"):
        async with serving() as http:
            await http.get("/a%0a200 b")
    [line] = [r.getMessage() for r in caplog.records if r.name == "hwqueue.access"]
    assert "\n" not in line
    assert len(line.split(" ")) == 7
