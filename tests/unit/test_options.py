"""docs/reference/options.md has every option and no other, and its examples mean what it says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, cast, get_type_hints
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue import App, RetryPolicy
from hwqueue.client._async.workflows import _options as submit_options
from hwqueue.client._spawn import spawn_options
from hwqueue.server.models.leases import SpawnOptions as SpawnModel
from hwqueue.server.models.queues import QueuePolicy as PolicyModel
from hwqueue.server.models.tasks import TaskDefaults as TaskModel
from hwqueue.server.models.workflows import RunOptions as RunModel
from hwqueue.types import QueuePolicy, Replaces, SpawnOptions, Unique
from hwqueue.types.workflows import RunOptions

tools = pytest.importorskip("tools.options_reference", reason="no checkout")

NAMES = {
    **{"timedelta": timedelta, "datetime": datetime, "UTC": UTC, "UUID": UUID},
    **{"Unique": Unique, "Replaces": Replaces},
}
SPAWN = {option.key: option for option in tools.options("spawn")}
RETRY = {option.key: option for option in tools.options("retry")}
TASK = {option.key: option for option in tools.options("task")}
APP = {option.key: option for option in tools.options("app")}
SUBMIT = {option.key: option for option in tools.options("submit")}
STEP = {option.key: option for option in tools.options("step")}
POLICY = {option.key: option for option in tools.options("policy") if option.json}


def keyword(text: str) -> dict[str, Any]:
    """What an example in Python says."""
    found = eval(f"dict({text})", {**NAMES, "RetryPolicy": RetryPolicy})
    assert isinstance(found, dict)
    return found


def in_sql(option: Any) -> dict[str, Any]:
    """What its example in SQL says."""
    return {option.key: json.loads(option.json)}


def test_the_page_is_current() -> None:
    assert tools.PAGE.read_text(encoding="utf-8") == tools.page(), "make reference"


def test_python_and_http_take_the_same_options() -> None:
    assert set(SPAWN) == set(get_type_hints(SpawnOptions))
    assert set(POLICY) == set(QueuePolicy.__dataclass_fields__)
    assert set(RETRY) == set(RetryPolicy.__dataclass_fields__)
    assert set(SPAWN) == set(SpawnModel.model_fields)
    assert set(POLICY) == set(PolicyModel.model_fields)
    assert set(TASK) == set(TaskModel.model_fields)
    assert set(SUBMIT) == set(get_type_hints(RunOptions))
    assert set(SUBMIT) == set(RunModel.model_fields)
    assert set(STEP) < set(SPAWN)


@pytest.mark.parametrize(
    "option",
    [option for found in (SPAWN, TASK, APP, SUBMIT, STEP, RETRY, POLICY) for option in found.values()],
)
def test_an_option_has_a_type_and_a_default(option: Any) -> None:
    assert option.type
    assert option.default
    assert option.default in tools.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", SPAWN.values(), ids=SPAWN)
def test_a_spawn_in_python_is_the_one_in_sql(option: Any) -> None:
    assert spawn_options(keyword(option.python), "options") == in_sql(option)
    SpawnModel.model_validate(in_sql(option))


@pytest.mark.parametrize("option", SUBMIT.values(), ids=SUBMIT)
def test_a_submission_in_python_is_the_one_in_sql(option: Any) -> None:
    given = cast(RunOptions, keyword(option.python))
    assert submit_options(given, {}) == in_sql(option)
    RunModel.model_validate(in_sql(option))


@pytest.mark.parametrize("option", TASK.values(), ids=TASK)
def test_a_default_on_the_task_is_the_one_in_sql(option: Any) -> None:
    task = App().task("draw", **keyword(option.python))(of_a_module)
    assert task.defaults.as_json() == in_sql(option)
    TaskModel.model_validate(in_sql(option))


@pytest.mark.parametrize("option", APP.values(), ids=APP)
def test_the_app_takes_its_own_options(option: Any) -> None:
    App().task("draw", **keyword(option.python))(of_a_module)


def of_a_module(frame: int) -> None:
    """A handler that a child process could import."""


@pytest.mark.parametrize("option", POLICY.values(), ids=POLICY)
def test_a_policy_in_python_is_the_one_in_sql(option: Any) -> None:
    assert QueuePolicy(**keyword(option.python)).as_json() == in_sql(option)
    PolicyModel.model_validate(in_sql(option))


@pytest.mark.parametrize("option", RETRY.values(), ids=RETRY)
def test_a_retry_in_python_is_the_one_in_sql(option: Any) -> None:
    said = RetryPolicy(**{"kind": "exponential", **keyword(option.python)}).as_json()
    assert said == {"kind": "exponential", **in_sql(option)}


def test_every_flag_of_a_spawn_is_an_example() -> None:
    command = tools.get_command(tools.app).commands["lease"].commands["spawn"]
    flags = {each.opts[0] for each in command.params if each.opts[0].startswith("--")}
    lines = [shlex.split(option.cli) for option in SPAWN.values() if option.cli]
    shown = {word for line in lines for word in line if word.startswith("--")}
    assert shown == flags - {"--params", "--help"}
    for line in lines:
        command.make_context("spawn", ["renders", "draw", *line])


def test_every_flag_of_a_submission_is_an_example() -> None:
    command = tools.get_command(tools.app).commands["workflow"].commands["run"]
    flags = [each.opts for each in command.params if each.opts[0].startswith("--")]
    lines = [shlex.split(option.cli) for option in SUBMIT.values() if option.cli]
    shown = {word for line in lines for word in line if word.startswith("--")}
    left_out = {names[0] for names in flags if not shown & set(names)}
    assert left_out - {"--help"} == {"--input", "--watch", "--timeout"}
    assert shown <= {name for names in flags for name in names}
    for line in lines:
        command.make_context("run", ["film", *line])


def test_every_setting_of_a_worker_has_a_meaning() -> None:
    assert set(tools.worker_meanings()) == set(tools.WorkerSettings.__dataclass_fields__)
    assert {"--queue", "--label", "--pass-env"} <= set(tools.worker_flags().values())


@pytest.mark.thorough
def test_sql_takes_every_example(conn: psycopg.Connection) -> None:
    conn.execute("select hwqueue.create_queue('renders')")
    for option in SPAWN.values():
        given = Jsonb(in_sql(option))
        conn.execute("select hwqueue.spawn_lease('renders', 'draw', '{}', %s)", [given])
    for option in POLICY.values():
        conn.execute("select hwqueue.set_queue_policy('renders', %s)", [Jsonb(in_sql(option))])
    for option in RETRY.values():
        retry = Jsonb({"retry": in_sql(option)})
        conn.execute("select hwqueue.set_queue_policy('renders', %s)", [retry])


FILM = {
    "name": "film",
    "queue": "renders",
    "steps": [
        {"name": "draw", "task": "draw"},
        {"name": "glue", "task": "glue", "after": ["draw"]},
    ],
}
SET = "select hwqueue.set_task('draw', %s)"
SUBMITTED = "select hwqueue.submit_workflow('film', '{}', %s)"


def film(conn: psycopg.Connection) -> None:
    """A queue, and two versions of a workflow."""
    conn.execute("select hwqueue.create_queue('renders')")
    for priority in (1, 2):
        conn.execute("select hwqueue.define_workflow(%s)", [Jsonb(FILM | {"priority": priority})])


def test_sql_takes_every_example_of_tasks_and_runs(conn: psycopg.Connection) -> None:
    film(conn)
    for option in TASK.values():
        conn.execute(SET, [Jsonb(in_sql(option))])
    for option in SUBMIT.values():
        conn.execute(SUBMITTED, [Jsonb(in_sql(option))])
    for option in STEP.values():
        conn.execute(SUBMITTED, [Jsonb({"steps": {"draw": {"options": in_sql(option)}}})])


def test_the_ranges_of_tasks_and_runs_are_those_of_sql(conn: psycopg.Connection) -> None:
    film(conn)
    tried = 0
    for found in (TASK, SUBMIT, STEP):
        for key, option in found.items():
            for value, fits in edges(option.type):
                said: Any = {key: value}
                said = {"steps": {"draw": {"options": said}}} if found is STEP else said
                call = SET if found is TASK else SUBMITTED
                tried += 1
                assert takes(conn, call, said) == fits, (key, value)
    assert tried > 30


def edges(said: str) -> Iterator[tuple[Any, bool]]:
    """The first and the last value of a type with a range, and those outside of it."""
    if found := re.match(r"integer, ([-\d,]+) to ([\d,]+)$", said):
        low, high = (int(each.replace(",", "")) for each in found.groups())
        yield from [(low - 1, False), (low, True), (high, True), (high + 1, False)]
    elif found := re.match(r"text, 1 to (\d+) characters$", said):
        most = int(found[1])
        yield from [("", False), ("x", True), ("x" * most, True), ("x" * (most + 1), False)]
    elif found := re.match(r"span, (\d+ ?\w*) to (.*)$", said):
        high_text = {"ten years": "3650 days"}.get(found[2], found[2])
        yield from [(found[1], True), (high_text, True), (f"{high_text} 1 second", False)]


def takes(conn: psycopg.Connection, call: LiteralString, options: Any) -> bool:
    """Whether SQL takes the options."""
    try:
        conn.execute(call, [Jsonb(options)])
    except psycopg.Error:
        return False
    return True


UNKNOWN: dict[str, LiteralString] = {
    "task": "select hwqueue.set_task('draw', '{\"none\": 1}')",
    "submit": "select hwqueue.submit_workflow('film', '{}', '{\"none\": 1}')",
    "step": "select hwqueue.submit_workflow('film', '{}',"
    ' \'{"steps": {"draw": {"options": {"none": 1}}}}\')',
    "spawn": "select hwqueue.spawn_lease('renders', 'draw', '{}', '{\"none\": 1}')",
    "policy": "select hwqueue.set_queue_policy('renders', '{\"none\": 1}')",
    "retry": "select hwqueue.set_queue_policy('renders', '{\"retry\": {\"none\": 1}}')",
}


def test_sql_takes_no_other(conn: psycopg.Connection) -> None:
    film(conn)
    for kind, call in UNKNOWN.items():
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(call)
        hint = refused.value.diag.message_hint or ""
        named = {key for key in tools.keys(kind) if "." not in key}
        assert set(hint.removeprefix("allowed keys: ").split(", ")) == named


def test_the_defaults_are_those_of_a_new_queue(conn: psycopg.Connection) -> None:
    conn.execute("select hwqueue.create_queue('renders')")
    row = conn.execute("select policy from hwqueue.list_queues()").fetchone()
    assert row
    said = {key: o for key, o in POLICY.items() if not o.type.startswith(("object", "list"))}
    assert {key: value_of(option) for key, option in said.items()} == {key: row[0][key] for key in said}
    assert {key: value_of(option) for key, option in RETRY.items()} == row[0]["retry"]


def value_of(option: Any) -> Any:
    """The default that the page says, as JSON; spans in seconds."""
    number, _, unit = option.default.replace(",", "").partition(" ")
    if option.type.startswith("span"):
        seconds = {"": 1, "second": 1, "minute": 60, "day": 86_400}[unit.removesuffix("s")]
        return float(number) * seconds
    return option.default if option.type.startswith("`") else json.loads(number)


def test_the_file_may_not_leave_a_key_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "keys", lambda kind: ["priority", "brand_new"])
    with pytest.raises(SystemExit, match="brand_new"):
        tools.options("spawn")
