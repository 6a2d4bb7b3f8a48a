"""SQL modules call one way, and what changes or locks leases is planned as claims are: once, and by index."""

import re
from collections.abc import Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from hwqueue.schema.bundle import load_bundle
from hwqueue.schema.files import SQL_DIR
from tests.budgets import ABOVE, README, reach, read, write_lines
from tests.migrations.call_graph import LAYERS, Function, calls_between_modules, functions

KNOWN = functions()
TEXT = README.read_text(encoding="utf-8")


def errors_of(known: dict[str, Function]) -> list[str]:
    """Calls from a layer to one above it, and a circle of modules if there is one."""
    arrows = calls_between_modules(known)
    rank = {layer: number for number, layer in enumerate(LAYERS)}
    errors = [
        f"{caller} calls {called}, a layer above it: {', '.join(calls)}"
        for (caller, called), calls in sorted(arrows.items())
        if rank[called.split("/")[0]] > rank[caller.split("/")[0]]
    ]
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for caller, called in arrows:
        sorter.add(caller, called)
    try:
        sorter.prepare()
    except CycleError as error:
        errors.append(f"modules call each other in a circle: {' -> '.join(error.args[1])}")
    return errors


def test_modules_call_one_way() -> None:
    assert errors_of(KNOWN) == []


def test_a_call_that_ends_leases_carries_their_runs_on() -> None:
    """It begins with an empty list; who ends leases with p_follows has counted them itself."""
    known = {name: function for name, function in KNOWN.items() if "p_follows => true" not in function.text}
    found = {name: reach(known, name) for name, f in known.items() if f.layer == "api"}
    for name, reached in found.items():
        empties = any(
            "'hwqueue.ended', '', true" in known[called].text for called in reached - {"follow_ended"}
        )
        assert "note_ended" not in reached or ("follow_ended" in reached and empties), name


def test_every_module_is_in_a_layer() -> None:
    assert {name.split("/")[0] for name in load_bundle().files} == set(LAYERS)


def test_the_readme_has_every_module_and_the_lines_of_each_layer() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [\d,]+ \| [^|]* \| (.*) \|$", TEXT, re.M))
    assert write_lines(TEXT, read()["sql_lines"]) == TEXT
    listed = {
        f"{layer}/{module}" for layer, modules in rows.items() for module in re.findall(r"`(\w+)`", modules)
    }
    assert list(rows) == list(LAYERS)
    assert listed == {function.module for function in KNOWN.values()}


def test_the_readme_has_what_stands_above_claims_knows_of_them() -> None:
    called = {name for f in KNOWN.values() if f.layer in ABOVE for name in f.calls & KNOWN.keys()}
    table = TEXT.split("| Of `claim` |")[1].split("\n\n")[0]
    named = {
        name for cell in re.findall(r"^\| (`[^|]*)", table, re.M) for name in re.findall(r"`(\w+)`", cell)
    }
    assert {name for name in called if KNOWN[name].layer == "claim"} == named


def test_the_api_holds_what_is_granted_and_nothing_else() -> None:
    grants = (SQL_DIR / "grants.sql").read_text(encoding="utf-8")
    granted = set(re.findall(r"\bhwqueue\.(\w+)\(", grants))
    assert {f.name for key, f in KNOWN.items() if f.layer == "api" and " " not in key} == granted


@pytest.mark.parametrize(
    ("caller", "called", "error"),
    [("base/json", "api/claims", "a layer above"), ("claim/claim", "claim/head", "in a circle")],
)
def test_the_rule_can_fail(caller: str, called: str, error: str) -> None:
    known = {
        "a": Function("a", caller, "", frozenset({"b"})),
        "b": Function("b", called, "", frozenset({"c"})),
        "c": Function("c", called, "", frozenset()),
        "d": Function("d", called, "", frozenset({"a"})),
    }
    assert any(error in found for found in errors_of(known))


def test_calls_are_read_from_code_alone(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "one.sql").write_text(
        "-- hwqueue.no_comment()\n"
        "create or replace function hwqueue.f() returns text language sql as $$\n"
        "  select 'hwqueue.no_literal()' || hwqueue.g();  -- hwqueue.nor_this()\n$$;\n"
        "create or replace view hwqueue.v as select hwqueue.f();\n"
    )
    known = functions(tmp_path)
    assert [known[name].calls for name in ("f", "view v")] == [{"g"}, {"f"}]


SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# Calls of operators about the claims of one node, or once in the life of a service.
RARE = {
    "deregister_node",
    "deregister_own_node",
    "drain_node",
    "hand_over_node",
    "revoke_attestation",
    "set_node_tenants",
    "set_service_policy",
    "taint_node",
    "untaint_node",
}
# Its reads have fences of their own: by index alone they would take five pages more on Postgres 15.
SINGLE = {"spawn_lease"}

_COMMENT = re.compile(r"--[^\n]*")
_SET = re.compile(r"\bset (\w+) = (\w+)")
_TABLE = r"hwqueue\.(?:ready|scheduled|claim|outcome|lease)\b"
_CHANGES = re.compile(
    rf"\b(?:update|delete from) {_TABLE}|\b(?:from|join) {_TABLE}[^;]*\bfor (?:no key )?update\b"
)


def settings_of(function: Function) -> dict[str, str]:
    """The settings that it runs with, as its header says."""
    return dict(_SET.findall(_COMMENT.sub("", function.text.partition("as $$")[0])))


def is_settled(function: Function) -> bool:
    """Whether it is planned by index alone; one that reads a GIN index needs bitmaps for it."""
    found = settings_of(function)
    if found.get("enable_bitmapscan") == "on" and "anchors &&" in function.text:
        found["enable_bitmapscan"] = SETTINGS["enable_bitmapscan"]
    return found.items() >= SETTINGS.items()


def reached(known: dict[str, Function], name: str, seen: set[str]) -> Iterator[Function]:
    """A function and what it calls, but for what has settings of its own."""
    if name in seen or name not in known or is_settled(known[name]):
        return
    seen.add(name)
    yield known[name]
    for called in known[name].calls:
        yield from reached(known, called, seen)


def unsettled(known: dict[str, Function]) -> dict[str, set[str]]:
    """Public functions that change leases as their session happens to plan, and where they do."""
    found = {
        name: {
            each.name for each in reached(known, name, set()) if _CHANGES.search(_COMMENT.sub("", each.text))
        }
        for name, function in known.items()
        if function.layer == "api"
    }
    return {name: places for name, places in found.items() if places}


def test_calls_that_change_leases_have_plan_settings() -> None:
    found = unsettled(KNOWN)
    assert {name: places for name, places in found.items() if name not in RARE | SINGLE} == {}
    assert found.keys() >= RARE, "no exception that is none"


def test_what_is_planned_once_is_planned_by_index() -> None:
    once = [f for f in KNOWN.values() if "plan_cache_mode = force_generic_plan" in f.text]
    assert once
    assert [function.name for function in once if not is_settled(function)] == []


@pytest.mark.parametrize("name", ["claim_task", "cancel_leases", "update_leases", "spawn_leases", "reap"])
def test_the_rule_notices_one_that_is_taken_away(name: str) -> None:
    text = KNOWN[name].text.replace("set plan_cache_mode = force_generic_plan", "", 1)
    assert name in unsettled({**KNOWN, name: replace(KNOWN[name], text=text)})
