"""Tolerations, spread, isolation: equal meanings are equal JSON; what is wrong is refused."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.sql.api import Api
from tests.sql.test_normalise_lease_exprs import normal, refused

pytestmark = pytest.mark.thorough

ID = str(uuid4())
WEB: Row = {"exprs": [{"label": "app", "op": "in", "values": ["web"]}]}


def rule(**parts: Any) -> Row:
    """A rule of a spread over racks."""
    return {"domain": "rack", "select": WEB} | parts


def targets(*values: Any, **parts: Any) -> Row:
    """A rule with percents for values of a label."""
    shares = [{"value": value, "percent": 10} for value in values]
    return rule(**{"domain": "label:zone", "targets": shares} | parts)


@pytest.mark.parametrize("other", [{}, {"tolerate": [{"op": "exists"}]}])
def test_the_default_strength_is_left_out(api: Api, other: Row) -> None:
    """And others are kept."""
    for default in (None, 100, 100.0):
        assert normal(api, other | {"strength": default}) == other
    for written in (1, 1.0):
        assert normal(api, other | {"strength": written}) == other | {"strength": 1}


TOLERATIONS: list[tuple[Row, list[Row]]] = [
    ({"op": "exists"}, [{"op": "exists", "key": None, "value": None, "effect": None}]),
    (
        {"key": "gpu", "op": "equal", "value": "a100"},
        [{"key": "gpu", "value": "a100"}, {"key": "gpu", "op": None, "value": "a100"}],
    ),
    (
        {"key": "gpu", "op": "equal", "effect": "no_schedule"},
        [{"key": "gpu", "value": "", "effect": "no_schedule"}],
    ),
    (
        {"key": "k", "op": "exists", "effect": "no_execute", "seconds": 0},
        [{"key": "k", "op": "exists", "effect": "no_execute", "seconds": 0.0}],
    ),
    (
        {"key": "sla", "op": "gt", "value": "-5", "effect": "prefer_no_schedule"},
        [
            {"key": "sla", "op": "gt", "value": value, "effect": "prefer_no_schedule"}
            for value in (-5, -5.0, "-005")
        ],
    ),
    (
        {"key": "sla", "op": "lt", "value": "9223372036854775807"},
        [{"key": "sla", "op": "lt", "value": 2**63 - 1}],
    ),
]


@pytest.mark.parametrize(("toleration", "same"), TOLERATIONS)
def test_tolerations(api: Api, toleration: Row, same: list[Row]) -> None:
    """Their order means nothing."""
    for written in (toleration, *same):
        assert normal(api, {"tolerate": [written, toleration]}) == {"tolerate": [toleration]}
    some = [toleration, *({"op": "exists", "key": key} for key in "bca")]
    assert normal(api, {"tolerate": some}) == normal(api, {"tolerate": some[::-1]})


BAD_TOLERATIONS: list[tuple[str, Any]] = [
    ("", "gpu"),
    ("", None),
    (".key", {}),
    (".key", {"key": ""}),
    (".key", {"key": "x" * 254, "op": "exists"}),
    (".key", {"op": "equal", "value": "x"}),
    (".key", {"op": "gt", "value": 1}),
    (".op", {"key": "k", "op": "Exists"}),
    (".op", {"key": "k", "op": "in"}),
    (".value", {"key": "k", "op": "exists", "value": "x"}),
    (".value", {"key": "k", "op": "exists", "value": ""}),
    (".value", {"key": "k", "value": 1}),
    (".value", {"key": "k", "value": "x" * 1025}),
    (".value", {"key": "k", "op": "gt"}),
    (".value", {"key": "k", "op": "gt", "value": "high"}),
    (".value", {"key": "k", "op": "gt", "value": "1.5"}),
    (".value", {"key": "k", "op": "gt", "value": 1.5}),
    (".value", {"key": "k", "op": "lt", "value": 2**63}),
    (".value", {"key": "k", "op": "lt", "value": "9" * 19}),
    (".value", {"key": "k", "op": "lt", "value": True}),
    (".effect", {"key": "k", "effect": "NoSchedule"}),
    (".effect", {"key": "k", "effect": ["no_schedule"]}),
    (".seconds", {"key": "k", "seconds": 5}),
    (".seconds", {"key": "k", "effect": "no_schedule", "seconds": 5}),
    (".seconds", {"key": "k", "effect": "no_execute", "seconds": -1}),
    (".seconds", {"key": "k", "effect": "no_execute", "seconds": 0.5}),
    (".seconds", {"key": "k", "effect": "no_execute", "seconds": 10**12}),
    (".operator", {"key": "k", "operator": "exists"}),
]


@pytest.mark.parametrize(("field", "toleration"), BAD_TOLERATIONS)
def test_bad_tolerations(api: Api, field: str, toleration: Any) -> None:
    good = {"op": "exists"}
    assert refused(api, "QHC03", {"tolerate": [good, toleration]}) == f"p.tolerate[1]{field}"


SPREADS: list[tuple[Row, list[Row]]] = [
    (
        rule(max_skew=1),
        [
            rule(max_skew=1.0, select={"labels": {"app": "web"}}),
            rule(max_skew=1, when="require", min_domains=1, count_nodes={}),
            rule(max_skew=1, when=None, min_domains=None, count_nodes=None),
            rule(max_skew=1, count_nodes={"affinity": "honor", "taints": "ignore"}),
        ],
    ),
    (rule(max_skew=2, min_domains=3, count_nodes={"affinity": "ignore", "taints": "honor"}), []),
    (
        rule(max_skew=2, when="prefer", count_nodes={"taints": "honor"}),
        [rule(max_skew=2, when="prefer", count_nodes={"taints": "honor", "affinity": None})],
    ),
    (rule(max_per_domain=1, domain="node", select={"same": "service"}), []),
    (rule(max_per_domain=1000000, domain="label:zone"), []),
    (rule(max_per_domain=20, domain="fleet"), [rule(max_per_domain=20.0, domain="fleet")]),
    (targets(1, "a", False), [targets("a", 1.0, False, weight=100), targets(False, 1, "a", 1)]),
    (targets("a", weight=7), []),
    (targets(), [targets(weight=None)]),
    (targets(1, domain="rack"), [targets(1.0, domain="rack")]),
    (targets(ID, domain="node"), [targets(ID.upper(), domain="node")]),
    (targets("*", domain="rack"), []),
    (targets("a", "*"), []),
    (
        targets(targets=[{"value": "a", "percent": 70}]),
        [targets(targets=[{"value": "a", "percent": 70}, {"value": "*", "percent": 30}])],
    ),
]


@pytest.mark.parametrize(("spread", "same"), SPREADS)
def test_spreads(api: Api, spread: Row, same: list[Row]) -> None:
    if "targets" in spread:  # in the order of the normal form
        shares = normal(api, {"spread": [spread]})["spread"][0]["targets"]
        assert sorted(map(repr, shares)) == sorted(map(repr, spread["targets"]))
        spread |= {"targets": shares}
    for written in (spread, *same):
        assert normal(api, {"spread": [written, spread]}) == {"spread": [spread]}


BAD_SPREADS: list[tuple[str, Any]] = [
    ("", "rack"),
    ("", rule()),
    ("", rule(max_skew=1, max_per_domain=1)),
    (".domain", {"max_skew": 1, "select": WEB}),
    (".domain", rule(max_skew=1, domain="zone")),
    (".domain", rule(max_skew=1, domain="fleet")),
    (".domain", targets("a", domain="fleet")),
    (".domain", rule(max_per_domain=1, domain="Fleet")),
    (".select", {"max_skew": 1, "domain": "rack"}),
    (".select", rule(max_skew=1, select={})),
    (".select.exprs[0].op", rule(max_skew=1, select={"exprs": [{"label": "a", "op": "gt"}]})),
    (".max_skew", rule(max_skew=0)),
    (".max_skew", rule(max_skew=None)),
    (".max_skew", rule(max_skew=1.5)),
    (".max_skew", rule(max_skew="1")),
    (".max_skew", rule(max_skew=1000001)),
    (".min_domains", rule(max_skew=1, min_domains=0)),
    (".min_domains", rule(max_skew=1, min_domains=2, when="prefer")),
    (".min_domains", rule(max_per_domain=1, min_domains=2)),
    (".when", rule(max_skew=1, when="ScheduleAnyway")),
    (".when", rule(max_per_domain=1, when="prefer")),
    (".count_nodes", rule(max_skew=1, count_nodes="all")),
    (".count_nodes.labels", rule(max_skew=1, count_nodes={"labels": "honor"})),
    (".count_nodes.affinity", rule(max_skew=1, count_nodes={"affinity": "Honor"})),
    (".count_nodes.taints", rule(max_skew=1, count_nodes={"taints": True})),
    (".max_per_domain", rule(max_per_domain=0)),
    (".max_per_domain", rule(max_per_domain=None)),
    (".weight", rule(max_per_domain=1, weight=5)),
    (".weight", targets("a", weight=0)),
    (".weight", targets("a", weight=101)),
    (".targets", rule(targets=None)),
    (".targets", rule(targets={})),
    (".targets", targets(*map(str, range(11)))),
    (".targets", targets(*map(str, range(101)))),
    (".targets", rule(targets=[{"value": 1, "percent": 1}, {"value": 1, "percent": 2}])),
    (".targets[0]", rule(targets=["a"])),
    (".targets[0].percent", rule(targets=[{"value": 1}])),
    (".targets[0].percent", rule(targets=[{"value": 1, "percent": 101}])),
    (".targets[0].percent", rule(targets=[{"value": 1, "percent": -1}])),
    (".targets[0].percent", rule(targets=[{"value": 1, "percent": 0.5}])),
    (".targets[0].value", rule(targets=[{"percent": 1}])),
    (".targets[0].value", targets(None)),
    (".targets[0].value", targets(["a"])),
    (".targets[0].value", targets("x" * 1101)),
    (".targets[0].value", targets("r1", domain="rack")),
    (".targets[0].value", targets("n1", domain="node")),
    (".targets[0].share", rule(targets=[{"value": 1, "share": 5}])),
    (".tenants", rule(max_skew=1, tenants="*")),
]


@pytest.mark.parametrize(("field", "spread"), BAD_SPREADS)
def test_bad_spreads(api: Api, field: str, spread: Any) -> None:
    good = rule(max_per_domain=1)
    assert refused(api, "QHC03", {"spread": [good, spread]}) == f"p.spread[1]{field}"


def test_lists_are_bounded_lists(api: Api) -> None:
    """Empty parts ask nothing."""
    value: Any
    for part in ("tolerate", "spread"):
        for value in ({}, "x", [{}] * 101):
            assert refused(api, "QHC03", {part: value}) == f"p.{part}"
    for part in ("require", "prefer", "tolerate", "spread", "isolation"):
        empty: Any = {} if part == "isolation" else []
        assert normal(api, {part: None}) == normal(api, {part: empty}) == {}


@pytest.mark.parametrize("cpu", ["best_effort", "whole_core", "strict_isolated", None])
@pytest.mark.parametrize(
    "gpu", ["shared", "session_exclusive", "device_exclusive", "partition_exclusive", None]
)
def test_isolation(api: Api, cpu: str | None, gpu: str | None) -> None:
    """Absent stays absent, best_effort stays explicit; a GPU class is for one GPU at least."""
    given = {kind: named for kind, named in (("cpu", cpu), ("gpu", gpu)) if named}
    resources = {"cpu_milli": 1500} | ({"gpu": 1} if gpu else {})
    expected = {"resources": resources} | ({"isolation": given} if given else {})
    written = {"isolation": {"cpu": cpu, "gpu": gpu}, "resources": {"cpu_milli": 1500, "gpu": 0}}
    assert normal(api, written) == expected


def test_a_count_is_kept_and_a_share_is_never_exclusive(api: Api) -> None:
    share = {"gpu_milli": 500}
    for isolation, resources in (
        ({"gpu": "shared"}, {"gpu": 3}),
        ({"gpu": "shared"}, share),
        ({"cpu": "whole_core"}, share),
    ):
        placement = {"isolation": isolation, "resources": resources}
        assert normal(api, placement) == placement
    for gpu in ("session_exclusive", "device_exclusive", "partition_exclusive"):
        placement = {"isolation": {"gpu": gpu}, "resources": share}
        refusal = api.refused("QHC04", "normalise_placement", placement=placement, field="p")
        assert (refusal.field, refusal.detail["class"]) == ("p.isolation.gpu", gpu)


BAD_ISOLATION: list[tuple[str, Any, str | None]] = [
    ("", [], None),
    ("", "whole_core", None),
    (".numa", {"numa": 1}, None),
    (".cpu", {"cpu": "exclusive"}, "exclusive"),
    (".cpu", {"cpu": "shared"}, "shared"),
    (".cpu", {"cpu": 1}, "1"),
    (".gpu", {"gpu": "whole_core"}, "whole_core"),
    (".gpu", {"cpu": "whole_core", "gpu": ""}, ""),
    (".gpu", {"gpu": ["shared"]}, '["shared"]'),
]


@pytest.mark.parametrize(("field", "isolation", "named"), BAD_ISOLATION)
def test_bad_isolation(api: Api, field: str, isolation: Any, named: str | None) -> None:
    placement = {"isolation": isolation}
    refusal = api.refused("QHC03", "normalise_placement", placement=placement, field="p")
    assert (refusal.field, refusal.detail.get("class")) == (f"p.isolation{field}", named)
