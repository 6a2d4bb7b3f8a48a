"""What is another tenant's and what does not exist are answered alike, on every route.

Each test runs in both directions: `theirs` is what one of two tenants has, and the other asks.
"""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from hwqueue.wire import Affinity, Category, Direction, Strength, TargetType, WireIntent, encode
from tests.server.conftest import V1, Http, Serving, Token, ok, problem, served

pytestmark = pytest.mark.every_variant

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "openapi.json").read_text())
METHODS = ("get", "post", "patch", "put", "delete")
ROUTES = [
    (method.upper(), path)
    for path, routes in DOCUMENT["paths"].items()
    for method in METHODS
    if method in routes
]
ROLES = ("producer", "viewer", "operator", "admin")
FILM, GAMES = "film", "games"
BODIES: dict[str, Any] = {
    "/api/v1/match": {"placement": {}},
    "/api/v1/what-if": {"nodes": [{"labels": {}}]},
    "/api/v1/queues": {"queue": "another"},
    "/api/v1/queues/{queue}/policy": {"max_attempts": 3},
    "/api/v1/queues/{queue}/requeue-failed": {},
    "/api/v1/tasks/{task}": {"priority": 1},
    "/api/v1/webhooks/{webhook}": {"url": "https://hooks.example/"},
    "/api/v1/schedules": {"name": "nightly", "spec": {"every": 60, "queue": "q", "task": "t"}},
    "/api/v1/schedules/{schedule}": {"changes": {}},
    "/api/v1/limits": {"name": "openai", "spec": {"slots": 1}},
    "/api/v1/limits/{limit}": {"changes": {}},
    "/api/v1/limits/{limit}/throttle": {"retry_after": 1},
    "/api/v1/tenants/{tenant}": {"changes": {}},
    "/api/v1/logins/{login}/tenants/{tenant}": {"rights": ["read"]},
    "/api/v1/schedules/{schedule}/backfill": {
        "since": "2026-11-01T00:00:00Z",
        "until": "2026-11-02T00:00:00Z",
    },
    "/api/v1/nodes/{node_id}/taint": {"key": "k", "effect": "no_schedule"},
    "/api/v1/nodes/{node_id}/untaint": {"key": "k"},
    "/api/v1/nodes/{node_id}/tenants": {"tenants": ["film"]},
    "/api/v1/nodes/{node_id}/hand-over": {"login": "hwqueue_worker"},
    "/api/v1/leases/{lease_id}": {"priority": 2},
    "/api/v1/workflows": {"name": "flow", "steps": [{"name": "a", "task": "t"}]},
    "/api/v1/workflows/{workflow}/runs": {"input": {}},
    "/api/v1/runs/{run_id}/update": {"changes": {"affinity": "and"}},
    "/api/v1/runs/{run_id}/update/preview": {"changes": {"affinity": "and"}},
}
BY_ID = ("{lease_id}", "{class_id}", "{run_id}", "{gang_id}", "{everywhere_id}")
BULK: dict[str, Any] = {
    **{verb: {} for verb in ("cancel", "requeue", "delete")},
    "update": {"changes": {"priority": 2}},
}


def asking(path: str, queue: str, **options: Any) -> dict[str, Any]:
    """A request with options, as the route takes it."""
    leases = [{"task": "draw"}, {"task": "draw", "options": options}]
    steps = [{"name": "a", "task": "draw"}]
    bodies: dict[str, dict[str, Any]] = {
        "leases": {"queue": queue, "task": "draw", "options": options},
        "leases/batch": {"queue": queue, "leases": leases},
        "leases/count": {"filter": {"queue": queue, **options}},
        "gangs": {"queue": queue, "members": [{"task": "draw", "count": 2}], "options": options},
        "everywhere": {"queue": queue, "task": "draw", "options": options},
        "runs": {"spec": {"name": "flow", "queue": queue, "steps": steps}, "options": options},
    }
    return bodies[path] if path in bodies else bodies["runs"]


