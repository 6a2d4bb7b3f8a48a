"""Lists and bulk calls: in pages, each found by the one before, whatever other clients have written."""

from itertools import product
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

from hwqueue.cli.main import app
from hwqueue.client import Client
from hwqueue.errors import BY_SQLSTATE
from hwqueue.types import NodeSpec
from tests.client.test_unreadable import LARGE, LONG, nested
from tests.server.conftest import V1, Http, Token, claims, ok, paged, problem
from tests.server.test_other_tenants import DOCUMENT

COUNT = 5


def fill(sql: Client, queue: str) -> dict[str, str]:
    """At least as many of everything; what the paths of the lists name."""
    sql.set_webhook("pager", "https://hooks.example/")
    sql.create_schedule("nightly", {"every": 3600, "queue": queue, "task": "nightly"})
    items = [{"name": "m", "kind": "map", "task": "t", "over": [*range(COUNT)]}]
    lease = sql.spawn_lease(queue, "first")
    for number in range(COUNT):
        sql.spawn_lease(queue, f"t{number}")
        sql.spawn_gang(queue, [{"task": "t", "count": 2}])
        spec: dict[str, Any] = {"name": f"w{number}", "queue": queue, "steps": items}
        sql.define_workflow(spec)
        run = sql.submit_spec(spec)
        sql.register_node(uuid4(), NodeSpec(name=f"n-{number}", instance_id="1"))
        sql.test_webhook("pager")
        sql.create_schedule(f"s{number}", {"every": 3600, "queue": queue, "task": "nightly"})
        sql.trigger_schedule("nightly")
        sql.set_tenant(f"t{number}", {"tier": "scavenger"})
    [claim] = claims(sql, queue, tasks=["first"])
    line = {"at": "2030-01-31T12:00:00Z", "message": "x"}
    lines = [line | {"line": number} for number in range(1, COUNT + 1)]
    sql.append_logs([{"lease_id": claim.lease_id, "claim_token": claim.claim_token, "lines": lines}])
    names = {"webhook": "pager", "schedule": "nightly"}
    return {"lease_id": str(lease.lease_id), "run_id": str(run.run_id), "step": "m", **names}


async def test_pages_lead_to_the_next(http: Http, sql: Client, queue: str) -> None:
    """Of every list that has pages: together they are what one page of all is."""
    named = fill(sql, queue)
    lists = []
    for path, routes in DOCUMENT["paths"].items():
        takes = {each["name"] for each in routes.get("get", {}).get("parameters", ())}
        if "limit" in takes and takes & {"before", "after"} and "{everywhere_id}" not in path:
            lists.append(path)
    assert len(lists) >= 10
    for path in lists:
        url = path.format(**named)
        whole = ok(await http.get(url, params={"limit": 500}))
        assert whole["next"] is None
        pages = await paged(http, url, limit=2)
        assert [len(page) for page in pages[:-1]] == [2] * (len(pages) - 1), path
        assert [each for page in pages for each in page] == whole["items"], path
        assert len(whole["items"]) >= COUNT, path


STRANGE = '"\\u0001\\ud83d\\ude00\\r\\n"'
ODD = [LONG, LARGE, f"-{LARGE}", nested(221), nested(2000), '"NaN"', STRANGE]


