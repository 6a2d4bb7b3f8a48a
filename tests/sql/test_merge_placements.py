"""Placements of several levels become one; those that the pages show can be submitted."""

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
from tests.sql.test_normalise_parts import normal

ID = str(uuid4())
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
    "require": [{"lease": ID, "domain": "node"}, {"trust": "tee"}],
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
        "prefer": [{"when": {"service": ID}}],
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
    ({"require": [{"lease": ID}]}, {"require": [{"lease": ID, "away": True}]}, {}),
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
