"""Runs that hold a key until they end, and many runs at once."""

from typing import Any

import pytest

from tests.calls import Row
from tests.flows import Flow, fail, finish, step
from tests.sql.api import Api

pytestmark = pytest.mark.usefixtures("sound")


def unique(on_conflict: str | None = None, key: str = "k") -> Row:
    return {"unique": {"key": key} | ({"on_conflict": on_conflict} if on_conflict else {})}


def again(flow: Flow, options: Row) -> Row:
    return flow.calls.row("submit_spec", spec=flow.spec, input={"n": 2}, options=options)


def test_a_second_submission_returns_the_run_that_has_the_key(api: Api) -> None:
    flow = Flow(api, [step("a")], options=unique())
    second = again(flow, unique())
    assert (second["run_id"], second["created"], second["state"]) == (flow.run, False, "running")
    assert again(flow, unique(key="other"))["created"]
    assert flow.get()["idempotency_key"] == "k"
    keyed = Flow(api, [step("a")], options={"idempotency_key": "2030-01-31"})
    assert keyed.get()["idempotency_key"] == "2030-01-31"
    assert again(flow, unique() | {"tenant": "acme"})["created"]


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_the_key_is_free_when_the_run_has_ended(api: Api, end: str) -> None:
    flow = Flow(api, [step("a")], options=unique())
    claim = flow.claims()["a"]
    if end == "cancel":
        api.rows("cancel_workflow_run", run=flow.run)
        assert not again(flow, unique())["created"]
    (fail if end == "fail" else finish)(api, claim)
    assert flow.state in ("completed", "failed", "cancelled")
    assert again(flow, unique())["created"]


def test_a_conflict_can_be_refused(api: Api) -> None:
    flow = Flow(api, [step("a")], options=unique())
    refusal = api.refused("QHT02", "submit_spec", spec=flow.spec, options=unique("raise"))
    assert (refusal.detail["run_id"], refusal.detail["key"]) == (str(flow.run), "k")
    with_key = again(flow, {"idempotency_key": "i"})["run_id"]
    options = unique("replace", key="i")  # a key that promises its content is not taken away
    refusal = api.refused("QHT02", "submit_spec", spec=flow.spec, options=options)
    assert refusal.detail["run_id"] == str(with_key)


def test_a_run_can_be_replaced(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a")], options=unique())
    claim = flow.claims()["a"]
    second = again(flow, unique("replace"))
    assert second["created"]
    assert flow.state == "cancelling"
    assert flow.get()["detail"]["reason"] == f"replaced by run {second['run_id']}"
    third = again(flow, unique("replace"))
    states = [api.row("get_workflow_run", run=run)["state"] for run in (second["run_id"], third["run_id"])]
    assert states == ["cancelled", "running"]
    finish(api, claim)  # the end of the first leaves the key to the third
    assert flow.state == "cancelled"
    assert again(flow, unique())["run_id"] == third["run_id"]


def test_a_retry_takes_the_key_again(api: Api) -> None:
    flow = Flow(api, [step("a")], options=unique())
    flow.fail("a")
    second = again(flow, unique())["run_id"]
    refusal = api.refused("QHT02", "retry_workflow_run", run=flow.run)
    assert refusal.detail["run_id"] == str(second)
    api.rows("cancel_workflow_run", run=second)
    assert api.value("retry_workflow_run", run=flow.run) == "running"
    assert again(flow, unique())["run_id"] == flow.run


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"unique": {}}, "options.unique.key"),
        (unique() | {"idempotency_key": "i"}, "options.unique.key"),
        ({"unique": {"key": "k", "while": 7}}, "options.unique.while"),
        (unique("never"), "options.unique.on_conflict"),
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
        {"input": {"n": 3}, "options": unique() | {"labels": {"app": "x"}}},
        {"options": unique()},
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
