"""Nodes are judged in groups of those that are alike: what tells two apart, what is counted, pages.

tests/properties/test_views.py compares with the rules asked of each node by itself.
"""

from collections import Counter
from typing import Any

import pytest

from tests.calls import Row
from tests.sql.api import Api

pytestmark = pytest.mark.usefixtures("lone")  # a test counts all nodes


def verdicts(api: Api, placement: Row) -> dict[Any, list[tuple[str, bool]]]:
    """The codes of the reasons by node, and whether they are permanent."""
    return {
        row["node_id"]: [(reason["code"], reason["permanent"]) for reason in row["reasons"]]
        for row in api.rows("match_nodes", placement=placement)
    }


def test_nodes_that_one_of_several_ways_suits(api: Api, queue: str) -> None:
    """What runs in a node's zone decides, though no expression looks at the label."""
    here, there = (api.node(labels={"zone": zone}) for zone in "ab")
    api.spawn(queue, labels={"app": "x"})
    assert api.claim(here, queue)
    near = {"leases": {"labels": {"app": "x"}}, "domain": "label:zone"}
    other = {"label": "gone", "op": "exists"}
    assert verdicts(api, {"require": [{"any": [[near], [other]]}]}) == {
        here.node_id: [],
        there.node_id: [("required_affinity_unsatisfiable", False)],
    }


def test_groups_that_could_run_it_come_first_then_the_largest(api: Api) -> None:
    """In each the best node first: names alone tell these nodes apart."""
    names: dict[str, list[str]] = {}
    for zone in ("b", "c", "b", "a", "c", "b"):
        node = api.node(labels={"zone": zone}, capacity={"cpu_milli": 1000 if zone != "b" else 1})
        names.setdefault(zone, []).append(node.name)
    wanted = {
        "require": [{"label": "zone", "op": "not_in", "values": ["c"]}],
        "resources": {"cpu_milli": 100},
    }

    def group(codes: list[str], permanent: bool, zone: str) -> Row:
        row: Row = {"eligible": not codes, "codes": codes, "permanent": permanent}
        return row | {"nodes": len(names[zone]), "node_names": sorted(names[zone])}

    assert api.rows("match_groups", placement=wanted) == [
        group([], False, "a"),
        group(["insufficient_capacity"], True, "b"),
        group(["label_mismatch"], True, "c"),
    ]


def test_a_code_counts_once_for_a_node(api: Api) -> None:
    for zone in "ab":
        api.node(labels={"zone": zone, "model": "T4"})
    require = [{"label": key, "op": "in", "values": ["c"]} for key in ("zone", "model")]
    page = api.row("match_page", placement={"require": require})
    assert page["reasons"] == {"label_mismatch": 2}
    [group] = api.rows("match_groups", placement={"require": require})
    assert (group["codes"], group["nodes"]) == (["label_mismatch", "label_mismatch"], 2)


def test_nodes_that_are_asked_for(api: Api) -> None:
    """What is told of them is what is told of them among all."""
    small, large = api.node(capacity={"cpu_milli": 1000}), api.node(capacity={"cpu_milli": 4000})
    api.node()
    wanted = {"resources": {"cpu_milli": 2000}}
    told = {row["node_name"]: row for row in api.rows("match_nodes", placement=wanted)}
    options = {"nodes": [small.name, large.name, "nobody"]}
    rows = api.rows("match_nodes", placement=wanted, options=options)
    assert rows == [told[large.name], told[small.name]]
    assert api.rows("match_nodes", placement=wanted, options={"nodes": []}) == []
    counted = api.row("match_page", placement=wanted, options=options)
    assert (counted["nodes"], counted["eligible"]) == (2, 1)
    names: Any
    for names in ("n-1", [1], [["n-1"]], ["n"] * 10_001):
        refusal = api.refused("QHA01", "match_nodes", placement={}, options={"nodes": names})
        assert refusal.field == "options.nodes"


WANTED: Row = {
    "require": [{"label": "zone", "op": "in", "values": ["a", "b"]}],
    "prefer": [{"weight": 5, "when": {"label": "zone", "op": "in", "values": ["b"]}}],
    "resources": {"cpu_milli": 500},
}


def test_pages_are_those_of_all(api: Api) -> None:
    def page(**options: int) -> Row:
        return api.row("match_page", placement=WANTED, **options)

    assert page() == {"nodes": 0, "eligible": 0, "reasons": {}, "items": []}
    for zone in ("a", "b", "c", "a", "b", "c"):
        api.node(labels={"zone": zone}, capacity={"cpu_milli": 100 if zone == "c" else 1000})
    rows = api.rows("match_nodes", placement=WANTED)
    items = [{**row, "node_id": str(row["node_id"])} for row in rows]
    codes = Counter(code for row in rows for code in {each["code"] for each in row["reasons"]})
    assert codes
    seen = []
    for skip in range(0, 8, 2):
        found = page(limit=2, skip=skip)
        assert (found["nodes"], found["eligible"], found["reasons"]) == (6, 4, codes)
        seen += found["items"]
    assert seen == page()["items"] == items
    for skipped in (-1, None):
        refusal = api.refused("QHA01", "match_page", placement=WANTED, skip=skipped)
        assert refusal.field == "p_skip"
