"""spawn_lease and spawn_leases: one, and many in a call."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import NOBODY, Api, Node
from tests.sql.test_tenants_apart import limited

SERVICE = str(uuid4())


def test_what_holds_without_options(api: Api, queue: str, clock: Clock) -> None:
    row = api.row("spawn_lease", queue=queue, task="resize")
    assert (row["created"], row["state"], row["lease_id"].version) == (True, "pending", 7)
    now, none = clock.now(), ("service_id", "headers", "deadline", "idempotency_key", "claim_token")
    expected = dict.fromkeys(none) | {
        **{"queue": queue, "task_name": "resize", "state": "pending", "priority": 0, "tenant": ""},
        **{"labels": {}, "placement": {}, "params": {}, "attempt": 0, "max_attempts": 5},
        **{"available_at": now, "created_at": now, "attempts": []},
    }
    assert api.lease(row["lease_id"]).items() >= expected.items()


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


def test_options_that_are_null_are_not_given(api: Api, queue: str) -> None:
    """So that a client may pass all of them every time."""
    names = ["lease_id", "placement", "affinity_tags", "affinity_with", "anti_affinity_with"]
    names += ["priority", "tenant", "service_id", "labels", "available_at", "delay", "retry"]
    names += ["max_attempts", "claim_timeout", "deadline", "idempotency_key", "headers", "notify"]
    plain, nulls = api.spawn(queue), api.spawn(queue, **dict.fromkeys([*names, "wire"]))
    assert api.lease(plain) | {"lease_id": nulls} == api.lease(nulls)


@pytest.mark.parametrize("delay", [90, "1 minute 30 seconds", None])
def test_later(api: Api, queue: str, node: Node, clock: Clock, delay: Any) -> None:
    """Not before its time, and promoted by the first claim after it."""
    due = clock.now() + timedelta(seconds=90)
    lease = api.spawn(queue, **({"delay": delay} if delay else {"available_at": due.isoformat()}))
    assert (api.lease(lease)["available_at"], api.state(lease)) == (due, "scheduled")
    clock.advance(timedelta(seconds=89))
    assert api.claim(node, queue) == []
    clock.advance(timedelta(seconds=1))
    assert api.claimed(node, queue) == [lease]
    past: Row = {"available_at": (clock.now() - timedelta(days=1)).isoformat()}
    for now in (past, {"delay": 0}):
        assert api.state(api.spawn(queue, **now)) == "pending"


def test_what_reaches_the_claim(api: Api, clock: Clock) -> None:
    """The claim timeout of the lease wins."""
    queue, node = api.queue(claim_timeout=60), api.node()
    api.spawn(queue, TASK, {"path": "/a"}, headers={"trace": "x"}, claim_timeout=600)
    api.spawn(queue)
    row, other = api.claim(node, queue, qty=2)
    lasts = [each["expires_at"] - clock.now() for each in (row, other)]
    assert lasts == [timedelta(seconds=600), timedelta(seconds=60)]
    assert (row["params"], row["headers"], row["task_name"]) == ({"path": "/a"}, {"trace": "x"}, TASK)


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

    def test_the_same_content_is_the_first_lease(self, api: Api, queue: str) -> None:
        """In its state of now. Options that are no content may differ."""
        same = {"require": [{"label": "n", "op": "in", "values": [1.0]}]}
        first = self.spawn(api, queue, labels={"app": "x"}, affinity_tags={"n": 1})
        again = self.spawn(api, queue, labels={"app": "x"}, placement=same)
        assert (first["created"], again["created"]) == (True, False)
        assert again["lease_id"] == first["lease_id"]
        assert api.listed(queue)["pending"] == 1

        content = {"labels": {"app": "x"}, "affinity_tags": {"n": 1}}
        other = {"priority": 9, "delay": 60, "headers": {"trace": "2"}} | content
        assert self.spawn(api, queue, **other)["state"] == "pending"
        assert api.lease(first["lease_id"])["priority"] == 0
        [claim] = api.claim(api.node(labels={"n": 1}), queue)
        assert self.spawn(api, queue, **content)["state"] == "claimed"
        api.complete(claim)
        again = self.spawn(api, queue, **content)
        assert (again["lease_id"], again["state"]) == (first["lease_id"], "completed")

    def test_a_call_with_an_own_id_can_be_repeated(self, api: Api) -> None:
        """The key decides, not the id: a client whose answer was lost sends the same again."""
        queue, mine = api.queue(), str(uuid4())
        assert self.spawn(api, queue, lease_id=mine)["created"]
        again = self.spawn(api, queue, lease_id=mine)
        assert (again["created"], again["lease_id"]) == (False, UUID(mine))

    @pytest.mark.parametrize(
        ("content", "options"),
        [
            ({"task": "b", "params": {"n": 1}}, {}),
            ({"task": "a", "params": {"n": 2}}, {}),
            ({"task": "a", "params": {"n": 1}}, {"labels": {"app": "x"}}),
            ({"task": "a", "params": {"n": 1}}, {"affinity_tags": {"gpu": True}}),
        ],
    )
    def test_other_content_is_an_error(self, api: Api, queue: str, content: Any, options: Any) -> None:
        first = self.spawn(api, queue)
        options = {"idempotency_key": "key"} | options
        refusal = api.refused("QHT01", "spawn_lease", queue=queue, options=options, **content)
        assert refusal.field == "options.idempotency_key"
        assert refusal.detail["lease_id"] == str(first["lease_id"])

    def test_tenants_and_queues_have_keys_of_their_own(self, api: Api) -> None:
        """Each gets back its own lease, alone or in a batch."""
        queue, other = api.queue(), {"task": "b"}
        contents: dict[str | None, Any] = {None: self.content, "acme": self.content, "other": other}
        first = {t: self.spawn(api, queue, content, tenant=t) for t, content in contents.items()}
        assert all(row["created"] for row in first.values())
        assert self.spawn(api, api.queue(), content={"task": "c"})["created"]
        for tenant, row in first.items():
            again = self.spawn(api, queue, contents[tenant], tenant=tenant)
            options = {"idempotency_key": "key", "tenant": tenant}
            batch = [contents[tenant] | {"options": options}]
            [batched] = api.rows("spawn_leases", queue=queue, leases=batch)
            for found in (again, batched):
                assert (found["lease_id"], found["created"]) == (row["lease_id"], False)

    def test_a_rolled_back_spawn_leaves_the_key_free(self, api: Api, conn: psycopg.Connection) -> None:
        queue = api.queue()
        with conn.transaction(force_rollback=True):
            self.spawn(api, queue)
        assert self.spawn(api, queue, content={"task": "other"})["created"]


class TestPayloads:
    """Limits of the queue's policy; bytes of the JSON text."""

    def test_params_and_headers_as_large_as_allowed(self, api: Api) -> None:
        queue = api.queue(max_params_bytes=100)
        api.spawn(queue, TASK, "x" * 98)
        for params, size in (("x" * 99, 101), ("ü" * 50, 102)):  # not characters
            refusal = api.refused("QHA01", "spawn_lease", queue=queue, task=TASK, params=params)
            assert refusal.field == "params"
            assert (refusal.detail["bytes"], refusal.detail["limit"]) == (size, 100)
        options = {"headers": {"x": "x" * 16384}}
        assert api.fault("spawn_lease", queue=api.queue(), task=TASK, options=options) == "options.headers"


