"""spawn_lease: every option, what holds without one, and keys that spawn once."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import TASK
from tests.sql.api import NOBODY, Api

SERVICE = str(uuid4())


def test_what_holds_without_options(api: Api, clock: Clock) -> None:
    queue = api.queue()
    row = api.row("spawn_lease", queue=queue, task="resize")
    assert (row["created"], row["state"]) == (True, "pending")
    lease = api.lease(row["lease_id"])
    expected = {
        "queue": queue,
        "task_name": "resize",
        "state": "pending",
        "priority": 0,
        "tenant": "",
        "service_id": None,
        "labels": {},
        "placement": {},
        "params": {},
        "headers": None,
        "attempt": 0,
        "max_attempts": 5,
        "available_at": clock.now(),
        "created_at": clock.now(),
        "deadline": None,
        "idempotency_key": None,
        "attempts": [],
        "claim_token": None,
    }
    assert {key: lease[key] for key in expected} == expected
    assert row["lease_id"].version == 7


def test_every_option_is_kept(api: Api, clock: Clock) -> None:
    deadline = clock.now() + timedelta(hours=1)
    options: dict[str, Any] = {
        "lease_id": str(uuid4()),
        "placement": {"resources": {"cpu_milli": 500}},
        "affinity_tags": {"gpu": True},
        "priority": -7,
        "tenant": "acme",
        "service_id": SERVICE,
        "labels": {"app": "billing"},
        "max_attempts": 2,
        "retry": {"kind": "fixed", "base": 3},
        "claim_timeout": "90 seconds",
        "deadline": deadline.isoformat(),
        "idempotency_key": "once",
        "headers": {"traceparent": "00-1"},
        "notify": False,
    }
    lease = api.lease(api.spawn(api.queue(), TASK, {"n": [1, None]}, **options))
    assert lease["lease_id"] == UUID(options["lease_id"])
    assert lease["placement"] == {
        "require": [{"label": "gpu", "op": "in", "values": [True]}],
        "resources": {"cpu_milli": 500},
    }
    for key in ("priority", "tenant", "labels", "max_attempts", "headers", "idempotency_key"):
        assert lease[key] == options[key]
    assert (lease["service_id"], lease["deadline"]) == (UUID(SERVICE), deadline)
    assert lease["params"] == {"n": [1, None]}


def test_options_that_are_null_are_not_given(api: Api) -> None:
    """So that a client may pass all of them every time."""
    queue = api.queue()
    names = ["lease_id", "placement", "affinity_tags", "affinity_with", "anti_affinity_with"]
    names += ["priority", "tenant", "service_id", "labels", "available_at", "delay", "retry"]
    names += ["max_attempts", "claim_timeout", "deadline", "idempotency_key", "headers", "notify"]
    names += ["wire"]
    plain, nulls = api.spawn(queue), api.spawn(queue, **dict.fromkeys(names))
    mine = {"lease_id"}
    assert {k: v for k, v in api.lease(plain).items() if k not in mine} == {
        k: v for k, v in api.lease(nulls).items() if k not in mine
    }


@pytest.mark.parametrize("how", ["delay", "text", "available_at"])
def test_later(api: Api, clock: Clock, how: str) -> None:
    """Not before its time, and promoted by the first claim after it."""
    due = clock.now() + timedelta(seconds=90)
    ways: dict[str, dict[str, Any]] = {
        "delay": {"delay": 90},
        "text": {"delay": "1 minute 30 seconds"},
        "available_at": {"available_at": due.isoformat()},
    }
    options = ways[how]
    queue, node = api.queue(), api.node()
    lease = api.spawn(queue, **options)
    assert api.lease(lease)["available_at"] == due
    assert api.state(lease) == "scheduled"
    clock.advance(timedelta(seconds=89))
    assert api.claim(node, queue) == []
    clock.advance(timedelta(seconds=1))
    assert api.claimed(node, queue) == [lease]


def test_a_time_that_has_passed_is_now(api: Api, clock: Clock) -> None:
    past = (clock.now() - timedelta(days=1)).isoformat()
    queue = api.queue()
    assert api.state(api.spawn(queue, available_at=past)) == "pending"
    assert api.state(api.spawn(queue, delay=0)) == "pending"


def test_the_claim_timeout_of_the_lease_wins(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    api.spawn(queue, claim_timeout=600)
    api.spawn(queue)
    rows = api.claim(node, queue, qty=2)
    assert [row["expires_at"] - clock.now() for row in rows] == [
        timedelta(seconds=600),
        timedelta(seconds=60),
    ]


def test_params_and_headers_reach_the_claim(api: Api) -> None:
    row = api.running(api.queue(), None, {"path": "/a"}, headers={"trace": "x"})
    assert (row["params"], row["headers"]) == ({"path": "/a"}, {"trace": "x"})
    assert row["task_name"] == TASK


def test_your_own_id_is_taken_once(api: Api) -> None:
    queue, mine = api.queue(), uuid4()
    assert api.spawn(queue, lease_id=str(mine)) == mine
    for where in (queue, api.queue()):
        refusal = api.refused("QHL06", "spawn_lease", queue=where, task=TASK, options={"lease_id": str(mine)})
        assert refusal.field == "options.lease_id"
        assert refusal.detail["lease_id"] == str(mine)


class TestIdempotencyKeys:
    """Unique per tenant and queue; they stand for task, params, placement and labels."""

    content: Any = {"task": "a", "params": {"n": 1}}  # noqa: RUF012

    def spawn(self, api: Api, queue: str, content: Any = None, **options: Any) -> Any:
        options = {"idempotency_key": "key"} | options
        return api.row("spawn_lease", queue=queue, options=options, **(content or self.content))

    def test_the_same_content_is_the_first_lease(self, api: Api) -> None:
        queue = api.queue()
        first = self.spawn(api, queue, labels={"app": "x"}, affinity_tags={"n": 1})
        again = self.spawn(
            api,
            queue,
            labels={"app": "x"},
            placement={"require": [{"label": "n", "op": "in", "values": [1.0]}]},
        )
        assert (first["created"], again["created"]) == (True, False)
        assert again["lease_id"] == first["lease_id"]
        [row] = [row for row in api.rows("list_queues") if row["queue"] == queue]
        assert row["pending"] == 1

    def test_options_that_are_no_content_may_differ(self, api: Api) -> None:
        queue = api.queue()
        first = self.spawn(api, queue)
        again = self.spawn(api, queue, priority=9, delay=60, headers={"trace": "2"})
        assert (again["lease_id"], again["state"]) == (first["lease_id"], "pending")
        assert api.lease(first["lease_id"])["priority"] == 0

    def test_a_call_with_an_own_id_can_be_repeated(self, api: Api) -> None:
        """The key decides, not the id: a client whose answer was lost sends the same again."""
        queue, mine = api.queue(), str(uuid4())
        assert self.spawn(api, queue, lease_id=mine)["created"]
        again = self.spawn(api, queue, lease_id=mine)
        assert (again["created"], again["lease_id"]) == (False, UUID(mine))

    def test_it_gives_the_state_of_now(self, api: Api) -> None:
        queue = api.queue()
        self.spawn(api, queue)
        [claim] = api.claim(api.node(), queue)
        assert self.spawn(api, queue)["state"] == "claimed"
        api.complete(claim)
        assert self.spawn(api, queue)["state"] == "completed"

    @pytest.mark.parametrize(
        ("content", "options"),
        [
            ({"task": "b", "params": {"n": 1}}, {}),
            ({"task": "a", "params": {"n": 2}}, {}),
            ({"task": "a", "params": {"n": 1}}, {"labels": {"app": "x"}}),
            ({"task": "a", "params": {"n": 1}}, {"affinity_tags": {"gpu": True}}),
        ],
    )
    def test_other_content_is_an_error(self, api: Api, content: Any, options: Any) -> None:
        queue = api.queue()
        first = self.spawn(api, queue)
        options = {"idempotency_key": "key"} | options
        refusal = api.refused("QHT01", "spawn_lease", queue=queue, options=options, **content)
        assert refusal.field == "options.idempotency_key"
        assert refusal.detail["lease_id"] == str(first["lease_id"])

    def test_tenants_and_queues_have_keys_of_their_own(self, api: Api) -> None:
        queue = api.queue()
        rows = [
            self.spawn(api, queue),
            self.spawn(api, queue, tenant="acme"),
            self.spawn(api, queue, tenant="other", content={"task": "b"}),
            self.spawn(api, api.queue(), content={"task": "c"}),
        ]
        assert all(row["created"] for row in rows)

    @pytest.mark.parametrize("alone", [True, False], ids=["one spawn", "a batch"])
    def test_a_key_repeated_is_its_own_tenants_lease(self, api: Api, alone: bool) -> None:
        """Several tenants have the same key, and each gets back its own lease."""
        queue, tenants = api.queue(), ("third", "acme", "other")
        first = {tenant: self.spawn(api, queue, tenant=tenant) for tenant in tenants}
        for tenant, row in first.items():
            options = {"idempotency_key": "key", "tenant": tenant}
            if alone:
                again = self.spawn(api, queue, tenant=tenant)
            else:
                batch = [{"task": "a", "params": {"n": 1}, "options": options}]
                [again] = api.rows("spawn_leases", queue=queue, leases=batch)
            assert (again["lease_id"], again["created"]) == (row["lease_id"], False)

    def test_a_rolled_back_spawn_leaves_the_key_free(self, api: Api, conn: psycopg.Connection) -> None:
        queue = api.queue()
        with conn.transaction(force_rollback=True):
            self.spawn(api, queue)
        assert self.spawn(api, queue, content={"task": "other"})["created"]


class TestPayloads:
    """Limits of the queue's policy; bytes of the JSON text."""

    def test_params_as_large_as_allowed(self, api: Api) -> None:
        queue = api.queue(max_params_bytes=100)
        api.spawn(queue, TASK, "x" * 98)
        refusal = api.refused("QHA01", "spawn_lease", queue=queue, task=TASK, params="x" * 99)
        assert refusal.field == "params"
        assert (refusal.detail["bytes"], refusal.detail["limit"]) == (101, 100)

    def test_bytes_count_not_characters(self, api: Api) -> None:
        queue = api.queue(max_params_bytes=100)
        refusal = api.refused("QHA01", "spawn_lease", queue=queue, task=TASK, params="ü" * 50)
        assert refusal.detail["bytes"] == 102

    def test_headers(self, api: Api) -> None:
        options = {"headers": {"x": "x" * 16384}}
        assert api.fault("spawn_lease", queue=api.queue(), task=TASK, options=options) == "options.headers"


