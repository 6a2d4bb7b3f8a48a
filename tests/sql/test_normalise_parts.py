"""The normal form of a placement: strengths, tolerations, spreads, isolation, expressions about leases."""

from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import Api

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


BAD_ISOLATION: list[tuple[str, Any]] = [
    ("", []),
    ("", "whole_core"),
    (".numa", {"numa": 1}),
    (".cpu", {"cpu": "exclusive"}),
    (".cpu", {"cpu": "shared"}),
    (".cpu", {"cpu": 1}),
    (".gpu", {"gpu": "whole_core"}),
    (".gpu", {"cpu": "whole_core", "gpu": ""}),
    (".gpu", {"gpu": ["shared"]}),
]


@pytest.mark.parametrize(("field", "isolation"), BAD_ISOLATION)
def test_bad_isolation(api: Api, field: str, isolation: Any) -> None:
    assert refused(api, "QHC03", {"isolation": isolation}) == f"p.isolation{field}"


OTHER = str(uuid4())
ANY: Row = {"exprs": []}
EXISTS: Row = {"label": "a", "op": "exists"}


def normal(api: Api, placement: Any) -> Any:
    return api.value("normalise_placement", placement=placement, field="p")


def refused(api: Api, code: str, placement: Any) -> str | None:
    return api.refused(code, "normalise_placement", placement=placement, field="p").field


def leases(selector: Any, **more: Any) -> Row:
    """An expression on leases in the same rack."""
    return {"leases": selector, "domain": "rack", **more}


ZONE = "label:" + "z" * 253
NORMAL: list[tuple[Row, list[Row]]] = [
    ({"trust": "Tee  é"}, []),
    ({"trust": "x" * 255}, []),
    (
        {"lease": ID, "domain": "node"},
        [
            {"lease": ID},
            {"lease": ID.upper(), "domain": None, "away": False},
            {"lease": ID, "domain": "node", "unknown": "pass"},  # every node is a node
        ],
    ),
    (
        {"lease": ID, "domain": "rack", "away": True},
        [{"lease": ID, "domain": "rack", "away": True, "unknown": "pass"}],
    ),
    ({"lease": ID, "domain": ZONE}, [{"lease": ID, "domain": ZONE, "unknown": "fail"}]),
    ({"lease": ID, "domain": "rack", "away": True, "unknown": "fail"}, []),
    ({"service": ID}, [{"service": ID, "unknown": "fail"}, {"service": ID, "domain": None}]),
    ({"service": ID, "unknown": "pass"}, []),
    ({"service": ID, "domain": "node", "away": True}, []),
    (
        leases(WEB),
        [
            leases({"labels": {"app": "web"}}),
            leases({"labels": {"app": "web"}, "exprs": WEB["exprs"]}),
            leases({"exprs": [*WEB["exprs"], {"label": "app", "op": "in", "values": ["web"] * 2}]}),
            leases(WEB, tenants=None),
        ],
    ),
    (
        leases({"exprs": [EXISTS, {"label": "b", "op": "not_in", "values": ["", "1", "x"]}]}),
        [
            leases({"exprs": [{"label": "b", "op": "not_in", "values": ["x", "1", "", "x"]}, written]})
            for written in (EXISTS, EXISTS | {"values": None})
        ],
    ),
    (leases(ANY), [leases({"labels": {}}), leases({"labels": {}, "exprs": []})]),
    (leases({"same": "service"}, away=True), []),
    (leases({"same": "task"}), []),
    (leases(ANY, tenants="*"), []),
    (leases(ANY, tenants=["", "acme", "b"]), [leases(ANY, tenants=["b", "acme", "", "b"])]),
]


@pytest.mark.parametrize(("expr", "same"), NORMAL)
def test_normal_forms(api: Api, expr: Row, same: list[Row]) -> None:
    for written in (expr, *same):
        assert normal(api, {"require": [written]}) == {"require": [expr]}
        nested = [written], [{"rack": 1}]
        branches = normal(api, {"require": [{"any": nested}]})["require"][0]["any"]
        assert [expr] in branches
        if "trust" not in expr:
            assert normal(api, {"prefer": [{"when": written}]}) == {
                "prefer": [{"weight": 100, "when": [expr]}]
            }


