"""docs/reference/options.md has every option and no other, and its examples mean what it says."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, get_type_hints
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue import RetryPolicy
from hwqueue.client._spawn import spawn_options
from hwqueue.server.models.leases import SpawnOptions as SpawnModel
from hwqueue.server.models.queues import QueuePolicy as PolicyModel
from hwqueue.types import QueuePolicy, SpawnOptions, Unique

tools = pytest.importorskip("tools.options_reference", reason="no checkout")

NAMES = {"timedelta": timedelta, "datetime": datetime, "UTC": UTC, "UUID": UUID, "Unique": Unique}
SPAWN = {option.key: option for option in tools.options("spawn")}
RETRY = {option.key: option for option in tools.options("retry")}
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


@pytest.mark.parametrize("option", [*SPAWN.values(), *RETRY.values(), *POLICY.values()])
def test_an_option_has_a_type_and_a_default(option: Any) -> None:
    assert option.type
    assert option.default
    assert option.default in tools.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", SPAWN.values(), ids=SPAWN)
def test_a_spawn_in_python_is_the_one_in_sql(option: Any) -> None:
    assert spawn_options(keyword(option.python), "options") == in_sql(option)
    SpawnModel.model_validate(in_sql(option))


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


def test_every_setting_of_a_worker_has_a_meaning() -> None:
    assert set(tools.worker_meanings()) == set(tools.WorkerSettings.__dataclass_fields__)
    assert {"--queue", "--label", "--pass-env"} <= set(tools.worker_flags().values())


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


UNKNOWN: dict[str, LiteralString] = {
    "spawn": "select hwqueue.spawn_lease('renders', 'draw', '{}', '{\"none\": 1}')",
    "policy": "select hwqueue.set_queue_policy('renders', '{\"none\": 1}')",
    "retry": "select hwqueue.set_queue_policy('renders', '{\"retry\": {\"none\": 1}}')",
}


def test_sql_takes_no_other(conn: psycopg.Connection) -> None:
    conn.execute("select hwqueue.create_queue('renders')")
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
    said = {key: option for key, option in POLICY.items() if option.type != "object"}
    assert {key: value_of(option) for key, option in said.items()} == {
        key: row[0][key] for key in said
    }
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
