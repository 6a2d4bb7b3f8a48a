"""The dataclasses, and the statements that take them: JSON forms, rows, arguments that are checked."""

import ast
import dataclasses
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import hwqueue
from hwqueue import calls, types
from hwqueue.calls import CLAIM_TASK, SETTLE_AND_CLAIM
from hwqueue.client._arguments import arguments
from hwqueue.client._json import MAX_DEPTH, check_json, jsonb
from hwqueue.client._rows import decode
from hwqueue.client._settle import Batch
from hwqueue.client._spawn import spawn_item, spawn_options
from hwqueue.errors import BadArgument
from hwqueue.placement import Placement, tags
from hwqueue.statements import statement
from hwqueue.types import LeaseSpec

ID = UUID("0197f3a2-7c1e-7000-8000-000000000001")
AT = datetime(2030, 1, 1, tzinfo=UTC)


def test_all_are_frozen_slotted_and_keyword_only() -> None:
    kinds = [kind for kind in vars(types).values() if dataclasses.is_dataclass(kind)]
    assert len(kinds) > 20
    for kind in kinds:
        parameters = kind.__dataclass_params__  # type: ignore[union-attr]
        assert parameters.frozen, kind
        assert hasattr(kind, "__slots__"), kind
        assert all(column.kw_only for column in dataclasses.fields(kind)), kind
        assert kind.__doc__, kind


def test_a_spec_of_a_node_as_json() -> None:
    spec = types.NodeSpec(
        name="n1",
        instance_id="i1",
        heartbeat_timeout=timedelta(seconds=30),
        labels={"gpu": True},
        cpu_milli=8000,
        custom={"licence": 2},
        gpus=[types.Gpu(resource_id=ID, model="A100", memory_mib=81920)],
        resources=[ID],
    )
    assert spec.as_json() == {
        "name": "n1",
        "instance_id": "i1",
        "heartbeat_timeout": 30.0,
        "labels": {"gpu": True},
        "capacity": {"cpu_milli": 8000, "licence": 2},
        "gpus": [{"resource_id": str(ID), "model": "A100", "memory_mib": 81920}],
        "resources": [str(ID)],
    }
    assert types.NodeSpec(name="n", instance_id="i", slots=0, keep_claims=True).as_json() == {
        "name": "n",
        "instance_id": "i",
        "labels": {},
        "slots": 0,
        "keep_claims": True,
    }


def claim_row(assignment: object) -> list[object]:
    return [ID, 5, 1, "q", "work", {"a": 1}, None, 2.5, AT, assignment]


def test_claims_are_decoded() -> None:
    """What a later version says besides is left out."""
    gpu = {"index": 1, "resource_id": str(ID), "model": "A100"}
    assignment = {"cpu_milli": 4000, "gpus": [gpu], "cpus": [3, 4, 35, 36], "a_later_version": True}
    with_gpu, counted_nothing = decode(CLAIM_TASK, [claim_row(assignment), claim_row(None)])
    gpus = (types.AssignedGpu(index=1, resource_id=ID, model="A100"),)
    assert with_gpu.assignment == types.Assignment(cpu_milli=4000, gpus=gpus, cpus=(3, 4, 35, 36))
    assert with_gpu.params == {"a": 1}
    assert counted_nothing.assignment is None


def test_settlements_come_back_in_the_order_given() -> None:
    def settled(ordinal: int, verdict: str, state: str | None) -> list[object]:
        values = {"kind": "settled", "ordinal": ordinal, "lease_id": ID, "verdict": verdict}
        values |= {"state": state}
        return [values.get(column) for column in SETTLE_AND_CLAIM.columns]

    done, failed = types.Settlement.complete(ID, 5), types.Settlement.fail(ID, 5, error={})
    kept = types.Settlement.complete(ID, 5, result={"n": 1})
    for mixed in ([done, kept], [failed, done], [done] * 1001):
        batch = Batch.of(mixed)
        assert (batch.completed, batch.tokens) == ([], [])
        assert [item["outcome"] for item in batch.items] == [item.outcome for item in mixed]
    claimed = ["claimed", None, None, "claimed", *claim_row(None)]
    rows = [settled(2, "lost", None), settled(1, "ok", "completed"), claimed]
    completed = (types.Verdict.OK, types.LeaseState.COMPLETED)
    answer = Batch.of([done, failed]).answer(rows)
    expected = [(1, *completed), (2, types.Verdict.LOST, None)]
    assert [(s.ordinal, s.verdict, s.state) for s in answer.settled] == expected
    assert [claim.claim_token for claim in answer.claimed] == [5]
    batch = Batch.of([done] * 3)
    assert (batch.items, batch.completed, batch.tokens) == ([], [ID] * 3, [5] * 3)
    answer = batch.answer([settled(2, "lost", None)])  # the others have no row
    expected.append((3, *completed))
    assert [(s.ordinal, s.verdict, s.state) for s in answer.settled] == expected


