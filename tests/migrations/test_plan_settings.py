"""What changes or locks leases is planned as claims are: once, and by index.

A session may plan while tables are small, or after somebody has analyzed empty ones, and keep that
plan until they hold millions of rows.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.migrations.call_graph import Function, functions

KNOWN = functions()
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
    """Whether it is planned by index alone."""
    return settings_of(function).items() >= SETTINGS.items()


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