class TestWaking:
    """A NOTIFY only when an empty claim has left its mark."""

    def heard(self, conn: psycopg.Connection) -> list[str]:
        return [notify.payload for notify in conn.notifies(timeout=0)]

    def test_a_mark_is_used_up(self, api: Api, queue: str, node: Node, conn: psycopg.Connection) -> None:
        """By what can be claimed."""
        conn.execute("listen hwqueue")
        api.spawn(queue)
        assert self.heard(conn) == []
        api.claim(node, queue)
        assert api.claim(node, queue) == []
        api.spawn(queue, delay=60)
        api.spawn(queue, notify=False)
        assert self.heard(conn) == []
        api.spawn(queue)
        assert self.heard(conn) == [api.wake_payload(queue)]
        api.spawn(queue)
        assert self.heard(conn) == []

    def test_a_queue_may_do_without(self, api: Api, conn: psycopg.Connection) -> None:
        queue = api.queue(tuning={"notify": False})
        assert api.claim(api.node(), queue) == []
        conn.execute("listen hwqueue")
        api.spawn(queue)
        assert self.heard(conn) == []


def test_shorthands_are_preferences_of_weight_100(api: Api) -> None:
    queue, here, there = api.queue(), str(uuid4()), str(uuid4())
    lease = api.spawn(queue, affinity_with=here, anti_affinity_with=there)
    prefer = api.lease(lease)["placement"]["prefer"]
    assert {"weight": 100, "when": [{"node": [here]}]} in prefer
    assert {"weight": 100, "when": [{"node": [there], "away": True}]} in prefer
    assert len(prefer) == 2
    empty: list[Row] = [{"affinity_tags": {}}, {"placement": {}}, {"placement": {"require": []}}]
    for options in empty:
        assert api.lease(api.spawn(queue, **options))["placement"] == {}


