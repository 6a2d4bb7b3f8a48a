"""What goes wrong is told as problem details, and every code has its status."""

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import hwqueue.server
from hwqueue.client._http import NODE_CALLS
from hwqueue.errors import BY_SQLSTATE
from hwqueue.server.large_requests import LARGE_BODY_BYTES
from hwqueue.server.pools import Pools
from hwqueue.server.problems import _exact
from tests.server.conftest import JSON, NOBODY, V1, Http, Serving, Slow, ok, problem
from tests.server.test_other_tenants import ROUTES, ask

PAGE = Path(__file__).parents[2] / "docs" / "use" / "http.md"
LEASES = f"{V1}/leases"
SERVER = Path(hwqueue.server.__file__).parent


def test_the_page_has_the_status_of_every_code() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = {code: int(status) for status, codes in rows for code in re.findall(r"QH\w\d\d", codes)}
    assert told == {code: kind.http_status for code, kind in BY_SQLSTATE.items()}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"task": ""}, "task"),
        ({"task": 7}, "task"),
        ({"queue": "no such name!"}, "queue"),
        ({"unknown": 1}, "unknown"),
        ({"\ud800": 1}, "body"),
        ({"options": {"priority": 40_000}}, "options.priority"),
        ({"options": {"priority": "5"}}, "options.priority"),
        ({"options": {"priority": True}}, "options.priority"),
        ({"options": {"notify": 1}}, "options.notify"),
        ({"options": {"delay": "60"}}, "options.delay"),
        ({"options": {"deadline": "2030-01-31"}}, "options.deadline"),
        ({"options": {"deadline": "2030-01-31T12:00:00"}}, "options.deadline"),
        ({"options": {"deadline": 1_900_000_000}}, "options.deadline"),
        ({"options": {"deadline": "1900000000"}}, "options.deadline"),
        ({"options": {"lease_id": "{0197f3a27c1e70008000000000000001}"}}, "options.lease_id"),
        ({"options": {"labels": {"a": 1}}}, "options.labels.a"),
        ({"options": {"retry": {"factor": 0.5}}}, "options.retry.factor"),
        ({"options": {"tenant": "nul\0"}}, "options.tenant"),
        ({"params": {"a": "nul\0"}}, "params.a"),
        ({"params": {"a": "\ud800"}}, "params.a"),
        ({"options": {"placement": {"require": [{"rack": -1}]}}}, "options.placement.require[0].rack[0]"),
        ({"options": {"delay": 5, "available_at": "2030-01-31T12:00:00Z"}}, "options.delay"),
    ],
)
async def test_the_argument_is_named(http: Http, queue: str, change: dict[str, Any], field: str) -> None:
    body = json.dumps({"queue": queue, "task": "draw"} | change)
    response = await http.post(LEASES, content=body, headers=JSON)
    assert response.status_code == 422
    assert response.json()["field"] == field, response.text
    assert ok(await http.get(LEASES, params={"queue": queue}))["items"] == []


SPAWN = b'{"queue": "q", "task": "t", "params": %s}'


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"null", 422),
        (b"[]", 422),
        (b'"text"', 422),
        (b"\xff", 400),
        (SPAWN % b"NaN", 422),
        (SPAWN % b"-Infinity", 422),
        (SPAWN % b"1e999", 422),
        (SPAWN % (b"9" * 5000), 400),
        (SPAWN % (b"[" * 500 + b"]" * 500), 422),
        (SPAWN % (b"[" * 100_000 + b"]" * 100_000), 400),
        (b"[" * 100_000, 400),
        (b"9" * LARGE_BODY_BYTES, 400),
    ],
)
async def test_what_is_no_request(http: Http, content: bytes, status: int) -> None:
    """What is large is read in another way, and answered alike."""
    for size in (0, LARGE_BODY_BYTES + 1):
        response = await http.post(LEASES, content=content + b" " * size, headers=JSON)
        found = problem(response, status, "QHA01")
        assert status == 422 or (found["field"], "hint" in found) == ("body", True)


async def test_all_that_is_wrong_is_told(http: Http) -> None:
    body = {"queue": "q", "task": "", "options": {"priority": "high"}}
    found = problem(await http.post(LEASES, json=body), 422, "QHA01")
    assert {each["field"] for each in found["errors"]} == {"task", "options.priority"}
    found = problem(await http.post(LEASES, content=b'{"queue"', headers=JSON), 422, "QHA01")
    assert found["field"] == "body", "what is no JSON has no index"


async def test_answers_do_not_grow_with_mistakes(http: Http) -> None:
    body = {"queue": "q", "leases": [{"task": "", "x" * 5000: 1}] * 500}
    response = await http.post(f"{LEASES}/batch", json=body)
    assert len(problem(response, 422, "QHA01")["errors"]) == 100
    assert len(response.content) < 100_000


