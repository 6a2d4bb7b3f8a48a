"""Placements of the whole grammar, each part wherever it may stand; few ids, labels and domains.

They are well formed; they may contradict themselves.
"""

from typing import Any
from uuid import uuid5

from hypothesis import strategies as st

from tests.properties.strategies import IDS, NODE_IDS, resources, strengths, telling_exprs

Exprs = st.SearchStrategy[dict[str, Any]]

DEEPEST = 4
LEASE_IDS = tuple(str(uuid5(IDS, f"lease-{number}")) for number in range(2))
SERVICE_IDS = tuple(str(uuid5(IDS, f"service-{number}")) for number in range(2))

_keys = st.sampled_from(["app", "track"])
_texts = st.sampled_from(["", "web", "db", "1", "1.0"])
_domains = st.sampled_from(["node", "rack", "label:zone"])
_directions: dict[str, st.SearchStrategy[Any]] = {
    "away": st.booleans(),
    "unknown": st.sampled_from(["pass", "fail", None]),
}


def _selector_exprs() -> Exprs:
    return st.one_of(
        st.fixed_dictionaries(
            {
                "label": _keys,
                "op": st.sampled_from(["in", "not_in"]),
                "values": st.lists(_texts, min_size=1, max_size=3),
            }
        ),
        st.fixed_dictionaries({"label": _keys, "op": st.sampled_from(["exists", "does_not_exist"])}),
    )


_labels = st.dictionaries(_keys, _texts)
_selector_lists = st.lists(_selector_exprs(), max_size=3)
selectors: Exprs = st.one_of(
    st.fixed_dictionaries({"labels": _labels}, optional={"exprs": _selector_lists}),
    st.fixed_dictionaries({"exprs": _selector_lists}),
    st.sampled_from([{"same": "service"}, {"same": "task"}]),
)

lease_exprs: Exprs = st.one_of(
    st.fixed_dictionaries(
        {"lease": st.sampled_from(LEASE_IDS)}, optional={"domain": _domains, **_directions}
    ),
    st.fixed_dictionaries(
        {"service": st.sampled_from(SERVICE_IDS)}, optional={"domain": _domains, **_directions}
    ),
    st.fixed_dictionaries(
        {"leases": selectors, "domain": _domains},
        optional={
            "tenants": st.one_of(
                st.just("*"), st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=3)
            ),
            **_directions,
        },
    ),
)
trust_exprs: Exprs = st.sampled_from(["tee", "Tee", "é"]).map(lambda domain: {"trust": domain})


def _depth(expr: dict[str, Any]) -> int:
    """How many `any` stand within each other."""
    return max((1 + max(map(_depth, branch), default=0) for branch in expr.get("any", [])), default=0)


def _with_branches(plain: Exprs) -> Exprs:
    branches = st.lists(st.lists(plain, min_size=1, max_size=2), min_size=1, max_size=3)
    nested = st.one_of(plain, branches.map(lambda found: {"any": found}))
    return nested.filter(lambda expr: _depth(expr) <= DEEPEST)


_required = _with_branches(st.one_of(telling_exprs, lease_exprs, trust_exprs))
_times = st.one_of(
    st.sampled_from([{}, {}, {"during": "scheduling"}, {"during": None, "grace": None}]),
    st.fixed_dictionaries(
        {"during": st.just("execution")},
        optional={"grace": st.sampled_from([0, 30, 30.0, "30 s", 0.5, None])},
    ),
)
requirements: Exprs = st.builds(lambda expr, times: expr | times, _required, _times)
_preferred = _with_branches(st.one_of(telling_exprs, lease_exprs))

preferences = st.fixed_dictionaries(
    {"when": st.one_of(_preferred, st.lists(_preferred, min_size=1, max_size=2))},
    optional={"weight": st.sampled_from([-100, 0, 1, 50.0, 100])},
)

_effects = st.sampled_from(["no_schedule", "prefer_no_schedule", "no_execute"])
_taint_keys = st.sampled_from(["gpu", "sla"])
_timed = st.fixed_dictionaries(
    {"effect": st.just("no_execute")}, optional={"seconds": st.sampled_from([0, 60])}
)
_tolerations = st.one_of(
    st.fixed_dictionaries({"op": st.just("exists")}, optional={"key": _taint_keys, "effect": _effects}),
    st.fixed_dictionaries(
        {"key": _taint_keys}, optional={"op": st.just("equal"), "value": _texts, "effect": _effects}
    ),
    st.fixed_dictionaries(
        {
            "key": _taint_keys,
            "op": st.sampled_from(["gt", "lt"]),
            "value": st.sampled_from([5, 5.0, "5", "05", "-5"]),
        },
        optional={"effect": _effects},
    ),
)
tolerations: Exprs = st.one_of(_tolerations, st.builds(lambda one, timed: one | timed, _tolerations, _timed))

_node_rules = st.fixed_dictionaries(
    {},
    optional={
        "affinity": st.sampled_from(["honor", "ignore", None]),
        "taints": st.sampled_from(["honor", "ignore", None]),
    },
)
_shares = st.one_of(
    st.just({"domain": "node", "targets": [{"value": str(NODE_IDS[0]), "percent": 100}]}),
    st.just({"domain": "node", "targets": [{"value": "*", "percent": 100}]}),
    st.lists(st.sampled_from([1, 2]), unique=True).map(
        lambda racks: {"domain": "rack", "targets": [{"value": r, "percent": 50} for r in racks]}
    ),
    st.lists(st.sampled_from(["a", 1, True, "*"]), unique_by=repr, max_size=3).map(
        lambda zones: {
            "domain": "label:zone",
            "targets": [{"value": zone, "percent": 32 + n} for n, zone in enumerate(zones)],
        }
    ),
)
spreads: Exprs = st.one_of(
    st.fixed_dictionaries(
        {"domain": _domains, "select": selectors, "max_skew": st.integers(1, 3)},
        optional={"min_domains": st.integers(1, 3), "when": st.just("require"), "count_nodes": _node_rules},
    ),
    st.fixed_dictionaries(
        {"domain": _domains, "select": selectors, "max_skew": st.integers(1, 3), "when": st.just("prefer")},
        optional={"count_nodes": _node_rules},
    ),
    st.fixed_dictionaries(
        {"domain": _domains | st.just("fleet"), "select": selectors, "max_per_domain": st.integers(1, 3)}
    ),
    st.builds(
        lambda shares, rest: shares | rest,
        _shares,
        st.fixed_dictionaries(
            {"select": selectors}, optional={"weight": st.sampled_from([1, 99.0, 100, None])}
        ),
    ),
)

isolations: Exprs = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["best_effort", "whole_core", "strict_isolated", None]),
        "gpu": st.sampled_from(["shared", "session_exclusive", "device_exclusive", None]),
    },
)

placements: Exprs = st.fixed_dictionaries(
    {},
    optional={
        "require": st.lists(requirements, max_size=3),
        "prefer": st.lists(preferences, max_size=3),
        "strength": strengths,
        "tolerate": st.lists(tolerations, max_size=3),
        "spread": st.lists(spreads, max_size=3),
        "resources": resources,
        "isolation": isolations,
    },
)