NOT_FOUND = {"leases": "QHL04", "gangs": "QHG01", "everywhere": "QHE01", "runs": "QHF03"}
TAKEN = {"leases": (409, "QHL06"), "gangs": (409, "QHG02"), "everywhere": (409, "QHE02")}
OF_TENANTS = {
    "leases": "options.tenant",
    "leases/batch": "leases[1].options.tenant",
    "leases/count": "filter.tenant",
    "gangs": "options.tenant",
    "everywhere": "options.tenant",
    "runs": "options.tenant",
    "workflows/check": "options.tenant",
}


@dataclass(frozen=True)
class Theirs:
    """What a tenant has, each name and id of it told by nothing else."""

    tenant: str
    reader: str
    """The other tenant: who asks."""
    queue: str
    node: str
    lease: str
    done: str
    service: str
    class_id: int
    run: str
    gang: str
    everywhere: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """What nobody else may be told."""
        told = (self.lease, self.done, self.service, self.task, self.tenant, self.run, self.gang)
        return (*told, self.everywhere)

    @property
    def task(self) -> str:
        """The task of its leases, a label of theirs, and what their errors say."""
        return f"secret-of-{self.tenant}"


@pytest.fixture(scope="module", params=[(FILM, GAMES), (GAMES, FILM)], ids=lambda pair: f"{pair[0]}-asks")
def theirs(sql: Client, request: pytest.FixtureRequest) -> Theirs:
    """Leases of two tenants, each with one that waits, one that runs, one that failed.

    Made once: whatever the other one asks, it changes none of them.
    """
    reader, tenant = request.param
    queue = str(uuid4())
    sql.create_queue(queue)
    made(sql, queue, tenant, reader)
    return made(sql, queue, reader, tenant)


def made(sql: Client, queue: str, reader: str, tenant: str) -> Theirs:
    """Leases of a tenant, told apart from all others."""
    service, task = uuid4(), f"secret-of-{tenant}"
    about: dict[str, Any] = {"tenant": tenant, "service_id": service, "labels": {"app": task}}
    node = uuid4()
    epoch = sql.register_node(node, NodeSpec(name=f"n-{node}", instance_id="one"))
    sql.spawn_lease(queue, task, **about)
    assert sql.claim_task([queue], node, epoch, tasks=[task])
    done = sql.spawn_lease(queue, task, max_attempts=1, **about)
    [claim] = sql.claim_task([queue], node, epoch, tasks=[task])
    sql.fail_lease(claim.lease_id, claim.claim_token, error={"message": task})
    lease = sql.spawn_lease(queue, task, **about)
    steps = [{"name": "a", "task": task}, {"name": "b", "task": task, "after": "a"}]
    run = sql.submit_spec({"name": "flow", "queue": queue, "steps": steps}, tenant=tenant)
    [member, _] = sql.spawn_gang(queue, [{"task": task, "count": 2}], tenant=tenant)
    everywhere = sql.spawn_everywhere(queue, task, tenant=tenant, affinity_tags={"none": task})
    return Theirs(
        tenant,
        reader,
        queue,
        str(node),
        str(lease.lease_id),
        str(done.lease_id),
        str(service),
        sql.explain_lease(lease.lease_id).class_id,
        str(run.run_id),
        str(member.gang_id),
        str(everywhere.everywhere_id),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bound(database: str, theirs: Theirs) -> AsyncIterator[Http]:
    """A server whose login is bound to the tenant of who asks, and that asks nobody who they are."""
    name = f"bound_{uuid4().hex[:12]}"
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"create role {name} login password 'secret' in role hwqueue_tenants")
        conn.execute("select hwqueue.grant_tenant(%s, %s, '{spawn,operate}')", [name, theirs.reader])
        dsn = make_conninfo(database, user=name, password="secret")
        try:
            async with served(dsn, read_timeout=timedelta(minutes=1)) as app, Http(app) as http:
                yield http
        finally:
            conn.execute("select hwqueue.revoke_tenant(%s, %s)", [name, theirs.reader])
            conn.execute(f"drop role {name}")


