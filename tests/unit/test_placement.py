"""The placement builder writes the grammar, never changes, and refuses what Python would hide."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.placement import (
    Expr,
    Placement,
    Selector,
    any_of,
    label,
    lease,
    leases,
    node,
    rack,
    resource,
    same,
    selector,
    service,
    tags,
    trust,
)

ID = UUID("0197f3a2-7c1e-7000-8000-000000000001")
SERVICE = {"service": str(ID)}
WEB = selector(app="web")
WEB_JSON = {"labels": {"app": "web"}}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (label("a") == "x", {"label": "a", "op": "in", "values": ["x"]}),
        (label("a") != 1, {"label": "a", "op": "not_in", "values": [1]}),
        (label("a").in_("x", True, 1.5), {"label": "a", "op": "in", "values": ["x", True, 1.5]}),
        (label("a").not_in("x", "y"), {"label": "a", "op": "not_in", "values": ["x", "y"]}),
        (label("a") > 1, {"label": "a", "op": "gt", "values": [1]}),
        (label("a") >= 1, {"label": "a", "op": "gte", "values": [1]}),
        (label("a") < 1, {"label": "a", "op": "lt", "values": [1]}),
        (label("a") <= 1, {"label": "a", "op": "lte", "values": [1]}),
        (label("a").exists(), {"label": "a", "op": "exists"}),
        (label("a").does_not_exist(), {"label": "a", "op": "does_not_exist"}),
        (label("a").matches("^v1"), {"label": "a", "op": "regexp", "values": ["^v1"]}),
        (label("a").version(">= 1, < 2"), {"label": "a", "op": "version", "values": [">= 1, < 2"]}),
        (label("a").semver("= 1.0.0"), {"label": "a", "op": "semver", "values": ["= 1.0.0"]}),
        (label("a").contains_all(1, 2), {"label": "a", "op": "contains_all", "values": [1, 2]}),
        (label("a").contains_any("x"), {"label": "a", "op": "contains_any", "values": ["x"]}),
        (label("a") == label("b"), {"label": "a", "op": "in", "other_label": "b"}),
        (label("a") > label("b"), {"label": "a", "op": "gt", "other_label": "b"}),
        (tags(gpu=True), {"tags": {"gpu": True}}),
        (tags({"net/speed": 100}, gpu=True), {"tags": {"net/speed": 100, "gpu": True}}),
        (node(ID), {"node": [str(ID)]}),
        (node(ID, str(ID), away=True), {"node": [str(ID), str(ID)], "away": True}),
        (rack(1, 2), {"rack": [1, 2]}),
        (rack(1, away=True, unknown="fail"), {"rack": [1], "away": True, "unknown": "fail"}),
        (resource(ID), {"resource": str(ID)}),
        (resource(ID, away=True), {"resource": str(ID), "away": True}),
        (
            any_of([tags(a=1), tags(b=2)], [{"rack": 3}]),
            {"any": [[{"tags": {"a": 1}}, {"tags": {"b": 2}}], [{"rack": 3}]]},
        ),
        (trust("tee"), {"trust": "tee"}),
        (lease(ID), {"lease": str(ID)}),
        (
            lease(str(ID), domain="label:zone", away=True, unknown="fail"),
            {"lease": str(ID), "domain": "label:zone", "away": True, "unknown": "fail"},
        ),
        (service(ID), {"service": str(ID)}),
        (service(ID, domain="rack", away=True), SERVICE | {"domain": "rack", "away": True}),
        (service(ID, unknown="pass"), SERVICE | {"unknown": "pass"}),
        (
            leases(selector(app="web"), domain="rack"),
            {"leases": {"labels": {"app": "web"}}, "domain": "rack"},
        ),
        (
            leases({"same": "task"}, domain="node", tenants="*", away=True, unknown="fail"),
            {"leases": {"same": "task"}, "domain": "node", "tenants": "*", "away": True}
            | {"unknown": "fail"},
        ),
        (
            leases(same("service"), domain="node", tenants=iter(["a", "b"])),
            {"leases": {"same": "service"}, "domain": "node", "tenants": ["a", "b"]},
        ),
        (Expr.of(service=str(ID), domain="rack"), SERVICE | {"domain": "rack"}),
    ],
)
def test_expressions(expression: Expr, expected: dict[str, Any]) -> None:
    assert expression.as_json() == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (WEB, WEB_JSON),
        (selector(), {"labels": {}}),
        (selector({"k8s/app": "a"}, {"x": "y"}, app="web"), "k8s/app x app"),
        (
            selector(label("track").in_("a", "b"), label("old").does_not_exist(), app="web"),
            WEB_JSON
            | {
                "exprs": [
                    {"label": "track", "op": "in", "values": ["a", "b"]},
                    {"label": "old", "op": "does_not_exist"},
                ]
            },
        ),
        (same("task"), {"same": "task"}),
    ],
)
def test_selectors(found: Selector, expected: dict[str, Any] | str) -> None:
    if isinstance(expected, str):
        expected = {"labels": dict(zip(expected.split(), ["a", "y", "web"], strict=True))}
    assert found.as_json() == expected


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (Placement().tolerate(), {"op": "exists"}),
        (Placement().tolerate("k"), {"key": "k", "op": "exists"}),
        (Placement().tolerate("k", value="v"), {"key": "k", "op": "equal", "value": "v"}),
        (Placement().tolerate("k", value=""), {"key": "k", "op": "equal", "value": ""}),
        (
            Placement().tolerate("k", op="gt", value=-5, effect="no_schedule"),
            {"key": "k", "op": "gt", "value": -5, "effect": "no_schedule"},
        ),
        (
            Placement().tolerate("k", effect="no_execute", seconds=0),
            {"key": "k", "op": "exists", "effect": "no_execute", "seconds": 0},
        ),
        (Placement().spread("rack", select=WEB), {"domain": "rack", "max_skew": 1, "select": WEB_JSON}),
        (
            Placement().spread("rack", select=WEB_JSON, max_skew=2, min_domains=3),
            {"domain": "rack", "max_skew": 2, "select": WEB_JSON, "min_domains": 3},
        ),
        (
            Placement().spread("node", select=WEB, when="prefer", count_nodes={"taints": "honor"}),
            {"domain": "node", "max_skew": 1, "select": WEB_JSON, "when": "prefer"}
            | {"count_nodes": {"taints": "honor"}},
        ),
        (
            Placement().max_per_domain(1, domain="node", select=same("service")),
            {"domain": "node", "max_per_domain": 1, "select": {"same": "service"}},
        ),
        (
            Placement().spread_targets("label:zone", {"a": 70, 2: 30}, select=WEB, weight=50),
            {"domain": "label:zone", "select": WEB_JSON, "weight": 50}
            | {"targets": [{"value": "a", "percent": 70}, {"value": 2, "percent": 30}]},
        ),
        (
            Placement().spread_targets("node", {ID: 100}, select=WEB),
            {"domain": "node", "select": WEB_JSON} | {"targets": [{"value": str(ID), "percent": 100}]},
        ),
        (
            Placement().spread_targets("rack", {}, select=WEB),
            {"domain": "rack", "targets": [], "select": WEB_JSON},
        ),
    ],
)
def test_tolerations_and_spreads(placement: Placement, expected: dict[str, Any]) -> None:
    [(part, found)] = placement.as_json().items()
    assert part == ("tolerate" if "op" in expected else "spread")
    assert found == [expected]


def test_parts_add_up_or_the_last_word_counts() -> None:
    placement = Placement().tolerate("a").max_per_domain(1, domain="node", select=WEB)
    longer = placement.tolerate("b").spread("rack", select=WEB)
    assert [len(longer.as_json()[part]) for part in ("tolerate", "spread")] == [2, 2]
    assert [len(placement.as_json()[part]) for part in ("tolerate", "spread")] == [1, 1]
    placement = Placement().isolation(cpu="best_effort", gpu="shared").isolation(cpu="whole_core")
    assert placement.as_json() == {"isolation": {"cpu": "whole_core", "gpu": "shared"}}
    assert Placement().isolation().as_json() == {}
    once = Placement().prefer(rack(1)).strength(5)
    assert once.as_json() == {"prefer": [{"weight": 100, "when": [{"rack": [1]}]}], "strength": 5}
    assert once.strength(100).as_json()["strength"] == 100
    assert once.as_json()["strength"] == 5


def test_requirements_that_must_hold_while_the_lease_runs() -> None:
    """Each expression of the call; spans are whole seconds where they are."""
    lasting = {"during": "execution", "grace": 90}
    placement = (
        Placement()
        .require(trust("a"), {"rack": 1}, during="execution", grace=timedelta(minutes=1.5))
        .require(trust("b"), during="execution", grace=timedelta(seconds=0.5))
        .require(trust("c"))
    )
    assert placement.as_json() == {
        "require": [
            {"trust": "a"} | lasting,
            {"rack": 1} | lasting,
            {"trust": "b", "during": "execution", "grace": 0.5},
            {"trust": "c"},
        ]
    }


def test_a_whole_placement() -> None:
    placement = (
        Placement()
        .require(label("region").in_("us-east", "us-west"), tags(gpu=True))
        .require({"rack": 7})
        .prefer(label("zone") == "a", weight=50)
        .prefer(tags(ssd=True), rack(1))
        .resources(cpu_milli=4000, gpu=2, custom={"licence": 1})
        .resources(gpu=1)
    )
    assert placement.as_json() == {
        "require": [
            {"label": "region", "op": "in", "values": ["us-east", "us-west"]},
            {"tags": {"gpu": True}},
            {"rack": 7},
        ],
        "prefer": [
            {"weight": 50, "when": [{"label": "zone", "op": "in", "values": ["a"]}]},
            {"weight": 100, "when": [{"tags": {"ssd": True}}, {"rack": [1]}]},
        ],
        "resources": {"cpu_milli": 4000, "gpu": 1, "licence": 1},
    }


def test_a_placement_is_never_changed_and_has_nothing_that_is_empty() -> None:
    assert Placement().as_json() == {}
    assert Placement().require().resources().as_json() == {}
    assert Placement().resources(gpu=0).as_json() == {"resources": {"gpu": 0}}
    base = Placement().require(tags(gpu=True))
    before = base.as_json()
    longer = base.require(tags(ssd=True)).prefer(rack(1)).resources(gpu=1)
    assert base.as_json() == before
    assert longer != base
    base.as_json()["require"].clear()
    assert base.as_json() == before
    assert {base: "usable as a key"}[Placement().require(tags(gpu=True))]
    wanted = {"nested": {"a": [1]}}
    expression = tags(wanted)
    wanted["nested"]["a"].append(2)
    assert expression.as_json() == {"tags": {"nested": {"a": [1]}}}
    with pytest.raises(ValueError, match="not JSON compliant"):
        label("a").in_(float("nan"))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: bool(label("a") == 1),
        lambda: 1 < label("a") < 5,
        lambda: (label("a") == 1) and (label("b") == 2),
        lambda: Placement().require("gpu"),  # type: ignore[arg-type]
        lambda: Placement().require(label("a")),  # type: ignore[arg-type]
        lambda: Placement().prefer(weight=3),
        lambda: label("a").in_("x", label("b")),
        lambda: tags(a=object()),
        lambda: hash(label("a")),
        lambda: leases("app=web", domain="rack"),  # type: ignore[arg-type]
        lambda: Placement().spread("rack", select=label("a") == "b"),  # type: ignore[arg-type]
    ],
)
def test_misuse_is_refused_at_once(misuse: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        misuse()
