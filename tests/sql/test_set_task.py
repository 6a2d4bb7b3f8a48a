"""set_task, list_tasks, drop_task: options that the leases of a task have by default."""

from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, raw

GPU = {"resources": {"gpu": 1}}
ALL: dict[str, Any] = {
    "placement": GPU,
    "affinity_tags": {"zone": "a"},
    "labels": {"app": "film"},
    "patience": 7,
    "priority": 3,
    "max_attempts": 1,
    "retry": {"kind": "fixed", "base": 9},
    "claim_timeout": 90,
}
OTHERS: dict[str, Any] = {
    "placement": {"resources": {"cpu_milli": 1}},
    "affinity_tags": {"disk": "ssd"},
    "labels": {"of": "mine"},
    "patience": 8,
    "priority": -3,
    "max_attempts": 2,
    "retry": {"kind": "none"},
    "claim_timeout": 91,
}
_LEASE = """
  select to_jsonb(l) - array['lease_id', 'position', 'created_at', 'idempotency_key']
  from hwqueue.lease l where l.lease_id = %s
"""

_numbers = count(1)


def new_task(api: Api, defaults: Any = None, /, **more: Any) -> str:
    """Set a task of the test's own; its name."""
    name = f"task-{next(_numbers)}"
    api.value("set_task", task=name, defaults=(defaults or {}) | more)
    return name


def stored(api: Api, lease: UUID) -> Any:
    """A lease's row but for what every lease has of its own; its class says the rest."""
    return api.one(_LEASE, lease)


def spawned(api: Api, how: str, queue: str, task: str, options: Any = None) -> UUID:
    """Spawn one lease, alone or in a batch; its id."""
    if how == "alone":
        row = api.row("spawn_lease", queue=queue, task=task, options=options)
    else:
        other = {"task": "other", "options": {"priority": 5}}
        batch = [other, {"task": task} | ({} if options is None else {"options": options}), other]
        row = api.rows("spawn_leases", queue=queue, leases=batch)[1]
    lease: UUID = row["lease_id"]
    return lease


@pytest.fixture(params=["alone", "batch"])
def how(request: pytest.FixtureRequest) -> str:
    """Each of the ways to spawn."""
    return str(request.param)


@pytest.mark.parametrize("option", ["all", *ALL])
def test_a_default_is_as_if_it_were_given(api: Api, how: str, option: str) -> None:
    queue, task = api.queue(), new_task(api)
    wanted = ALL if option == "all" else {option: ALL[option]}
    given = stored(api, spawned(api, how, queue, task, wanted))
    assert given != stored(api, spawned(api, how, queue, task))
    api.value("set_task", task=task, defaults=wanted)
    for options in (None, {}, {"tenant": None}):
        assert stored(api, spawned(api, how, queue, task, options)) == given


@pytest.mark.parametrize("option", ALL)
def test_an_option_of_the_spawn_replaces_the_default_of_its_name(api: Api, how: str, option: str) -> None:
    """As a whole: nothing of two placements or label sets is merged. Null: as without a default."""
    queue, task = api.queue(), new_task(api)
    rest = {key: value for key, value in ALL.items() if key != option}
    own, null = {option: OTHERS[option]}, {option: None}
    wanted = [stored(api, spawned(api, how, queue, task, rest | each)) for each in (own, {})]
    api.value("set_task", task=task, defaults=ALL)
    assert [stored(api, spawned(api, how, queue, task, each)) for each in (own, null)] == wanted


def test_options_that_no_task_has_go_with_the_defaults(api: Api, how: str) -> None:
    """An adopted lease has the defaults, too."""
    queue, task, node = api.queue(), new_task(api, ALL), api.node()
    own: Row = {"tenant": "acme", "headers": {"a": 1}, "deadline": "2100-01-01T00:00:00Z"}
    adopts = {"queue": queue, "node": node.node_id, "task": task, "options": own | {"placement": {}}}
    adopted = api.row("adopt_lease", **adopts)["lease_id"]
    for lease in map(api.lease, (spawned(api, how, queue, task, own), adopted)):
        assert (lease["tenant"], lease["headers"], lease["priority"]) == ("acme", {"a": 1}, 3)
        assert (lease["labels"], lease["max_attempts"]) == ({"app": "film"}, 1)


def test_other_tasks_and_leases_from_before_stay_as_they_are(api: Api, how: str) -> None:
    queue, task = api.queue(), new_task(api)
    before = spawned(api, how, queue, task)
    kept = stored(api, before)
    api.value("set_task", task=task, defaults=ALL)
    assert stored(api, before) == kept
    assert api.lease(spawned(api, how, queue, f"{task}-2"))["priority"] == 0
    api.value("update_lease", lease=before, changes={"labels": {"new": "one"}})
    lease = api.lease(before)
    assert (lease["priority"], lease["labels"], lease["placement"]) == (0, {"new": "one"}, {})


