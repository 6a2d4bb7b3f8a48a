"""Statements are built from the table of calls; arguments are checked before they are sent."""

import ast
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import hwqueue
from hwqueue import calls
from hwqueue.client._arguments import arguments
from hwqueue.client._json import MAX_DEPTH, check_json, jsonb, plain
from hwqueue.client._spawn import spawn_item, spawn_options
from hwqueue.errors import BadArgument
from hwqueue.placement import Placement, tags
from hwqueue.statements import statement
from hwqueue.types import LeaseSpec, Settlement

ID = UUID("0197f3a2-7c1e-7000-8000-000000000001")


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


@pytest.mark.parametrize(
    "value", [None, True, 1, 10**100, 1.5, "ü😀", [], {}, (1, 2), {"": None}, nested(MAX_DEPTH)]
)
def test_all_json_is_taken(value: Any) -> None:
    check_json(value, "params")


class CountedPath(str):
    """A path that counts how often it is written into a longer one."""

    __slots__ = ("written",)
    written: int

    def __format__(self, spec: str) -> str:
        self.written += 1
        return super().__format__(spec)


def test_paths_are_made_of_what_is_refused_alone() -> None:
    path = CountedPath("params")
    path.written = 0
    check_json({"a": [[n] for n in range(1000)], "b": {"c": "d"}}, path)
    assert path.written == 0
    with pytest.raises(BadArgument, match=r"params\.a\[1\]\[0\] is nan"):
        check_json({"a": [[1], [math.nan], [math.nan]]}, path)
    assert path.written == 1


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


def test_payloads_are_not_converted() -> None:
    settlement = plain(Settlement.complete(ID, 1, result=timedelta(1)), "settle[0]")
    with pytest.raises(BadArgument) as caught:
        check_json(settlement, "settle[0]")
    assert caught.value.field == "settle[0].result"


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