def test_the_document_has_the_routes() -> None:
    """And each that needs a body is asked with one, but those that are for workers alone."""
    assert len(ROUTES) >= 37
    assert set(BODIES) <= {path for _, path in ROUTES}
    asked = {*BODIES, *(f"{V1}/{kind}" for kind in OF_TENANTS), *(f"{V1}/leases/{verb}" for verb in BULK)}
    needed = {
        path
        for path, routes in DOCUMENT["paths"].items()
        for route in routes.values()
        if route.get("requestBody", {}).get("required") and route["tags"] != ["workers"]
    }
    assert needed - asked == {f"{V1}/gangs/what-if"}  # with the body of gangs


async def ask(http: Http, method: str, path: str, queue: str, **named: Any) -> httpx.Response:
    """Ask a route about a lease or a class, whatever else it needs to be asked."""
    others = {
        "task": "draw",
        "webhook": "pager",
        "schedule": "nightly",
        "limit": "openai",
        "tenant": "lab",
        "login": "app_lab",
        "workflow": "flow",
        "step": "a",
        "name": "packed",
    }
    url = path.format(**({"queue": queue, "node_id": uuid4()} | others | named))
    body = BODIES.get(path) if method != "GET" else None
    if path.removeprefix("/api/v1/leases/") in BULK:
        body = {"filter": {"queue": queue}, **BULK[path.removeprefix("/api/v1/leases/")]}
    kind = path.removeprefix(f"{V1}/").removesuffix("/what-if")
    if method == "POST" and kind in OF_TENANTS:
        body = asking(kind, queue)
    return await http.request(method, url, json=body)


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=lambda part: part)
async def test_a_route_tells_nothing_of_another_tenant(
    *, guarded: Http, bound: Http, token: Token, sql: Client, theirs: Theirs, method: str, path: str
) -> None:
    """Asked about another's and about nothing, it answers word for word the same.

    With a token of each role, and where the server's own login is bound.
    """
    asked = (
        (theirs.lease, theirs.class_id, theirs.run, theirs.gang, theirs.everywhere),
        (theirs.done, theirs.class_id, theirs.run, theirs.gang, theirs.everywhere),
        (str(uuid4()), 10**12, str(uuid4()), str(uuid4()), str(uuid4())),
    )
    before = [sql.get_lease(each) for each in (theirs.lease, theirs.done)]
    # a stream that has begun cannot say that its login may read no events: it goes on without any
    for role in ROLES if path.endswith("/events/stream") else (*ROLES, None):
        told = set()
        if role is not None:
            guarded.headers.update(token(role, theirs.reader))
        for lease, klass, run, gang, everywhere in asked:
            named = {"lease_id": lease, "class_id": klass, "run_id": run, "gang_id": gang}
            named["everywhere_id"] = everywhere
            response = await ask(guarded if role else bound, method, path, theirs.queue, **named)
            text = response.text.replace(lease, "ID").replace(run, "RUN").replace(gang, "GANG")
            text = text.replace(everywhere, "EVERYWHERE")
            text = re.sub(rf"\b{klass}\b", "CLASS", text)
            for secret in theirs.secrets:
                assert secret not in text
            if any(name in path for name in BY_ID):
                assert response.status_code in (403, 404)
                found = json.loads(text)
                del found["request_id"]
                told.add((response.status_code, json.dumps(found)))
        assert len(told) <= 1
    assert [sql.get_lease(each) for each in (theirs.lease, theirs.done)] == before


FILTERS = {
    (method.upper(), path): [each["name"] for each in route["parameters"] if each["in"] == "query"]
    for path, routes in DOCUMENT["paths"].items()
    for method, route in routes.items()
    if any(each["in"] == "query" for each in route.get("parameters", ()))
}
HARMLESS = {"queue", "state", "limit", "kind", "order", "minutes", "label", "code", "wait"} | {
    *("attempt", "last", "workflow", "version", "is_nested")
}
"""Filters that name nothing of a tenant's: queues, nodes and labels belong to nobody."""
TIMES = (
    *("since", "until", "created_from", "created_before"),
    *("finished_from", "finished_before", "submitted_from", "submitted_before"),
)