def test_a_batch_of_several_tasks(api: Api) -> None:
    """Each element has the defaults of its own task; equal ones are one class."""
    queue, gpu, low = api.queue(), new_task(api, placement=GPU), new_task(api, priority=-9)
    batch: list[Row] = [{"task": task} for task in (gpu, low, "none", gpu)]
    batch.append({"task": gpu, "options": {"priority": 4}})
    batch.append({"task": low, "options": None})
    before = api.contents()["placement_class"][0]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    leases = [api.lease(row["lease_id"]) for row in rows]
    assert [bool(lease["placement"]) for lease in leases] == [True, False, False, True, True, False]
    assert [lease["priority"] for lease in leases] == [0, -9, 0, 0, 4, -9]
    assert api.contents()["placement_class"][0] == before + 3


@pytest.mark.parametrize("options", [[], "x", {"priority": "x"}, {"retry": 3}])
def test_a_batch_at_fault_names_the_element(api: Api, options: Any) -> None:
    task = new_task(api, ALL)
    batch = [{"task": task}, {"task": task, "options": options}]
    refused = api.refused("QHA01", "spawn_leases", queue=api.queue(), leases=batch)
    assert refused.detail["index"] == 1


def test_a_key_compares_what_the_lease_got(api: Api, how: str) -> None:
    queue, task = api.queue(), new_task(api, labels={"a": "1"})
    key = {"idempotency_key": "once"}
    first = spawned(api, how, queue, task, key)
    assert spawned(api, how, queue, task, key | {"labels": {"a": "1"}}) == first
    api.value("set_task", task=task, defaults={"labels": {"a": "2"}})
    batch = [{"task": task, "options": key}]
    api.refused("QHT01", "spawn_leases", queue=queue, leases=batch)
    api.refused("QHT01", "spawn_lease", queue=queue, task=task, options=key)
    api.value("set_task", task=task, defaults={"labels": {"a": "1"}, "priority": 8})
    assert spawned(api, how, queue, task, key) == first


def test_a_dry_run_asks_as_a_spawn_would(api: Api, queue: str) -> None:
    """Placement null: what the defaults ask. One that is given is all that is asked."""
    task = new_task(api, placement={"resources": {"cpu_milli": 5}}, affinity_tags={"zone": "q"})
    fits, small, elsewhere = (
        api.node(labels={"zone": zone}, capacity={"cpu_milli": cpu})
        for zone, cpu in (("q", 5), ("q", 4), ("r", 5))
    )

    def able(placement: Any, name: str) -> set[UUID]:
        rows = api.rows("match_nodes", placement=placement, options={"task": name})
        eligible = {row["node_id"] for row in rows if row["eligible"]}
        return eligible & every

    every = {node.node_id for node in (fits, small, elsewhere)}
    assert able(None, task) == able(raw("null"), task) == {fits.node_id}
    assert able({}, task) == able(None, "other") == every
    assert able({"resources": {"cpu_milli": 4}}, task) == every
    lease = api.spawn(queue, task)
    assert [api.claimed(node, queue) for node in (small, elsewhere, fits)] == [[], [], [lease]]


def test_a_dry_run_has_the_labels_of_the_task(api: Api) -> None:
    """They decide beside which leases it may run; labels that are given replace them."""
    alone = {"require": [{"leases": {"labels": {"app": "x"}}, "domain": "node", "away": True}]}
    queue, task, node = api.queue(), new_task(api, labels={"app": "x"}), api.node()
    holder = api.spawn(queue, placement=alone)
    api.settle_terms()
    assert api.claimed(node, queue) == [holder]
    for labels, eligible in (({}, False), ({"labels": {}}, True), ({"labels": None}, True)):
        options: Row = {"task": task, "queue": queue} | labels
        rows = api.rows("match_nodes", placement={}, options=options)
        assert [row["eligible"] for row in rows if row["node_id"] == node.node_id] == [eligible]


BAD: list[tuple[str, str, Any]] = [
    ("QHC03", "placement", 3),
    ("QHC03", "placement", {"requires": []}),
    ("QHC03", "placement", {"resources": {"gpu": -1}}),
    ("QHC03", "affinity_tags", []),
    ("QHA01", "labels", {"a": 1}),
    ("QHA01", "labels", {"": "x"}),
    ("QHA01", "patience", -1),
    ("QHA01", "patience", "soon"),
    ("QHA01", "priority", 32768),
    ("QHA01", "priority", "1"),
    ("QHA01", "retry", {"kind": "never"}),
    ("QHA01", "retry", {"basis": 1}),
    ("QHA01", "claim_timeout", 0.5),
    ("QHA01", "claim_timeout", "31 days"),
]


