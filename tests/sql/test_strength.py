"""Strength: of two leases that prefer one node, it gets the one to which that matters more."""

from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from hwqueue.wire import Affinity, Category, Direction, Strength, TargetType, WireIntent, encode
from tests.calls import Row
from tests.sql.api import Api

pytestmark = pytest.mark.thorough

ON_GPU: list[Row] = [{"when": {"tags": {"gpu": True}}}]
# Two wishes of unequal weight: what they weigh only counts within the lease.
MIXED: list[Row] = [
    {"weight": 90, "when": {"tags": {"gpu": True}}},
    {"weight": 10, "when": {"tags": {"zone": "nowhere"}}},
]


def wish(strength: int | None = None, prefer: list[Row] = ON_GPU) -> Row:
    """A placement that would rather be on a node with a GPU."""
    return {"prefer": prefer} | ({} if strength is None else {"strength": strength})


def pair(api: Api, queue: str, first: Row, second: Row) -> dict[Any, str]:
    """Two leases of which the first was there first."""
    return {api.spawn(queue, placement=first): "first", api.spawn(queue, placement=second): "second"}


class TestOneNodeWithAGpu:
    """The situation that queues which place one task after the other are blamed for."""

    @pytest.mark.parametrize(
        ("first", "second", "served"),
        [
            (wish(5), wish(100), "second"),
            (wish(5), wish(), "second"),
            (wish(99), wish(100), "second"),
            (wish(100), wish(5), "first"),
            (wish(5), wish(5), "first"),
            (wish(), wish(), "first"),
            (wish(), wish(100), "first"),
            # without a strength all that counts is how much of its own wishes a lease gets
            ({"prefer": [ON_GPU[0] | {"weight": 5}]}, wish(), "first"),
            (wish(100, MIXED), wish(80), "first"),
            (wish(100, MIXED), wish(95), "second"),
            # without preferences it says nothing
            ({"strength": 1}, {}, "first"),
            ({}, {"strength": 1}, "first"),
            ({"strength": 100}, wish(1), "second"),
        ],
    )
    def test_the_stronger_wish_is_served(self, api: Api, first: Row, second: Row, served: str) -> None:
        """And the other one gets the other node."""
        queue = api.queue(patience=0)
        gpu, plain = (api.node(labels={"gpu": gpu}, slots=1) for gpu in (True, False))
        names = pair(api, queue, first, second)
        assert [names.pop(lease) for lease in api.claimed(gpu, queue)] == [served]
        assert api.claim(gpu, queue) == []
        assert api.claimed(plain, queue) == list(names)

    @pytest.mark.parametrize("way", ["node", "lease", "shorthand", "blob"])
    def test_however_the_node_is_preferred(self, api: Api, way: str) -> None:
        """Judged with the profile, judged for each node, and decided at each claim."""
        queue = api.queue(patience=0)
        node = api.node(slots=3)
        beside = api.running(queue, node)["lease_id"]
        prefers = (Category.TOPOLOGY, Strength.PREFERRED, Direction.TOWARD, TargetType.NODE)
        toward = Affinity(*prefers, node.node_id)
        ways: dict[str, Row] = {
            "node": {"placement": {"prefer": [{"when": {"node": str(node.node_id)}}]}},
            "lease": {"placement": {"prefer": [{"when": {"lease": str(beside)}}]}},
            "shorthand": {"affinity_with": str(node.node_id)},
            "blob": {"wire": f"\\x{encode(WireIntent(affinity=(toward,))).hex()}"},
        }
        asked = ways[way]
        weaker = {"placement": asked.get("placement", {}) | {"strength": 5}}
        weak = api.spawn(queue, **(asked | weaker))
        strong = api.spawn(queue, **asked)
        api.settle_terms()
        rows = [row for _ in range(2) for row in api.claim(node, queue)]
        assert [row["lease_id"] for row in rows] == [strong, weak]
        assert [row["score"] for row in rows] == [pytest.approx(1000), pytest.approx(50)]

    def test_a_stronger_dislike_stays_away_longer(self, api: Api) -> None:
        queue = api.queue(patience=0)
        node = api.node(labels={"gpu": True})
        rather_not = [ON_GPU[0] | {"weight": -100}]
        names = pair(api, queue, wish(100, rather_not), wish(5, rather_not))
        names[api.spawn(queue)] = "neutral"
        rows = api.claim(node, queue, qty=3)
        assert [names[row["lease_id"]] for row in rows] == ["neutral", "second", "first"]

    def test_priority_comes_before_strength(self, api: Api) -> None:
        queue = api.queue(patience=0)
        node = api.node(labels={"gpu": True})
        api.spawn(queue, placement=wish(100))
        urgent = api.spawn(queue, placement=wish(1), priority=1)
        assert api.claimed(node, queue) == [urgent]

    def test_it_counts_for_soft_taints_too(self, api: Api) -> None:
        """A lease without preferences has them against it."""
        queue = api.queue(patience=0)
        node = api.node(taints=[{"key": "old", "effect": "prefer_no_schedule"}])
        names = pair(api, queue, {}, {"strength": 10})
        rows = api.claim(node, queue, qty=2)
        assert [names[row["lease_id"]] for row in rows] == ["second", "first"]
        assert [row["score"] for row in rows] == [-50, -500]


