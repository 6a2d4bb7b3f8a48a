"""Who may do what: every route has its scope, and only those who have it get through."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from fastapi.routing import APIRoute

from hwqueue.client import Client
from hwqueue.client._http import NODE_CALLS
from hwqueue.serve import create_app
from hwqueue.server.dependencies import AuthenticatedRoute, RequireScope
from hwqueue.server.routers import ROUTERS, metrics
from hwqueue.server.settings import ServerSettings
from tests.server.conftest import JSON, NOBODY, V1, Http, Serving, Token, ok, problem

PRODUCER, VIEWER, OPERATOR, ADMIN, WORKER = "producer", "viewer", "operator", "admin", "worker"
ROLES = (PRODUCER, VIEWER, OPERATOR, ADMIN)
EVERYBODY = {*ROLES}
LOOKING = {VIEWER, OPERATOR, ADMIN}
OPERATING = {OPERATOR, ADMIN}
SPAWNING = {PRODUCER, OPERATOR, ADMIN}

# What each route lets through; those of one tenant alone get through the first lot.
BY_TENANT: dict[str, set[str]] = {
    "GET /me": EVERYBODY,
    "POST /leases": SPAWNING,
    "POST /gangs": SPAWNING,
    "GET /gangs": EVERYBODY,
    "GET /gangs/{gang_id:uuid}": EVERYBODY,
    "GET /gangs/{gang_id:uuid}/explanation": EVERYBODY,
    "POST /gangs/what-if": EVERYBODY,
    "POST /gangs/{gang_id:uuid}/cancel": SPAWNING,
    "POST /everywhere": SPAWNING,
    "GET /everywhere": EVERYBODY,
    "GET /everywhere/{everywhere_id:uuid}": EVERYBODY,
    "POST /everywhere/{everywhere_id:uuid}/stop": SPAWNING,
    "POST /leases/batch": SPAWNING,
    "GET /leases": EVERYBODY,
    "POST /leases/count": EVERYBODY,
    "POST /leases/cancel": SPAWNING,
    "POST /leases/requeue": OPERATING,
    "POST /leases/update": SPAWNING,
    "POST /leases/delete": OPERATING,
    "GET /leases/{lease_id:uuid}": EVERYBODY,
    "PATCH /leases/{lease_id:uuid}": SPAWNING,
    "POST /leases/{lease_id:uuid}/cancel": SPAWNING,
    "POST /leases/{lease_id:uuid}/requeue": OPERATING,
    "POST /leases/{lease_id:uuid}/signals/{name:name}": SPAWNING,
    "GET /leases/{lease_id:uuid}/checkpoints": EVERYBODY,
    "GET /leases/{lease_id:uuid}/history": EVERYBODY,
    "GET /leases/{lease_id:uuid}/logs": EVERYBODY,
    "GET /leases/{lease_id:uuid}/logs/stream": EVERYBODY,
    "POST /workflows/check": SPAWNING,
    "POST /workflows/{workflow}/runs": SPAWNING,
    "POST /runs": SPAWNING,
    "GET /runs": EVERYBODY,
    "GET /runs/{run_id:uuid}": EVERYBODY,
    "GET /runs/{run_id:uuid}/signals": EVERYBODY,
    "GET /runs/{run_id:uuid}/steps": EVERYBODY,
    "GET /runs/{run_id:uuid}/steps/{step}/results": EVERYBODY,
    "GET /runs/{run_id:uuid}/stream": EVERYBODY,
    "POST /runs/{run_id:uuid}/cancel": SPAWNING,
    "POST /runs/{run_id:uuid}/pause": SPAWNING,
    "POST /runs/{run_id:uuid}/resume": SPAWNING,
    "POST /runs/{run_id:uuid}/retry": SPAWNING,
    "POST /runs/{run_id:uuid}/retry/preview": SPAWNING,
    "POST /runs/{run_id:uuid}/update": SPAWNING,
    "POST /runs/{run_id:uuid}/update/preview": SPAWNING,
    "POST /runs/{run_id:uuid}/signals/{name:name}": SPAWNING,
    "POST /runs/{run_id:uuid}/steps/{step}/skip": OPERATING,
}
OF_ALL_TENANTS: dict[str, set[str]] = {
    "GET /queues": LOOKING,
    "POST /queues": {ADMIN},
    "GET /queues/{queue:queue}": LOOKING,
    "PATCH /queues/{queue:queue}/policy": {ADMIN},
    "POST /queues/{queue:queue}/pause": OPERATING,
    "POST /queues/{queue:queue}/resume": OPERATING,
    "POST /queues/{queue:queue}/requeue-failed": OPERATING,
    "GET /tasks": LOOKING,
    "PUT /tasks/{task:name}": OPERATING,
    "DELETE /tasks/{task:name}": OPERATING,
    "POST /workflows": OPERATING,
    "GET /workflows": LOOKING,
    "GET /workflows/{workflow}": LOOKING,
    "GET /workflows/{workflow}/versions": LOOKING,
    "GET /nodes": LOOKING,
    "GET /nodes/{node_id:uuid}": LOOKING,
    "POST /nodes/{node_id:uuid}/cordon": OPERATING,
    "POST /nodes/{node_id:uuid}/uncordon": OPERATING,
    "POST /nodes/{node_id:uuid}/drain": OPERATING,
    "POST /nodes/{node_id:uuid}/deregister": OPERATING,
    "POST /nodes/{node_id:uuid}/taint": OPERATING,
    "POST /nodes/{node_id:uuid}/untaint": OPERATING,
    "PUT /nodes/{node_id:uuid}/tenants": OPERATING,
    "POST /nodes/{node_id:uuid}/hand-over": OPERATING,
    "POST /match": EVERYBODY,
    "GET /leases/{lease_id:uuid}/explanation": EVERYBODY,
    "GET /classes/{class_id}/explanation": LOOKING,
    "GET /leases/{lease_id:uuid}/preemption": LOOKING,
    "POST /what-if": LOOKING,
    "GET /pending": LOOKING,
    "GET /queue-depth": LOOKING,
    "GET /throughput": LOOKING,
    "GET /fleet-history": LOOKING,
    "GET /node-usage": LOOKING,
    "GET /planner": LOOKING,
    "GET /labels": LOOKING,
    "GET /classes": LOOKING,
    "GET /events": LOOKING,
    "GET /events/stream": LOOKING,
    "GET /webhooks": LOOKING,
    "PUT /webhooks/{webhook}": {ADMIN},
    "DELETE /webhooks/{webhook}": {ADMIN},
    "POST /webhooks/{webhook}/pause": OPERATING,
    "POST /webhooks/{webhook}/resume": OPERATING,
    "POST /webhooks/{webhook}/rotate": {ADMIN},
    "POST /webhooks/{webhook}/test": OPERATING,
    "GET /webhooks/{webhook}/deliveries": LOOKING,
    "POST /webhooks/{webhook}/redeliver": OPERATING,
    "GET /schedules": LOOKING,
    "POST /schedules": {ADMIN},
    "PATCH /schedules/{schedule:schedule}": {ADMIN},
    "DELETE /schedules/{schedule:schedule}": {ADMIN},
    "POST /schedules/{schedule:schedule}/pause": OPERATING,
    "POST /schedules/{schedule:schedule}/resume": OPERATING,
    "POST /schedules/{schedule:schedule}/trigger": OPERATING,
    "POST /schedules/{schedule:schedule}/backfill": OPERATING,
    "GET /schedules/{schedule:schedule}/fires": LOOKING,
    "GET /limits": LOOKING,
    "POST /limits": {ADMIN},
    "PATCH /limits/{limit:limit}": {ADMIN},
    "DELETE /limits/{limit:limit}": {ADMIN},
    "POST /limits/{limit:limit}/throttle": OPERATING,
    "GET /limits/{limit:limit}/lanes": LOOKING,
    "GET /tenants": LOOKING,
    "GET /tenant-usage": LOOKING,
    "GET /preemptions": LOOKING,
    "PATCH /tenants/{tenant:name}": {ADMIN},
    "DELETE /tenants/{tenant:name}": {ADMIN},
    "PUT /logins/{login}/tenants/{tenant:name}": {ADMIN},
    "DELETE /logins/{login}/tenants/{tenant:name}": {ADMIN},
    "GET /metrics": LOOKING,
}
OF_WORKERS: dict[str, set[str]] = {
    "GET /nodes/{node_id:uuid}/wait": {WORKER},
    **{f"POST /nodes/{{node_id:uuid}}/{route}": {WORKER} for route in ("register", *NODE_CALLS)},
}
MAY = BY_TENANT | OF_ALL_TENANTS | OF_WORKERS
UNKNOWN_QUEUE = "nowhere"


def needs_of(route: APIRoute) -> list[RequireScope]:
    """The scopes that a route declares."""
    calls = [dependency.call for dependency in route.dependant.dependencies]
    return [call for call in calls if isinstance(call, RequireScope)]


def api_routes() -> list[APIRoute]:
    routers = [*ROUTERS, metrics.router]
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def named(route: APIRoute) -> str:
    return f"{' '.join(route.methods or ())} {route.path}"


async def ask(http: Http, route: str, **options: Any) -> Any:
    """Call a route about nothing that exists."""
    method, path = route.split(" ")
    path = re.sub(r"{\w+:uuid}", NOBODY, path).replace("{queue:queue}", UNKNOWN_QUEUE)
    # a stream would not end; this one is refused after its caller has been let in
    options.setdefault("params", {"class_id": "x"} if path == "/events/stream" else {})
    url = path if path == "/metrics" else V1 + path.replace("{class_id}", "0")
    return await http.request(method, url, **options)


def test_every_route_declares_its_scope() -> None:
    undeclared = [named(route) for route in api_routes() if len(needs_of(route)) != 1]
    assert undeclared == []
    assert [named(route) for route in api_routes() if not isinstance(route, AuthenticatedRoute)] == []


def test_the_table_has_every_route_of_the_app() -> None:
    assert {named(route) for route in api_routes()} == set(MAY)
    described = create_app(ServerSettings(dsn="")).openapi()["paths"]
    in_the_app = {f"{m.upper()} {path}" for path, item in described.items() for m in item}
    known = {re.sub(r":\w+}", "}", route).replace(" ", f" {V1}") for route in MAY}
    outside = {"GET /healthz", "GET /readyz", "GET /metrics"}
    assert in_the_app == known - {f"GET {V1}/metrics"} | outside
    assert {named(route) for route in api_routes() if needs_of(route)[0].tenants} == set(BY_TENANT)


@pytest.mark.every_variant
@pytest.mark.parametrize("role", [*ROLES, WORKER])
async def test_roles(guarded: Http, token: Token, role: str) -> None:
    """Each route is tried; what gets through finds nothing, or too little, to act on."""
    headers = token(role, nodes=["edge-*"] if role == WORKER else None)
    for route, allowed in MAY.items():
        response = await ask(guarded, route, headers=headers)
        if role in allowed:
            assert response.status_code not in (401, 403), (route, response.text)
        else:
            found = problem(response, 403)
            assert "lacks the scope" in found["detail"], route
            assert all(each in found["hint"] for each in allowed), route


@pytest.mark.every_variant
@pytest.mark.parametrize("role", ROLES)
async def test_tokens_of_one_tenant(guarded: Http, token: Token, role: str) -> None:
    headers = token(role, "film")
    for route, allowed in MAY.items():
        response = await ask(guarded, route, headers=headers)
        if role in allowed and route in BY_TENANT:
            assert response.status_code not in (401, 403), (route, response.text)
        else:
            problem(response, 403)


async def test_nobody_gets_in_or_sends_anything_without_a_token(guarded: Http) -> None:
    for route in MAY:
        response = await ask(guarded, route)
        problem(response, 401)
        assert response.headers["www-authenticate"].startswith("Bearer")
    read = []

    async def pieces() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"no JSON"

    problem(await guarded.post(f"{V1}/leases", content=pieces(), headers=JSON), 401)
    assert not read


@pytest.mark.parametrize("value", ["Bearer no-such-token", "Bearer", "Bearer ", "Basic dTpw", "secret", ""])
async def test_what_is_no_token(guarded: Http, token: Token, value: str) -> None:
    problem(await guarded.get(f"{V1}/me", headers={"Authorization": value}), 401)
    two = [*token(VIEWER).items(), ("Authorization", "Bearer other")]
    problem(await guarded.get(f"{V1}/me", headers=two), 400)


@pytest.mark.every_variant
@pytest.mark.parametrize(("cache", "status"), [(timedelta(0), 401), (timedelta(minutes=1), 200)])
async def test_a_revoked_token(
    serving: Serving, token: Token, sql: Client, *, cache: timedelta, status: int
) -> None:
    """A token is looked up once in a while."""
    headers = token(VIEWER)
    async with serving(auth="tokens", token_cache=cache) as http:
        me = ok(await http.get(f"{V1}/me", headers=headers))
        sql.revoke_token(me["actor"].removeprefix("token:"))
        assert (await http.get(f"{V1}/me", headers=headers)).status_code == status


async def test_an_expired_token(guarded: Http, token: Token, conn: Any) -> None:
    headers = token(VIEWER, expires_at=datetime.now(UTC) + timedelta(hours=1))
    conn.execute("update hwqueue.api_token set expires_at = now() where expires_at is not null")
    problem(await guarded.get(f"{V1}/me", headers=headers), 401)


async def test_who_one_is(guarded: Http, token: Token) -> None:
    me = ok(await guarded.get(f"{V1}/me", headers=token(PRODUCER, "film")))
    assert me["actor"].startswith("token:producer-")
    assert (me["role"], me["tenant"]) == (PRODUCER, "film")
    assert me["scopes"] == ["leases:read", "leases:write", "match"]


class TestProxy:
    """Headers of a reverse proxy."""

    NETWORKS = ("10.0.0.0/8", "::1/128")
    AUTH = {"auth": "proxy", "proxy_networks": NETWORKS, "proxy_tenant_required": False}  # noqa: RUF012
    ALICE = {"X-Forwarded-User": "alice", "X-Forwarded-Role": "operator"}  # noqa: RUF012

    async def test_the_proxy_is_believed(self, serving: Serving, token: Token) -> None:
        viewer = token(VIEWER)
        async with serving(**self.AUTH) as http:
            for address in ("10.1.2.3", "::ffff:10.1.2.3"):  # a socket for IPv6 takes IPv4, too
                async with Http(http.app, address) as proxy:
                    me = ok(await proxy.get(f"{V1}/me", headers=self.ALICE))
                    assert (me["actor"], me["role"], me["tenant"]) == ("user:alice", "operator", None)
                    for tenant in ("film", "*"):  # where none is required, a star is one
                        headers = self.ALICE | {"X-Forwarded-Tenant": tenant}
                        assert ok(await proxy.get(f"{V1}/me", headers=headers))["tenant"] == tenant
            for address in ("11.1.2.3", "127.0.0.1", "::ffff:11.1.2.3", "::", "not an address"):
                async with Http(http.app, address) as stranger:
                    problem(await stranger.get(f"{V1}/me", headers=self.ALICE), 401)
            assert ok(await http.get(f"{V1}/me", headers=viewer))["role"] == VIEWER

    async def test_a_user_without_a_tenant_is_refused_unless_told_otherwise(self, serving: Serving) -> None:
        settings = {**self.AUTH}
        del settings["proxy_tenant_required"]
        async with serving(**settings) as http, Http(http.app, "10.1.2.3") as proxy:
            found = problem(await proxy.get(f"{V1}/me", headers=self.ALICE), 403)
            assert "--no-proxy-tenant-required" in found["hint"]
            for said, tenant in (("film", "film"), ("*", None)):
                headers = self.ALICE | {"X-Forwarded-Tenant": said}
                assert ok(await proxy.get(f"{V1}/me", headers=headers))["tenant"] == tenant

    async def test_an_address_is_not_enough_where_there_is_a_secret(self, serving: Serving) -> None:
        settings = {**self.AUTH, "proxy_secret": "s" * 32}
        wrong: list[list[str]] = [[], [""], ["s" * 31], ["é" * 32]]
        tried = [*((each, 401) for each in wrong), (["s" * 32], 200), (["s" * 32] * 2, 400)]
        async with serving(**settings) as http:
            for secrets, status in tried:
                given = [*self.ALICE.items(), *(("X-Hwqueue-Proxy-Secret", each) for each in secrets)]
                sent = [(name.encode(), value.encode()) for name, value in given]
                for address, expected in (("10.1.2.3", status), ("11.1.2.3", 401)):
                    async with Http(http.app, address) as caller:
                        answer = await caller.get(f"{V1}/me", headers=sent)
                        assert answer.status_code == expected, (secrets, address)

    async def test_pages_of_others_open_no_streams(self, serving: Serving) -> None:
        tried = product(("cross-site", "same-site"), (("no-cors", "image"), ("navigate", "iframe")))
        async with serving(**self.AUTH) as http, Http(http.app, "10.1.2.3") as proxy:
            for site, (mode, dest) in tried:
                fetch = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
                for path in (f"{V1}/events/stream", "/events/stream?after=0"):
                    async with asyncio.timeout(60):
                        answer = await proxy.get(path, headers=self.ALICE | fetch)
                        assert answer.status_code == 403, (path, fetch)

    async def test_what_is_missing_or_doubled_lets_nobody_in(self, serving: Serving) -> None:
        alice = [*self.ALICE.items()]
        async with serving(**self.AUTH) as http, Http(http.app, "10.1.2.3") as proxy:
            for headers, status in (
                ([], 401),
                ([("X-Forwarded-Role", "admin")], 401),
                ([("X-Forwarded-User", "alice")], 403),
                ([("X-Forwarded-User", "alice"), ("X-Forwarded-Role", "king")], 403),
                ([("X-Forwarded-User", "alice"), ("X-Forwarded-Role", "worker")], 403),
                ([("X-Forwarded-User", ""), ("X-Forwarded-Role", "admin")], 403),
                ([*alice, ("X-Forwarded-Role", "admin")], 400),
                ([*alice, ("X-Forwarded-User", "bob")], 400),
                ([*alice, ("X-Forwarded-Tenant", "")], 403),
            ):
                problem(await proxy.get(f"{V1}/me", headers=headers), status)

    async def test_pages_of_others_do_nothing_in_a_users_name(self, serving: Serving) -> None:
        url = f"{V1}/queues/{UNKNOWN_QUEUE}/pause"
        async with serving(**self.AUTH) as http, Http(http.app, "10.1.2.3") as proxy:
            for headers in (
                {"Sec-Fetch-Site": "cross-site"},
                {"Sec-Fetch-Site": "same-site"},
                {"Origin": "https://evil.example"},
                {"Origin": "null"},
            ):
                problem(await proxy.post(url, headers=self.ALICE | headers), 403)
                ok(await proxy.get(f"{V1}/me", headers=self.ALICE | headers))
            for headers in (  # those of its own do
                {"Sec-Fetch-Site": "same-origin", "Origin": "https://queue.example"},
                {"Origin": "http://localhost"},
                {"Origin": "http://queue.example", "X-Forwarded-Host": "queue.example"},
            ):
                problem(await proxy.post(url, headers=self.ALICE | headers), 404, "QHQ01")


class TestOpen:
    """A server that asks nobody who they are."""

    async def test_everybody_is_an_admin(self, http: Http) -> None:
        me = ok(await http.get(f"{V1}/me"))
        assert (me["actor"], me["role"], me["tenant"]) == ("anonymous", "admin", None)

    @pytest.mark.parametrize(
        "headers",
        [
            {"Host": "evil.example"},
            {"Host": "evil.example:8080"},
            {"X-Forwarded-For": "1.2.3.4"},
            {"Forwarded": "for=1.2.3.4"},
            {"X-Real-IP": "1.2.3.4"},
            {"X-Forwarded-Proto": "https"},
            {"X-Forwarded-Host": "queue.example"},
            {"Via": "1.1 queue.example"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ],
    )
    async def test_but_not_pages_of_others_nor_behind_a_proxy(
        self, http: Http, headers: dict[str, str]
    ) -> None:
        problem(await http.post(f"{V1}/queues/q/pause", headers=headers), 403)

    @pytest.mark.parametrize("host", ["127.0.0.1:8080", "[::1]:8080", "LOCALHOST:1"])
    async def test_this_machine_has_several_names(self, http: Http, host: str) -> None:
        ok(await http.get(f"{V1}/me", headers={"Host": host, "Origin": f"http://{host}"}))

    async def test_when_told_so_also_elsewhere(self, serving: Serving) -> None:
        async with serving(auth="none", host="0.0.0.0") as http:
            ok(await http.get(f"{V1}/me", headers={"Host": "queue.example"}))

    async def test_by_names_that_are_allowed(self, serving: Serving) -> None:
        async with serving(auth="none", allowed_hosts=("queue.example",)) as http:
            ok(await http.get(f"{V1}/me", headers={"Host": "queue.example:8080"}))
            problem(await http.get(f"{V1}/me", headers={"Host": "localhost"}), 403)

    async def test_not_elsewhere_unless_told_so(self, serving: Serving) -> None:
        async with serving(host="0.0.0.0") as http:
            problem(await http.get(f"{V1}/me"), 401)