@pytest.mark.parametrize(("code", "option", "value"), BAD, ids=str)
@pytest.mark.thorough
def test_what_a_spawn_refuses_is_no_default(api: Api, code: str, option: str, value: Any) -> None:
    """At the same place, in the same words."""
    refused = api.refused(code, "set_task", task="bad", defaults={option: value})
    options = {option: value}
    spawn = api.refused(code, "spawn_lease", queue=api.queue(), task="bad", options=options)
    assert spawn.field is not None
    assert refused.field == spawn.field.replace("options.", "defaults.", 1)
    assert refused.message == spawn.message.replace("options.", "defaults.", 1)


@pytest.mark.parametrize(
    ("field", "defaults"),
    [
        ("defaults", None),
        ("defaults", []),
        *((f"defaults.{key}", {key: None}) for key in ("prio", "tenant", "delay", "deadline")),
        *((f"defaults.{key}", {key: "x"}) for key in ("idempotency_key", "service_id", "wire")),
        ("defaults", {"labels": {f"k{n}": "v" * 1024 for n in range(64)}}),
    ],
)
@pytest.mark.thorough
def test_only_options_of_all_leases_are_defaults(api: Api, field: str, defaults: Any) -> None:
    assert api.fault("set_task", task="bad", defaults=defaults) == field


def test_set_list_and_drop(api: Api, clock: Clock) -> None:
    """Each change is an event, which says what was before."""
    for task in (None, "", "t" * 201):
        assert api.fault("set_task", task=task) == "task"
    name = "media/film.draw:4k@night"
    without = {key: value for key, value in ALL.items() if key != "patience"}
    assert api.value("set_task", task=name, defaults=ALL | {"patience": None}) == without
    at = clock.now()
    api.value("set_task", task=name, defaults={"priority": 1})
    assert api.value("set_task", task=name, defaults=raw('{"priority": 1}')) == {"priority": 1}
    row = listed(api, name)
    assert isinstance(row.pop("served"), bool)
    by = api.one("select session_user")
    assert row == {"task": name, "defaults": {"priority": 1}, "set_at": at, "set_by": by}
    assert [api.value("drop_task", task=name) for _ in range(2)] == [True, False]
    events = api.rows("list_events", filter={"code": ["task_set", "task_dropped"]}, limit=3)
    assert [(event["code"], event["detail"]) for event in events] == [
        ("task_dropped", {"task": name, "from": {"priority": 1}}),
        ("task_set", {"task": name, "from": without, "to": {"priority": 1}}),
        ("task_set", {"task": name, "from": None, "to": without}),
    ]
    assert [row for row in api.rows("list_tasks") if row["task"] == name] == []
    assert api.lease(api.spawn(api.queue(), name))["priority"] == 0


def listed(api: Api, name: str) -> Row:
    """What list_tasks says of a task."""
    [row] = [row for row in api.rows("list_tasks") if row["task"] == name]
    return row


def test_a_task_is_served_by_a_live_worker_with_its_handler(api: Api, clock: Clock) -> None:
    clock.advance(timedelta(days=1))  # nodes of other tests are silent
    name = new_task(api)
    assert listed(api, name)["served"] is False
    api.node(tasks=["other"], queues=["any"])
    assert listed(api, name)["served"] is False
    api.node(tasks=["other", name], queues=["any"])
    assert listed(api, name)["served"] is True
    clock.advance(timedelta(days=1))
    assert listed(api, name)["served"] is False
    api.node()  # it did not say what it has handlers for
    assert listed(api, name)["served"] is True


def differing(api: Api, name: str, declared: Any) -> dict[str, tuple[Any, Any]]:
    """What compare_tasks says of a task: by option what is declared and what is stored."""
    rows = api.rows("compare_tasks", defaults={name: declared})
    assert {row["task"] for row in rows} <= {name}
    return {row["option"]: (row["declared"], row["stored"]) for row in rows}


@pytest.mark.parametrize("option", ALL)
def test_each_declared_option_that_differs_is_told(api: Api, option: str) -> None:

    assert differing(api, new_task(api, ALL), ALL) == {}
    for other in (OTHERS[option], *([{}] if option == "labels" else [])):
        found = differing(api, new_task(api, ALL), ALL | {option: other})
        assert found == {option: (other, ALL[option])}
    without = {name: value for name, value in ALL.items() if name != option}
    assert differing(api, new_task(api, without), ALL) == {option: (ALL[option], None)}
    assert differing(api, new_task(api, ALL), without) == {}  # not declared: the database's counts


