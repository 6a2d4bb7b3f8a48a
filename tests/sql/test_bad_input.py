"""Bad input of spawns: each its own code, the field that is at fault, a hint, and nothing written.

Bad input of the other functions is tested beside each of them.
"""

import math
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.calls import TASK, Row
from tests.sql.api import Api, nested, raw, refusing

pytestmark = pytest.mark.thorough

ID = str(uuid4())
OTHER = str(uuid4())
LONG = "x" * 2000
Cases = list[tuple[str, Any]]


def field_of(api: Api, code: str, **options: Any) -> str | None:
    """What is at fault where a spawn with these options is refused."""
    return api.refused(code, "spawn_lease", queue=api.queue(), task=TASK, options=options).field


OPTIONS: Cases = [
    ("lease_id", "x"),
    ("lease_id", 7),
    ("priority", 32768),
    ("priority", -32769),
    ("priority", 1.5),
    ("priority", "high"),
    ("priority", 10**400),
    ("tenant", ""),
    ("tenant", "x" * 101),
    ("tenant", 7),
    ("service_id", "billing"),
    ("delay", -1),
    ("delay", "1 month"),
    ("delay", "1 year"),
    ("delay", "later"),
    ("delay", 10**400),
    ("delay", "99999999999 days"),
    ("delay", True),
    ("available_at", "2030-01-31 12:00"),
    ("available_at", "2030-01-31"),
    ("available_at", "2030-13-31T12:00:00Z"),
    ("available_at", "infinity"),
    ("available_at", 1893456000),
    ("available_at", "2030-01-01T00:00:00+99:00"),
    ("available_at", "2030-01-01T00:00:00+24:61"),
    ("available_at", "2030-01-01T25:00:00Z"),
    ("available_at", "0000-01-01T00:00:00Z"),
    ("available_at", "0001-01-01T00:00:00+00:01"),
    ("available_at", "9999-12-31T23:59:59-00:01"),
    ("deadline", "2030-01-01T00:00:00+16:00"),
    ("delay", "infinity"),
    ("deadline", "tomorrow"),
    ("max_attempts", 0),
    ("max_attempts", 1001),
    ("max_attempts", "5"),
    ("patience", -1),
    ("patience", "soon"),
    ("patience", "1 month"),
    ("claim_timeout", 0),
    ("claim_timeout", "1 month"),
    ("claim_timeout", 10**12),
    ("idempotency_key", ""),
    ("idempotency_key", "x" * 256),
    ("idempotency_key", {}),
    ("headers", "x"),
    ("headers", [1]),
    ("notify", "no"),
    ("labels", []),
    ("labels", {str(n): "x" for n in range(65)}),
    ("labels.app", {"app": 1}),
    ("labels.app", {"app": None}),
    ("labels.app", {"app": LONG}),
    ("labels.", {"": "x"}),
    ("retry", 5),
    ("retry.kind", {"kind": "sometimes"}),
    ("retry.base", {"base": "1 month"}),
    ("retry.factor", {"factor": 0.9}),
    ("retry.factor", {"factor": 1e300}),
    ("retry.jitter", {"jitter": -0.1}),
    ("retry.tries", {"tries": 3}),
    ("colour", "blue"),
]


@pytest.mark.parametrize(("field", "value"), OPTIONS)
def test_options(api: Api, field: str, value: Any) -> None:
    key = field.split(".", maxsplit=1)[0]
    assert field_of(api, "QHA01", **{key: value}) == f"options.{field}"


def test_options_as_a_whole_tasks_and_queues(api: Api, queue: str) -> None:
    both = {"delay": 5, "available_at": "2030-01-01T00:00:00Z"}
    assert field_of(api, "QHA01", **both) == "options.delay"
    wrong: list[Any] = [[], "x", 7, True]
    for options in wrong:
        assert api.fault("spawn_lease", queue=queue, task=TASK, options=options) == "options"
    for task in (None, "", "x" * 201, "a b", "-a", "a\tb", "naïve"):
        assert api.fault("spawn_lease", queue=queue, task=task) == "task"
    for unknown in ("nowhere", "", None, LONG):
        refusal = api.refused("QHQ01", "spawn_lease", queue=unknown, task=TASK)
        assert refusal.detail.get("queue") == (unknown[:100] if unknown is not None else None)


