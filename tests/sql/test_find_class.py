"""Placement classes: leases share one exactly when everything that decides is equal."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.sql.api import Api
from tests.sql.explained import class_of

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
    {"labels": {"app": "y"}},
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