def test_a_spawn_rolls_back_with_its_caller(api: Api, queue: str, conn: psycopg.Connection) -> None:
    with api.unchanged(), conn.transaction(force_rollback=True):
        api.spawn(queue, idempotency_key="k", labels={"new": "class"})
    assert api.refused("QHL04", "get_lease", lease=NOBODY).detail["lease_id"] == str(NOBODY)


def item(task: str = TASK, params: Any = None, **options: Any) -> dict[str, Any]:
    """One element of a batch."""
    return {"task": task, "params": params or {}, "options": options}


def test_rows_come_in_the_order_given(api: Api, queue: str) -> None:
    """And are claimed in that order."""
    with api.unchanged():
        assert api.rows("spawn_leases", queue=queue, leases=[]) == []
    batch = [item("a"), item("b", delay=60), {"task": "c"}, *(item(f"t{n}") for n in range(20))]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    assert [row["ordinal"] for row in rows] == list(range(1, 24))
    assert [row["state"] for row in rows] == ["pending", "scheduled", *["pending"] * 21]
    leases = [row["lease_id"] for row in rows]
    assert [api.lease(lease)["task_name"] for lease in leases] == [each["task"] for each in batch]
    assert api.claimed(api.node(), queue, qty=30) == [leases[0], *leases[2:]]


KINDS: list[dict[str, Any]] = [{"task": "a"}, {"task": "b", "options": {"affinity_tags": {"gpu": True}}}]


def test_kinds_with_the_params_of_each(api: Api, queue: str) -> None:
    """They are what the elements one by one would be, in the order of each."""
    own = [*KINDS, {"task": "c", "options": {"priority": 3, "delay": 60}}]
    for kinds, of in ((KINDS, [1.0, 0, 1]), (own, [2, 0, 1]), (KINDS[:1], None)):
        batch = {"kinds": kinds, "each": [{"n": n} for n in range(3)]} | ({"of": of} if of else {})
        rows = api.rows("spawn_leases", queue=queue, leases=batch)
        alike = [kinds[int(n)] | {"params": {"n": i}} for i, n in enumerate(of or [0] * 3)]
        spawned = [api.lease(row["lease_id"]) for row in rows]
        same = [api.lease(row["lease_id"]) for row in api.rows("spawn_leases", queue=queue, leases=alike)]
        told = ("task_name", "params", "placement", "priority", "state")
        assert [[one[key] for key in told] for one in spawned] == [[one[key] for key in told] for one in same]
        assert [row["ordinal"] for row in rows] == [1, 2, 3]
    kinds = [*KINDS, {"task": "c", "options": {"priority": "high"}}]
    wrong = {"kinds": kinds, "each": [{}] * 3, "of": [0, 2, 2]}
    refusal = api.refused("QHA01", "spawn_leases", queue=queue, leases=wrong)
    assert (refusal.field, refusal.detail["index"]) == ("options.priority", 1)


def test_kinds_that_nothing_is_of(api: Api, queue: str) -> None:
    """They are neither read nor written, whoever's they are."""
    kinds = [KINDS[0] | {"options": {"tenant": tenant}} for tenant in ("mine", "another's")]
    with limited(api, "mine"):
        batch = {"kinds": [{"task": 7}, *kinds], "each": [{}, {}], "of": [1, 1]}
        assert len(api.rows("spawn_leases", queue=queue, leases=batch)) == 2
    classes = "select array_agg(tenant) from hwqueue.placement_class where tenant in ('mine', 'another''s')"
    assert api.one(classes) == ["mine"]


def test_options_in_the_same_words_are_read_once(api: Api, queue: str) -> None:
    """Their class is found by these words, in others by what they say; a retired one is not."""
    words = ({"affinity_tags": {"gpu": True}}, {"placement": {"require": [{"tags": {"gpu": True}}]}})

    def classes() -> set[int]:
        rows = api.rows("spawn_leases", queue=queue, leases=[item(**each) for each in (*words, *words)])
        query = "select class_id from hwqueue.lease where lease_id = %s"
        return {api.one(query, row["lease_id"]) for row in rows}

    first = classes()
    assert classes() == first
    api.conn.execute("update hwqueue.placement_class set retired_at = now()")
    second = classes()
    assert len(first) == len(second) == 1
    assert first != second
    api.conn.execute("update hwqueue.placement_class set asked = 'other'")
    assert classes() == second


