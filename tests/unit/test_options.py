"""docs/reference/options.md has every option and no other, and its examples mean what it says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, get_type_hints
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue import App, Keyed, cron, types
from hwqueue.cli.spawning import typed
from hwqueue.client._async.workflows import _options as submit_options
from hwqueue.client._spawn import gang_options, spawn_options
from hwqueue.meanings import attributes, meaning, meanings
from hwqueue.server.models import everywhere, gangs, leases, queues, tasks, workflows

tools = pytest.importorskip("tools.options_reference", reason="no checkout")

NAMES = {
    **vars(types),
    **{"timedelta": timedelta, "datetime": datetime, "UTC": UTC, "UUID": UUID, "cron": cron, "Keyed": Keyed},
}
PAGE = {kind: {each.key: each for each in tools.options(kind)} for kind in tools.SECTIONS}
# The options of Python, where it has a type for them, and their model in the HTTP API.
MODELS: Mapping[str, tuple[Any, Any]] = {
    "spawn": (types.SpawnOptions, leases.SpawnOptions),
    "unique": (types.Unique, leases.Unique),
    "replaces": (types.Replaces, leases.Replaces),
    "retry": (types.RetryPolicy, leases.Retry),
    "policy": (types.QueuePolicy, queues.QueuePolicy),
    "preempt": (None, queues.Preempt),
    "preemptible": (None, queues.Preemptible),
    "tuning": (None, queues.Tuning),
    "task": (None, tasks.TaskDefaults),
    "gang": (types.GangOptions, gangs.GangOptions),
    "everywhere": (types.EverywhereOptions, everywhere.EverywhereOptions),
    "submit": (types.RunOptions, workflows.RunOptions),
    "change": (types.LeaseChanges, leases.LeaseChanges),
    "update": (types.StepChanges, workflows.StepChanges),
    "leases": (types.LeaseFilter, leases.LeaseFilter),
}
# What becomes of an option in Python.
SENT: Mapping[str, Callable[[Any], Any]] = {
    "spawn": lambda said: spawn_options(said, "options"),
    "task": lambda said: App().task("draw", **said)(of_a_module).defaults.as_json(),
    "gang": lambda said: gang_options(said, {}),
    "everywhere": lambda said: spawn_options(said, "options"),
    "submit": lambda said: submit_options(said, {}),
    "policy": lambda said: types.QueuePolicy(**said).as_json(),
    "retry": lambda said: types.RetryPolicy(**said).as_json(),
}
SPAWNED: LiteralString = "select hwqueue.spawn_lease('renders', 'draw', '{}', %s)"
SUBMITTED: LiteralString = "select hwqueue.submit_workflow('film', '{}', %s)"
RULED: LiteralString = "select hwqueue.set_queue_policy('renders', %s)"
# The SQL that takes the options of a kind, and where in its argument they stand.
CALLS: Mapping[str, tuple[LiteralString, Sequence[str]]] = {
    "spawn": (SPAWNED, []),
    "unique": (SPAWNED, ["unique"]),
    "replaces": (SPAWNED, ["replaces"]),
    "task": ("select hwqueue.set_task('draw', %s)", []),
    "gang": ("""select hwqueue.spawn_gang('renders', '[{"task": "draw", "count": 2}]', %s)""", []),
    "everywhere": ("select hwqueue.spawn_everywhere('renders', 'draw', '{}', %s)", []),
    "submit": (SUBMITTED, []),
    "step": (SUBMITTED, ["steps", "draw", "options"]),
    "policy": (RULED, []),
    "retry": (RULED, ["retry"]),
    "preempt": (RULED, ["preempt"]),
    "preemptible": (RULED, ["preemptible"]),
    "tuning": (RULED, ["tuning"]),
}


def keyword(text: str) -> dict[str, Any]:
    """What an example in Python says."""
    found = eval(f"dict({text})", NAMES)
    assert isinstance(found, dict)
    return found


def in_sql(option: Any) -> dict[str, Any]:
    """What its example in SQL says."""
    return {option.key: json.loads(option.json)}


def test_the_page_is_current_and_leaves_no_key_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tools.PAGE.read_text(encoding="utf-8") == tools.page(), "make reference"
    assert meaning("tuning.weight_affinity", "More.") == "Weight of the affinity score. More."
    assert meaning("spawn.unique").startswith("At most one lease has this key at a time. Not with")
    assert "](" not in "".join(meaning(f"{kind}.{key}") for kind in meanings() for key in meanings()[kind])
    monkeypatch.setattr(tools, "keys", lambda kind: [*PAGE["spawn"], "brand_new"])
    with pytest.raises(SystemExit, match=": brand_new"):
        tools.options("spawn")


@pytest.mark.parametrize("kind", MODELS)
def test_python_and_http_take_the_same_options_and_say_what_they_mean(kind: str) -> None:
    of_python, model = MODELS[kind]
    told = model.model_json_schema()["properties"]
    if kind == "leases":
        del told["queue"]  # a call has it beside its filter
    if of_python is not None:
        renamed = {"hold": "while"} if kind == "unique" else {}
        assert {renamed.get(name, name) for name in get_type_hints(of_python)} == set(told)
    if kind in PAGE:
        assert set(PAGE[kind]) == set(told)
    assert meanings()[kind].keys() <= told.keys()
    for name, member in told.items():
        assert member["description"].startswith(meaning(f"{kind}.{name}"))


@pytest.mark.parametrize("option", [option for found in PAGE.values() for option in found.values()])
def test_an_option_has_a_type_and_a_default(option: Any) -> None:
    assert option.type
    assert option.default
    assert option.default in tools.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("kind", "option"), [(kind, each) for kind in SENT for each in PAGE[kind].values()])
def test_an_example_in_python_is_the_one_in_sql(kind: str, option: Any) -> None:
    also = {"kind": "exponential"} if kind == "retry" else {}
    assert SENT[kind](keyword(option.python)) == also | in_sql(option)
    MODELS[kind][1].model_validate(in_sql(option))


@pytest.mark.parametrize("option", PAGE["app"].values(), ids=PAGE["app"])
def test_the_app_takes_its_own_options(option: Any) -> None:
    App().task("draw", **keyword(option.python))(of_a_module)


def of_a_module(frame: int) -> None:
    """A handler that a child process could import."""


def command_of(path: str) -> Any:
    group, name = path.split()
    return tools.get_command(tools.app).commands[group].commands[name]


@pytest.mark.parametrize(
    ("path", "arguments", "kinds", "others"),
    [
        ("lease spawn", ["renders", "draw"], ["spawn", "unique", "replaces"], {"--params"}),
        ("gang spawn", ["renders"], ["gang"], {"--member", "--members", "--placement", "--node-label"}),
        ("everywhere spawn", ["renders", "draw"], ["everywhere"], {"--params"}),
        ("workflow run", ["film"], ["submit"], {"--input", "--watch", "--timeout", "--on-conflict"}),
    ],
)
def test_a_flag_has_an_example_and_says_what_it_means(
    path: str, arguments: list[str], kinds: list[str], others: set[str]
) -> None:
    command = command_of(path)
    flags = {name: each for each in command.params for name in each.opts if name.startswith("--")}
    told: dict[str, list[str]] = {each.opts[0]: [] for each in flags.values()}
    for kind in kinds:
        for option in filter(lambda each: each.cli, PAGE[kind].values()):
            line = shlex.split(option.cli)
            command.make_context("it", [*arguments, *line])
            told[flags[line[0]].opts[0]].append(typed(f"{kind}.{option.key}"))
    assert {name for name in told if not told[name]} - {"--help"} == others
    for name in told.keys() - others - {"--help"}:
        assert flags[name].help.startswith(tuple(told[name])), name


@pytest.mark.parametrize(
    ("path", "kind", "keys"),
    [
        ("lease list", "leases", {"label": "labels", "error": "error_type", "key": "idempotency_key"}),
        ("workflow runs", "runs", {"label": "labels", "parent": "parent_run_id", "root": "root_run_id"}),
        ("workflow update", "update", {"tags": "affinity_tags"}),
    ],
)
def test_a_flag_that_filters_or_changes_says_what_it_means(
    path: str, kind: str, keys: dict[str, str]
) -> None:
    told = {each.name: each.help for each in command_of(path).params}
    found = {keys.get(name, name): told[name] for name in told if keys.get(name, name) in meanings()[kind]}
    assert found.keys() >= set(keys.values())
    for key, text in found.items():
        assert text.startswith(meaning(f"{kind}.{key}")), key


def test_a_setting_of_a_worker_has_a_meaning_and_its_flag_says_it() -> None:
    told, flags = attributes(tools.WorkerSettings), tools.worker_flags()
    assert set(told) == set(tools.WorkerSettings.__dataclass_fields__)
    assert {"--queue", "--label", "--pass-env"} <= set(flags.values())
    helps = {name: each.help for each in command_of("worker run").params for name in each.opts}
    for name in flags.keys() - {"dsn", "detect", "share"}:  # of all commands; the other way round; a number
        as_typed = told[name].replace("`detect`", "detection").replace('"', "`")
        assert helps[flags[name]].replace("`--", "`").startswith(as_typed.partition(" None:")[0]), name


@pytest.fixture
def film(conn: psycopg.Connection) -> psycopg.Connection:
    """A database with a queue, two versions of a workflow, and the limits of the examples."""
    conn.execute("select hwqueue.create_queue('renders')")
    conn.execute("select hwqueue.create_limit('openai', '{\"slots\": 1}')")
    conn.execute('select hwqueue.create_limit(\'per_user\', \'{"slots": 1, "by": "key"}\')')
    steps = [{"name": "draw", "task": "draw"}, {"name": "glue", "task": "glue", "after": ["draw"]}]
    for priority in (1, 2):
        spec = {"name": "film", "queue": "renders", "steps": steps, "priority": priority}
        conn.execute("select hwqueue.define_workflow(%s)", [Jsonb(spec)])
    return conn


def give(conn: psycopg.Connection, kind: str, options: Any) -> None:
    """Call SQL with options of a kind. Raises: psycopg.Error."""
    call, path = CALLS[kind]
    for each in reversed(path):
        options = {each: options}
    conn.execute(call, [Jsonb(options)])


def test_sql_takes_every_example_and_no_other_key(film: psycopg.Connection) -> None:
    for kind in CALLS:
        for option in filter(lambda each: each.json, PAGE[kind].values()):
            give(film, kind, in_sql(option))
        with pytest.raises(psycopg.Error) as refused:
            give(film, kind, {"none": 1})
        hint = refused.value.diag.message_hint or ""
        assert set(hint.removeprefix("allowed keys: ").split(", ")) == set(tools.keys(kind)), kind


def test_the_ranges_are_those_of_sql(film: psycopg.Connection) -> None:
    tried = 0
    for kind in ("task", "submit", "step"):
        for key, option in PAGE[kind].items():
            for value, fits in edges(option.type):
                tried += 1
                assert takes(film, kind, {key: value}) == fits, (kind, key, value)
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


def takes(conn: psycopg.Connection, kind: str, options: Any) -> bool:
    """Whether SQL takes the options."""
    try:
        give(conn, kind, options)
    except psycopg.Error:
        return False
    return True


def test_the_defaults_are_those_of_a_new_queue(conn: psycopg.Connection) -> None:
    conn.execute("select hwqueue.create_queue('renders')")
    row = conn.execute("select policy from hwqueue.list_queues()").fetchone()
    assert row
    said = {key: o for key, o in PAGE["policy"].items() if not o.type.startswith(("object", "list"))}
    assert {key: value_of(option) for key, option in said.items()} == {key: row[0][key] for key in said}
    for part in ("retry", "tuning"):
        assert {key: value_of(option) for key, option in PAGE[part].items()} == row[0][part]


def value_of(option: Any) -> Any:
    """The default that the page says, as JSON; spans in seconds."""
    number, _, unit = option.default.replace(",", "").partition(" ")
    if option.type.startswith("span"):
        seconds = {"": 1, "second": 1, "minute": 60, "day": 86_400}[unit.removesuffix("s")]
        return float(number) * seconds
    return option.default if option.type.startswith("`") else json.loads(number)
