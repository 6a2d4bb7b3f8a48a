"""Leases by a filter: listed, counted, cancelled, requeued, deleted."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, token
from tests.sql.test_roles import only

BULK: dict[str, dict[str, Any]] = {
    "count_leases": {},
    "cancel_leases": {},
    "requeue_leases": {},
    "update_leases": {"changes": {"priority": 1}},
    "delete_leases": {},
}


def all_pages(api: Api, function: str, **arguments: Any) -> list[Row]:
    """Every page, each call with the cursor of the one before."""
    pages = [api.row(function, **arguments)]
    while (cursor := pages[-1]["next_cursor"]) is not None:
        pages.append(api.row(function, cursor=cursor, **arguments))
    return pages


def counted(api: Api, **arguments: Any) -> int:
    """How many leases all pages of a count have."""
    return sum(page["lease_count"] for page in all_pages(api, "count_leases", **arguments))


def changed(api: Api, function: str, **arguments: Any) -> list[UUID]:
    """What all pages changed, in order."""
    return [lease for page in all_pages(api, function, **arguments) for lease in page["changed"]]


def dead(api: Api, queue: str, kind: str = "ValueError", **options: Any) -> UUID:
    """A lease that has failed for good."""
    lease = api.spawn(queue, **options)
    [claim] = api.claim(api.node(), queue)
    api.rows("fail_lease", **token(claim), error={"type": kind}, retry=False)
    return lease


def test_cancel_takes_what_is_open_and_nothing_else(api: Api, clock: Clock) -> None:
    queue, other = api.queue(), api.queue()
    failed, running = dead(api, queue), api.spawn(queue)
    api.claim(api.node(), queue)
    later = (clock.now() + timedelta(hours=1)).isoformat()
    waiting, scheduled = api.spawn(queue), api.spawn(queue, available_at=later)
    elsewhere = api.spawn(other)
    found = changed(api, "cancel_leases", filter={"queue": queue}, reason="bad release")
    assert sorted(found) == sorted([waiting, scheduled, running])
    states = [api.state(lease) for lease in (failed, running, waiting, scheduled, elsewhere)]
    assert states == ["failed", "claimed", "cancelled", "cancelled", "pending"]
    assert api.lease(waiting)["error"]["detail"] == "bad release"


def test_pages_reach_every_lease_once(api: Api, queue: str, clock: Clock) -> None:
    later = (clock.now() + timedelta(hours=1)).isoformat()
    pending = [api.spawn(queue, priority=number % 3) for number in range(5)]
    scheduled = [api.spawn(queue, available_at=later) for _ in range(5)]
    assert counted(api, filter={"queue": queue}, limit=2) == 10
    pages = all_pages(api, "update_leases", filter={"queue": queue}, changes={"priority": 7}, limit=2)
    assert all(len(page["changed"]) <= 2 for page in pages)
    found = [lease for page in pages for lease in page["changed"]]
    assert sorted(found) == sorted(pending + scheduled)
    assert {api.lease(lease)["priority"] for lease in found} == {7}


def test_pages_go_on_behind_what_waits_for_no_time(api: Api, queue: str) -> None:
    members = api.rows("spawn_gang", queue=queue, members=Jsonb([{"task": "train"}] * 3))
    assert counted(api, filter={"queue": queue}, limit=1) == len(members)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_requeue_oldest_first(api: Api, queue: str, clock: Clock, state: str) -> None:
    ended = []
    for _ in range(5):
        ended.append(dead(api, queue) if state == "failed" else api.spawn(queue))
        if state == "cancelled":
            api.rows("cancel_lease", lease=ended[-1])
        clock.advance(timedelta(seconds=1))
    assert changed(api, "requeue_leases", filter={"queue": queue, "state": state}, limit=2) == ended
    assert {api.state(lease) for lease in ended} == {"pending"}


def test_ended_at_the_same_time(api: Api, queue: str) -> None:
    leases = [api.spawn(queue) for _ in range(5)]
    low = {"filter": {"queue": queue}, "changes": {"priority": -1}, "limit": 1}
    assert changed(api, "update_leases", **low) == leases  # one that waits is not met twice
    changed(api, "cancel_leases", filter={"queue": queue}, reason="why")
    events = api.rows("list_events", filter={"queue": queue, "code": "lease_cancelled"})
    assert sorted(event["lease_id"] for event in events) == sorted(leases)
    assert {event["message"] for event in events} == {"cancelled while it waited: why"}
    found = changed(api, "delete_leases", filter={"queue": queue}, limit=2)
    assert sorted(found) == sorted(leases)


def test_one_that_fails_again_is_not_met_twice(api: Api, queue: str, clock: Clock) -> None:
    lease = dead(api, queue)
    first = api.row("requeue_leases", filter={"queue": queue}, limit=1)
    assert first["changed"] == [lease]
    clock.advance(timedelta(seconds=1))
    [claim] = api.claim(api.node(), queue)
    api.rows("fail_lease", **token(claim), error={}, retry=False)
    second = api.row("requeue_leases", filter={"queue": queue}, cursor=first["next_cursor"])
    assert (second["changed"], second["next_cursor"]) == ([], None)


@pytest.mark.parametrize("hours", [-1, 1, 2, 30], ids=["at once", "sooner", "the same", "later"])
@pytest.mark.parametrize("tenant", [None, "film"], ids=["all", "a tenant's"])
@pytest.mark.parametrize("state", [None, "scheduled"])
@pytest.mark.thorough
def test_a_postponed_lease_is_not_met_twice(
    api: Api, clock: Clock, hours: int, tenant: str | None, state: str | None
) -> None:
    """Though the page is read in the order of the column that the call changes."""
    queue, now = api.queue(), clock.now()
    options = {"tenant": tenant} if tenant else {}
    with only(api, tenant or ""):
        pending = [api.spawn(queue, **options) for _ in range(3)]
        scheduled = [
            api.spawn(queue, available_at=(now + timedelta(hours=number)).isoformat(), **options)
            for number in (1, 2, 2, 2, 3, 4)
        ]
        found = changed(
            api,
            "update_leases",
            filter={"queue": queue} | ({"state": state} if state else {}),
            changes={"available_at": (now + timedelta(hours=hours)).isoformat(), "priority": 3},
            limit=2,
        )
        assert sorted(found) == sorted(scheduled + ([] if state else pending))
        assert {api.lease(lease)["priority"] for lease in found} == {3}


def test_the_lease_of_a_key_is_met_once(api: Api, clock: Clock) -> None:
    queue, now = api.queue(), clock.now()
    lease = api.spawn(queue, delay=3600, idempotency_key="k")
    for hours in (-1, 2, 3):
        changes = {"available_at": (now + timedelta(hours=hours)).isoformat()}
        wanted = {"queue": queue, "idempotency_key": "k"}
        assert changed(api, "update_leases", filter=wanted, changes=changes) == [lease]


def test_delete_leaves_nothing_but_figures(api: Api, queue: str, clock: Clock) -> None:
    gone, kept = api.spawn(queue, idempotency_key="a"), api.spawn(queue)
    api.rows("cancel_lease", lease=gone)
    assert changed(api, "delete_leases", filter={"queue": queue}) == [gone]
    assert api.refused("QHL04", "get_lease", lease=gone)
    assert api.state(kept) == "pending"
    assert api.spawn(queue, idempotency_key="a") != gone
    assert api.rows("verify_invariants") == []
    queue = api.queue()
    dead(api, queue)
    changed(api, "delete_leases", filter={"queue": queue})
    clock.advance(timedelta(minutes=5))
    api.reap()
    [total] = [row for row in api.rows("throughput", queue=queue) if row["failed"]]
    assert total["failed"] == 1


def test_filters(api: Api, queue: str, clock: Clock) -> None:
    a = dead(api, queue, "TimeoutError", labels={"film": "7", "app": "x"})
    clock.advance(timedelta(minutes=1))
    between = clock.now().isoformat()
    b = dead(api, queue, "ValueError", labels={"film": "8"}, idempotency_key="k")

    def found(**wanted: Any) -> set[UUID]:
        """What a list and a count agree on."""
        given = {"queue": queue, **wanted}
        leases = {row["lease_id"] for row in api.rows("list_leases", filter=given)}
        assert counted(api, filter=given) == len(leases)
        return leases

    assert found() == found(labels={}) == {a, b}
    for states in (["failed", "failed"], ["failed", "pending", "failed"]):  # each counts once
        assert counted(api, filter={"queue": queue}, states=states) == 2
    assert found(labels={"film": "7"}) == {a}
    assert found(error_type="ValueError") == found(idempotency_key="k") == {b}
    assert found(idempotency_key="other") == set()
    assert found(created_before=between) == found(finished_before=between) == {a}
    assert found(created_from=between) == found(finished_from=between) == {b}
    api.rows("requeue_lease", lease=b)
    assert found(error_type="ValueError") == set()  # it has not ended
    assert found(state="pending", labels={"film": "7"}) == set()
    queue = api.queue()
    own, others = (api.spawn(queue, idempotency_key="k", tenant=t) for t in ("film", "games"))
    both = {"queue": queue, "idempotency_key": "k"}
    assert {row["lease_id"] for row in api.rows("list_leases", filter=both)} == {own, others}
    [row] = api.rows("list_leases", filter=both | {"tenant": "film"})
    assert row["lease_id"] == own
    other = api.spawn(queue, "mail")
    assert changed(api, "cancel_leases", filter={"queue": queue, "task": "mail"}) == [other]


@pytest.mark.parametrize("function", BULK)
@pytest.mark.parametrize(
    ("field", "wanted", "more"),
    [
        ("filter.queue", {}, {}),
        ("filter", [], {}),
        ("filter.labels", {"queue": "Q", "labels": []}, {}),
        ("filter.created_from", {"queue": "Q", "created_from": "yesterday"}, {}),
        ("filter.error_type", {"queue": "Q", "error_type": 7}, {}),
        ("cursor", {"queue": "Q"}, {"cursor": {"state": "nowhere"}}),
        ("cursor", {"queue": "Q"}, {"cursor": []}),
    ],
)
@pytest.mark.thorough
def test_bad_arguments(api: Api, function: str, field: str, wanted: Any, more: Row) -> None:
    if isinstance(wanted, dict) and "queue" in wanted:
        wanted = wanted | {"queue": api.queue()}
    assert api.fault(function, filter=wanted, **BULK[function], **more) == field


def test_what_a_call_cannot_change(api: Api, queue: str) -> None:
    """It is refused though no lease is meant."""
    for function, state in zip(list(BULK)[1:], ("failed", "completed", "claimed", "pending"), strict=True):
        wanted = {"queue": queue, "state": state}
        assert api.fault(function, filter=wanted, **BULK[function]) == "filter.state"
    given = {"filter": {"queue": queue}, "changes": {"task": "x"}}
    assert api.fault("update_leases", **given) == "changes.task"
    assert api.fault("list_leases", filter={"idempotency_key": "k"}) == "filter.queue"


@pytest.mark.parametrize("function", ["cancel_leases", "update_leases"])
def test_what_another_session_holds_is_skipped(api: Api, conn: psycopg.Connection, function: str) -> None:
    queue = api.queue()
    held, free = api.spawn(queue), api.spawn(queue)
    conn.commit()
    with psycopg.connect(conn.info.dsn, password=conn.info.password or None) as other:
        other.execute("select hwqueue.update_lease(%s, '{\"priority\": 3}')", [held])
        pages = all_pages(api, function, filter={"queue": queue}, **BULK[function])
        assert [lease for page in pages for lease in page["changed"]] == [free]
        assert [lease for page in pages for lease in page["skipped"]] == [held]
        other.rollback()
    assert api.state(held) == "pending"


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


def test_lists_by_filters(api: Api, clock: Clock) -> None:
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
