"""Random nodes and placements, small enough that they often meet.

Few label keys, racks, resources and values: a condition over a wide space never holds, and a test
that never sees a match proves nothing.
"""

from typing import Any
from uuid import UUID, uuid5

from hypothesis import strategies as st

IDS = UUID("0b6a2c52-44f5-5a0c-8a53-6d9d3a3f7f10")
NODE_IDS = tuple(uuid5(IDS, f"node-{number}") for number in range(4))
STRANGER = str(uuid5(IDS, "nobody registered this one"))
RESOURCE_IDS = tuple(str(uuid5(IDS, f"resource-{number}")) for number in range(3))
DEVICES = tuple(str(uuid5(IDS, f"gpu-{node}-{index}")) for node in range(2) for index in (0, 1))
KEYS = ("arch", "zone", "v", "set")

TEXTS = ("", "a", "b", "a100", "10", "-12.5", "0206", "+5", "1e3", " 7", "true", "é")
VERSIONS = ("1", "1.2.3", "1.2.3-rc.1", "1.2.3-rc.2", "1.2.3beta1", "v2.0", "2.0.0+ent", "1.2.3.4")
RANGES = (
    "= 1.2.3",
    "1.2.3-rc.1",
    "!= 1.2.3",
    ">= 1.0, < 2",
    "> 1.2.3-rc.1",
    "<= 1.2.3-rc.2",
    "< 2.0.0-beta",
    "<2",
    "~> 1.2",
    "~> 1.2.3",
    "~> 1.2.3-rc.1",
    "~> 1",
)
PATTERNS = ("a", "^a", "^$", "[0-9]+", r"\d\d", "a|b", "^(a|b)[0-9]{3}", "^[^a]", r"-?\d+\.")

_numbers = st.sampled_from([0, 1, 1.0, 10, -12.5, 206, 5, 0.1])
_scalars = st.one_of(st.sampled_from(TEXTS), _numbers, st.booleans())
_label_values = st.one_of(
    _scalars,
    st.sampled_from(VERSIONS),
    st.lists(_scalars, max_size=3),
    st.dictionaries(st.sampled_from(["k", "l"]), _scalars, max_size=2),
    st.just("x" * 256 + "a"),
)
labels = st.dictionaries(st.sampled_from(KEYS), _label_values, max_size=4)


@st.composite
def node_specs(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """A spec for `register_node`: labels, and whatever of rack, capacity and devices is drawn."""
    device_ids = [str(uuid5(IDS, f"gpu-{number}-{index}")) for index in range(3)]
    capacity = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "cpu_milli": st.sampled_from([0, 1000, 4000]),
                "memory_mib": st.sampled_from([0, 1024, 8192]),
                "license": st.integers(0, 2),
            },
        )
    )
    spec = {
        "name": f"node-{number}",
        "instance_id": "first",
        "labels": draw(labels),
        "capacity": capacity,
        "resources": draw(st.lists(st.sampled_from(RESOURCE_IDS), unique=True, max_size=2)),
        "gpus": [
            {"resource_id": device, "model": "T4", "memory_mib": 16384}
            for device in device_ids[: draw(st.integers(0, 3))]
        ],
    }
    optional = {
        "rack": draw(st.sampled_from([None, 1, 2])),
        "slots": draw(st.sampled_from([None, None, None, 0, 1])),
    }
    return spec | {key: value for key, value in optional.items() if value is not None}


def _label_exprs() -> st.SearchStrategy[dict[str, Any]]:
    keys = st.sampled_from((*KEYS, "nobody-has-this"))
    values = {
        "in": st.lists(_scalars, min_size=1, max_size=3),
        "not_in": st.lists(_scalars, min_size=1, max_size=3),
        "regexp": st.sampled_from(PATTERNS).map(lambda pattern: [pattern]),
        "version": st.sampled_from(RANGES).map(lambda bounds: [bounds]),
        "semver": st.sampled_from([r for r in RANGES if "~>" not in r]).map(lambda b: [b]),
        "contains_all": st.lists(_scalars, min_size=1, max_size=2),
        "contains_any": st.lists(_scalars, min_size=1, max_size=2),
    } | {op: _numbers.map(lambda number: [number]) for op in ("gt", "gte", "lt", "lte")}
    with_values = [
        st.fixed_dictionaries({"label": keys, "op": st.just(op), "values": operands})
        for op, operands in values.items()
    ]
    presence = st.fixed_dictionaries({"label": keys, "op": st.sampled_from(["exists", "does_not_exist"])})
    other_ops = ["in", "not_in", "gt", "gte", "lt", "lte", "contains_all", "contains_any"]
    with_label = st.fixed_dictionaries({"label": keys, "op": st.sampled_from(other_ops), "other_label": keys})
    return st.one_of(*with_values, presence, with_label)


