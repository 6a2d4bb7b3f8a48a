"""list_leases, get_lease, lease_outlook: by pages and filters, one in full, and as a worker logs it."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, token


def listed(api: Api, limit: int = 50, before: UUID | None = None, **wanted: Any) -> list[UUID]:
    """The ids in the order listed, of those that meet a filter."""
    rows = api.rows("list_leases", filter=wanted, limit=limit, before=before)
    return [row["lease_id"] for row in rows]


def test_newest_first_by_pages(api: Api, clock: Clock) -> None:
    queue, leases = api.queue(), list[UUID]()
    for _ in range(5):
        clock.advance(timedelta(milliseconds=1))  # which ids tell apart
        leases.insert(0, api.spawn(queue))
    assert listed(api, queue=queue) == listed(api)[:5] == leases
    assert listed(api, queue=queue, limit=2) == leases[:2]
    assert listed(api, queue=queue, limit=2, before=leases[1]) == leases[2:4]
    assert listed(api, queue=queue, limit=2, before=leases[3]) == leases[4:]


def test_filters(api: Api, clock: Clock) -> None:
    """By all the states that get_lease tells."""
    queue, node = api.queue(max_attempts=1), api.node()
    by_state = {"scheduled": api.spawn(queue, delay=60)}
    for state in ("completed", "failed", "cancelled", "claimed"):
        claim = api.running(queue, node)
        by_state[state] = claim["lease_id"]
        if state == "completed":
            api.complete(claim)
        elif state == "failed":
            api.rows("fail_lease", **token(claim), error={})
        elif state == "cancelled":
            api.rows("cancel_lease", lease=claim["lease_id"])
            api.rows("release_lease", **token(claim))
    by_state["pending"] = api.spawn(queue, "rare")
    for state, lease in by_state.items():
        assert listed(api, queue=queue, state=state) == [lease]
        assert api.row("list_leases", filter={"queue": queue, "state": state})["state"] == state
        assert api.state(lease) == state
    assert listed(api, task="rare") == [by_state["pending"]]
    assert listed(api, queue=queue, task="rare", state="claimed") == []


def test_whose_and_where(api: Api) -> None:
    """A null filters nothing, and no tenant is one."""
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
    everything = listed(api, queue=queue)
    assert listed(api, queue=queue, state=None, tenant=None, node=None) == everything
    assert len(everything) == 5
    assert set(listed(api, queue=queue, tenant="")) == {here, other}


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


def test_a_claimed_lease(api: Api, clock: Clock) -> None:
    """Its columns agree with those of get_lease, which has more."""
    queue, node = api.queue(claim_timeout=60), api.node(capacity={"cpu_milli": 500})
    needs = {"resources": {"cpu_milli": 200}}
    claim = api.running(queue, node, placement=needs, labels={"a": "b"}, headers={"h": 1})
    row, whole = api.row("list_leases", filter={"queue": queue}), api.lease(claim["lease_id"])
    expected = {
        "node_id": node.node_id,
        "claim_token": claim["claim_token"],
        "claimed_at": clock.now(),
        "expires_at": clock.now() + timedelta(seconds=60),
        "assignment": {"cpu_milli": 200},
        "stop_reason": None,
        "finished_at": None,
    }
    assert {key: whole[key] for key in expected} == expected
    assert whole.items() >= row.items()
    more = {"params", "result", "attempts", "assignment", "wire", "progress"}
    assert whole.keys() - row.keys() == more


def test_no_such_lease(api: Api) -> None:
    for lease in (NOBODY, uuid4()):
        assert api.refused("QHL04", "get_lease", lease=lease).detail["lease_id"] == str(lease)


def outlook(api: Api, node: Node, *leases: UUID) -> list[Row]:
    """What a worker's log says of leases that its node runs, or ran last; without their ids."""
    rows = api.rows("lease_outlook", node=node.node_id, lease_ids=list(leases))
    return [{key: row[key] for key in row if key != "lease_id"} for row in rows]


def test_the_outlook_of_a_running_lease_and_after_a_failure(api: Api, clock: Clock) -> None:
    queue = api.queue(max_attempts=4, retry={"kind": "fixed", "base": 30, "jitter": 0})
    node = api.node(labels={"gpu": True})
    claim = api.running(queue, node, max_attempts=2, affinity_tags={"gpu": True})
    lease, waiting = claim["lease_id"], api.spawn(queue)
    placement = {"require": [{"label": "gpu", "op": "in", "values": [True]}]}
    expected: Row = {"max_attempts": 2, "own_max_attempts": 2, "placement": placement}
    running = expected | {"state": "claimed", "again_in": None}
    assert outlook(api, node, lease) == [running]
    assert outlook(api, api.node(), lease, waiting, uuid4()) == []  # of other nodes, or of none
    api.rows("fail_lease", **token(claim), error={"message": "no"})
    clock.advance(timedelta(seconds=10))
    scheduled = expected | {"state": "scheduled", "again_in": timedelta(seconds=20)}
    assert outlook(api, node, lease) == [scheduled]
    assert api.claimed(node, queue) == [waiting]
    [row] = outlook(api, node, waiting)
    assert (row["max_attempts"], row["own_max_attempts"], row["placement"]) == (4, None, {})
    for leases in (None, [uuid4()] * 1001):
        refusal = api.refused("QHA01", "lease_outlook", node=node.node_id, lease_ids=leases)
        assert refusal.field == "p_lease_ids"
