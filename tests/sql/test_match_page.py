"""match_page: what match_nodes says, counted, and a page of it."""

from collections import Counter

import pytest

from tests.calls import Row
from tests.sql.api import Api

WANTED: Row = {
    "require": [{"label": "zone", "op": "in", "values": ["a", "b"]}],
    "prefer": [{"weight": 5, "when": {"label": "zone", "op": "in", "values": ["b"]}}],
    "resources": {"cpu_milli": 500},
}


def page(api: Api, **options: int) -> Row:
    """The only row."""
    return api.row("match_page", placement=WANTED, **options)


def test_without_nodes(api: Api) -> None:
    assert page(api) == {"nodes": 0, "eligible": 0, "reasons": {}, "items": []}


def test_pages_are_those_of_all(api: Api) -> None:
    for zone in ("a", "b", "c", "a", "b", "c"):
        api.node(labels={"zone": zone}, capacity={"cpu_milli": 100 if zone == "c" else 1000})
    rows = api.rows("match_nodes", placement=WANTED)
    items = [{**row, "node_id": str(row["node_id"])} for row in rows]
    codes = Counter(code for row in rows for code in {each["code"] for each in row["reasons"]})
    assert codes
    seen = []
    for skip in range(0, 8, 2):
        found = page(api, limit=2, skip=skip)
        assert (found["nodes"], found["eligible"], found["reasons"]) == (6, 4, codes)
        seen += found["items"]
    assert seen == items
    assert page(api)["items"] == items


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limit": 0}, "p_limit"),
        ({"limit": None}, "p_limit"),
        ({"limit": 10_001}, "p_limit"),
        ({"skip": -1}, "p_skip"),
        ({"skip": None}, "p_skip"),
    ],
)
@pytest.mark.thorough
def test_what_is_no_page(api: Api, options: Row, field: str) -> None:
    refusal = api.refused("QHA01", "match_page", placement=WANTED, **options)
    assert refusal.field == field
