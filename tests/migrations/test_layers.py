"""SQL modules call one way: from the API down to the base, and never in a circle."""

import re
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