async def test_forms_and_pages_of_others_are_no_json(http: Http) -> None:
    content = b'{"queue": "q", "task": "t"}'
    for kind in (None, "text/plain", "application/x-www-form-urlencoded"):
        headers = {} if kind is None else {"Content-Type": kind}
        said = "no Content-Type" if kind is None else f"its Content-Type is {kind}"
        for size in (0, LARGE_BODY_BYTES):
            response = await http.post(LEASES, content=content + b" " * size, headers=headers)
            found = problem(response, 422, "QHA01")
            assert found["detail"] == f"body: {said}, and JSON is needed"
            assert found["hint"] == "add Content-Type: application/json"
    response = await http.post(LEASES, content=b"7", headers=JSON)
    assert "valid dictionary" in problem(response, 422, "QHA01")["detail"]


async def test_a_page_says_where_the_api_is(http: Http) -> None:
    response = await http.post("/leases", json={"queue": "q", "task": "t"})
    assert problem(response, 405)["hint"].endswith("as in POST /api/v1/leases")
    assert "GET" in response.headers["allow"]


def test_who_may_not_is_told_what_it_takes() -> None:
    """Each refusal in the source has a hint."""
    found = [
        (file.name, call)
        for file in (*SERVER.rglob("*.py"), *SERVER.with_name("dashboard").rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "HTTPProblem"
        if isinstance(call.args[0], ast.Constant) and call.args[0].value == 403
    ]
    assert len(found) > 10
    for name, call in found:
        assert "hint" in {each.arg for each in call.keywords}, (name, call.lineno)


NOT_FOUND = {
    "{lease_id}": "QHL04",
    "{run_id}": "QHF03",
    "{gang_id}": "QHG01",
    "{everywhere_id}": "QHE01",
    "{node_id}": "QHN01",
    "{class_id}": "QHC01",
    "{queue}": "QHQ01",
    "{workflow}": "QHF01",
    "{webhook}": "QHH01",
}
GONE = [
    (*route, code)
    for route in ROUTES
    for part, code in NOT_FOUND.items()
    if part in route[1] and not route[1].endswith("/{webhook}")  # put there, and dropped in any case
    # those of workers: test_workers.py
    if part != "{node_id}" or route[1].rpartition("/")[2] not in ("register", "wait", *NODE_CALLS)
]


@pytest.mark.every_variant
@pytest.mark.parametrize(("method", "path", "code"), GONE)
async def test_what_does_not_exist(http: Http, method: str, path: str, code: str) -> None:
    named = dict.fromkeys((part[1:-1] for part in NOT_FOUND), NOBODY) | {"class_id": "9"}
    del named["queue"]
    found = problem(await ask(http, method, path, "nowhere", **named), 404, code)
    assert "{lease_id}" not in path or NOBODY in found["detail"]


async def test_what_a_path_takes_is_told(http: Http) -> None:
    ways = (
        (LEASES, "GET, POST"),
        (f"{LEASES}/batch", "POST"),
        (f"{V1}/queues/a/b", "GET"),
        (f"{V1}/queues/a/b/pause", "POST"),
        ("/healthz", "GET"),
    )
    for path, methods in ways:
        answer = await http.delete(path)
        assert answer.headers["allow"] == methods
        found = problem(answer, 405)
        assert found["detail"] == f"DELETE is not for this address, which takes {methods}"
    for method, path in (("GET", "/api/nothing"), ("GET", f"{V1}/nothing"), ("POST", f"{LEASES}/")):
        problem(await http.request(method, path), 404)


async def test_a_parameter_that_is_misspelt_or_given_twice(http: Http) -> None:
    for path in ("/leases", "/events", "/me"):
        found = problem(await http.get(f"{V1}{path}", params={"quue": "renders"}), 422)
        assert found["field"] == "quue"
    for query in ("leases?queue=a&queue=b", "leases?limit=5&limit=5", "events?actor=a&actor=b"):
        found = problem(await http.get(f"{V1}/{query}"), 422)
        assert f"?{found['field']}=" in query
    ok(await http.get(f"{V1}/events?code=queue_paused&code=queue_resumed"))  # it takes several


def test_integers_survive_readers_with_doubles() -> None:
    token = 2**60
    assert _exact({"token": token, "n": [7, token], "t": True}) == {
        "token": str(token), "n": [7, str(token)], "t": True,
    }  # fmt: skip


@pytest.fixture
def held(dsn: str, queue: str) -> Iterator[str]:
    """A lease that somebody else holds locked."""
    with psycopg.connect(dsn) as other:
        found = other.execute("select lease_id from hwqueue.spawn_lease(%s, 'held')", [queue]).fetchone()
        assert found is not None
        other.commit()
        other.execute("select hwqueue.update_lease(%s, '{\"priority\": 3}')", found)
        yield str(found[0])


async def test_what_takes_too_long_is_broken_off(serving: Serving, held: str) -> None:
    async with serving(call_timeout=timedelta(seconds=0.1)) as http:
        response = await http.post(f"{LEASES}/{held}/cancel")
        found = problem(response, 504, "57014")
        assert (found["retryable"], response.headers["retry-after"]) == (True, "1")


async def test_lists_cannot_keep_anybody_from_spawning(serving: Serving, queue: str) -> None:
    async with serving(read_pool_size=1, pool_timeout=timedelta(seconds=2)) as http:
        pools: Pools = http.app.state.services.pools
        async with pools.read("somebody"):
            problem(await http.get(LEASES), 503)
            ok(await http.post(LEASES, json={"queue": queue, "task": "draw"}), 201)


async def test_reads_write_nothing(serving: Serving, queue: str) -> None:
    async with serving() as http:
        pools: Pools = http.app.state.services.pools
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            async with pools.read("somebody") as client:
                await client.spawn_lease(queue, "draw")


async def test_a_database_that_turned_read_only_is_left(
    serving: Serving, conn: psycopg.Connection[Any], queue: str
) -> None:
    """A standby is; a server whose disk is full may be."""
    name, body = conn.info.dbname, {"queue": queue, "task": "draw"}
    conn.execute(f'alter database "{name}" set default_transaction_read_only = on')
    try:
        async with serving() as http:
            problem(await http.post(LEASES, json=body), 503, "25006")
            conn.execute(f'alter database "{name}" reset default_transaction_read_only')
            # each of the pool's connections may have been made before
            answers = [await http.post(LEASES, json=body) for _ in range(4)]
            ok(answers[-1], 201)
    finally:
        conn.execute(f'alter database "{name}" reset default_transaction_read_only')


async def test_the_database_is_told_who_acts(serving: Serving, sql: Any) -> None:
    async with serving() as http:
        pools: Pools = http.app.state.services.pools
        async with pools.call("token:ci") as client:
            await client.create_token("made", bytes(32), "viewer")
        [made] = [token for token in sql.list_tokens() if token.name == "made"]
        assert made.created_by == "token:ci"
        async with pools.call("") as client:
            await client.create_token("made-again", bytes([1] * 32), "viewer")
        [made] = [token for token in sql.list_tokens() if token.name == "made-again"]
        assert made.created_by != "token:ci"


async def test_without_a_database(serving: Serving) -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    async with serving(dsn=nowhere, pool_timeout=timedelta(seconds=0.05)) as http:
        assert ok(await http.get("/healthz")) == {"status": "ok"}
        problem(await http.get("/readyz"), 503)
        problem(await http.get(LEASES), 503)


async def test_probes_cannot_keep_anybody_from_spawning(
    serving: Serving, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no token, and so there may be any number of them."""
    look = Slow(monkeypatch, "schema_version")
    async with serving(pool_size=2, pool_timeout=timedelta(seconds=2)) as http:
        probes = [asyncio.ensure_future(http.get("/readyz")) for _ in range(10)]
        await look.begun.wait()
        ok(await http.post(LEASES, json={"queue": queue, "task": "draw"}), 201)
        look.goes_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*probes)} == {200}


async def test_a_database_without_the_schema(serving: Serving, empty_dsn: str) -> None:
    async with serving(dsn=empty_dsn) as http:
        found = problem(await http.get("/readyz"), 503, "3F000")
        assert "hwqueue db upgrade" in found["hint"]
        assert ok(await http.get("/healthz")) == {"status": "ok"}
    async with serving() as http:
        ready = ok(await http.get("/readyz"))
        assert ready["status"] == "ready"
        assert re.fullmatch(r"\d{4}_\w+", ready["revision"])


async def test_a_lost_connection_is_replaced(serving: Serving, conn: Any, queue: str) -> None:
    async with serving(pool_size=1) as http:
        body = {"queue": queue, "task": "draw"}
        ok(await http.post(LEASES, json=body), 201)
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'hwqueue serve: calls' and datname = current_database()"
        )
        ok(await http.post(LEASES, json=body), 201)


async def test_what_fails_in_the_server_is_told_without_its_words(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("hwqueue.server.routers.me.SCOPES", property(fail))
    response = await http.get(f"{V1}/me")
    problem(response, 500)
    assert "secret" not in response.text