def test_duplicates_are_dropped(api: Api) -> None:
    """And a preference that asks nothing can be written again."""
    twice = [leases(WEB), {"lease": ID}, leases({"labels": {"app": "web"}}), {"lease": ID}]
    assert len(normal(api, {"require": twice})["require"]) == 2
    once = normal(api, {"prefer": [{"weight": 5, "when": {"tags": {}}}]})
    assert once == {"prefer": [{"weight": 5, "when": [{"tags": {}}]}]}
    assert normal(api, once) == once


def test_keys_of_tags_are_no_expressions(api: Api) -> None:
    """Tags may hold keys named like kinds: nothing is taken from them. Nor are expressions anchors."""
    tags = {"lease": ID, "trust": {"leases": {}}, "node": [ID]}
    placement = {"require": [{"tags": tags}]}
    assert len(normal(api, placement)["require"]) == 3
    assert api.state(api.spawn(api.queue(), placement=placement)) == "pending"
    exprs = [{"lease": ID}, {"service": ID}, leases(WEB), {"trust": "tee"}]
    for more, anchor in (([], "*"), ([{"rack": 7}], "rack:7")):
        required = Jsonb(normal(api, {"require": [*exprs, *more]})["require"])
        row = api.conn.execute("select hwqueue.class_anchors(%s::jsonb)", [required])
        assert row.fetchone() == ([anchor],)


BAD_SELECTED: list[tuple[str, Any]] = [
    ("", "a"),
    (".label", {"op": "exists"}),
    (".op", {"label": "a"}),
    (".op", {"label": "a", "op": "gt", "values": ["1"]}),
    (".values", {"label": "a", "op": "in"}),
    (".values", {"label": "a", "op": "in", "values": []}),
    (".values", {"label": "a", "op": "in", "values": [1]}),
    (".values", {"label": "a", "op": "in", "values": [str(n) for n in range(101)]}),
    (".values", {"label": "a", "op": "exists", "values": ["x"]}),
    (".other_label", {"label": "a", "other_label": "b"}),
]
BAD: list[tuple[str, Row]] = [
    (".trust", {"trust": ""}),
    (".trust", {"trust": None}),
    (".trust", {"trust": 7}),
    (".trust", {"trust": "x" * 256}),
    (".trust", {"trust": "é" * 128}),
    (".away", {"trust": "tee", "away": True}),
    (".domain", {"trust": "tee", "domain": "rack"}),
    (".unknown", {"trust": "tee", "unknown": "pass"}),
    ("", {"lease": ID, "service": ID}),
    (".lease", {"lease": None}),
    (".lease", {"lease": "web"}),
    (".lease", {"lease": [ID]}),
    (".tenants", {"lease": ID, "tenants": "*"}),
    (".strength", {"lease": ID, "strength": "adaptive"}),
    *((".domain", {"lease": ID, "domain": bad}) for bad in ("zone", "label:", "Rack", ["rack"])),
    (".domain", {"lease": ID, "domain": "label:" + "x" * 254}),
    (".unknown", {"lease": ID, "domain": "rack", "unknown": "maybe"}),
    (".unknown", {"lease": ID, "domain": "rack", "unknown": True}),
    (".away", {"service": ID, "away": "yes"}),
    (".service", {"service": "billing"}),
    (".domain", {"leases": WEB}),
    (".domain", {"leases": WEB, "domain": None}),
    (".leases", leases({})),
    (".leases", leases(None)),
    (".leases", leases([])),
    (".leases.label", leases({"label": {"app": "web"}})),
    (".leases.labels", leases({"labels": None})),
    (".leases.labels", leases({"labels": ["app"]})),
    (".leases.labels", leases({"labels": {str(n): "x" for n in range(101)}})),
    (".leases.labels.app", leases({"labels": {"app": 1}})),
    (".leases.labels.app", leases({"labels": {"app": "x" * 1025}})),
    (".leases.labels.", leases({"labels": {"": "x"}})),
    (".leases.exprs", leases({"exprs": None})),
    (".leases.exprs", leases({"exprs": {}})),
    (".leases.exprs", leases({"exprs": [{"label": "a", "op": "exists"}] * 101})),
    *((f".leases.exprs[0]{field}", leases({"exprs": [bad]})) for field, bad in BAD_SELECTED),
    (".leases.same", leases({"same": "queue"})),
    (".leases.same", leases({"same": None})),
    (".leases.labels", leases({"same": "task", "labels": {}})),
    *((".tenants", leases(WEB, tenants=bad)) for bad in ([], "acme", ["acme", "*"], [None])),
    (".tenants", leases(WEB, tenants=["x" * 101])),
    (".tenants", leases(WEB, tenants=[str(n) for n in range(101)])),
]