PLACEMENTS: Cases = [
    ("", []),
    ("", "x"),
    ("", {"require": [{"tags": {"k": LONG}}] * 40}),
    (".requires", {"requires": []}),
    (".require", {"require": {}}),
    (".require", {"require": [{"tags": {"a": 1}}] * 101}),
    (".require[0]", {"require": ["gpu"]}),
    (".require[1]", {"require": [{"tags": {}}, {}]}),
    (".require[0]", {"require": [{"node": ID, "rack": 1}]}),
    (".require[0].weight", {"require": [{"tags": {}, "weight": 1}]}),
    (".require[0].tags", {"require": [{"tags": ["gpu"]}]}),
    (".require[0].tags", {"require": [{"tags": {"": 1}}]}),
    (".require[0].tags", {"require": [{"tags": {"k" * 254: 1}}]}),
    (".require[0].label", {"require": [{"label": "", "op": "exists"}]}),
    (".require[0].label", {"require": [{"label": "x" * 254, "op": "exists"}]}),
    (".require[0].label", {"require": [{"label": 7, "op": "exists"}]}),
    (".require[0].op", {"require": [{"label": "a"}]}),
    (".require[0].op", {"require": [{"label": "a", "op": "is"}]}),
    (".require[0].value", {"require": [{"label": "a", "op": "in", "value": 1}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "in"}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "in", "values": []}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "in", "values": "b"}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "in", "values": [None]}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "in", "values": [[1]]}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "in", "values": [LONG]}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "in", "values": [10**2000]}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "exists", "values": [1]}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "gt", "values": ["4"]}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "gt", "values": [4, 5]}]}),
    (".require[0].values", {"require": [{"label": "a", "op": "regexp", "values": [4]}]}),
    (".require[0].values[0]", {"require": [{"label": "a", "op": "regexp", "values": ["("]}]}),
    (".require[0].values[0]", {"require": [{"label": "a", "op": "regexp", "values": ["(?=x)"]}]}),
    (".require[0].values[0]", {"require": [{"label": "a", "op": "regexp", "values": [r"(a)\1"]}]}),
    (".require[0].values[0]", {"require": [{"label": "a", "op": "regexp", "values": ["a{33}"]}]}),
    (".require[0].values[0]", {"require": [{"label": "a", "op": "regexp", "values": ["a" * 201]}]}),
    (".require[0].values[0]", {"require": [{"label": "a", "op": "version", "values": [">= x"]}]}),
    (".require[0].values[0]", {"require": [{"label": "a", "op": "semver", "values": ["~> 1"]}]}),
    (".require[0].any", {"require": [{"any": []}]}),
    (".require[0].any", {"require": [{"any": {}}]}),
    (".require[0].any[1]", {"require": [{"any": [[{"tags": {"a": 1}}], []]}]}),
    (".require[0].any[0][0].op", {"require": [{"any": [[{"label": "a", "op": "is"}]]}]}),
    (".require[0].node", {"require": [{"node": []}]}),
    (".require[0].node[0]", {"require": [{"node": "n1"}]}),
    (".require[0].node[1]", {"require": [{"node": [ID, None]}]}),
    (".require[0].rack[0]", {"require": [{"rack": -1}]}),
    (".require[0].rack[0]", {"require": [{"rack": 2**32}]}),
    (".require[0].rack[0]", {"require": [{"rack": "r1"}]}),
    (".require[0].resource[0]", {"require": [{"resource": "gpu0"}]}),
    (".require[0].resource", {"require": [{"resource": [ID, OTHER]}]}),
    (".require[0].away", {"require": [{"node": ID, "away": "yes"}]}),
    (".require[0].unknown", {"require": [{"rack": 1, "unknown": "maybe"}]}),
    (".prefer", {"prefer": {}}),
    (".prefer[0]", {"prefer": ["x"]}),
    (".prefer[0].weight", {"prefer": [{"weight": 101, "when": {"tags": {"a": 1}}}]}),
    (".prefer[0].weight", {"prefer": [{"weight": 0.5, "when": {"tags": {"a": 1}}}]}),
    (".prefer[0].when", {"prefer": [{"weight": 1, "when": []}]}),
    (".prefer[0].when[0]", {"prefer": [{"weight": 1}]}),
    (".prefer[0].if", {"prefer": [{"if": {}}]}),
    (".strength", {"strength": 0}),
    (".strength", {"strength": 101}),
    (".strength", {"strength": -5}),
    (".strength", {"strength": 0.5}),
    (".strength", {"strength": 1.5, "prefer": [{"when": {"tags": {"a": 1}}}]}),
    (".strength", {"strength": "5"}),
    (".strength", {"strength": True}),
    (".strength", {"strength": [5]}),
    (".strength", {"strength": 10**400}),
    (".prefer[0].strength", {"prefer": [{"strength": 5, "when": {"tags": {"a": 1}}}]}),
    (".resources", {"resources": []}),
    (".resources", {"resources": {f"r{n}": 1 for n in range(33)}}),
    (".resources.cpu_milli", {"resources": {"cpu_milli": -1}}),
    (".resources.cpu_milli", {"resources": {"cpu_milli": 0.5}}),
    (".resources.cpu_milli", {"resources": {"cpu_milli": "4"}}),
    (".resources.cpu_milli", {"resources": {"cpu_milli": 10**400}}),
    (".resources.memory_mib", {"resources": {"memory_mib": 10**13}}),
    (".resources.gpu", {"resources": {"gpu": 1025}}),
    (".resources.gpu_milli", {"resources": {"gpu_milli": 0}}),
    (".resources.gpu_milli", {"resources": {"gpu_milli": 1000}}),
    (".resources.License", {"resources": {"License": 1}}),
    (".resources." + "x" * 64, {"resources": {"x" * 64: 1}}),
]


