"""Classes: leases of one meaning share one, and it has words; placements of several levels become one."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import Api, read_refusal
from tests.sql.explained import class_of
from tests.sql.test_normalise_parts import normal

NODE = [str(uuid4()) for _ in range(2)]


def label(key: str, *values: Any, op: str = "in") -> Row:
    return {"label": key, "op": op, "values": list(values)}


def placed(**parts: Any) -> Row:
    """Spawn options with that placement."""
    return {"placement": parts}


A, B = label("zone", "a"), label("gpu", True)
SAME: dict[str, list[Row]] = {
    "nothing asked": [
        {},
        placed(),
        placed(require=[], prefer=[], resources={}),
        placed(require=None, spread=[], isolation={}, tolerate=[]),
        placed(resources={"cpu_milli": 0, "gpu": 0}),
        placed(require=[{"tags": {}}]),
        placed(prefer=[{"weight": 0, "when": A}]),
        {"affinity_tags": {}},
        {"labels": {}, "tenant": None},
    ],
    "order and duplicates": [
        placed(require=[A, B]),
        placed(require=[B, A]),
        placed(require=[A, B, A]),
        {"affinity_tags": {"gpu": True}, "placement": {"require": [A]}},
        {"affinity_tags": {"gpu": True, "zone": "a"}},
    ],
    "order of values": [
        placed(require=[label("n", 1, "x", 2.5)]),
        placed(require=[label("n", 2.50, 1, "x", 1.0)]),
    ],
    "tags and label in": [
        placed(require=[{"tags": {"zone": "a", "gpu": True}}]),
        placed(require=[{"tags": {"zone": "a"}}, {"tags": {"gpu": True}}]),
        placed(require=[A, B]),
    ],
    "numbers": [
        placed(require=[label("n", 1)]),
        placed(require=[label("n", 1.0)]),
        {"affinity_tags": {"n": 1.00}},
        placed(require=[label("n", 1e0)]),
    ],
    "nested tags": [
        placed(require=[{"tags": {"cpu": {"cores": 4, "flags": ["avx"]}}}]),
        placed(require=[{"tags": {"cpu": {"flags": ["avx"], "cores": 4.0}}}]),
    ],
    "tags that are null": [placed(require=[{"tags": {"zone": None}}]), {"affinity_tags": {"zone": None}}],
    "targets": [
        placed(require=[{"node": NODE[:1]}]),
        placed(require=[{"node": NODE[0].upper()}]),
        placed(require=[{"node": [NODE[0], NODE[0]], "away": False}]),
    ],
    "any": [placed(require=[{"any": [[A], [B, A]]}]), placed(require=[{"any": [[A, B], [A, A]]}])],
    "any with one branch": [placed(require=[{"any": [[A, B]]}]), placed(require=[B, A])],
    "preferences": [
        placed(prefer=[{"when": A}, {"weight": -5, "when": [B, A]}]),
        placed(prefer=[{"weight": -5, "when": [A, B]}, {"weight": 100.0, "when": [A]}]),
        placed(prefer=[{"when": A}, {"weight": -5, "when": [B, A]}], strength=100),
    ],
    "affinity with": [
        {"affinity_with": NODE[0]},
        placed(prefer=[{"weight": 100, "when": {"node": NODE[0]}}]),
    ],
}


@pytest.mark.parametrize("meaning", SAME)
def test_equal_meanings_share_a_class(api: Api, queue: str, meaning: str) -> None:
    classes = [class_of(api, api.spawn(queue, **options)) for options in SAME[meaning]]
    assert len(set(classes)) == 1, classes


DIFFERENT: list[Row] = [
    {},
    {"tenant": "acme"},
    {"service_id": str(uuid4())},
    {"labels": {"app": "x"}},
    {"labels": {"app": "x", "tier": "y"}},
    placed(require=[label("n", 1)]),
    placed(require=[label("n", "1")]),
    placed(require=[label("n", True)]),
    placed(require=[label("n", 1, op="not_in")]),
    placed(require=[{"label": "n", "op": "exists"}]),
    placed(require=[{"node": NODE[0]}]),
    placed(require=[{"node": NODE[0], "away": True}]),
    placed(require=[{"node": NODE}]),
    placed(require=[{"rack": 1}]),
    placed(require=[{"rack": 1, "unknown": "pass"}]),
    placed(prefer=[{"when": label("n", 1)}]),
    placed(prefer=[{"weight": 99, "when": label("n", 1)}]),
    placed(prefer=[{"when": label("n", 1)}], strength=99),
    placed(prefer=[{"when": label("n", 1)}], strength=1),
    placed(resources={"cpu_milli": 1}),
    placed(resources={"memory_mib": 1}),
    placed(resources={"gpu": 1}),
    placed(resources={"gpu_milli": 1}),
    placed(resources={"license": 1}),
]


def test_other_meanings_have_classes_of_their_own(api: Api, queue: str) -> None:
    leases = [api.spawn(queue, **options) for options in DIFFERENT]
    leases += [api.spawn(queue, "other"), api.spawn(api.queue())]
    assert len({class_of(api, lease) for lease in leases}) == len(leases)
    # and what does not decide does not matter
    options: Row = {"priority": 9, "delay": 60, "max_attempts": 1, "headers": {"h": 1}}
    options |= {"idempotency_key": "k", "claim_timeout": 9}
    leases = [api.spawn(queue), *(api.spawn(queue, **{key: options[key]}) for key in options)]
    assert len({class_of(api, lease) for lease in leases}) == 1


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


NODE_ID = str(uuid4())
ANY: Row = {"exprs": []}
ISOLATED = {"isolation": {"gpu": "device_exclusive"}}
SHARE: Row = {"resources": {"gpu_milli": 500}}
MERGE = "select hwqueue.merge_placements(%s, %s, 'p')"


def merged(api: Api, left: Any, right: Any) -> Any:
    """Both placements, normalised, in one; the other way round it is the same."""
    sides = [Jsonb(normal(api, side)) for side in (left, right)]
    [result] = api.conn.execute(MERGE, sides).fetchone() or [None]
    assert api.conn.execute(MERGE, sides[::-1]).fetchone() == (result,)
    return result


WHOLE: Row = {
    "require": [{"lease": NODE_ID, "domain": "node"}, {"trust": "tee"}],
    "prefer": [{"weight": 5, "when": [{"rack": [1]}]}],
    "tolerate": [{"key": "k", "op": "exists"}],
    "spread": [{"domain": "rack", "max_per_domain": 1, "select": ANY}],
    "resources": {"cpu_milli": 100, "gpu": 2},
    "isolation": {"cpu": "whole_core", "gpu": "shared"},
    "strength": 20,
}


@pytest.mark.parametrize("part", [*WHOLE, "all"])
def test_each_part_is_carried(api: Api, part: str) -> None:
    placement = WHOLE if part == "all" else {part: WHOLE[part]}
    expected = normal(api, placement)
    assert expected.keys() >= placement.keys()
    assert merged(api, placement, {}) == expected
    assert merged(api, placement, placement) == expected
    assert merged(api, {"require": [{"trust": "b"}]}, placement) == normal(
        api, placement | {"require": [*placement.get("require", []), {"trust": "b"}]}
    )


@pytest.mark.parametrize("part", ["require", "prefer", "tolerate", "spread"])
def test_lists_are_joined(api: Api, part: str) -> None:
    more: Row = {
        "require": [{"rack": 7}],
        "prefer": [{"when": {"service": NODE_ID}}],
        "tolerate": [{"key": "a"}, {"op": "exists"}],
        "spread": [{"domain": "node", "max_skew": 1, "select": ANY}],
    }
    both = {part: more[part] + WHOLE[part]}
    assert merged(api, {part: WHOLE[part]}, {part: more[part]}) == normal(api, both)


def test_classes_of_either_side(api: Api) -> None:
    cpu, gpu = {"isolation": {"cpu": "whole_core"}}, {"isolation": {"gpu": "shared"}}
    assert merged(api, cpu, gpu) == normal(api, {"isolation": cpu["isolation"] | gpu["isolation"]})
    assert merged(api, SHARE, gpu)["resources"] == SHARE["resources"]


@pytest.mark.parametrize(
    "resources", [{"cpu_milli": 5}, {"gpu": 2}, {"gpu": 1}, {"cpu_milli": 5, "gpu": 4}, {}]
)
def test_a_count_beside_the_class_of_the_other_side(api: Api, resources: Row) -> None:
    """The one GPU that a class alone stands for gives way."""
    asked = {"resources": resources}
    assert merged(api, asked, ISOLATED) == normal(api, asked | ISOLATED)
    assert merged(api, asked | ISOLATED, ISOLATED) == normal(api, asked | ISOLATED)


CLASHES: list[tuple[Row, Row, Row]] = [
    (SHARE, ISOLATED, {"field": "p.isolation.gpu", "class": "device_exclusive"}),
    (
        {"isolation": {"cpu": "best_effort"}},
        {"isolation": {"cpu": "whole_core"}},
        {"field": "p", "class": "whole_core"},
    ),
    (
        {"isolation": {"gpu": "shared"}},
        {"isolation": {"gpu": "device_exclusive"}},
        {"field": "p", "class": "device_exclusive"},
    ),
    ({"resources": {"gpu": 1}}, {"resources": {"gpu": 2}}, {"field": "p"}),
    ({"resources": {"gpu": 2}}, {"resources": {"cpu_milli": 2}}, {}),
    ({"strength": 5}, {"strength": 6}, {"field": "p"}),
    ({"require": [{"lease": NODE_ID}]}, {"require": [{"lease": NODE_ID, "away": True}]}, {}),
]


@pytest.mark.parametrize(("left", "right", "detail"), CLASHES)
def test_what_contradicts_is_refused(api: Api, left: Row, right: Row, detail: Row) -> None:
    with pytest.raises(psycopg.Error) as caught:
        merged(api, left, right)
    refusal = read_refusal(caught.value)
    assert (refusal.code, bool(refusal.detail)) == ("QHC04", True)
    assert refusal.detail == (detail or refusal.detail)


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "placement.md").read_text()
BLOCKS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
RECIPES = re.findall(r"^\| .* \| `(\{.*?\})`.* \|$", PAGE.split("## Recipes")[1], re.MULTILINE)


def test_there_are_some() -> None:
    assert BLOCKS
    assert len(RECIPES) > 15


@pytest.mark.parametrize("text", BLOCKS + RECIPES)
def test_shown_placement(api: Api, text: str) -> None:
    shown: Any = json.loads(re.sub(r"\bID\b", f'"{uuid4()}"', text))
    assert normal(api, shown).keys() == shown.keys()


def test_the_limits_are_those_that_hold(api: Api) -> None:
    table = PAGE.split("## Limits")[1].split("\n## ")[0]
    shown = [int(number) for number in re.findall(r"^\| .* \| (\d+) \|$", table, re.MULTILINE)]
    limits = api.conn.execute("select * from hwqueue.placement_limits()").fetchone()
    assert limits is not None
    assert shown == [*limits, 65536]
