"""The placement builder writes the grammar, never changes, and refuses what Python would hide."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from hwqueue.placement import Expr, Placement, any_of, label, node, rack, resource, tags

ID = UUID("0197f3a2-7c1e-7000-8000-000000000001")


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
        (Expr.of(service=str(ID), domain="rack"), {"service": str(ID), "domain": "rack"}),
    ],
)
def test_expressions(expression: Expr, expected: dict[str, Any]) -> None:
    assert expression.as_json() == expected


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


def test_what_asks_nothing_is_left_out() -> None:
    assert Placement().as_json() == {}
    assert Placement().require().resources().as_json() == {}
    assert Placement().resources(gpu=0).as_json() == {"resources": {"gpu": 0}}


def test_building_on_a_placement_does_not_change_it() -> None:
    base = Placement().require(tags(gpu=True))
    before = base.as_json()
    longer = base.require(tags(ssd=True)).prefer(rack(1)).resources(gpu=1)
    assert base.as_json() == before
    assert longer != base
    base.as_json()["require"].clear()
    assert base.as_json() == before
    assert {base: "usable as a key"}[Placement().require(tags(gpu=True))]


def test_arguments_are_copied() -> None:
    wanted = {"nested": {"a": [1]}}
    expression = tags(wanted)
    wanted["nested"]["a"].append(2)
    assert expression.as_json() == {"tags": {"nested": {"a": [1]}}}


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
    ],
)
def test_misuse_is_refused_at_once(misuse: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        misuse()


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        label("a").in_(float("nan"))
