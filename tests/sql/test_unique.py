"""The option unique: one open lease of a key, or one in a span."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import Api, token


def spawn(api: Api, queue: str, params: Any = None, *, task: str = TASK, **options: Any) -> Row:
    """Spawn with unique {"key": "k"}, unless told otherwise."""
    options.setdefault("unique", {"key": "k"})
    return api.row("spawn_lease", queue=queue, task=task, params=params or {}, options=options)


def unique(**more: Any) -> Row:
    return {"key": "k", **more}


def test_while_open_the_lease_is_kept(api: Api, clock: Clock) -> None:
    queue = api.queue()
    later = (clock.now() + timedelta(hours=1)).isoformat()
    first = spawn(api, queue, {"n": 1}, available_at=later)
    del first["warnings"]
    for state in ("scheduled", "pending", "claimed"):
        again = spawn(api, queue, {"n": 2}, task="other")
        del again["warnings"]  # by then upkeep has looked at its class
        assert again == first | {"created": False, "state": state}
        if state == "scheduled":
            clock.advance(timedelta(hours=2))
            api.rows("reap")
        elif state == "pending":
            [claim] = api.claim(api.node(), queue)
    api.complete(claim)
    fresh = spawn(api, queue)
    assert fresh["created"]
    assert api.lease(first["lease_id"])["params"] == {"n": 1}
    assert not spawn(api, queue)["created"]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_every_end_frees_the_key(api: Api, end: str) -> None:
    """A retry keeps it."""
    queue, node = api.queue(retry={"kind": "fixed", "base": 0}), api.node()
    first = spawn(api, queue)["lease_id"]
    [claim] = api.claim(node, queue)
    api.rows("fail_lease", **token(claim), error={}, retry=True)
    assert spawn(api, queue)["lease_id"] == first
    if end == "failed":
        [claim] = api.claim(node, queue)
        api.rows("fail_lease", **token(claim), error={}, retry=False)
    else:
        api.rows("cancel_lease", lease=first)
    assert spawn(api, queue)["created"]


def test_for_a_span_whatever_became_of_it(api: Api, clock: Clock) -> None:
    queue = api.queue()
    span = unique(**{"while": "1 h"})
    first = spawn(api, queue, unique=span)
    api.rows("cancel_lease", lease=first["lease_id"])
    clock.advance(timedelta(minutes=59))
    assert not spawn(api, queue, unique=span)["created"]
    clock.advance(timedelta(minutes=1))
    assert spawn(api, queue, unique=span)["created"]


def test_replace_changes_one_that_waits(api: Api, clock: Clock) -> None:
    queue, replace = api.queue(), unique(on_conflict="replace")
    first = spawn(api, queue, {"n": 1}, labels={"a": "1"})
    later = (clock.now() + timedelta(hours=1)).isoformat()
    changes: Row = {"priority": 5, "labels": {"b": "2"}, "available_at": later}
    again = spawn(api, queue, {"n": 2}, task="other", unique=replace, **changes)
    assert again == first | {"created": False, "state": "scheduled"}
    lease = api.lease(first["lease_id"])
    assert (lease["params"], lease["task_name"], lease["priority"]) == ({"n": 2}, "other", 5)
    assert lease["labels"] == {"b": "2"}
    back = spawn(api, queue, {"n": 3}, unique=replace)
    assert (back["lease_id"], back["state"]) == (first["lease_id"], "pending")
    [claim] = api.claim(api.node(), queue)
    assert (claim["lease_id"], claim["params"]) == (first["lease_id"], {"n": 3})
    assert api.sound()


def test_replace_keeps_one_that_runs(api: Api) -> None:
    """And attempts and tokens of one that has run; raise says which lease it is."""
    queue = api.queue()
    first = spawn(api, queue, {"n": 1})
    [claim] = api.claim(api.node(), queue)
    again = spawn(api, queue, {"n": 2}, unique=unique(on_conflict="replace"))
    assert again == first | {"created": False, "state": "claimed"}
    assert api.lease(first["lease_id"])["params"] == {"n": 1}
    api.rows("fail_lease", **token(claim), error={}, retry=True)
    spawn(api, queue, unique=unique(on_conflict="replace"))
    options = {"unique": unique(on_conflict="raise")}
    found = api.refused("QHT02", "spawn_lease", queue=queue, task=TASK, options=options)
    assert (found.detail["lease_id"], found.detail["state"]) == (str(first["lease_id"]), "pending")
    [second] = api.claim(api.node(), queue)
    assert second["claim_token"] > claim["claim_token"]
    assert second["attempt"] == 2


def test_a_batch(api: Api) -> None:
    queue = api.queue()
    taken = spawn(api, queue)["lease_id"]
    ended = spawn(api, queue, unique={"key": "e"})["lease_id"]
    api.rows("cancel_lease", lease=ended)
    keys = ["new", "k", "e", "new", "e", None]
    batch = [
        {"task": TASK, "options": {"unique": {"key": key, "on_conflict": "replace"}} if key else {}}
        for key in keys
    ]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    assert [row["created"] for row in rows] == [True, False, True, False, False, True]
    assert rows[1]["lease_id"] == taken
    assert rows[3]["lease_id"] == rows[0]["lease_id"]
    assert rows[4]["lease_id"] == rows[2]["lease_id"] != ended
    assert api.rows("verify_invariants") == []


def test_keys_of_queues_and_tenants_are_apart(api: Api) -> None:
    queue, other = api.queue(), api.queue()
    for where, more in ((queue, {}), (other, {}), (queue, {"tenant": "film"})):
        assert spawn(api, where, **more)["created"]
    assert not spawn(api, queue, tenant="film")["created"]


def test_a_deleted_lease_frees_its_key_and_no_other(api: Api) -> None:
    queue = api.queue()
    first = spawn(api, queue)["lease_id"]
    api.rows("cancel_lease", lease=first)
    second = spawn(api, queue)["lease_id"]
    api.rows("delete_leases", filter={"queue": queue, "state": "cancelled"})
    assert spawn(api, queue)["lease_id"] == second
    api.rows("cancel_lease", lease=second)
    api.rows("delete_leases", filter={"queue": queue, "state": "cancelled"})
    assert spawn(api, queue)["created"]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("options.unique", "k"),
        ("options.unique.key", {}),
        ("options.unique.key", {"key": 7}),
        ("options.unique.key", {"key": "x" * 256}),
        ("options.unique.while", {"key": "k", "while": "sometimes"}),
        ("options.unique.while", {"key": "k", "while": 0}),
        ("options.unique.on_conflict", {"key": "k", "on_conflict": "ignore"}),
        ("options.unique.by", {"key": "k", "by": "params"}),
    ],
)
@pytest.mark.thorough
def test_bad_options(api: Api, field: str, wrong: Any) -> None:
    queue = api.queue()
    for function, more in (
        ("spawn_lease", {"task": TASK, "options": {"unique": wrong}}),
        ("spawn_leases", {"leases": [{"task": TASK, "options": {"unique": wrong}}]}),
    ):
        assert api.fault(function, queue=queue, **more) == field


def test_not_with_an_idempotency_key(api: Api) -> None:
    """In one spawn, nor if another lease has it. Null is not given."""
    queue = api.queue()
    call = {"queue": queue, "task": TASK}
    api.refused("QHA01", "spawn_lease", **call, options={"unique": unique(), "idempotency_key": "i"})
    assert spawn(api, queue, unique=None)["created"]
    assert spawn(api, queue, unique=None, idempotency_key="k")["created"]
    assert not spawn(api, queue, unique=None, idempotency_key="k")["created"]
    api.refused("QHT01", "spawn_lease", **call, options={"unique": unique()})
