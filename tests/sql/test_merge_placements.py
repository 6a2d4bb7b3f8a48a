"""merge_placements: two normal placements ANDed, each part of the grammar."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import Api, read_refusal
from tests.sql.test_normalise_lease_exprs import normal

ID = str(uuid4())
ANY: Row = {"exprs": []}
ISOLATED = {"isolation": {"gpu": "device_exclusive"}}
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


@pytest.mark.parametrize(
    "resources", [{"cpu_milli": 5}, {"gpu": 2}, {"gpu": 1}, {"cpu_milli": 5, "gpu": 4}, {}]
)
def test_a_count_beside_the_class_of_the_other_side(api: Api, resources: Row) -> None:
    """The one GPU that a class alone stands for gives way."""
    asked = {"resources": resources}
    assert merged(api, asked, ISOLATED) == normal(api, asked | ISOLATED)
    assert merged(api, asked | ISOLATED, ISOLATED) == normal(api, asked | ISOLATED)


def clash(api: Api, left: Row, right: Row) -> Row:
    """The detail of the refusal."""
    with pytest.raises(psycopg.Error) as caught:
        merged(api, left, right)
    refusal = read_refusal(caught.value)
    assert refusal.code == "QHC04"
    return refusal.detail


def test_a_share_beside_the_class_of_the_other_side(api: Api) -> None:
    share = {"resources": {"gpu_milli": 500}}
    assert merged(api, share, {"isolation": {"gpu": "shared"}})["resources"] == share["resources"]
    assert clash(api, share, ISOLATED)["class"] == "device_exclusive"


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_two_classes_are_refused(api: Api, kind: str) -> None:
    first, second = {
        "cpu": ("best_effort", "whole_core"),
        "gpu": ("shared", "device_exclusive"),
    }[kind]
    detail = clash(api, {"isolation": {kind: first}}, {"isolation": {kind: second}})
    assert detail == {"field": "p", "class": second}


def test_two_amounts_are_refused(api: Api) -> None:
    detail = clash(api, {"resources": {"gpu": 1}}, {"resources": {"gpu": 2}})
    assert detail == {"field": "p"}
    assert clash(api, {"resources": {"gpu": 2}}, {"resources": {"cpu_milli": 2}})


def test_two_strengths_are_refused(api: Api) -> None:
    assert clash(api, {"strength": 5}, {"strength": 6}) == {"field": "p"}


def test_contradictions_between_the_sides(api: Api) -> None:
    assert clash(api, {"require": [{"lease": ID}]}, {"require": [{"lease": ID, "away": True}]})
