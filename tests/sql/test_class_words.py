"""class_words: what a placement asks, in one line for people."""

from typing import Any

import pytest

from tests.calls import Row
from tests.sql.api import Api
from tests.sql.explained import class_of

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
WEB = {"labels": {"app": "web"}}


def words(api: Api, placement: Any, **options: Any) -> str:
    lease = api.spawn(api.queue(), placement=placement, **options)
    said = "select hwqueue.class_words(c) from hwqueue.placement_class c where class_id = %s"
    return str(api.one(said, class_of(api, lease)))


def expr(label: str, op: str, *values: Any) -> Row:
    return {"label": label, "op": op} | ({"values": list(values)} if values else {})


@pytest.mark.parametrize(
    ("require", "said"),
    [
        (expr("gpu_model", "in", "A100"), "gpu_model in A100"),
        (expr("n", "in", 1, True), "n in 1 or true"),
        (expr("n", "in", 1, 2, 3), "n in 1, 2 or 3"),
        (expr("n", "in", 1, 2, 3, 4, 5, 6), "n in 1, 2, 3 or 3 more"),
        (expr("zone", "not_in", "a"), "zone not in a"),
        (expr("zone", "exists"), "has zone"),
        (expr("zone", "does_not_exist"), "has no zone"),
        (expr("n", "gte", 3), "n >= 3"),
        (expr("name", "regexp", "^a"), "name matches ^a"),
        (expr("driver", "version", ">= 1.2, < 2"), "driver version >= 1.2, < 2"),
        (expr("has", "contains_all", "a", "b"), "has contains a and b"),
        ({"label": "a", "op": "lt", "other_label": "b"}, "a < label b"),
        ({"tags": {"a": {"b": 1}}}, 'labels contain {"a": {"b": 1}}'),
        ({"any": [[expr("n", "gt", 1), {"rack": 2}], [{"rack": 3}]]}, None),
        ({"rack": [1, 2]}, "in rack 1 or 2"),
        ({"rack": 1, "away": True}, "not in rack 1"),
        ({"node": ID}, f"on node {ID}"),
        ({"resource": ID}, f"with device {ID}"),
        ({"trust": "acme"}, "trusted for acme"),
        ({"lease": ID}, f"with lease {ID} on the same node"),
        ({"service": ID, "away": True}, f"away from service {ID} in the same failure domain"),
        (
            {"leases": WEB, "domain": "label:zone", "away": True},
            "away from leases with app in web in the same zone",
        ),
        (
            {"leases": {"labels": {}}, "domain": "rack", "tenants": "*"},
            "with any lease of any tenant in the same rack",
        ),
        (
            {"leases": {"same": "task"}, "domain": "node", "tenants": ["a"]},
            "with leases of the same task of tenant a on the same node",
        ),
    ],
)
def test_every_kind_of_expression(api: Api, require: Row, said: str | None) -> None:
    found = words(api, {"require": [require]})
    if said is None:
        said = "(in rack 3) or (n > 1 and in rack 2)"
        assert sorted(found.split(" or ")) == sorted(said.split(" or "))
    else:
        assert found == said


def test_a_node_by_its_name_and_what_a_service_keeps_away_from(api: Api) -> None:
    node, service = api.node(), "01890a5d-ac96-774b-bcce-b302099a8058"
    assert words(api, {"require": [{"node": str(node.node_id)}]}) == f"on node {node.name}"
    api.rows("set_service_policy", service=service, policy={"anti_affinity_services": [ID]})
    assert words(api, {}, service_id=service) == f"away from service {ID} in the same failure domain"


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ({}, "any node"),
        (
            {"resources": {"gpu": 2, "cpu_milli": 1500, "memory_mib": 8192, "fpga": 1}},
            "2 GPU, 1.5 CPU, 8 GiB, 1 fpga",
        ),
        ({"resources": {"gpu_milli": 500, "memory_mib": 100}}, "0.5 GPU, 100 MiB"),
        (
            {"isolation": {"cpu": "whole_core", "gpu": "device_exclusive"}},
            "1 GPU, CPU whole_core, GPU device_exclusive",
        ),
        (
            {"spread": [{"domain": "rack", "max_per_domain": 2, "select": WEB}]},
            "at most 2 of leases with app in web in the same rack",
        ),
        (
            {"spread": [{"domain": "fleet", "max_per_domain": 2, "select": WEB}]},
            "at most 2 of leases with app in web in the whole fleet",
        ),
        (
            {"spread": [{"domain": "label:zone", "max_skew": 1, "select": WEB}]},
            "spreads leases with app in web within 1 over zone",
        ),
        ({"prefer": [{"weight": -5, "when": {"rack": 1}}]}, "prefers not in rack 1"),
        ({"prefer": [{"when": {"rack": 1}}], "strength": 5}, "prefers in rack 1, with strength 5 of 100"),
        (
            {"tolerate": [{"key": "dedicated", "value": "film", "effect": "no_schedule"}]},
            "tolerates dedicated=film:no_schedule",
        ),
        ({"tolerate": [{"op": "exists"}]}, "tolerates everything"),
        ({"require": [expr("a", "in", "b")], "resources": {"gpu": 2}}, "a in b, 2 GPU"),
    ],
)
def test_the_rest_of_a_placement(api: Api, placement: Row, said: str) -> None:
    assert words(api, placement) == said


def test_one_line_of_bounded_length(api: Api) -> None:
    odd = [expr(f"k{n}", "in", f"a\nb\t{'x' * 200}") for n in range(30)]
    found = words(api, {"require": odd})
    assert len(found) == 500
    assert found.endswith("...")
    assert not set(found) & {"\n", "\t"}