def test_statements_are_made_of_the_table_of_functions() -> None:
    assert statement(calls.CLAIM_HINT, ("p_queues", "p_node")) == (
        "select retry_after, reasons from hwqueue.claim_hint(p_queues => %(p_queues)s, p_node => %(p_node)s)"
    )
    assert statement(calls.PAUSE_QUEUE, ("p_queue",)) == (
        "select hwqueue.pause_queue(p_queue => %(p_queue)s)"
    )
    assert statement(calls.LIST_QUEUES, ()).endswith("from hwqueue.list_queues()")
    names = [call.name for call in calls.CALLS]
    assert len(names) == len(set(names)) > 30


def test_the_client_holds_no_other_sql() -> None:
    package = Path(hwqueue.__file__).parent
    for file in [*package.glob("types/*.py"), package / "driver_errors.py", *package.glob("client/**/*.py")]:
        for constant in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                assert not constant.value.lower().startswith(("select ", "update ", "insert "))


def test_none_keeps_the_default_unless_it_is_required() -> None:
    assert arguments(calls.SPAWN_LEASE, {"p_queue": "q", "p_task": "t", "p_options": None}) == {
        "p_queue": "q",
        "p_task": "t",
    }
    with pytest.raises(BadArgument, match="task must be a str, got None") as caught:
        arguments(calls.SPAWN_LEASE, {"p_queue": "q", "p_task": None})
    assert caught.value.field == "task"


@pytest.mark.parametrize(
    ("call", "argument", "value"),
    [
        (calls.CLAIM_TASK, "p_node", "not-a-uuid"),
        (calls.CLAIM_TASK, "p_node", 7),
        (calls.CLAIM_TASK, "p_queues", "one queue"),
        (calls.CLAIM_TASK, "p_queues", 3),
        (calls.CLAIM_TASK, "p_epoch", 1 << 63),
        (calls.CLAIM_TASK, "p_epoch", "1"),
        (calls.CLAIM_TASK, "p_qty", True),
        (calls.CLAIM_TASK, "p_qty", 1 << 31),
        (calls.CLAIM_TASK, "p_claim_timeout", 30),
        (calls.FAIL_LEASE, "p_retry", 1),
        (calls.FAIL_LEASE, "p_retry_at", "2030-01-01"),
        (calls.FAIL_LEASE, "p_retry_at", datetime(2030, 1, 1)),
        (calls.SPAWN_LEASE, "p_queue", "nul\0"),
        (calls.SPAWN_LEASE, "p_queue", "lone \ud800"),
        (calls.SPAWN_LEASE, "p_queue", b"bytes"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(call: calls.Call, argument: str, value: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        arguments(call, {argument: value})
    assert caught.value.field == argument.removeprefix("p_")
    assert caught.value.hint


def test_an_element_of_a_list_is_named_and_ids_may_be_text() -> None:
    with pytest.raises(BadArgument) as caught:
        arguments(calls.CLAIM_TASK, {"p_queues": ["a", "b\0"]})
    assert caught.value.field == "queues[1]"
    assert arguments(calls.GET_LEASE, {"p_lease": str(ID)}) == {"p_lease": ID}


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [0, 1, 2, math.nan]}, "params.a[3]"),
        ({"a": {"b": math.inf}}, "params.a.b"),
        ({"a": "x\0"}, "params.a"),
        ({"a": "\udfff"}, "params.a"),
        ({"k\0": 1}, "params (key 'k\\x00')"),
        ({"a": {1: 2}}, "params.a"),
        ({"a": ID}, "params.a"),
        ({"a": datetime(2030, 1, 1, tzinfo=UTC)}, "params.a"),
        ({"a": {1, 2}}, "params.a"),
        ({"a": b"bytes"}, "params.a"),
        ({"a": LeaseSpec(task="t")}, "params.a"),
        ({"a": 10**5000}, "params.a"),
        (nested(MAX_DEPTH + 1), "params" + "[0]" * MAX_DEPTH),
    ],
)
def test_what_is_not_json_is_named_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(BadArgument) as caught:
        check_json(value, "params")
    assert (caught.value.field, caught.value.sqlstate) == (path, "QHA01")


def test_json_that_is_too_large_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwqueue.client._json.MAX_BYTES", 10)
    wrapped = jsonb({"a": "x" * 20}, "params")
    assert wrapped.dumps is not None
    with pytest.raises(BadArgument, match="the limit is 10"):
        wrapped.dumps(wrapped.obj)


def test_an_option_that_is_none_is_not_sent() -> None:
    assert spawn_options({"priority": None}, "options") is None
    given = {"placement": Placement().require(tags(gpu=True)), "priority": None}
    assert spawn_options(given, "options") == {"placement": {"require": [{"tags": {"gpu": True}}]}}


@pytest.mark.parametrize(
    "build",
    [
        lambda at: LeaseSpec(task="t", options={"deadline": at}),
        lambda at: {"task": "t", "options": {"deadline": at}},
    ],
)
def test_naive_times_in_a_batch_are_named(build: Callable[[datetime], Any]) -> None:
    with pytest.raises(BadArgument, match="without a time zone") as caught:
        spawn_item(build(datetime(2030, 1, 1)), "leases[4]")
    assert caught.value.field == "leases[4].options.deadline"