@pytest.mark.parametrize("strength", [1, 3, 33, 100])
def test_it_changes_no_wait(api: Api, clock: Clock, strength: int) -> None:
    """A third of the way between the worst and the best node: a third of the patience."""
    assert clock is not None
    queue = api.queue(patience=3, poll_interval=60)
    zone = str(uuid4())
    best, middle, worst = (api.node(labels={"at": zone, "in": name}) for name in "abc")
    prefer = [
        {"weight": weight, "when": {"tags": {"at": zone, "in": name}}}
        for weight, name in ((90, "a"), (60, "b"))
    ]
    placement = {"prefer": prefer, "strength": strength, "require": [{"tags": {"at": zone}}]}
    lease = api.spawn(queue, placement=placement)
    for node, seconds in ((worst, 3), (middle, 1)):
        assert api.claim(node, queue) == []
        hint = api.row("claim_hint", queues=[queue], node=node.node_id)
        assert hint["retry_after"].total_seconds() == pytest.approx(seconds, abs=0.5)
    assert api.claimed(best, queue) == [lease]


def test_no_strength_makes_claims_on_the_best_node_look_at_others(api: Api) -> None:
    """The best that could be had is met to the last bit: such a class is granted unchecked."""
    queue, node = api.queue(), api.node(labels={"gpu": True, "b": 1, "c": 1})
    prefer = [
        {"weight": weight, "when": {"tags": tags}}
        for weight, tags in ((33, {"gpu": True}), (7, {"b": 1}), (1, {"c": 1}), (-9, {"d": 1}))
    ]
    options = [{"placement": wish(strength, prefer)} for strength in range(1, 101)]
    batch = [{"task": "work", "options": each} for each in options]
    leases = [row["lease_id"] for row in api.rows("spawn_leases", queue=queue, leases=batch)]
    assert api.claimed(node, queue, qty=100) == leases[::-1]
    checked = (
        "select array[count(*), count(*) filter (where e.is_checked)] from hwqueue.eligibility e"
        " join hwqueue.queue q on q.queue_id = e.queue_id where q.name = %s"
    )
    assert api.one(checked, queue) == [100, 0]


def test_matching_and_explaining_say_it(api: Api) -> None:
    queue, node = api.queue(), api.node(labels={"gpu": True})
    [row] = [row for row in api.rows("match_nodes", placement=wish(20)) if row["node_id"] == node.node_id]
    assert row["score"] == pytest.approx(200)
    found = api.row("explain_lease", lease=api.spawn(queue, placement=wish(20)))
    assert found["words"] == "prefers gpu in true, with strength 20 of 100"


KINDS, NODES, CLASSES = 4, 6, 20  # of nodes; of each kind; of leases
