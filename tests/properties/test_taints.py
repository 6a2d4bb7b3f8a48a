"""Taints and trust: filter, score and stops agree with the oracle, whatever they are."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count, product
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.oracle.expressions import holds
from tests.oracle.facts import Node as Facts
from tests.oracle.taints import Stay, matches, may_come, softened, stay
from tests.sql.api import Api, Node
from tests.sql.placed import codes, spawn_placed, stop, verdict

Items = list[dict[str, Any]]

# Few keys and values, so that they meet; values that are nearly integers.
KEYS = ("a", "b")
EFFECTS = ("no_schedule", "prefer_no_schedule", "no_execute")
VALUES = ("", "x", "5", "7", "-7", "05", "+5", "-0", "5.0", str(2**63), str(2**63 - 1), "\u0665")
BOUNDS = ("5", "-7", "0", str(-(2**63)), str(2**63 - 1))

keys = st.sampled_from(KEYS)
effects = st.sampled_from(EFFECTS)
values = st.sampled_from(VALUES)


def written(item: dict[str, Any]) -> dict[str, Any]:
    """In normal form: an empty value is left out, seconds go with no_execute alone."""
    kept = {key: value for key, value in item.items() if value not in ("", None)}
    if kept.get("effect") != "no_execute":
        kept.pop("seconds", None)
    return kept


taints = st.lists(
    st.fixed_dictionaries({"key": keys, "value": values, "effect": effects}).map(written),
    max_size=4,
    unique_by=lambda taint: (taint["key"], taint["effect"]),
)
more = {"effect": effects, "seconds": st.sampled_from([0, 5, 9])}
tolerations = st.lists(
    st.one_of(
        st.fixed_dictionaries({"key": keys, "op": st.just("equal"), "value": values}, optional=more),
        st.fixed_dictionaries({"op": st.just("exists")}, optional={"key": keys, **more}),
        st.fixed_dictionaries(
            {"key": keys, "op": st.sampled_from(["gt", "lt"]), "value": st.sampled_from(BOUNDS)},
            optional=more,
        ),
    ).map(written),
    max_size=4,
)
_queues = count()


@contextmanager
def one_node(api: Api) -> Iterator[tuple[str, Node]]:
    """A queue that scores by affinity alone, and a node; both are gone afterwards."""
    queue = f"taints-{next(_queues)}"
    tuning = {"weight_affinity": 1, "weight_fit": 0, "weight_spread": 0}
    api.rows("create_queue", queue=queue, policy={"tuning": tuning})
    node = api.node()
    try:
        yield queue, node
    finally:
        api.rows("drop_queue", queue=queue, force=True)
        for taint in api.used(node)["taints"]:
            api.rows("untaint_node", node=node.node_id, key=taint["key"])
        api.rows("deregister_node", node=node.node_id)


def taint(api: Api, node: Node, own: Items, operators: Items) -> None:
    """Have the node taint itself, and an operator taint it."""
    api.node(node.node_id, name=node.name, taints=own)
    for each in operators:
        api.rows("taint_node", node=node.node_id, taint=each)


def test_every_toleration_with_every_taint(conn: psycopg.Connection) -> None:
    """All pairs of them, so that no operator is missed on any value that is nearly an integer."""
    either = [None, *KEYS]
    asked = [
        written({"key": key, "op": op, "value": value, "effect": effect})
        for key, effect in product(either, [None, *EFFECTS])
        for op, value in [
            ("exists", ""),
            *(("equal", value) for value in VALUES if key),
            *((op, bound) for op in ("gt", "lt") for bound in BOUNDS if key),
        ]
    ]
    there = [
        written({"key": key, "value": value, "effect": effect})
        for key, value, effect in product(KEYS, VALUES, EFFECTS)
    ]
    rows = conn.execute(
        "select l, t, hwqueue.tolerates(l, t) from unnest(%s::jsonb[]) l, unnest(%s::jsonb[]) t",
        [list(map(Jsonb, asked)), list(map(Jsonb, there))],
    ).fetchall()
    assert [row for row in rows if matches(row[0], row[1]) != row[2]] == []
    assert len(rows) == len(asked) * len(there)


@given(
    own=taints,
    operators=taints,
    tolerate=tolerations,
    wish=st.sampled_from([(False, 100), (True, 100), (False, 30), (True, 30)]),
)
def test_what_may_come_and_how_it_scores(
    conn: psycopg.Connection, own: Items, operators: Items, tolerate: Items, wish: tuple[bool, int]
) -> None:
    """wish: whether the lease prefers the node, and the strength."""
    prefers, strength = wish
    api = Api(conn)
    union = own + [each for each in operators if each not in own]
    with one_node(api) as (queue, node):
        taint(api, node, own, operators)
        prefer = [{"weight": 40, "when": [{"node": [str(node.node_id)]}]}] if prefers else []
        placement = {"tolerate": tolerate, "prefer": prefer, "strength": strength}
        lease = spawn_placed(api, queue, **placement)
        rows = api.claim(node, queue)
        expected = may_come(tolerate, union)
        assert [row["lease_id"] for row in rows] == [lease] * expected
        assert (codes(api, node, **placement) == []) == expected
        for row in rows:
            affinity = 100.0 if prefers else 0.0
            softer = softened(affinity, tolerate, union)
            assert row["score"] == pytest.approx(softer * strength / 100)


@given(edits=st.tuples(taints, taints, taints), tolerate=tolerations)
def test_what_must_go_and_when(
    conn: psycopg.Connection, clock: Clock, edits: tuple[Items, Items, Items], tolerate: Items
) -> None:
    """After any edits it is as if only the taints that are there now had ever been put there."""
    clock.freeze()
    api = Api(conn)
    before, own, operators = edits
    with one_node(api) as (queue, node):
        lease = spawn_placed(api, queue, tolerate=tolerate)
        [claim] = api.claim(node, queue)
        assert claim["lease_id"] == lease
        first = stay(tolerate, before)
        taint(api, node, before, [])
        assert_stop(api, clock, claim, first)
        taint(api, node, own, operators)
        last = stay(tolerate, own + operators)
        told = first if first.seconds == 0 else last
        assert_stop(api, clock, claim, told)
        assert verdict(api, node, claim) == ("preempted" if told.seconds == 0 else "ok")
        for end in (told.seconds,) if told.seconds else ():
            clock.advance(timedelta(seconds=end))
            assert verdict(api, node, claim) == "preempted"


def assert_stop(api: Api, clock: Clock, claim: dict[str, Any], expected: Stay) -> None:
    """The claim is asked to stop when the oracle says so."""
    at = None if expected.seconds is None else clock.now() + timedelta(seconds=expected.seconds)
    reason, detail, requested_at, by = stop(api, claim)
    assert (requested_at, by) == (at, at)
    assert (reason, (detail or "")[:6]) == (("preempted", "taint ") if at else (None, ""))


DOMAINS = ("a", "b", "c")
SECOND = timedelta(seconds=1)

exprs = st.recursive(
    st.sampled_from([*({"trust": domain} for domain in DOMAINS), {"label": "x", "op": "exists"}]),
    lambda inner: st.lists(st.lists(inner, min_size=1, max_size=2), min_size=2, max_size=3).map(
        lambda branches: {"any": branches}
    ),
    max_leaves=6,
)
labels = st.sampled_from([{}, {"x": 1}])
# when each attestation ends, in seconds: 0 for none, None for never
ends = st.fixed_dictionaries(dict.fromkeys(DOMAINS, st.sampled_from([0, 2, 4, None])))
Ends = dict[str, int | None]


@given(require=st.lists(exprs, min_size=1, max_size=2), label=labels, edits=st.tuples(ends, ends))
def test_claims_and_the_oracle_agree(
    conn: psycopg.Connection,
    clock: Clock,
    require: list[dict[str, Any]],
    label: dict[str, Any],
    edits: tuple[Ends, Ends],
) -> None:
    """After each edit, and at each moment between two ends."""
    clock.freeze()
    api = Api(conn)
    queue, node = api.queue(), api.node(labels=label)
    lease = spawn_placed(api, queue, require=require)
    facts = Facts.from_spec(uuid4(), {"labels": label})
    for wanted in edits:
        attest(api, clock, node, wanted)
        for passed in range(5):
            trusts = {d for d, end in wanted.items() if end is None or end > passed}
            now = dataclasses.replace(facts, trusts=frozenset(trusts))
            expected = holds(require, now)
            assert (codes(api, node, require=require) == []) == expected
            with conn.transaction(force_rollback=True):
                assert api.claimed(node, queue) == [lease] * expected
                if expected and trusts:
                    check_revocations(api, node, require, now)
            clock.advance(SECOND)
    api.rows("drop_queue", queue=queue, force=True)
    api.rows("deregister_node", node=node.node_id)


def attest(api: Api, clock: Clock, node: Node, wanted: Ends) -> None:
    """Make the attestations of the node these."""
    for domain, end in wanted.items():
        if end == 0:
            api.rows("revoke_attestation", node=node.node_id, domain=domain)
        else:
            until = None if end is None else clock.now() + end * SECOND
            api.rows("attest_node", node=node.node_id, domain=domain, expires_at=until)


def check_revocations(api: Api, node: Node, require: list[dict[str, Any]], facts: Facts) -> None:
    """One domain after the other is revoked: the running lease goes when it cannot stay."""
    [row] = api.rows("list_leases", filter={"state": "claimed"}, limit=1)
    left = set(facts.trusts)
    for domain in sorted(facts.trusts):
        api.rows("revoke_attestation", node=node.node_id, domain=domain)
        left.discard(domain)
        may_stay = holds(require, dataclasses.replace(facts, trusts=frozenset(left)))
        assert verdict(api, node, row) == ("ok" if may_stay else "preempted")
        if not may_stay:
            return