@pytest.mark.parametrize(("field", "expr"), BAD)
def test_malformed(api: Api, field: str, expr: Row) -> None:
    """Wherever it stands."""
    assert refused(api, "QHC03", {"require": [expr]}) == f"p.require[0]{field}"
    nested = {"any": [[{"rack": 1}], [expr]]}
    assert refused(api, "QHC03", {"require": [nested]}) == f"p.require[0].any[1][0]{field}"
    if "trust" not in expr:
        assert refused(api, "QHC03", {"prefer": [{"when": expr}]}) == f"p.prefer[0].when[0]{field}"


def test_trust_is_not_preferred(api: Api) -> None:
    trust = {"trust": "tee"}
    for deep, when in (("[0]", trust), ("[0].any[1][0]", {"any": [[{"rack": 1}], [trust]]})):
        field = f"p.prefer[0].when{deep}.trust"
        assert refused(api, "QHC03", {"prefer": [{"when": when}]}) == field


CONTRADICTIONS: list[list[Row]] = [
    [{"lease": ID}, {"lease": ID, "away": True}],
    [{"lease": ID}, {"lease": ID, "domain": "rack", "away": True}],
    [{"lease": ID, "domain": "label:z"}, {"lease": ID, "domain": "label:z", "away": True}],
    [{"service": ID}, {"service": ID, "away": True}],
    [{"service": ID, "domain": "node"}, {"service": ID, "away": True}],
    [leases(WEB), leases({"labels": {"app": "web"}}, away=True)],
    [leases(WEB, tenants=["a", "b"]), leases(WEB, tenants=["b", "a"], away=True)],
    [leases(ANY, domain="node"), leases(ANY, away=True)],
    [{"rack": 1}, {"lease": ID}, {"lease": OTHER}, {"lease": OTHER, "away": True}],
]


ALIKE: list[list[Row]] = [
    [{"lease": ID}, {"lease": OTHER, "away": True}],
    [{"lease": ID, "domain": "rack"}, {"lease": ID, "away": True}],
    [{"lease": ID, "domain": "rack"}, {"lease": ID, "domain": "label:z", "away": True}],
    [{"lease": ID}, {"service": ID, "domain": "node", "away": True}],
    [{"service": ID}, {"service": ID, "domain": "node", "away": True}],
    [{"lease": ID}, {"lease": OTHER}],
    [leases(WEB), leases(ANY, away=True)],
    [leases(WEB), leases(WEB, tenants="*", away=True)],
    [{"trust": "a"}, {"trust": "b"}],
]


def test_contradictions(api: Api) -> None:
    """What only looks like one is none; preferences may contradict."""
    for require in CONTRADICTIONS:
        assert refused(api, "QHC04", {"require": require}) == "p.require", require
    for require in ALIKE:
        assert len(normal(api, {"require": require})["require"]) == len(require), require
    prefer = [{"when": {"lease": ID}}, {"when": {"lease": ID, "away": True}}]
    assert len(normal(api, {"prefer": prefer, "require": [{"lease": ID}]})["prefer"]) == 2