def named(theirs: Theirs) -> dict[str, tuple[str, str]]:
    """What a filter may name of another tenant's, and the like of it that does not exist.

    Where lists go on after a given one, what does not exist comes right beside what does.
    """
    beside = str(UUID(int=UUID(theirs.lease).int ^ 1))
    now = "2026-01-01T00:00:00Z"
    return {
        "tenant": (theirs.tenant, "nobody"),
        "task": (theirs.task, "nothing"),
        "actor": (theirs.tenant, "nobody"),
        "service_id": (theirs.service, str(uuid4())),
        "lease_id": (theirs.lease, beside),
        "node_id": (theirs.node, str(uuid4())),
        "class_id": (str(theirs.class_id), str(10**12)),
        "parent_run_id": (theirs.run, str(uuid4())),
        "root_run_id": (theirs.run, str(uuid4())),
        "before": (theirs.lease, beside),
        "after": (theirs.lease, beside),
        "name": (f"n-{theirs.node}", "nothing"),
        "idempotency_key": (theirs.task, "nothing"),
        "error_type": (theirs.task, "nothing"),
        **dict.fromkeys(TIMES, (now, now)),
    }


def test_every_filter_is_tried() -> None:
    assert {name for names in FILTERS.values() for name in names} == {
        *HARMLESS,
        *named(Theirs("a", "b", "q", "n", str(uuid4()), "d", "s", 0, "r", "g", "e")),
    }
    assert len(FILTERS) >= 10


@pytest.mark.parametrize(("method", "path"), FILTERS, ids=lambda part: part)
async def test_a_filter_tells_nothing_of_another_tenant(
    serving: Serving, token: Token, theirs: Theirs, method: str, path: str
) -> None:
    """What is another's filters as what does not exist, and nothing of it is listed."""
    # a busy machine must not decide what is told
    async with serving(auth="tokens", read_timeout=timedelta(minutes=1)) as http:
        for role in ROLES:
            http.headers.update(token(role, theirs.reader))
            for name in FILTERS[method, path]:
                told = []
                for value in named(theirs).get(name, ()):
                    response = await http.request(method, path, params={name: value, "limit": 100})
                    found = response.json()
                    found.pop("request_id", None)
                    text = re.sub(rf"\b{value}\b", "IT", json.dumps(found))
                    assert [secret for secret in theirs.secrets if secret in text] == []
                    told.append((response.status_code, text))
                assert told[:1] == told[1:]


ANY: dict[str, Any] = {"leases": {"labels": {}}, "domain": "node"}


def others(lease: str, service: str, tenant: str) -> dict[str, dict[str, Any]]:
    """Options that name a lease, a service or a tenant, in every way there is, by what they do."""
    entry = {
        target: encode(WireIntent(affinity=(_entry(target, target_id),))).hex()
        for target, target_id in ((TargetType.LEASE, lease), (TargetType.SERVICE, service))
    }
    at = {"domain": "node"}
    return {
        "with a lease": {"placement": {"require": [{"lease": lease, **at}]}},
        "away from a lease": {"placement": {"require": [{"lease": lease, **at, "away": True}]}},
        "within any": {"placement": {"require": [{"any": [[{"lease": lease}], [{"tags": {"a": 1}}]]}]}},
        "rather with a lease": {"placement": {"prefer": [{"when": {"lease": lease}}]}},
        "with a service": {"placement": {"require": [{"service": service, **at}]}},
        "away from a service": {"placement": {"require": [{"service": service, **at, "away": True}]}},
        "rather with a service": {"placement": {"prefer": [{"when": {"service": service}}]}},
        "a lease in the blob": {"wire": "\\x" + entry[TargetType.LEASE]},
        "a service in the blob": {"wire": "\\x" + entry[TargetType.SERVICE]},
        "with any of a tenant": {"placement": {"require": [ANY | {"tenants": [tenant]}]}},
    }


def _entry(target: TargetType, target_id: str) -> Affinity:
    category, direction = (
        (Category.STATE, Direction.TOWARD)
        if target is TargetType.LEASE
        else (Category.TOPOLOGY, Direction.AWAY)
    )
    return Affinity(category, Strength.REQUIRED, direction, target, UUID(target_id))