def _target_exprs() -> st.SearchStrategy[dict[str, Any]]:
    nodes = st.sampled_from([*map(str, NODE_IDS), STRANGER])
    away = {"away": st.booleans()}
    return st.one_of(
        st.fixed_dictionaries(
            {"node": st.one_of(nodes, st.lists(nodes, min_size=1, max_size=3))}, optional=away
        ),
        st.fixed_dictionaries(
            {"rack": st.one_of(st.integers(1, 3), st.lists(st.integers(1, 3), min_size=1))},
            optional=away | {"unknown": st.sampled_from(["pass", "fail"])},
        ),
        st.fixed_dictionaries(
            {"resource": st.sampled_from([*RESOURCE_IDS, *DEVICES, STRANGER])}, optional=away
        ),
    )


def _exprs(min_tags: int) -> st.SearchStrategy[dict[str, Any]]:
    tags = st.dictionaries(st.sampled_from(KEYS), _label_values, min_size=min_tags, max_size=2)
    plain = st.one_of(
        _label_exprs(), _label_exprs(), _target_exprs(), tags.map(lambda asked: {"tags": asked})
    )
    return st.recursive(
        plain,
        lambda inner: st.lists(st.lists(inner, min_size=1, max_size=2), min_size=1, max_size=3).map(
            lambda branches: {"any": branches}
        ),
        max_leaves=8,
    )


exprs = _exprs(min_tags=0)
# whether a preference that asks nothing counts in the scale is not what is tested
telling_exprs = _exprs(min_tags=1)

resources: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "cpu_milli": st.sampled_from([0, 500, 1000, 3000]),
            "memory_mib": st.sampled_from([0, 512, 1024, 8192]),
            "license": st.integers(0, 2),
            "tape": st.integers(0, 1),
            "gpu": st.integers(0, 3),
        },
    ),
    st.fixed_dictionaries({"gpu_milli": st.sampled_from([1, 300, 500, 999])}),
)
preferences = st.lists(
    st.fixed_dictionaries(
        {
            "weight": st.sampled_from([-100, -1, 0, 1, 7, 50, 100]),
            "when": st.one_of(telling_exprs, st.lists(telling_exprs, min_size=1, max_size=2)),
        }
    ),
    max_size=3,
    # no two alike: whether a repeated preference counts once or twice is not what is tested
    unique_by=lambda preference: preference["weight"],
)
PATTERN_OPS = ("regexp", "version", "semver")
MOST_PATTERNS = 8  # in one placement; more are refused


def _patterns(asked: Any) -> int:
    """How many expressions in there have patterns."""
    if isinstance(asked, list):
        return sum(map(_patterns, asked))
    if isinstance(asked, dict):
        return (asked.get("op") in PATTERN_OPS) + sum(map(_patterns, asked.values()))
    return 0


strengths = st.sampled_from([1, 5, 50.0, 100, None])
placements = st.fixed_dictionaries(
    {"require": st.lists(exprs, max_size=2), "prefer": preferences, "resources": resources},
    optional={"strength": strengths},
).filter(lambda asked: _patterns(asked) <= MOST_PATTERNS)

# Requests that compete: one resource each or two, and now and then a device by name.
competing = st.fixed_dictionaries(
    {
        "resources": st.sampled_from(
            [
                {"cpu_milli": 1000},
                {"cpu_milli": 3000, "license": 1},
                {"memory_mib": 1024},
                {"license": 1},
                {"gpu": 1},
                {"gpu": 2, "cpu_milli": 500},
                {"gpu_milli": 300},
                {"gpu_milli": 700},
                {},
            ]
        ),
        "require": st.one_of(
            st.just([]), st.just([]), st.sampled_from(DEVICES).map(lambda device: [{"resource": device}])
        ),
    }
)
