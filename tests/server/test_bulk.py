"""Routes that change all leases that a filter means, and the filters of the list."""

from itertools import product
from typing import Any

import pytest

from hwqueue.client import Client
from hwqueue.errors import BY_SQLSTATE
from tests.server.conftest import V1, Http, Token, ok, problem

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
        assert problem(found, 422, "QHA01")["field"].startswith("cursor.after"), cursor