WAYS = tuple(others(str(uuid4()), str(uuid4()), FILM))
# Where in a placement what names tenants is refused; the first is one of `others`.
TENANTS: dict[str, tuple[dict[str, Any], str]] = {
    "with any of a tenant": ({}, ".require[0].tenants"),
    "with any of all": ({"require": [ANY | {"tenants": "*"}]}, ".require[0].tenants"),
    "with any of what is no tenant": ({"require": [ANY | {"tenants": 7}]}, ".require[0].tenants"),
    "rather with any of two": (
        {"prefer": [{"when": ANY | {"tenants": [FILM, GAMES]}}]},
        ".prefer[0].when[0].tenants",
    ),
    "within any of one without a name": (
        {"require": [{"any": [[ANY | {"tenants": [""]}], []]}]},
        ".require[0].any[0][0].tenants",
    ),
}


@pytest.mark.parametrize("way", [*WAYS, *[*TENANTS][1:]])
async def test_what_one_names_must_be_ones_own(
    guarded: Http, sql: Client, token: Token, theirs: Theirs, way: str
) -> None:
    """Spawned alone or in a batch, or changed later."""
    headers = token("producer", theirs.reader)
    own = sql.spawn_lease(theirs.queue, "draw", tenant=theirs.reader).lease_id
    before = sql.list_leases(queue=theirs.queue)
    placement, below = TENANTS.get(way, ({}, ""))
    told = []
    for ids in ((theirs.lease, theirs.service, theirs.tenant), (str(uuid4()), str(uuid4()), "nobody")):
        options = others(*ids).get(way, {"placement": placement})
        spec = {"task": "draw", "options": options}
        for method, path, body, where in (
            ("POST", "", {"queue": theirs.queue, **spec}, "options"),
            ("POST", "/batch", {"queue": theirs.queue, "leases": [{"task": "x"}, spec]}, "leases[1].options"),
            ("PATCH", f"/{own}", options, "changes"),
        ):
            response = await guarded.request(method, f"{V1}/leases{path}", json=body, headers=headers)
            found = problem(response, 403, "QHA03")
            assert found["field"] == f"{where}.placement{below}"
            del found["request_id"]
            text = json.dumps(found)
            for its in ids:
                text = text.replace(its, "IT")
            told.append(text)
    assert told[:3] == told[3:]
    assert sql.list_leases(queue=theirs.queue) == before


async def test_what_one_may_see_may_be_named(
    guarded: Http, sql: Client, token: Token, theirs: Theirs
) -> None:
    """One's own; with a token for all tenants everything; and the other leases of a batch."""
    service, first = uuid4(), str(uuid4())
    own = sql.spawn_lease(theirs.queue, "draw", tenant=theirs.reader, service_id=service).lease_id
    named = {"require": [ANY | {"tenants": None}, {"tags": {"leases": 1, "tenants": "*"}}]}
    mine = [*others(str(own), str(service), theirs.reader).values(), {"placement": named}]
    everything = others(theirs.lease, theirs.service, theirs.tenant).values()
    everybodys = [*everything, {"placement": TENANTS["with any of all"][0]}]
    beside: dict[str, Any] = {"placement": {"require": [{"lease": first, "domain": "rack"}]}}
    batch = [{"task": "draw", "options": options} for options in (beside, {"lease_id": first})]
    one_of_a_tenant = token("producer", theirs.reader)
    for headers, options in (
        *((one_of_a_tenant, each) for each in mine),
        *((token("producer"), each) for each in everybodys),
    ):
        body = {"queue": theirs.queue, "task": "draw", "options": options}
        ok(await guarded.post(f"{V1}/leases", json=body, headers=headers), 201)
    both = {"queue": theirs.queue, "leases": batch}
    ok(await guarded.post(f"{V1}/leases/batch", json=both, headers=one_of_a_tenant), 201)


