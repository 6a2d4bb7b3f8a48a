"""What the translation writes: affinity, spread, taints, Nomad's allocations, Fleet's options."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cases import run
from tests.cases.fleet import glob
from tests.cases.kubernetes_leases import domain, selector
from tests.cases.model import DEFAULT_FOLDER, NAME, NOTHING, Case, lease_id, node_id, read_cases
from tests.cases.nomad_leases import distinct_hosts
from tests.cases.translate import translate

SHIPPED = {case.case_id: case for case in read_cases(DEFAULT_FOLDER)}
S1 = {"exprs": [{"label": "security", "op": "in", "values": ["S1"]}]}
FOO = {"exprs": [{"label": "foo", "op": "exists"}]}
TEAM_1 = ["subteam1.team1", "subteam2.team1", "subteam2.team2"]
WEB = {"labels": {"case.job": "j", "case.group": "web"}}
GATE = {"taint_comparison_operators": True}


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
    ("case_id", "part", "translated"),
    [
        (
            "k8s-pa-056",
            "prefer",
            {"weight": 5, "when": {"leases": S1, "domain": "label:region", "tenants": TEAM_1}},
        ),
        (
            "k8s-ts-021",
            "spread",
            {"domain": "label:node", "max_skew": 1, "select": FOO, "count_nodes": {"affinity": "ignore"}},
        ),
        # min_domains of a soft constraint means nothing
        ("k8s-ts-053", "spread", {"domain": "label:node", "max_skew": 2, "select": FOO, "when": "prefer"}),
        # `*` is what the others leave
        (
            "nm-as-011",
            "spread",
            {
                "domain": "label:node.datacenter",
                "targets": [{"value": "dc1", "percent": 50}, {"value": "dc2", "percent": 50}],
                "weight": 100,
                "select": WEB,
            },
        ),
    ],
)
def test_what_upstreams_answers_do_not_show(case_id: str, part: str, translated: Mapping[str, Any]) -> None:
    assert translate(SHIPPED[case_id]).placement[part] == [translated]


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
        ({"namespace_selector": {"exprs": [{"key": "team", "op": "Exists"}]}}, ["t1", "t2"]),
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


def test_taints_are_registered_where_a_stage_asks() -> None:
    """A stage of one filter says nothing on taints, a spread counts by them."""
    _, spec = translate(SHIPPED["k8s-ta-001"]).nodes["nodeA"]
    assert spec["taints"] == [{"key": "dedicated", "value": "user1", "effect": "no_schedule"}]
    nodes: list[Mapping[str, Any]] = [
        {"name": "n1", "labels": {}, "taints": [{"key": "a", "effect": "NoExecute"}]}
    ]
    for stage, taints in (
        ("lease_affinity", None),
        ("spread", [{"key": "a", "value": "", "effect": "no_execute"}]),
    ):
        _, spec = translate(made(stage, {}, nodes=nodes)).nodes["n1"]
        assert spec.get("taints") == taints


@pytest.mark.parametrize(
    ("toleration", "translated"),
    [
        ({"key": "a"}, {"key": "a", "op": "equal", "value": ""}),
        ({"key": "a", "op": "", "value": None}, {"key": "a", "op": "equal", "value": ""}),
        ({"key": "", "op": "Exists", "effect": ""}, {"op": "exists"}),
        ({"key": "a", "op": "Exists", "value": "b"}, {"key": "a", "op": "exists"}),
        ({"key": "a", "op": "Lt", "value": "-5"}, {"key": "a", "op": "lt", "value": "-5"}),
        ({"key": "a", "op": "Gt", "value": "+05"}, {"key": "a", "op": "gt", "value": "5"}),
        ({"key": "a", "op": "Gt", "value": "high"}, None),
        ({"key": "a", "op": "Gt"}, None),
        # Kubernetes' own validation refuses this one, and so does hwqueue
        ({"op": "Equal", "value": "b"}, {"op": "equal", "value": "b"}),
    ],
)
def test_tolerations(toleration: Mapping[str, Any], translated: Mapping[str, Any] | None) -> None:
    """Equal is the default, empty is any, and what tolerates nothing is left out."""
    case = made("taints", {"tolerations": [toleration]}, options=GATE)
    assert translate(case).placement.get("tolerate", []) == ([translated] if translated else [])


@pytest.mark.parametrize(
    ("value", "is_on"), [(None, True), ("true", True), ("F", False), ("0", False), ("no", True), ("", True)]
)
def test_distinct_hosts_is_off_for_what_is_false_only(value: str | None, is_on: bool) -> None:
    """An unparsable boolean means on."""
    lease = {"job": "j", "distinct_hosts": {"scope": "job", "value": value}}
    assert bool(distinct_hosts(made("distinct_hosts", lease))) == is_on


def test_the_limit_of_distinct_property() -> None:
    """It is 1 unless given; a node without the property takes nothing."""
    lease = {"job": "j", "distinct_property": [{"key": "rack", "scope": "job", "limit": 2}]}
    nodes = [{"name": "n1", "labels": {"rack": "r"}}, {"name": "n2", "labels": {}}]
    running = [{"node": "n1", "labels": {}, "job": "j", "group": "g"}]
    case = made("distinct_property", lease, nodes=nodes, running=running)
    assert run.ask_oracle(case, translate(case)).feasible == {"n1"}
    case = made("distinct_property", lease, nodes=nodes, running=running * 2)
    assert run.ask_oracle(case, translate(case)).feasible == set()
    for limit, translated in ((None, 1), ("", 1), ("3", 3), (0, 0), ("many", "many")):
        lease = {"job": "j", "distinct_property": [{"key": "rack", "limit": limit}]}
        case = made("distinct_property", lease)
        [spread] = translate(case).placement["spread"]
        assert spread["max_per_domain"] == translated
        refused = run.ask_oracle(case, translate(case)).refused
        assert (refused == run.PLACEMENT_INVALID) == (translated in (0, "many"))


def test_penalty_nodes_and_job_anti_affinity_add_up() -> None:
    """Two scores of one case: a node that failed it, and one that has two of its group."""
    nodes: list[dict[str, Any]] = [{"name": name, "labels": {}} for name in ("n1", "n2", "n3")]
    running = [{"node": "n1", "labels": {}, "job": "j", "group": "web"}] * 2
    lease = {"job": "j", "group": "web", "desired_count": 4, "penalty_nodes": ["n1", "n2"]}
    case = made("score:nomad_penalty", lease, nodes=nodes)
    [term] = translate(case).placement["prefer"]
    assert term == {"weight": -100, "when": {"node": [str(node_id("n1")), str(node_id("n2"))]}}
    assert run.ranked(run.oracle_scores(case, translate(case)), 6) == [["n3"], ["n1", "n2"]]
    case = made("score:nomad_job_anti_affinity", lease, nodes=nodes, running=running)
    assert run.ranked(run.oracle_scores(case, translate(case)), 6) == [["n2", "n3"], ["n1"]]


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("foo.*", "foo.socket", True),
        ("foo.*", "foo/a", False),
        ("*", "a/b", False),
        ("foo@?.service", "foo@1.service", True),
        ("foo@?.service", "foo@10.service", False),
        ("[^a-c]x", "dx", True),
        ("[^a-c]x", "bx", False),
        ("[a-c]x", "bx", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("a+b", "a+b", True),
        ("a+b", "aab", False),
    ],
)
def test_globs(pattern: str, name: str, matches: bool) -> None:
    """As path.Match of Go reads them."""
    assert (glob(pattern).fullmatch(name) is not None) == matches


def test_conflicts_of_a_unit_that_runs() -> None:
    """They are its own rule, and keep out a newcomer that has none; not itself."""
    running = {"node": "n1", "labels": {}, "name": "a.service", "fleet": {"conflicts": ["*"]}}
    case = made("fleet", {"name": "b.service"}, running=[running])
    translated = translate(case)
    [adopted] = translated.running
    [expr] = adopted.placement["require"]
    assert expr["leases"] == {"exprs": [{"label": NAME, "op": "in", "values": ["a.service", "b.service"]}]}
    assert adopted.options["lease_id"] == str(lease_id("a.service"))
    assert run.ask_oracle(case, translated).feasible == set()


def test_machine_of_a_unit_that_does_not_run() -> None:
    """Its id is known, its place is not: nobody may take the lease."""
    case = made("fleet", {"name": "b", "fleet": {"machine_of": ["a"]}})
    assert run.ask_oracle(case, translate(case)).feasible == set()
    running = [{"node": "n1", "labels": {}, "name": "a"}, {"node": "n1", "labels": {}, "name": "a"}]
    case = made("fleet", {"name": "b", "fleet": {"machine_of": ["a"]}}, running=running)
    translated = translate(case)
    assert len({adopted.options["lease_id"] for adopted in translated.running}) == len(running)
    assert run.ask_oracle(case, translated).feasible == {"n1"}
