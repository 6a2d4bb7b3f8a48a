"""The normal form of placements: it is its own, order means nothing, and merging keeps it."""

import json
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.properties.grammar import placements

NORMALISE = "select hwqueue.normalise_placement(%s)"
MERGE = "select hwqueue.merge_placements(%s, %s, 'p')"
CONTRADICTORY = "QHC04"
LASTING = {"during": "execution", "grace": 30}


@given(placement=placements)
def test_the_normal_form_is_its_own(conn: psycopg.Connection, placement: dict[str, Any]) -> None:
    once = normal(conn, placement)
    if once is not None:
        assert normal(conn, once) == once


@given(placement=placements, random=st.randoms(use_true_random=False))
def test_order_and_duplicates_mean_nothing(
    conn: psycopg.Connection, placement: dict[str, Any], random: Random
) -> None:
    twice = {part: asked * 2 if isinstance(asked, list) else asked for part, asked in placement.items()}
    assert normal(conn, shuffled(twice, random)) == normal(conn, placement)


@given(placement=placements)
def test_a_placement_and_itself(conn: psycopg.Connection, placement: dict[str, Any]) -> None:
    once = normal(conn, placement)
    if once is not None:
        assert merged(conn, once, once) == once
        assert merged(conn, once, {}) == once


@settings(max_examples=min(30, settings().max_examples))
@given(placement=placements)
def test_what_counts_at_the_claim_alone_has_the_form_it_always_had(
    conn: psycopg.Connection, placement: dict[str, Any]
) -> None:
    """So its digest is the same, and so are the terms that others count by.

    And what holds during execution asks the same of a claim.
    """
    asked = [
        {key: value for key, value in expr.items() if key not in LASTING}
        for expr in placement.get("require", [])
    ]
    plain, written, found = (
        normal(conn, {**placement, "require": [expr | more for expr in asked]})
        for more in ({}, {"during": "scheduling"}, LASTING)
    )
    assert written == plain
    if plain is not None:
        assert all(LASTING.keys().isdisjoint(expr) for expr in plain.get("require", []))
        lasting = [expr | LASTING for expr in plain.pop("require", [])]
        assert sorted(found.pop("require", []), key=text) == sorted(lasting, key=text)
    assert found == plain


def normal(conn: psycopg.Connection, placement: Any) -> Any:
    """The normal form; None of a placement that contradicts itself."""
    try:
        row = conn.execute(NORMALISE, [Jsonb(placement)]).fetchone()
    except psycopg.Error as error:
        if error.sqlstate != CONTRADICTORY:
            pytest.fail(f"{error}: {placement}")
        event("contradictory")
        return None
    assert row is not None
    event("normal")
    return row[0]


def text(expr: Any) -> str:
    """What to sort by: the order of keys means nothing."""
    return json.dumps(expr, sort_keys=True)


def merged(conn: psycopg.Connection, left: Any, right: Any) -> Any:
    """Two normal placements in one."""
    [(found,)] = conn.execute(MERGE, [Jsonb(left), Jsonb(right)]).fetchall()
    return found


def shuffled(asked: Any, random: Random) -> Any:
    """The same in another order; what tags hold are values, and theirs counts."""
    if isinstance(asked, list):
        return random.sample([shuffled(part, random) for part in asked], len(asked))
    if isinstance(asked, dict):
        return {key: part if key == "tags" else shuffled(part, random) for key, part in asked.items()}
    return asked
