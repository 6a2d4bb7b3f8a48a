"""Expressions about other leases, and on trust: equal meanings are equal JSON, bad ones refused."""

from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import Api

pytestmark = pytest.mark.thorough

ID = str(uuid4())
OTHER = str(uuid4())
WEB: Row = {"exprs": [{"label": "app", "op": "in", "values": ["web"]}]}
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