async def test_a_service_is_its_first_users(guarded: Http, token: Token, theirs: Theirs) -> None:
    """Else leases of one tenant could keep those of another away from the nodes they run on."""
    headers, own = token("producer", theirs.reader), str(uuid4())
    body: dict[str, Any] = {"queue": theirs.queue, "task": "draw"}
    refused = body | {"options": {"service_id": theirs.service}}
    found = problem(await guarded.post(f"{V1}/leases", json=refused, headers=headers), 403, "QHA03")
    assert found["field"] == "options.service_id"
    apart = {"require": [{"service": own, "domain": "node", "away": True}]}
    mine = body | {"options": {"service_id": own, "placement": apart}}
    ok(await guarded.post(f"{V1}/leases", json=mine, headers=headers), 201)
    other = token("producer", theirs.tenant)
    problem(await guarded.post(f"{V1}/leases", json=mine, headers=other), 403, "QHA03")


@pytest.mark.parametrize("path", OF_TENANTS)
async def test_a_token_of_a_tenant_asks_for_it_alone(
    guarded: Http, token: Token, sql: Client, queue: str, path: str
) -> None:
    sql.set_queue_policy(queue, {"everywhere_tenants": [FILM, GAMES]})
    film, games = token("producer", FILM), token("producer", GAMES)
    url, of_film = f"{V1}/{path}", asking(path, queue, tenant=FILM)
    found = problem(await guarded.post(url, json=of_film, headers=games), 403)
    assert found["field"] == OF_TENANTS[path]
    assert sql.list_leases(queue=queue) == []
    for body in (of_film, asking(path, queue)):
        answer = await guarded.post(url, json=body, headers=film)
        assert answer.is_success
        if place := answer.headers.get("location"):
            assert ok(await guarded.get(place, headers=film))["tenant"] == FILM
            problem(await guarded.get(place, headers=games), 404, NOT_FOUND[path])
    assert {lease.tenant for lease in sql.list_leases(queue=queue)} <= {FILM}
    if (kind := path.partition("/")[0]) != "workflows":
        for headers, tenant in ((film, FILM), (games, GAMES)):
            listed = ok(await guarded.get(f"{V1}/{kind}", headers=headers))["items"]
            assert {each["tenant"] for each in listed} <= {tenant}
            assert listed or tenant == GAMES


@pytest.mark.parametrize("path", NOT_FOUND)
async def test_an_id_that_is_taken_is_refused_alike(
    guarded: Http, token: Token, sql: Client, theirs: Theirs, path: str
) -> None:
    """One that is another's in the words of one's own: ids are one space for all tenants."""
    sql.set_queue_policy(theirs.queue, {"everywhere_tenants": ["*"]})
    headers, own, url = token("producer", theirs.reader), str(uuid4()), f"{V1}/{path}"
    name = path.removesuffix("s")
    made = await guarded.post(url, json=asking(path, theirs.queue, **{f"{name}_id": own}), headers=headers)
    assert (made.status_code, made.headers["location"]) == (201, f"{url}/{own}")
    told = []
    for taken in (own, getattr(theirs, name)):
        body = asking(path, theirs.queue, priority=1, **{f"{name}_id": taken})
        answer = await guarded.post(url, json=body, headers=headers)
        found = problem(answer, *TAKEN.get(path, (422, "QHA01")))
        assert found["field"] == f"options.{name}_id"
        del found["request_id"]
        told.append(json.dumps(found).replace(taken, "ID"))
    assert told[0] == told[1]


async def test_everywhere_a_token_of_a_tenant(guarded: Http, token: Token, sql: Client, queue: str) -> None:
    """It spawns where the policy names its tenant."""
    options = {"affinity_tags": {"of": queue}}
    body: dict[str, Any] = {"queue": queue, "task": "agent", "options": options}
    for role in ("producer", "operator"):
        headers = token(role, FILM)
        problem(await guarded.post(f"{V1}/everywhere", json=body, headers=headers), 403, "QHA03")
    everybody = await guarded.post(f"{V1}/everywhere", json=body, headers=token("producer"))
    assert "lacks the scope" in problem(everybody, 403)["detail"]
    sql.set_queue_policy(queue, {"everywhere_tenants": [FILM]})
    film = token("producer", FILM)
    made = ok(await guarded.post(f"{V1}/everywhere", json=body, headers=film), 201)
    stop = f"{V1}/everywhere/{made['everywhere_id']}/stop"
    assert ok(await guarded.post(stop, headers=film))["state"] == "stopping"