@pytest.fixture
def leases(dsn: str, sql: Client, queue: str) -> list[str]:
    """Leases with something odd in all that is written by users, and a plain one, newest first."""
    made = []
    node = uuid4()
    epoch = sql.register_node(node, NodeSpec(name=str(node), instance_id="first"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        for odd in ODD:
            value = f'{{"odd": {odd}}}'
            spawned = connection.execute(
                "select lease_id from hwqueue.spawn_lease(%s, 't', %s, %s)",
                [queue, value, f'{{"headers": {value}}}'],
            ).fetchone()
            assert spawned is not None
            [claim] = sql.claim_task([queue], node, epoch)
            connection.execute(
                "select hwqueue.fail_lease(%s, %s, %s, false)", [*spawned, claim.claim_token, value]
            )
            made.append(str(spawned[0]))
    return [str(sql.spawn_lease(queue, "t").lease_id), *reversed(made)]


async def test_lists_show_all(http: Http, queue: str, leases: list[str]) -> None:
    page = ok(await http.get(f"{V1}/leases", params={"queue": queue}))
    assert [lease["lease_id"] for lease in page["items"]] == leases
    for lease_id in leases[1:]:
        lease = ok(await http.get(f"{V1}/leases/{lease_id}"))
        assert lease["state"] == "failed"
        for member in ("params", "headers", "error"):
            assert lease[member], member
    page = await http.get("/leases", params={"queue": queue})
    for lease_id in leases:
        assert lease_id in page.text
        assert (await http.get(f"/leases/{lease_id}")).status_code == 200


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_so_does_the_terminal(dsn: str, queue: str, leases: list[str], form: tuple[str, ...]) -> None:
    listed = _cli(dsn, *form, "lease", "list", "--queue", queue)
    for lease_id in leases:
        assert lease_id in listed
        assert lease_id in _cli(dsn, *form, "lease", "show", lease_id)


def _cli(dsn: str, *words: str) -> str:
    result = CliRunner().invoke(app, ["--dsn", dsn, *words])
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_match_in_pages(http: Http, sql: Client, node: str) -> None:
    for _ in range(3):
        sql.register_node(uuid4(), NodeSpec(name=f"match-{uuid4()}", instance_id="first"))
    placement = {"prefer": [{"weight": 7, "when": {"tags": {"gpu": True}}}]}
    whole = ok(await http.post(f"{V1}/match", json={"placement": placement}))
    assert whole["next"] is None
    count = len(whole["items"])
    for skip, after in ((0, 2), (2, 4), (count - 1, None), (1_000_000, None)):
        body = {"placement": placement, "limit": 2, "skip": skip}
        page = ok(await http.post(f"{V1}/match", json=body))
        items = {"items": whole["items"][skip : skip + 2], "next": after}
        assert page == whole | items


async def test_what_is_no_cursor(http: Http, queue: str) -> None:
    gang = str(uuid4())
    for cursor in ("x", gang, f"2026-01-01,{queue}", "0001-01-01T00:00:00+14:00," + gang):
        problem(await http.get(f"{V1}/gangs", params={"before": cursor}), 422)


VERBS = ("count", "cancel", "requeue", "update", "delete")
CHANGES: dict[str, Any] = {"update": {"changes": {"priority": 7}}}


async def test_page_by_page(http: Http, sql: Client, queue: str) -> None:
    """Each page is asked with the cursor of the one before."""
    leases = [str(sql.spawn_lease(queue, "draw").lease_id) for _ in range(5)]
    body: dict[str, Any] = {"filter": {"queue": queue}, "limit": 2}
    changed: list[str] = []
    while len(changed) < 5 or body["cursor"] is not None:
        page = ok(await http.post(f"{V1}/leases/cancel", json=body))
        changed += page["changed"]
        body["cursor"] = page["next_cursor"]
    assert sorted(changed) == sorted(leases)


@pytest.mark.parametrize(
    ("code", "field", "change"),
    [
        ("QHA01", "filter", {"filter": None}),
        ("QHA01", "filter.queue", {"filter": {}}),
        ("QHA01", "filter.state", {"filter": {"queue": "Q", "state": "gone"}}),
        ("QHA01", "filter.film", {"filter": {"queue": "Q", "film": "7"}}),
        ("QHA01", "filter.created_before", {"filter": {"queue": "Q", "created_before": 3600}}),
        ("QHA01", "filter.labels.a", {"filter": {"queue": "Q", "labels": {"a": 1}}}),
        ("QHA01", "limit", {"limit": 0}),
        ("QHA01", "cursor", {"cursor": {"state": "nowhere"}}),
        ("QHA01", "dry_run", {"dry_run": True}),
        ("QHQ01", None, {"filter": {"queue": "nowhere"}}),
    ],
)
async def test_what_is_refused(
    http: Http, queue: str, code: str, field: str | None, change: dict[str, Any]
) -> None:
    for verb in VERBS:
        body = {"filter": {"queue": queue}, **CHANGES.get(verb, {}), **change}
        if body["filter"] and body["filter"].get("queue") == "Q":
            body["filter"] = body["filter"] | {"queue": queue}
        response = await http.post(f"{V1}/leases/{verb}", json=body)
        found = problem(response, BY_SQLSTATE[code].http_status, code)
        assert found.get("field") == field, verb


WHEN = "2026-01-01T00:00:00Z"
KEYS: tuple[Any, ...] = ([], ["x", 1, 2], [1, "x", 2], [None, None], [WHEN, 7], {}, [40000, 1, 1])


@pytest.mark.parametrize("tenant", [None, "film"], ids=["all", "one tenant"])
async def test_a_cursor_that_somebody_wrote(
    guarded: Http, token: Token, queue: str, tenant: str | None
) -> None:
    headers = token("operator", tenant)
    for state, after in product(["scheduled", "pending", "claimed", "completed"], KEYS):
        cursor = {"state": state, "until": WHEN, "position": 1, "after": after}
        body = {"filter": {"queue": queue}, "cursor": cursor}
        found = await guarded.post(f"{V1}/leases/count", json=body, headers=headers)
        assert problem(found, 422, "QHA01")["field"] == "cursor", cursor
