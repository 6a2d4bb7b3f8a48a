"""What is around every request: size, rate, headers, ids, the log."""

import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from limits import parse

from tests.server.conftest import V1, Http, Serving, Token, ok, problem

JSON = {"Content-Type": "application/json"}


async def test_a_request_that_says_it_is_too_large(serving: Serving) -> None:
    async with serving(max_body_bytes=1000) as http:
        problem(await http.post(f"{V1}/leases", content=b" " * 1001, headers=JSON), 413)
        problem(await http.post(f"{V1}/leases", content=b" " * 1000, headers=JSON), 422, "QHA01")


async def test_a_request_that_does_not_say_how_large_it_is(serving: Serving) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 300

    async with serving(max_body_bytes=1000) as http:
        problem(await http.post(f"{V1}/leases", content=pieces(), headers=JSON), 413)


async def test_each_bearer_has_a_rate(serving: Serving, token: Token) -> None:
    one, other = token("viewer"), token("viewer")
    async with serving(auth="tokens", rate_limit="3/hour") as http:
        for _ in range(3):
            ok(await http.get(f"{V1}/me", headers=one))
        response = await http.get(f"{V1}/me", headers=one)
        assert problem(response, 429)["retryable"] is True
        assert 1 <= int(response.headers["retry-after"]) <= 3600
        ok(await http.get(f"{V1}/me", headers=other))
        ok(await http.get("/healthz"))


async def test_an_address_cannot_try_tokens_without_end(
    serving: Serving, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwqueue.server.rates._UNKNOWN_TOKENS", parse("3/hour"))
    known = token("viewer")
    async with serving(auth="tokens") as http:
        ok(await http.get(f"{V1}/me", headers=known))
        for number in range(3):
            headers = {"Authorization": f"Bearer guess-{number}"}
            problem(await http.get(f"{V1}/me", headers=headers), 401)
        problem(await http.get(f"{V1}/me", headers={"Authorization": "Bearer more"}), 429)
        ok(await http.get(f"{V1}/me", headers=known))
        async with Http(http.app, "10.0.0.9") as elsewhere:
            problem(await elsewhere.get(f"{V1}/me", headers={"Authorization": "Bearer x"}), 401)


async def test_who_was_let_in_is_not_locked_out_by_others(
    serving: Serving, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy everybody has its address."""
    monkeypatch.setattr("hwqueue.server.rates._UNKNOWN_TOKENS", parse("1/hour"))
    known = token("viewer")
    async with serving(auth="tokens", token_cache=timedelta(0)) as http:
        ok(await http.get(f"{V1}/me", headers=known))
        guess = {"Authorization": "Bearer guess"}
        problem(await http.get(f"{V1}/me", headers=guess), 401)
        problem(await http.get(f"{V1}/me", headers=guess), 429)
        ok(await http.get(f"{V1}/me", headers=known))


async def test_browsers_are_told_to_be_careful(http: Http) -> None:
    for path in ("/healthz", f"{V1}/leases", "/api/nothing", f"{V1}/openapi.json"):
        headers = (await http.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
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
        other = await http.options(
            f"{V1}/leases", headers=preflight | {"Origin": "https://x.example"}
        )
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("given", ["abc-123", "A" * 64])
async def test_a_good_request_id_is_kept(http: Http, given: str) -> None:
    response = await http.get("/healthz", headers={"X-Request-ID": given})
    assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "A" * 65, 'x"}'])
async def test_a_bad_one_is_replaced(http: Http, given: str) -> None:
    response = await http.get("/healthz", headers={"X-Request-ID": given})
    assert response.headers["x-request-id"] not in ("", given)


async def test_the_log_has_a_line_for_each_request(
    serving: Serving, token: Token, caplog: pytest.LogCaptureFixture
) -> None:
    headers = token("viewer")
    with caplog.at_level(logging.INFO, "hwqueue.access"):
        async with serving(auth="tokens", json_logs=True) as http:
            await http.get(f"{V1}/leases?task=secret", headers=headers)
            await http.get(f"{V1}/nothing")
    lines = [r.getMessage() for r in caplog.records if r.name == "hwqueue.access"]
    first, second = map(json.loads, lines)
    assert (first["method"], first["path"], first["status"]) == ("GET", f"{V1}/leases", 200)
    assert first["actor"].startswith("token:viewer-")
    assert first["ms"] >= 0
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
