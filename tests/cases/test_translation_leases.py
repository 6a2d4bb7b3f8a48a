"""Affinity between leases and topology spread: what the translation writes."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cases import run
from tests.cases.kubernetes_leases import domain, selector
from tests.cases.model import DEFAULT_FOLDER, NOTHING, Case, read_cases
from tests.cases.translate import translate

SHIPPED = {case.case_id: case for case in read_cases(DEFAULT_FOLDER)}
S1 = {"exprs": [{"label": "security", "op": "in", "values": ["S1"]}]}
FOO = {"exprs": [{"label": "foo", "op": "exists"}]}
TEAM_1 = ["subteam1.team1", "subteam2.team1", "subteam2.team2"]


def made(stage: str, lease: Mapping[str, Any], **given: Any) -> Case:
    """A case of one node, or of those given."""
    nodes = given.get("nodes", [{"name": "n1", "labels": {"zone": "z1"}}])
    return Case(
        suite="made",
        case_id="made",
        stages=(stage,),
        nodes=tuple(nodes),
        candidates=frozenset(node["name"] for node in nodes),
        lease=lease,
        running=tuple(given.get("running", ())),
        namespaces=given.get("namespaces", {}),
        options=given.get("options", {}),
        expect={},
        precision=6,
    )


def toward(term: Mapping[str, Any], **given: Any) -> Case:
    """A case whose lease has one required affinity term; the topology key is the zone."""
    affinity = {"required": [{"topology_key": "zone", **term}]}
    return made("lease_affinity", {"lease_affinity": affinity, **given.pop("lease", {})}, **given)


def in_(label: str, *values: str) -> dict[str, Any]:
    """A selector's expression."""
    return {"label": label, "op": "in", "values": list(values)}


@pytest.mark.parametrize(
    ("case_id", "placement"),
    [
        ("k8s-pa-001", {}),
        (
            "k8s-pa-006",
            {
                "require": [
                    {
                        "leases": {
                            "exprs": [
                                {"label": "service", "op": "exists"},
                                {"label": "wrongkey", "op": "does_not_exist"},
                            ]
                        },
                        "domain": "label:region",
                    },
                    {
                        "leases": {
                            "exprs": [
                                in_("service", "securityscan"),
                                {"label": "service", "op": "not_in", "values": ["WrongValue"]},
                            ]
                        },
                        "domain": "label:region",
                    },
                ]
            },
        ),
        (
            "k8s-pa-008",
            {
                "require": [
                    {
                        "leases": {"exprs": [in_("service", "securityscan", "value2")]},
                        "domain": "label:region",
                    },
                    {
                        "leases": {"exprs": [in_("service", "antivirusscan", "value2")]},
                        "domain": "label:node",
                        "away": True,
                    },
                ]
            },
        ),
        (
            "k8s-pa-046",
            {"prefer": [{"weight": 5, "when": {"leases": S1, "domain": "label:az", "away": True}}]},
        ),
        (
            "k8s-pa-056",
            {
                "prefer": [
                    {
                        "weight": 5,
                        "when": {"leases": S1, "domain": "label:region", "tenants": TEAM_1},
                    }
                ]
            },
        ),
        ("k8s-ts-001", {"spread": [{"domain": "label:zone", "max_skew": 1, "select": FOO}]}),
        (
            "k8s-ts-016",
            {"spread": [{"domain": "label:zone", "max_skew": 2, "select": FOO, "min_domains": 3}]},
        ),
        (
            "k8s-ts-018",
            {
                "require": [in_("foo", "")],
                "spread": [{"domain": "label:node", "max_skew": 1, "select": FOO}],
            },
        ),
        (
            "k8s-ts-021",
            {
                "require": [{"any": [[in_("foo", "")]]}],
                "spread": [
                    {
                        "domain": "label:node",
                        "max_skew": 1,
                        "select": FOO,
                        "count_nodes": {"affinity": "ignore"},
                    }
                ],
            },
        ),
        (
            "k8s-ts-043",
            {"spread": [{"domain": "node", "max_skew": 3, "select": FOO, "when": "prefer"}]},
        ),
        (
            "k8s-ts-041",
            {"spread": [{"domain": "node", "max_skew": 1, "select": NOTHING, "when": "prefer"}]},
        ),
        # min_domains of a soft constraint means nothing
        (
            "k8s-ts-053",
            {"spread": [{"domain": "label:node", "max_skew": 2, "select": FOO, "when": "prefer"}]},
        ),
    ],
)
def test_shipped_cases(case_id: str, placement: Mapping[str, Any]) -> None:
    """The incoming lease's placement."""
    assert translate(SHIPPED[case_id]).placement == placement


def test_running_leases_carry_their_rules() -> None:
    """Symmetry is a rule of what runs; a namespace is a tenant, a terminating one is leaving."""
    translated = translate(SHIPPED["k8s-pa-018"])
    [running] = translated.running
    assert running.placement["require"] == [
        {
            "leases": {"exprs": [{"label": key, "op": "exists"}]},
            "domain": "label:zone",
            "away": True,
        }
        for key in ("abc", "def")
    ]
    assert running.options["labels"] == {"def": "", "xyz": ""}
    assert running.options["tenant"] == translated.lease["tenant"] == "default"
    assert [lease.options["tenant"] for lease in translate(SHIPPED["k8s-ts-003"]).running] == [
        "ns1",
        "ns2",
        "default",
        "default",
    ]
    leaving = [lease.is_leaving for lease in translate(SHIPPED["nm-co-078"]).running]
    assert leaving == [False, False, False, True]


