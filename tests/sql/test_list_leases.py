"""list_leases: newest first, a page at a time, by queue, state and task."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, token


def listed(api: Api, limit: int = 50, before: UUID | None = None, **wanted: Any) -> list[UUID]:
    """The ids in the order listed, of those that meet a filter."""
    rows = api.rows("list_leases", filter=wanted, limit=limit, before=before)
    return [row["lease_id"] for row in rows]


def spawned(api: Api, clock: Clock, queue: str, count: int, task: str = "a") -> list[UUID]:
    """Leases, newest first; ids tell milliseconds apart."""
    leases = []
    for _ in range(count):
        clock.advance(timedelta(milliseconds=1))
        leases.append(api.spawn(queue, task))
    return leases[::-1]


def test_newest_first(api: Api, clock: Clock) -> None:
    queue = api.queue()
    leases = spawned(api, clock, queue, 4)
    assert listed(api, queue=queue) == leases
    assert listed(api)[:4] == leases


def test_pages(api: Api, clock: Clock) -> None:
    queue = api.queue()
    leases = spawned(api, clock, queue, 5)
    assert listed(api, queue=queue, limit=2) == leases[:2]
    assert listed(api, queue=queue, limit=2, before=leases[1]) == leases[2:4]
    assert listed(api, queue=queue, limit=2, before=leases[3]) == leases[4:]


def test_filters(api: Api, clock: Clock) -> None:
    queue, node = api.queue(max_attempts=1), api.node()
    [scheduled] = [api.spawn(queue, delay=60)]
    by_state = {"scheduled": scheduled}
    for state in ("completed", "failed", "cancelled", "claimed"):
        claim = api.running(queue, node)
        by_state[state] = claim["lease_id"]
        if state == "completed":
            api.rows("complete_lease", **token(claim))
        elif state == "failed":
            api.rows("fail_lease", **token(claim), error={})
        elif state == "cancelled":
            api.rows("cancel_lease", lease=claim["lease_id"])
            api.rows("release_lease", **token(claim))
    by_state["pending"] = api.spawn(queue, "rare")
    for state, lease in by_state.items():
        assert listed(api, queue=queue, state=state) == [lease]
        assert api.row("list_leases", filter={"queue": queue, "state": state})["state"] == state
    assert listed(api, task="rare") == [by_state["pending"]]
    assert listed(api, queue=queue, task="rare", state="claimed") == []


def test_whose_and_where(api: Api) -> None:
    queue, node, service = api.queue(), api.node(), str(uuid4())
    here = api.running(queue, node)["lease_id"]
    api.running(queue, tenant="film")
    film = api.spawn(queue, tenant="film")
    both = api.spawn(queue, tenant="film", service_id=service)
    other = api.spawn(queue, service_id=service)
    assert listed(api, queue=queue, node=str(node.node_id)) == [here]
    assert set(listed(api, queue=queue, tenant="film", state="pending")) == {film, both}
    assert set(listed(api, service=service)) == {both, other}
    assert listed(api, tenant="film", service=service) == [both]
    assert listed(api, queue=queue, tenant="nobody") == []
    assert listed(api, queue=queue, tenant="film", node=str(node.node_id)) == []


def test_the_columns_agree_with_get_lease(api: Api) -> None:
    queue = api.queue()
    lease = api.running(queue, labels={"a": "b"}, headers={"h": 1})["lease_id"]
    row, whole = api.row("list_leases", filter={"queue": queue}), api.lease(lease)
    assert whole.items() >= row.items()
    assert whole.keys() - row.keys() == {
        "params", "result", "attempts", "assignment", "wire", "progress",
    }  # fmt: skip


@pytest.mark.parametrize("limit", [0, -1, 10001, None])
@pytest.mark.thorough
def test_bad_limits(api: Api, limit: int | None) -> None:
    assert api.refused("QHA01", "list_leases", limit=limit).field == "p_limit"


@pytest.mark.thorough
def test_bad_filters(api: Api) -> None:
    bad = {"state": "open", "task": 1, "tenant": [], "service": "x", "node": 0, "queue": ""}
    for key, value in bad.items():
        refusal = api.refused("QHA01", "list_leases", filter={key: value})
        assert refusal.field == f"filter.{key}"
    refusal = api.refused("QHA01", "list_leases", filter={"quue": "a"})
    assert refusal.field == "filter.quue"
    assert {*refusal.hint.removeprefix("allowed keys: ").split(", ")} > {*bad}
    assert api.refused("QHA01", "list_leases", filter=None).field == "filter"
    refusal = api.refused("QHQ01", "list_leases", filter={"queue": "nowhere"})
    assert refusal.detail["queue"] == "nowhere"


def test_a_null_filters_nothing_and_no_tenant_is_one(api: Api) -> None:
    queue = api.queue()
    film, none = api.spawn(queue, tenant="film"), api.spawn(queue)
    assert set(listed(api, queue=queue, state=None, tenant=None, node=None)) == {film, none}
    assert listed(api, queue=queue, tenant="") == [none]