@pytest.mark.parametrize(("field", "placement"), PLACEMENTS)
def test_malformed_placements(api: Api, field: str, placement: Any) -> None:
    assert field_of(api, "QHC03", placement=placement) == f"options.placement{field}"


def test_malformed_shorthands(api: Api) -> None:
    malformed = [("affinity_tags", ["gpu"]), ("affinity_tags", {"": 1})]
    for name, value in [*malformed, ("affinity_with", "n1"), ("anti_affinity_with", [ID])]:
        assert field_of(api, "QHC03", **{name: value}) == f"options.{name}"


@pytest.mark.parametrize("depth", [40, 3000, 8000])
def test_nested_too_deep(api: Api, depth: int) -> None:
    """Each where it is, whatever the depth does to the stack of the server."""
    options = raw(f'{{"affinity_tags": {nested(depth).obj}}}')
    refusal = api.refused("QHC03", "spawn_lease", queue=api.queue(), task=TASK, options=options)
    assert refusal.field == "options.affinity_tags"
    options = raw(f'{{"placement": {{"require": [{{"tags": {nested(depth).obj}}}]}}}}')
    refusal = api.refused("QHC03", "spawn_lease", queue=api.queue(), task=TASK, options=options)
    assert refusal.field == "options.placement"
    spec = raw(f'{{"name": "deep", "instance_id": "i", "labels": {nested(depth).obj}}}')
    assert api.fault("register_node", node=uuid4(), spec=spec) == "spec.labels"


def label(key: str, op: str, *values: Any) -> Row:
    return {"label": key, "op": op} | ({"values": list(values)} if values else {})


CONTRADICTIONS: list[Any] = [
    [label("a", "in", 1), label("a", "in", 2)],
    [label("a", "in", 1), label("a", "in", "1")],
    [label("a", "in", 1, 2), label("a", "not_in", 2, 1)],
    [label("a", "exists"), label("a", "does_not_exist")],
    [label("a", "in", 1), label("a", "does_not_exist")],
    [{"tags": {"a": 1}}, label("a", "in", 2)],
    [label("a", "gt", 5), label("a", "lt", 5)],
    [label("a", "gte", 6), label("a", "lte", 5)],
    [label("a", "gt", 5), label("a", "lte", 5)],
    [{"node": ID}, {"node": OTHER}],
    [{"node": ID}, {"node": ID, "away": True}],
    [{"node": [ID, OTHER]}, {"node": [OTHER, ID], "away": True}],
    [{"rack": [1, 2]}, {"rack": [3]}],
    [{"rack": 1}, {"rack": 1, "away": True}],
    [{"resource": ID}, {"resource": ID, "away": True}],
]


@pytest.mark.parametrize("require", CONTRADICTIONS)
def test_contradictions(api: Api, require: list[Row]) -> None:
    placement = {"require": require}
    assert field_of(api, "QHC04", placement=placement) == "options.placement.require"


def test_contradictions_elsewhere(api: Api) -> None:
    """Between options, and of whole devices and a share."""
    options = {"affinity_tags": {"a": 1}, "placement": {"require": [label("a", "in", 2)]}}
    assert field_of(api, "QHC04", **options) == "options"
    placement = {"resources": {"gpu": 1, "gpu_milli": 500}}
    assert field_of(api, "QHC04", placement=placement) == "options.placement.resources.gpu_milli"


@pytest.mark.parametrize(
    "require",
    [
        [label("a", "gte", 5), label("a", "lte", 5)],
        [label("a", "in", 1, 2), label("a", "in", 2, 3)],
        [label("a", "does_not_exist"), label("a", "not_in", 1)],
        [{"node": [ID, OTHER]}, {"node": ID, "away": True}],
        [{"resource": ID}, {"resource": OTHER}],
        [{"any": [[{"node": ID}, {"node": OTHER}], [label("a", "in", 1)]]}],
    ],
)
def test_what_only_looks_like_one(api: Api, require: list[Row]) -> None:
    assert api.state(api.spawn(api.queue(), placement={"require": require})) == "pending"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("22P05", "a\x00b"),  # untranslatable_character
        ("22P02", math.nan),  # invalid_text_representation: no JSON
        ("22P02", math.inf),
    ],
)
def test_what_json_cannot_hold(api: Api, queue: str, code: str, value: Any) -> None:
    """Postgres refuses it before any function sees it, or the driver; nothing is written all the same."""
    with api.unchanged():
        for arguments in (
            {"params": {"n": value}},
            {"options": {"headers": {"n": value}}},
            {"options": {"affinity_tags": {"n": value}}},
        ):
            with refusing(code):
                api.rows("spawn_lease", queue=queue, task=TASK, **arguments)
        with pytest.raises(psycopg.DataError):
            api.rows("spawn_lease", queue="a\x00b", task=TASK)


def test_numbers_that_are_large_but_numbers(api: Api) -> None:
    """They are labels like any other; the node's own compares equal."""
    queue, node = api.queue(), api.node(labels={"n": 10**400})
    lease = api.spawn(queue, affinity_tags={"n": 10**400})
    api.spawn(queue, affinity_tags={"n": 10**400 + 1})
    assert api.claimed(node, queue, qty=5) == [lease]
