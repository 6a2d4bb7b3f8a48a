"""A token of one tenant neither sees nor touches what is another's."""

from typing import Any

import pytest

from hwqueue.client import Client
from tests.server.conftest import V1, Http, Token, ok, problem

FILM, GAMES = "film", "games"


@pytest.fixture
def film(token: Token) -> dict[str, str]:
    """The headers of a producer of one tenant."""
    return token("producer", FILM)


@pytest.fixture
def theirs(sql: Client, queue: str) -> str:
    """A lease of another tenant."""
    return str(sql.spawn_lease(queue, "draw", tenant=GAMES).lease_id)


async def test_the_tenant_is_the_tokens(guarded: Http, sql: Client, queue: str, film: dict[str, str]) -> None:
    body: dict[str, Any] = {"queue": queue, "task": "draw"}
    one = ok(await guarded.post(f"{V1}/leases", json=body, headers=film), 201)["lease_id"]
    batch = {"queue": queue, "leases": [{"task": "draw"}, {"task": "b", "options": {"tenant": FILM}}]}
    two = ok(await guarded.post(f"{V1}/leases/batch", json=batch, headers=film), 201)["items"]
    for lease_id in (one, *(lease["lease_id"] for lease in two)):
        assert sql.get_lease(lease_id).tenant == FILM


async def test_another_tenant_is_refused(
    guarded: Http, sql: Client, queue: str, film: dict[str, str]
) -> None:
    spec = {"task": "draw", "options": {"tenant": GAMES}}
    body = {"queue": queue, **spec}
    found = problem(await guarded.post(f"{V1}/leases", json=body, headers=film), 403)
    assert found["field"] == "options.tenant"
    batch = {"queue": queue, "leases": [{"task": "draw"}, spec]}
    found = problem(await guarded.post(f"{V1}/leases/batch", json=batch, headers=film), 403)
    assert found["field"] == "leases[1].options.tenant"
    assert sql.list_leases(queue=queue) == []
    problem(await guarded.get(f"{V1}/leases", params={"tenant": GAMES}, headers=film), 403)


async def test_lists_show_ones_own(
    guarded: Http, sql: Client, queue: str, film: dict[str, str], theirs: str
) -> None:
    own = {str(sql.spawn_lease(queue, "draw", tenant=FILM).lease_id) for _ in range(3)}
    later = str(sql.spawn_lease(queue, "draw").lease_id)
    for params in ({}, {"tenant": FILM}, {"queue": queue}, {"before": later}):
        page = ok(await guarded.get(f"{V1}/leases", params=params, headers=film))
        assert own <= {lease["lease_id"] for lease in page["items"]}
        assert {lease["tenant"] for lease in page["items"]} == {FILM}
    response = await guarded.get(f"{V1}/leases", params={"limit": 2}, headers=film)
    assert theirs not in response.text
    assert ok(await guarded.get(response.links["next"]["url"], headers=film))["items"]


async def test_ones_own_key_is_ones_own(guarded: Http, sql: Client, queue: str, film: dict[str, str]) -> None:
    taken = sql.spawn_lease(queue, "draw", tenant=GAMES, idempotency_key="k").lease_id
    body = {"queue": queue, "task": "draw"}
    headers = film | {"Idempotency-Key": "k"}
    made = ok(await guarded.post(f"{V1}/leases", json=body, headers=headers), 201)
    assert made["lease_id"] != str(taken)


ALL: dict[str, Any] = {"leases": {"labels": {}}, "domain": "node", "tenants": "*"}


@pytest.mark.parametrize(
    ("field", "placement"),
    [
        ("require[0].tenants", {"require": [ALL]}),
        ("require[0].tenants", {"require": [ALL | {"tenants": 7}]}),
        ("prefer[0].when[0].tenants", {"prefer": [{"when": ALL | {"tenants": [FILM, GAMES]}}]}),
        ("require[0].any[0][0].tenants", {"require": [{"any": [[ALL | {"tenants": [""]}], []]}]}),
    ],
)
async def test_placements_do_not_look_at_others(
    guarded: Http, queue: str, film: dict[str, str], field: str, placement: dict[str, Any]
) -> None:
    spec = {"task": "draw", "options": {"placement": placement}}
    made = await guarded.post(f"{V1}/leases", json={"queue": queue, "task": "own"}, headers=film)
    own = ok(made, 201)["lease_id"]
    for method, path, body, where in (
        ("POST", "", {"queue": queue, **spec}, "options"),
        ("POST", "/batch", {"queue": queue, "leases": [spec]}, "leases[0].options"),
        ("PATCH", f"/{own}", {"placement": placement}, "changes"),
    ):
        response = await guarded.request(method, f"{V1}/leases{path}", json=body, headers=film)
        assert problem(response, 403, "QHA03")["field"] == f"{where}.placement.{field}"
    page = ok(await guarded.get(f"{V1}/leases", params={"queue": queue}, headers=film))
    assert [lease["lease_id"] for lease in page["items"]] == [own]


async def test_placements_may_look_at_ones_own(
    guarded: Http, token: Token, queue: str, film: dict[str, str]
) -> None:
    term = {"leases": {"labels": {}}, "domain": "node", "away": True}
    named = {"tags": {"leases": 1, "tenants": "*"}}
    for require, headers in (
        ([term | {"tenants": None}, named], film),
        ([term | {"tenants": [FILM]}, named], film),
        ([ALL], token("producer")),
    ):
        body = {"queue": queue, "task": "draw", "options": {"placement": {"require": require}}}
        ok(await guarded.post(f"{V1}/leases", json=body, headers=headers), 201)
