"""Routes that change all leases that a filter means, and the filters of the list."""

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from hwqueue.client import Client
from hwqueue.errors import BY_SQLSTATE
from tests.server.conftest import V1, Http, Token, ok, problem

VERBS = ("count", "cancel", "requeue", "update", "delete")
CHANGES: dict[str, Any] = {"update": {"changes": {"priority": 7}}}


@pytest.fixture
def film(sql: Client, queue: str) -> list[str]:
    """Five pending leases of film 7 and one of film 8."""
    return [
        str(sql.spawn_lease(queue, "draw", labels={"film": film}).lease_id)
        for film in ("7", "7", "7", "7", "7", "8")
    ]


async def pages(http: Http, verb: str, **body: Any) -> AsyncIterator[dict[str, Any]]:
    """Every answer, each asked with the cursor of the one before."""
    cursor = None
    while True:
        body["cursor"] = cursor
        page = ok(await http.post(f"{V1}/leases/{verb}", json=body))
        yield page
        cursor = page["next_cursor"]
        if cursor is None:
            return


async def changed(http: Http, verb: str, **body: Any) -> list[str]:
    return [lease async for page in pages(http, verb, **body) for lease in page["changed"]]


async def test_each_verb_page_by_page(http: Http, sql: Client, queue: str, film: list[str]) -> None:
    """Count, change, move, cancel, requeue, cancel and delete, two at a time."""
    sql.create_queue("night")
    wanted = {"queue": queue, "labels": {"film": "7"}}
    by_twos: dict[str, Any] = {"filter": wanted, "limit": 2}
    counts = [page["lease_count"] async for page in pages(http, "count", **by_twos)]
    assert sum(counts) == 5
    assert all(count <= 2 for count in counts)
    found = await changed(http, "update", **by_twos, changes={"priority": 7})
    assert sorted(found) == sorted(film[:5])
    assert {sql.get_lease(lease).priority for lease in film} == {0, 7}
    found = await changed(http, "cancel", **by_twos, reason="no film")
    assert sorted(found) == sorted(film[:5])
    assert sql.get_lease(film[0]).error["detail"] == "no film"
    assert await changed(http, "requeue", **by_twos) == []  # none has failed
    by_twos["filter"] = wanted | {"state": "cancelled"}
    assert sorted(await changed(http, "requeue", **by_twos)) == sorted(film[:5])
    by_twos["filter"] = wanted
    found = await changed(http, "update", **by_twos, changes={"queue": "night"})
    assert {sql.get_lease(lease).queue for lease in found} == {"night"}
    by_twos["filter"] = {"queue": "night"}
    await changed(http, "cancel", **by_twos)
    assert sorted(await changed(http, "delete", **by_twos)) == sorted(film[:5])
    assert [str(each.lease_id) for each in sql.list_leases()] == film[5:]


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
        assert problem(found, 422, "QHA01")["field"].startswith("cursor.after"), cursor