def test_one_value_in_two_forms_does_not_differ(api: Api) -> None:
    """A task that was never set differs in all that is declared."""

    def placement(*zones: str) -> Row:
        return {"require": [{"label": "zone", "op": "in", "values": [*zones]}]}

    retry = {"kind": "fixed", "base": "9 s"}
    more = {"retry": retry, "placement": placement("b", "a")}
    name = new_task(api, more, patience="5 min", claim_timeout="90 seconds")
    declared = {"patience": 300, "claim_timeout": 90, "retry": retry | {"base": 9}}
    same = declared | {"placement": placement("a", "b"), "labels": None}
    rows = api.rows("compare_tasks", defaults={name: same, "never-set": {"priority": 4, "labels": None}})
    assert [tuple(row.values()) for row in rows] == [("never-set", "priority", 4, None)]


@pytest.mark.thorough
def test_what_cannot_be_compared_is_refused(api: Api) -> None:
    many: dict[str, Any] = {f"t-{n}": {} for n in range(1001)}
    for declared in (None, raw("[]"), raw("3"), many):
        assert api.fault("compare_tasks", defaults=declared) == "p_defaults"
    name = new_task(api)
    for option, value in (("patience", "soon"), ("queue", "q")):
        found = api.fault("compare_tasks", defaults={name: {option: value}})
        assert found == f"p_defaults.{name}.{option}"


def test_one_bad_default_sets_none(api: Api) -> None:
    names = [f"task-{next(_numbers)}" for _ in range(2)]
    declared = {names[0]: {"priority": 1}, names[1]: {"priority": "high"}}
    assert api.fault("sync_tasks", defaults=declared) == f"p_defaults.{names[1]}.priority"
    assert not [row for row in api.rows("list_tasks") if row["task"] in names]


def synced(api: Api, name: str, declared: Any, version: str | None = None, **more: Any) -> Any:
    """Whether a worker's defaults came to be the database's; None: they were."""
    rows = api.rows("sync_tasks", defaults={name: declared}, version=version, **more)
    assert {row["task"] for row in rows} <= {name}
    return rows[0]["is_set"] if rows else None


def of_database(api: Api, name: str) -> Any:
    """The defaults of a task that spawns get."""
    return listed(api, name)["defaults"]


def test_an_app_sets_defaults_that_the_task_never_had_and_none_that_it_had(api: Api) -> None:
    name = f"task-{next(_numbers)}"
    first, second = {"patience": "5 min"}, {"patience": 6, "placement": GPU}
    assert synced(api, name, first) is True
    assert synced(api, name, {"patience": 300}) is None  # the same in another form
    assert synced(api, name, second) is True
    for _ in range(2):  # releases side by side, which start again and again
        assert synced(api, name, first) is False
        assert synced(api, name, second) is None
    assert of_database(api, name) == second
    assert synced(api, name, first, forces=True) is True  # a person goes back
    assert synced(api, name, second) is False
    assert synced(api, name, {"patience": 7}) is True


def test_of_two_apps_with_versions_the_higher_one_counts(api: Api) -> None:
    name = f"task-{next(_numbers)}"
    assert synced(api, name, {"priority": 1}, "1.10.0") is True
    assert synced(api, name, {"priority": 2}, "1.9.1") is False  # never had, but older
    assert synced(api, name, {"priority": 2}, "1.11") is True
    assert synced(api, name, {"priority": 1}, "1.12") is True  # had before, but newer
    assert synced(api, name, {"priority": 1}, "1.13") is None
    assert synced(api, name, {"priority": 3}, "1.12.5") is False  # the same since 1.13
    assert synced(api, name, {"priority": 2}, "a1b2c3") is False  # no version: had before
    assert synced(api, name, {"priority": 4}, "1.13") is True  # the same version, never had
    assert synced(api, name, {"priority": 5}) is True  # no version, never had
    assert synced(api, name, {"priority": 6}, "1.12.9") is False  # 1.13 has set them since
    assert of_database(api, name) == {"priority": 5}


def test_what_a_person_has_set_no_app_replaces(api: Api) -> None:
    name = new_task(api, priority=1)
    assert synced(api, name, {"priority": 2}, "9") is False
    assert synced(api, name, {"priority": 1}) is None
    assert of_database(api, name) == {"priority": 1}
    assert synced(api, name, {"priority": 1}, forces=True) is None  # from now on the app's
    assert synced(api, name, {"priority": 2}) is True
    api.value("set_task", task=name, defaults={"priority": 2})
    assert synced(api, name, {"priority": 3}) is False


def test_tasks_that_workers_declare_and_nobody_has_set_are_listed(api: Api, clock: Clock) -> None:
    one, other = (f"task-{next(_numbers)}" for _ in range(2))
    api.node(tasks=[one, other], declared=[one])
    told = {row["task"]: row for row in api.rows("list_tasks")}
    assert (told[one]["set_at"], told[one]["defaults"]) == (None, {})
    assert other not in told
    api.value("set_task", task=one, defaults={"priority": 1})
    assert listed(api, one)["set_at"] is not None
    api.value("drop_task", task=one)
    clock.advance(timedelta(days=1))
    assert one not in {row["task"] for row in api.rows("list_tasks")}
