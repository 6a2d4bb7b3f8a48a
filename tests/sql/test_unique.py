"""Unique keys of leases and of runs."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.flows import Flow, fail, finish, step
from tests.sql.api import Api, token

pytestmark = pytest.mark.usefixtures("sound")


def spawn(api: Api, queue: str, params: Any = None, *, task: str = TASK, **options: Any) -> Row:
    """Spawn with unique {"key": "k"}, unless told otherwise."""
    options.setdefault("unique", {"key": "k"})
    return api.row("spawn_lease", queue=queue, task=task, params=params or {}, options=options)


def unique(**more: Any) -> Row:
    return {"key": "k", **more}


def test_while_open_the_lease_is_kept(api: Api, queue: str, clock: Clock) -> None:
    later = (clock.now() + timedelta(hours=1)).isoformat()
    first = spawn(api, queue, {"n": 1}, available_at=later)
    del first["warnings"]
    for state in ("scheduled", "pending", "claimed"):
        again = spawn(api, queue, {"n": 2}, task="other")
        del again["warnings"]  # by then upkeep has looked at its class
        assert again == first | {"created": False, "state": state}
        if state == "scheduled":
            api.reap_after(clock, timedelta(hours=2))
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


def test_for_a_span_whatever_became_of_it(api: Api, queue: str, clock: Clock) -> None:
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


def test_replace_keeps_one_that_runs(api: Api, queue: str) -> None:
    """And attempts and tokens of one that has run; raise says which lease it is."""
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


def test_a_batch(api: Api, queue: str) -> None:
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
    assert (rows[1]["lease_id"], rows[3]["lease_id"]) == (taken, rows[0]["lease_id"])
    assert rows[4]["lease_id"] == rows[2]["lease_id"] != ended
    assert api.rows("verify_invariants") == []


def test_keys_of_queues_and_tenants_are_apart(api: Api) -> None:
    queue, other = api.queue(), api.queue()
    for where, more in ((queue, {}), (other, {}), (queue, {"tenant": "film"})):
        assert spawn(api, where, **more)["created"]
    assert not spawn(api, queue, tenant="film")["created"]


def test_a_deleted_lease_frees_its_key_and_no_other(api: Api, queue: str) -> None:
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
def test_bad_options(api: Api, queue: str, field: str, wrong: Any) -> None:
    for function, more in (
        ("spawn_lease", {"task": TASK, "options": {"unique": wrong}}),
        ("spawn_leases", {"leases": [{"task": TASK, "options": {"unique": wrong}}]}),
    ):
        assert api.fault(function, queue=queue, **more) == field


def test_not_with_an_idempotency_key(api: Api, queue: str) -> None:
    """In one spawn, nor if another lease has it. Null is not given."""
    call = {"queue": queue, "task": TASK}
    api.refused("QHA01", "spawn_lease", **call, options={"unique": unique(), "idempotency_key": "i"})
    assert spawn(api, queue, unique=None)["created"]
    assert spawn(api, queue, unique=None, idempotency_key="k")["created"]
    assert not spawn(api, queue, unique=None, idempotency_key="k")["created"]
    api.refused("QHT01", "spawn_lease", **call, options={"unique": unique()})


OPEN, HOUR = unique(), unique(**{"while": 3600})


def ended(api: Api, queue: str, **unique: object) -> UUID:
    """A cancelled lease that was spawned with the key."""
    lease = api.spawn(queue, unique=unique or OPEN)
    api.rows("cancel_lease", lease=lease)
    return lease


def test_it_gets_its_key_back(api: Api, queue: str) -> None:
    """An idempotency key was never lost."""
    first, second = ended(api, queue), ended(api, queue)
    assert second != first
    assert api.value("requeue_lease", lease=first) == "pending"
    assert api.spawn(queue, unique=OPEN) == first
    lease = api.spawn(queue, idempotency_key="i")
    api.rows("cancel_lease", lease=lease)
    assert api.value("requeue_lease", lease=lease) == "pending"
    assert api.spawn(queue, idempotency_key="i") == lease


def test_not_while_another_lease_is_open(api: Api, queue: str) -> None:
    first = ended(api, queue)
    holder = api.spawn(queue, unique=OPEN)
    refusal = api.refused("QHT02", "requeue_lease", lease=first)
    assert refusal.detail == {"key": "k", "lease_id": str(holder), "requeued": str(first)}
    assert api.state(first) == "cancelled"
    api.rows("cancel_lease", lease=holder)
    assert api.value("requeue_lease", lease=first) == "pending"
    refusal = api.refused("QHT02", "requeue_lease", lease=holder)
    assert refusal.detail["lease_id"] == str(first)


def test_not_within_the_span_of_another(api: Api, queue: str, clock: Clock) -> None:
    first = ended(api, queue, **HOUR)
    clock.advance(timedelta(hours=2))
    holder = ended(api, queue, **HOUR)
    assert api.refused("QHT02", "requeue_lease", lease=first).detail["lease_id"] == str(holder)
    assert api.value("requeue_lease", lease=holder) == "pending"  # its own span
    clock.advance(timedelta(hours=2))
    assert api.value("requeue_lease", lease=first) == "pending"


def test_a_key_that_went_with_its_holder_is_made_again(api: Api, queue: str) -> None:
    first, holder = ended(api, queue), ended(api, queue)
    api.rows("delete_leases", filter={"queue": queue, "state": "cancelled"}, limit=10000)
    again, holder = ended(api, queue), ended(api, queue)
    api.conn.execute("select hwqueue.remove_leases(array[%s::uuid])", [holder])
    assert api.value("requeue_lease", lease=again) == "pending"
    assert api.spawn(queue, unique=OPEN) == again
    assert first not in (again, holder)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_page_skips_leases_whose_key_is_taken(api: Api, queue: str, is_open: bool) -> None:
    first, second = ended(api, queue), ended(api, queue)
    holder = api.spawn(queue, unique=OPEN)
    if not is_open:
        api.conn.execute("select hwqueue.cancel_lease(%s)", [holder])
        api.conn.execute("select hwqueue.remove_leases(array[%s::uuid])", [holder])
    free, plain = ended(api, queue, key="other"), api.spawn(queue)
    api.rows("cancel_lease", lease=plain)
    page = api.row("requeue_leases", filter={"queue": queue, "state": "cancelled"})
    changed, skipped = set(page["changed"]), set(page["skipped"])
    assert {free, plain} <= changed
    assert changed | skipped == {first, second, free, plain}
    keyed = changed - {free, plain}  # one of the two, if nobody has the key
    assert len(keyed) == (0 if is_open else 1)
    assert {lease for lease in changed | skipped if api.state(lease) == "pending"} == changed
    assert api.spawn(queue, unique=OPEN) in ([holder] if is_open else keyed)


def test_of_one_key_the_lease_that_holds_it_is_requeued(api: Api, queue: str) -> None:
    first, holder = ended(api, queue), ended(api, queue)
    page = api.row("requeue_leases", filter={"queue": queue, "state": "cancelled"})
    assert (page["changed"], page["skipped"]) == ([holder], [first])


def test_requeue_failed_leaves_and_does_not_count_them(api: Api) -> None:
    queue, node = api.queue(max_attempts=1), api.node()
    first = api.spawn(queue, unique=OPEN)
    [claim] = api.claim(node, queue)
    api.rows("fail_lease", lease=first, token=claim["claim_token"], error={})
    holder = api.spawn(queue, unique=OPEN)
    assert api.value("requeue_failed", queue=queue) == 0
    api.rows("cancel_lease", lease=holder)
    assert api.value("requeue_failed", queue=queue) == 1
    assert api.state(first) == "pending"


def holding(on_conflict: str | None = None, key: str = "k") -> Row:
    return {"unique": {"key": key} | ({"on_conflict": on_conflict} if on_conflict else {})}


def again(flow: Flow, options: Row) -> Row:
    return flow.calls.row("submit_spec", spec=flow.spec, input={"n": 2}, options=options)


def test_a_second_submission_returns_the_run_that_has_the_key(api: Api) -> None:
    flow = Flow(api, [step("a")], options=holding())
    second = again(flow, holding())
    assert (second["run_id"], second["created"], second["state"]) == (flow.run, False, "running")
    assert again(flow, holding(key="other"))["created"]
    assert flow.get()["idempotency_key"] == "k"
    keyed = Flow(api, [step("a")], options={"idempotency_key": "2030-01-31"})
    assert keyed.get()["idempotency_key"] == "2030-01-31"
    assert again(flow, holding() | {"tenant": "acme"})["created"]


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_the_key_is_free_when_the_run_has_ended(api: Api, end: str) -> None:
    flow = Flow(api, [step("a")], options=holding())
    claim = flow.claims()["a"]
    if end == "cancel":
        api.rows("cancel_workflow_run", run=flow.run)
        assert not again(flow, holding())["created"]
    (fail if end == "fail" else finish)(api, claim)
    assert flow.state in ("completed", "failed", "cancelled")
    assert again(flow, holding())["created"]


def test_a_conflict_can_be_refused(api: Api) -> None:
    flow = Flow(api, [step("a")], options=holding())
    refusal = api.refused("QHT02", "submit_spec", spec=flow.spec, options=holding("raise"))
    assert (refusal.detail["run_id"], refusal.detail["key"]) == (str(flow.run), "k")
    with_key = again(flow, {"idempotency_key": "i"})["run_id"]
    options = holding("replace", key="i")  # a key that promises its content is not taken away
    refusal = api.refused("QHT02", "submit_spec", spec=flow.spec, options=options)
    assert refusal.detail["run_id"] == str(with_key)


def test_a_run_can_be_replaced(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a")], options=holding())
    claim = flow.claims()["a"]
    second = again(flow, holding("replace"))
    assert second["created"]
    assert flow.state == "cancelling"
    assert flow.get()["detail"]["reason"] == f"replaced by run {second['run_id']}"
    third = again(flow, holding("replace"))
    states = [api.row("get_workflow_run", run=run)["state"] for run in (second["run_id"], third["run_id"])]
    assert states == ["cancelled", "running"]
    finish(api, claim)  # the end of the first leaves the key to the third
    assert flow.state == "cancelled"
    assert again(flow, holding())["run_id"] == third["run_id"]


def test_a_retry_takes_the_key_again(api: Api) -> None:
    flow = Flow(api, [step("a")], options=holding())
    flow.fail("a")
    second = again(flow, holding())["run_id"]
    refusal = api.refused("QHT02", "retry_workflow_run", run=flow.run)
    assert refusal.detail["run_id"] == str(second)
    api.rows("cancel_workflow_run", run=second)
    assert api.value("retry_workflow_run", run=flow.run) == "running"
    assert again(flow, holding())["run_id"] == flow.run


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"unique": {}}, "options.unique.key"),
        (holding() | {"idempotency_key": "i"}, "options.unique.key"),
        ({"unique": {"key": "k", "while": 7}}, "options.unique.while"),
        (holding("never"), "options.unique.on_conflict"),
    ],
)
def test_what_is_refused(api: Api, options: Row, field: str) -> None:
    spec = {"name": "w", "queue": api.queue(), "steps": [step("a")]}
    assert api.fault("submit_spec", spec=spec, options=options) == field


def defined(api: Api, **more: Any) -> str:
    queue = api.queue()
    api.rows("define_workflow", spec={"name": queue, "queue": queue, "steps": [step("a")]} | more)
    return queue


def test_many_runs_at_once(api: Api) -> None:
    name = defined(api)
    runs: list[Row] = [
        {"input": {"n": 0}, "options": {"idempotency_key": "z"}},
        {},
        {"input": {"n": 0}, "options": {"idempotency_key": "z"}},
        {"input": {"n": 3}, "options": holding() | {"labels": {"app": "x"}}},
        {"options": holding()},
    ]
    rows = api.rows("submit_workflows", workflow=name, runs=runs)
    assert [row["ordinal"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["created"] for row in rows] == [True, True, False, True, False]
    assert (rows[0]["run_id"], rows[3]["run_id"]) == (rows[2]["run_id"], rows[4]["run_id"])
    assert api.value("run_input", run=rows[3]["run_id"]) == {"n": 3}
    assert api.rows("submit_workflows", workflow=name, runs=[]) == []


def test_one_wrong_run_is_named_and_none_is_submitted(api: Api) -> None:
    name = defined(api, affinity_tags={"gpu": True})
    wrong = {"options": {"affinity_tags": {"gpu": False}}}
    refusal = api.refused("QHC04", "submit_workflows", workflow=name, runs=[{}, {}, wrong])
    assert refusal.detail["index"] == 2
    assert api.refused("QHA01", "submit_workflows", workflow=name, runs=[{}, {"x": 1}]).detail["index"] == 1
    assert api.fault("submit_workflows", workflow=name, runs={}) == "runs"