def test_running_leases_tolerate_the_taints_of_their_node() -> None:
    """A case says that they run; a no_execute taint must not stop them."""
    *untainted, tainted = translate(SHIPPED["k8s-ts-023"]).running
    assert tainted.placement["tolerate"] == [{"op": "exists"}]
    assert not any("tolerate" in lease.placement for lease in untainted)


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        (None, NOTHING),
        ({}, {"labels": {}}),
        ({"labels": None, "exprs": []}, {"labels": {}}),
        (
            {"labels": {"a": "b"}, "exprs": [{"key": "c", "op": "DoesNotExist"}]},
            {"exprs": [in_("a", "b"), {"label": "c", "op": "does_not_exist"}]},
        ),
        # malformed: in hwqueue, too
        ({"labels": {"a": "{{.bad-value.}}"}}, {"exprs": [in_("a")]}),
        ({"exprs": [{"key": "a", "op": "In", "values": ["ok", "not ok"]}]}, {"exprs": [in_("a")]}),
        ({"exprs": [{"key": "a", "op": "NotIn", "values": []}]}, {"exprs": [in_("a")]}),
        ({"exprs": [{"key": "a", "op": "Exists", "values": ["x"]}]}, {"exprs": [in_("a")]}),
        ({"exprs": [{"key": "a", "op": "Gt", "values": ["1"]}]}, {"exprs": [in_("a")]}),
        ({"exprs": [{"key": "a", "op": "near", "values": ["x"]}]}, {"exprs": [in_("a")]}),
        ({"exprs": [{"key": "a b", "op": "Exists"}]}, {"exprs": [in_("a b")]}),
    ],
)
def test_selectors(given: Mapping[str, Any] | None, selected: Mapping[str, Any]) -> None:
    """Null selects nothing, empty everything, and a malformed one is refused."""
    assert selector(given) == selected


def test_a_malformed_selector_is_refused() -> None:
    """Not treated as no match: neither toward, nor away, nor in a spread."""
    bad = {"exprs": [{"key": "a", "op": "In", "values": ["{{.bad-value.}}"]}]}
    away = {"required": [{"selector": bad, "topology_key": "zone"}]}
    spread = {"topology_key": "zone", "max_skew": 1, "when": "DoNotSchedule", "selector": bad}
    for case in (
        toward({"selector": bad}),
        made("lease_affinity", {"lease_anti_affinity": away}),
        made("spread", {"spread": [spread]}),
    ):
        assert run.ask_oracle(case, translate(case)).refused == run.PLACEMENT_INVALID


@pytest.mark.parametrize(
    ("term", "tenants"),
    [
        ({}, None),
        ({"namespaces": [], "namespace_selector": None}, None),
        ({"namespaces": ["b", "a"]}, ["a", "b"]),
        ({"namespace_selector": {}}, "*"),
        ({"namespaces": ["a"], "namespace_selector": {"labels": {}, "exprs": []}}, "*"),
        ({"namespace_selector": {"labels": {"team": "1"}}}, ["t1"]),
        ({"namespaces": ["a"], "namespace_selector": {"labels": {"team": "1"}}}, ["a", "t1"]),
        (
            {"namespace_selector": {"exprs": [{"key": "team", "op": "NotIn", "values": ["1"]}]}},
            ["mine", "t2", "theirs"],
        ),
        (
            {"namespace_selector": {"exprs": [{"key": "team", "op": "Exists"}]}},
            ["t1", "t2"],
        ),
    ],
)
def test_namespaces(term: Mapping[str, Any], tenants: list[str] | str | None) -> None:
    """Neither field: the owner's own. Both: the union. A selector is resolved over the case."""
    case = toward(
        {"selector": {}, **term},
        lease={"namespace": "mine"},
        namespaces={"t1": {"team": "1"}, "t2": {"team": "2"}},
        running=[{"node": "n1", "labels": {}, "namespace": "theirs"}],
    )
    [expr] = translate(case).placement["require"]
    assert expr.get("tenants") == tenants
    assert expr["leases"] == {"labels": {}}


def test_a_namespace_selector_that_finds_none() -> None:
    """It selects nothing, rather than the owner's own namespace."""
    term = {"selector": {}, "namespace_selector": {"labels": {"team": "3"}}}
    [expr] = translate(toward(term)).placement["require"]
    assert expr == {"leases": NOTHING, "domain": "label:zone"}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["h1", "h2"], "node"),
        (["h1", "h1"], "label:kubernetes.io/hostname"),
        (["h1", None], "label:kubernetes.io/hostname"),
    ],
)
def test_the_host_name_is_the_node_where_it_tells_nodes_apart(hosts: list[str | None], expected: str) -> None:
    """Otherwise it is a label like any other."""
    nodes = [
        {"name": f"n{i}", "labels": {"kubernetes.io/hostname": host} if host else {}}
        for i, host in enumerate(hosts)
    ]
    assert domain(made("spread", {}, nodes=nodes), "kubernetes.io/hostname") == expected


def test_both_policies_of_a_spread() -> None:
    """Written where they are not the default, which is the same on both sides."""
    spread = {
        "topology_key": "zone",
        "max_skew": 1,
        "when": "DoNotSchedule",
        "selector": {},
        "min_domains": 1,
        "node_affinity_policy": "honor",
        "node_taints_policy": "honor",
    }
    [translated] = translate(made("spread", {"spread": [spread]})).placement["spread"]
    assert translated == {
        "domain": "label:zone",
        "max_skew": 1,
        "select": {"labels": {}},
        "count_nodes": {"taints": "honor"},
    }