class TestWaking:
    """A NOTIFY only when an empty claim has left its mark."""

    def heard(self, conn: psycopg.Connection) -> list[str]:
        return [notify.payload for notify in conn.notifies(timeout=0)]

    def test_a_mark_is_used_up(self, api: Api, conn: psycopg.Connection) -> None:
        queue, node = api.queue(), api.node()
        conn.execute("listen hwqueue")
        api.spawn(queue)
        assert self.heard(conn) == []
        api.claim(node, queue)
        assert api.claim(node, queue) == []
        api.spawn(queue)
        assert self.heard(conn) == [api.wake_payload(queue)]
        api.spawn(queue)
        assert self.heard(conn) == []

    def test_what_is_not_claimable_wakes_nobody(self, api: Api, conn: psycopg.Connection) -> None:
        queue = api.queue()
        assert api.claim(api.node(), queue) == []
        conn.execute("listen hwqueue")
        api.spawn(queue, delay=60)
        api.spawn(queue, notify=False)
        assert self.heard(conn) == []
        api.spawn(queue)
        assert self.heard(conn) == [api.wake_payload(queue)]

    def test_a_queue_may_do_without(self, api: Api, conn: psycopg.Connection) -> None:
        queue = api.queue(tuning={"notify": False})
        assert api.claim(api.node(), queue) == []
        conn.execute("listen hwqueue")
        api.spawn(queue)
        assert self.heard(conn) == []


def test_shorthands_are_preferences_of_weight_100(api: Api) -> None:
    here, there = str(uuid4()), str(uuid4())
    lease = api.spawn(api.queue(), affinity_with=here, anti_affinity_with=there)
    prefer = api.lease(lease)["placement"]["prefer"]
    assert {"weight": 100, "when": [{"node": [here]}]} in prefer
    assert {"weight": 100, "when": [{"node": [there], "away": True}]} in prefer
    assert len(prefer) == 2


def test_empty_tags_ask_nothing(api: Api) -> None:
    queue = api.queue()
    empty: list[dict[str, Any]] = [{"affinity_tags": {}}, {"placement": {}}]
    for options in [*empty, {"placement": {"require": []}}]:
        assert api.lease(api.spawn(queue, **options))["placement"] == {}


def test_a_spawn_rolls_back_with_its_caller(api: Api, conn: psycopg.Connection) -> None:
    queue = api.queue()
    before = api.contents()
    with conn.transaction(force_rollback=True):
        api.spawn(queue, idempotency_key="k", labels={"new": "class"})
    assert api.contents() == before
    assert api.refused("QHL04", "get_lease", lease=NOBODY).detail["lease_id"] == str(NOBODY)