def test_equal_keys_are_one_lease(api: Api, queue: str) -> None:
    first = api.spawn(queue, idempotency_key="old")
    batch = [
        item(idempotency_key="new"),
        item(),
        item(idempotency_key="new", priority=5),
        item(idempotency_key="old"),
        *[item(idempotency_key="with an id", lease_id=str(uuid4()))] * 2,
    ]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    assert [row["created"] for row in rows] == [True, True, False, False, True, False]
    assert rows[0]["lease_id"] == rows[2]["lease_id"] != rows[1]["lease_id"]
    assert (rows[3]["lease_id"], rows[5]["lease_id"]) == (first, rows[4]["lease_id"])
    assert api.listed(queue)["pending"] == 4


def test_one_element_at_fault_undoes_all(api: Api) -> None:
    batch = [item(), item(idempotency_key="k"), item(priority="high")]
    refusal = api.refused("QHA01", "spawn_leases", queue=api.queue(), leases=batch)
    assert (refusal.field, refusal.detail["index"]) == ("options.priority", 2)
    assert refusal.message.startswith("leases[2]")


@pytest.mark.parametrize(
    ("code", "element", "field"),
    [
        ("QHA01", "work", "lease"),
        ("QHA01", {"task": TASK, "priority": 1}, "lease.priority"),
        ("QHA01", {"task": TASK, "options": "x"}, "options"),
        ("QHA01", {"task": TASK, "options": []}, "options"),
        ("QHA01", {"params": {}}, "task"),
        ("QHA01", {"task": 7}, "task"),
        ("QHA01", item("a b"), "task"),
        ("QHC03", item(placement={"require": {}}), "options.placement.require"),
        ("QHW01", item(wire="AA=="), "options.wire"),
        ("QHA01", item(wire="AA="), "options.wire"),
    ],
)
@pytest.mark.thorough
def test_the_element_at_fault_is_named(api: Api, code: str, element: Any, field: str) -> None:
    refusal = api.refused(code, "spawn_leases", queue=api.queue(), leases=[item(), element])
    assert (refusal.field, refusal.detail["index"]) == (field, 1)


def test_a_key_with_other_content_and_an_id_that_is_taken(api: Api) -> None:
    """In the batch itself, and against what is there already."""
    queue, mine = api.queue(), str(uuid4())
    key, own = {"idempotency_key": "k"}, {"lease_id": mine}
    for code, option, batch in (
        ("QHT01", "idempotency_key", [item(), item("a", **key), item("b", **key)]),
        ("QHL06", "lease_id", [item(), *[item(**own)] * 2]),  # whatever its content
    ):
        refusal = api.refused(code, "spawn_leases", queue=queue, leases=batch)
        assert (refusal.field, refusal.detail["index"]) == (f"options.{option}", 2)
        api.rows("spawn_leases", queue=queue, leases=batch[1:2])
        refusal = api.refused(code, "spawn_leases", queue=queue, leases=batch[::2])
        assert refusal.detail["index"] == 1


def test_a_batch_is_an_array_for_a_queue(api: Api) -> None:
    two: dict[str, Any] = {"kinds": KINDS, "each": [{}, {}]}
    wrong: tuple[Any, ...] = (
        *(None, {}, "x", 1, {"each": [{}]}, two, two | {"kinds": KINDS[:1], "extra": 1}),
        *(two | {"of": of} for of in ([0], [0, 2], [0, -1], [0, 0.5], [0, "0"], [0, None], 0, [[1], 0])),
        two | {"kinds": [{"task": "a", "params": {}}]},
    )
    for leases in wrong:
        assert api.fault("spawn_leases", queue=api.queue(), leases=leases) == "leases"
    refusal = api.refused("QHQ01", "spawn_leases", queue="nowhere", leases=[item()])
    assert refusal.detail["queue"] == "nowhere"


def test_it_wakes_once(api: Api, queue: str, conn: psycopg.Connection) -> None:
    assert api.claim(api.node(), queue) == []
    conn.execute("listen hwqueue")
    api.rows("spawn_leases", queue=queue, leases=[item(), item()])
    assert [notify.payload for notify in conn.notifies(timeout=0)] == [api.wake_payload(queue)]
