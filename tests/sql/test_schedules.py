"""Schedules: which times fire, once each, and what they spawn. Times of cron are planned here by hand."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.flows import step
from tests.sql.api import Api

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
NIGHTLY = {"cron": "0 2 * * *", "zone": "Europe/Berlin"}
_numbers = count(1)
COPIES = """
  insert into hwqueue.schedule
  select (jsonb_populate_record(s, jsonb_build_object('name', s.name || '-' || n, 'schedule_id',
    gen_random_uuid()))).*
  from hwqueue.schedule s, generate_series(1, 100) n where s.name = %s
"""


@pytest.fixture(autouse=True)
def _own_schedules(api: Api, clock: Clock) -> None:
    """No schedule of an earlier test fires along, and the time is a whole minute, as those of cron are."""
    clock.advance(MINUTE - timedelta(seconds=clock.now().second, microseconds=clock.now().microsecond))
    for row in api.rows("list_schedules"):
        api.rows("drop_schedule", name=row["name"])


def made(api: Api, **spec: Any) -> str:
    """Create a schedule of the task in a queue of its own, unless it says another; its name."""
    name = f"s{next(_numbers)}"
    if not spec.keys() & {"queue", "workflow"}:
        spec["queue"] = api.queue()
    if "workflow" not in spec:
        spec.setdefault("task", TASK)
    assert api.value("create_schedule", name=name, spec=spec) is True
    return name


def listed(api: Api, name: str) -> Row:
    [row] = [row for row in api.rows("list_schedules") if row["name"] == name]
    return row


def plan(api: Api, name: str, *times: datetime, **more: Any) -> bool:
    """Plan the next times of a schedule, and one that is far."""
    far = [*times, api.one("select hwqueue.clock() + interval '300 days'")]
    revision = listed(api, name)["revision"]
    planned = api.value("plan_schedule", name=name, **{"revision": revision, "times": far} | more)
    assert isinstance(planned, bool)
    return planned


def fires(api: Api, name: str) -> list[tuple[datetime, str]]:
    """Which times fired, and what came of it, the oldest first."""
    rows = api.rows("schedule_history", name=name)
    return [(row["fire_at"], row["outcome"]) for row in reversed(rows)]


def spawned(api: Api, queue: str) -> list[Row]:
    leases = [row["lease_id"] for row in api.rows("list_leases", filter={"queue": queue})]
    return [api.lease(lease) for lease in leases]


def test_a_time_fires_once_and_spawns_a_lease(api: Api, clock: Clock, queue: str) -> None:
    options = {"priority": 7, "headers": {"team": "a"}}
    name = made(api, **NIGHTLY, queue=queue, params={"day": 1}, options=options)
    [due] = [row for row in api.rows("due_plans") if row["name"] == name]
    assert (due["cron"], due["zone"], due["from_at"], due["now"]) == (
        *NIGHTLY.values(), clock.now(), clock.now(),
    )  # fmt: skip
    first, second = clock.now() + HOUR, clock.now() + 2 * HOUR
    assert plan(api, name, first, second) is True
    assert [row["name"] for row in api.rows("due_plans")] == []
    assert listed(api, name)["next_at"] == first
    api.rows("reap")
    assert fires(api, name) == []
    clock.advance(HOUR)
    for _ in range(3):
        api.rows("reap")
    [row] = api.rows("schedule_history", name=name)
    assert (row["fire_at"], row["cause"], row["outcome"]) == (first, "due", "spawned")
    [lease] = spawned(api, queue)
    assert (lease["lease_id"], lease["params"], lease["priority"]) == (row["lease_id"], {"day": 1}, 7)
    assert lease["headers"] == {
        "team": "a", "schedule": name, "fire_at": first.astimezone(UTC).isoformat(),
    }  # fmt: skip
    assert listed(api, name)["next_at"] == second


@pytest.mark.parametrize(
    ("missed", "fired", "late"),
    [
        ("latest", [3], timedelta(0)),
        ("all", [1, 2, 3], timedelta(0)),
        ("skip", [3], MINUTE),
        ("skip", [], HOUR),
    ],
)
def test_what_becomes_of_missed_times(
    api: Api, clock: Clock, missed: str, fired: list[int], late: timedelta
) -> None:
    name = made(api, **NIGHTLY, missed=missed)
    began = clock.now()
    times = [began + n * HOUR for n in (1, 2, 3)]
    plan(api, name, *times)
    clock.advance(3 * HOUR + late)
    api.rows("reap")
    assert fires(api, name) == [(began + n * HOUR, "spawned") for n in fired]
    assert listed(api, name)["missed"] == 3 - len(fired)
    told = [row["detail"]["missed"] for row in api.rows("list_events", filter={"code": "schedule_missed"})]
    assert told[:1] == [3 - len(fired)] or missed == "all"
    api.rows("reap")
    assert len(fires(api, name)) == len(fired)


def test_the_latest_fires_only_once_the_plan_goes_beyond_now(api: Api, clock: Clock) -> None:
    """After a long outage the last time that was planned is not the latest."""
    name = made(api, **NIGHTLY)
    began = clock.now()
    row = listed(api, name)
    api.value("plan_schedule", name=name, revision=row["revision"], times=[began + HOUR])
    assert listed(api, name)["is_dry"] is False
    clock.advance(3 * HOUR)
    api.rows("reap")
    assert (fires(api, name), listed(api, name)["is_dry"]) == ([], True)
    assert [row["name"] for row in api.rows("due_plans")] == [name]
    plan(api, name, *(began + n * HOUR for n in (1, 2, 3)))
    api.rows("reap")
    assert fires(api, name) == [(began + 3 * HOUR, "spawned")]


def test_many_missed_times_fire_in_several_calls(api: Api, clock: Clock, queue: str) -> None:
    name = made(api, every=60, missed="all", queue=queue)
    clock.advance(250 * MINUTE)
    more = []
    for done in (100, 200, 250):
        more.append(api.row("reap")["more"])
        assert len(api.rows("schedule_history", name=name, limit=1000)) == done
    assert more == [True, True, False]
    clock.advance(timedelta(days=3))
    while api.row("reap")["more"]:
        pass
    assert len(api.rows("schedule_history", name=name, limit=10_000)) == 1250  # of a time 1,000 at most
    assert listed(api, name)["missed"] == 3 * 1440 - 1000
    hourly, began = made(api, **NIGHTLY), clock.now()
    clock.advance(timedelta(days=7))
    plan(api, hourly, *(began + n * 4 * MINUTE for n in range(1, 2521)))
    while api.row("reap")["more"]:  # it ends when its time is over
        pass
    assert (fires(api, hourly), listed(api, hourly)["missed"]) == ([(clock.now(), "spawned")], 2519)


def test_spans_begin_at_the_epoch_or_where_they_say(api: Api, clock: Clock) -> None:
    clock.advance(17 * timedelta(seconds=1))
    at = clock.now() + 5 * MINUTE
    name, later = made(api, every="10 min"), made(api, every=600, starts_at=at.isoformat())
    assert listed(api, name)["next_at"].timestamp() % 600 == 0
    assert listed(api, later)["next_at"] == at
    clock.advance(5 * MINUTE)
    api.rows("reap")
    assert fires(api, later) == [(at, "spawned")]
    assert listed(api, later)["next_at"] == at + 10 * MINUTE


def test_a_clock_that_is_set_back_begins_again(api: Api, clock: Clock) -> None:
    """By years; what has fired does not fire again."""
    times = [(clock.now() + n * HOUR).isoformat() for n in (1, 30)]
    often = {"every": 600, "starts_at": clock.now().isoformat()}
    span, list_, cron = made(api, **often), made(api, times=times), made(api, **NIGHTLY)
    plan(api, cron, clock.now() + HOUR)
    clock.advance(HOUR)
    api.rows("reap")
    before = fires(api, span), fires(api, list_)
    clock.advance(timedelta(days=3650))
    plan(api, cron, clock.now())
    later = made(api, **often)
    api.rows("reap")
    clock.advance(-timedelta(days=3650))
    for _ in range(2):
        api.rows("reap")
    assert [listed(api, name)["next_at"] for name in (span, later)] == [clock.now() + 10 * MINUTE] * 2
    assert listed(api, list_)["next_at"] == clock.now() + 29 * HOUR
    assert [row["name"] for row in api.rows("due_plans")] == [cron]
    assert plan(api, cron, clock.now() + 10 * MINUTE) is True
    clock.advance(10 * MINUTE)
    api.rows("reap")
    for name in (span, later, cron):
        assert (clock.now(), "spawned") in fires(api, name)
    assert [at for at, _ in fires(api, list_)][: len(before[1])] == [at for at, _ in before[1]]


def test_a_list_of_times_ends(api: Api, clock: Clock) -> None:
    at = clock.now() + HOUR
    name = made(api, times=[at.isoformat(), (at + HOUR).isoformat(), "2001-01-01T00:00:00Z"])
    clock.advance(HOUR)
    api.rows("reap")
    clock.advance(HOUR)
    api.rows("reap")
    assert fires(api, name) == [(at, "spawned"), (at + HOUR, "spawned")]
    assert (listed(api, name)["next_at"], listed(api, name)["is_dry"]) == (None, False)
    options = {"queue": api.queue(), "task": TASK, "times": ["2001-01-01T00:00:00Z"]}
    assert api.refused("QHD03", "create_schedule", name="past", spec=options).field == "spec.times"


def test_what_is_open_is_not_overlapped(api: Api, clock: Clock, queue: str) -> None:
    name, other = made(api, every=600, overlap="skip", queue=queue), made(api, every=600, queue=queue)
    api.spawn(queue, unique={"key": f"schedule:{name}"})  # a producer's own key
    clock.advance(10 * MINUTE)
    api.rows("reap")
    clock.advance(10 * MINUTE)
    api.rows("reap")
    first, second = reversed(api.rows("schedule_history", name=name))
    assert (first["outcome"], second["outcome"]) == ("spawned", "skipped_overlap")
    assert second["lease_id"] == first["lease_id"]
    assert [outcome for _, outcome in fires(api, other)] == ["spawned"] * 2
    api.rows("cancel_lease", lease=first["lease_id"])
    clock.advance(10 * MINUTE)
    api.rows("reap")
    assert [outcome for _, outcome in fires(api, name)] == ["spawned", "skipped_overlap", "spawned"]


def test_one_that_fails_stops_no_other_and_is_mended_by_a_backfill(api: Api, clock: Clock) -> None:
    lost = api.queue()
    name, other = made(api, every=600, queue=lost), made(api, every=600)
    api.rows("drop_queue", queue=lost)
    clock.advance(10 * MINUTE)
    api.rows("reap")
    [row] = api.rows("schedule_history", name=name)
    assert (row["outcome"], row["lease_id"], row["error"][:5]) == ("failed", None, "QHQ01")
    assert [outcome for _, outcome in fires(api, other)] == ["spawned"]
    [event] = api.rows("list_events", filter={"code": "schedule_failed"}, limit=1)
    assert (event["detail"]["schedule"], event["detail"]["sqlstate"]) == (name, "QHQ01")
    assert api.sound()
    api.rows("create_queue", queue=lost)
    [done] = api.rows("backfill_schedule", name=name, times=[row["fire_at"]], dry_run=False)
    assert done["outcome"] == "spawned"


def test_a_backfill_fires_each_time_once(api: Api, clock: Clock, queue: str) -> None:
    name = made(api, **NIGHTLY, queue=queue, overlap="skip", jitter=3600)
    times = [clock.now() - n * 24 * HOUR for n in (1, 2, 3)]
    call = {"name": name, "times": times}
    with api.unchanged():
        for dry in ({}, {"dry_run": None}):
            found = api.rows("backfill_schedule", **call, **dry)
            assert [row["outcome"] for row in found] == ["would_spawn"] * 3
    api.rows("backfill_schedule", name=name, times=times[:1], dry_run=False)
    outcomes = [row["outcome"] for row in api.rows("backfill_schedule", **call)]
    assert outcomes == ["would_spawn", "would_spawn", "fired_before"]
    outcomes = [row["outcome"] for row in api.rows("backfill_schedule", **call, dry_run=False)]
    assert outcomes == ["skipped_overlap", "skipped_overlap", "fired_before"]
    [lease] = spawned(api, queue)
    api.rows("cancel_lease", lease=lease["lease_id"])
    outcomes = [row["outcome"] for row in api.rows("backfill_schedule", **call, dry_run=False)]
    assert outcomes == ["spawned", "skipped_overlap", "fired_before"]
    assert {row["cause"] for row in api.rows("schedule_history", name=name)} == {"backfill"}
    before = datetime(1969, 12, 31, tzinfo=UTC)
    for wrong in ([clock.now() + MINUTE], [clock.now()] * 1001, [before], None):
        assert api.fault("backfill_schedule", name=name, times=wrong) == "p_times"


def test_what_was_fired_by_hand_does_not_fall_due(api: Api, clock: Clock) -> None:
    name = made(api, every=600)
    clock.advance(10 * MINUTE)
    at = listed(api, name)["next_at"]
    api.rows("backfill_schedule", name=name, times=[at], dry_run=False)
    api.rows("reap")
    assert [(row["fire_at"], row["cause"]) for row in api.rows("schedule_history", name=name)] == [
        (at, "backfill")
    ]


def test_jitter_is_the_same_again(api: Api, clock: Clock, queue: str) -> None:
    name = made(api, every=3600, jitter=1800, missed="all", queue=queue)
    clock.advance(4 * HOUR)
    api.rows("reap")
    fired = {row["lease_id"]: row["fire_at"] for row in api.rows("schedule_history", name=name)}
    waits = {fired[row["lease_id"]]: row["available_at"] for row in spawned(api, queue)}
    assert len(waits) == 4
    again = made(api, every=3600, queue=queue)
    api.conn.execute("update hwqueue.schedule set name = name || '-x' where name = %s", [name])
    api.conn.execute("update hwqueue.schedule set name = %s where name = %s", [name, again])
    api.rows("set_schedule", name=name, changes={"jitter": 1800})
    rows = api.rows("backfill_schedule", name=name, times=sorted(waits), dry_run=False)
    same = {row["fire_at"]: api.lease(row["lease_id"])["available_at"] for row in rows}
    assert same == waits
    late = [(waits[at] - at) / HOUR for at in waits if waits[at] > at]
    assert all(0 <= each < 0.5 for each in late)


def test_paused_nothing_fires_but_by_hand(api: Api, clock: Clock, queue: str) -> None:
    name = made(api, every=600, missed="all", queue=queue, params={"a": 1})
    assert api.value("pause_schedule", name=name, reason="leave") is True
    assert api.value("pause_schedule", name=name) is False
    clock.advance(HOUR)
    api.rows("reap")
    assert fires(api, name) == []
    row = listed(api, name)
    assert (row["paused_reason"], row["paused_by"], row["next_at"]) == ("leave", "postgres", None)
    for _ in range(2):  # at the same time
        fired = api.row("trigger_schedule", name=name, params={"a": 2})
        assert (fired["outcome"], api.lease(fired["lease_id"])["params"]) == ("spawned", {"a": 2})
    assert api.value("resume_schedule", name=name) is True
    assert api.value("resume_schedule", name=name) is False
    api.rows("reap")
    assert len(fires(api, name)) == 2  # what was due meanwhile is not made up for
    clock.advance(10 * MINUTE)
    api.rows("reap")
    causes = [row["cause"] for row in api.rows("schedule_history", name=name)]
    assert causes == ["due", "trigger", "trigger"]


def test_a_plan_for_another_revision_is_refused(api: Api, clock: Clock) -> None:
    name = made(api, **NIGHTLY)
    before = listed(api, name)["revision"]
    plan(api, name, clock.now() + HOUR)
    api.rows("set_schedule", name=name, changes={"params": {"b": 1}})
    assert listed(api, name)["next_at"] == clock.now() + HOUR  # its times are as they were
    api.rows("set_schedule", name=name, changes={"cron": "0 3 * * *", "zone": None})
    row = listed(api, name)
    assert (row["spec"]["zone"], row["next_at"]) == ("UTC", None)
    for revision in (before, None):
        assert plan(api, name, clock.now() + HOUR, revision=revision) is False
    with api.unchanged():  # it would not fire, and not be dry
        assert plan(api, name, times=[clock.now()]) is False
    for late in ("infinity", "10000-01-01 00:00Z"):  # no client could read it
        assert api.fault("plan_schedule", name=name, revision=row["revision"], times=[late]) == "p_times"
    clock.advance(2 * HOUR)
    api.rows("reap")
    assert fires(api, name) == []
    assert plan(api, name, clock.now() - 2 * HOUR, clock.now() - HOUR) is True
    api.rows("reap")
    assert fires(api, name) == [(clock.now() - HOUR, "spawned")]


def test_an_expression_that_nobody_can_read_says_so(api: Api, clock: Clock) -> None:
    name = made(api, cron="0 3 31 2 *")
    plan(api, name, times=[], problem="has no times")
    row = listed(api, name)
    assert (row["plan_error"], row["next_at"]) == ("has no times", None)
    assert api.rows("due_plans") == []
    clock.advance(timedelta(days=1))
    assert [row["name"] for row in api.rows("due_plans")] == [name]


def synced(api: Api, origin: str, **schedules: Row) -> Row:
    rows = api.rows("sync_schedules", origin=origin, schedules=schedules)
    return {row["name"]: row["change"] for row in rows}


def test_an_origin_syncs_its_own(api: Api, queue: str) -> None:
    spec: Row = {"every": 600, "queue": queue, "task": TASK}
    mine = made(api, **spec)
    assert synced(api, "billing", a=spec, b=spec) == {"a": "created", "b": "created"}
    assert synced(api, "mail", c=spec) == {"c": "created"}
    api.rows("pause_schedule", name="a")
    changed = spec | {"every": "20 minutes"}
    assert synced(api, "billing", a=changed, d=spec) == {"a": "changed", "b": "dropped", "d": "created"}
    assert synced(api, "billing", a=changed, d=spec) == {"a": "same", "d": "same"}
    assert listed(api, "a")["paused_at"] is not None
    assert {row["name"]: row["origin"] for row in api.rows("list_schedules")} == {
        "a": "billing", "d": "billing", "c": "mail", mine: None,
    }  # fmt: skip
    for name in ("c", mine):
        api.refused("QHD02", "sync_schedules", origin="billing", schedules={name: spec})
    api.rows("set_schedule", name="a", changes={"every": 600})
    assert listed(api, "a")["origin"] == "billing"
    with api.unchanged():
        assert api.fault("sync_schedules", origin="billing", schedules=None) == "schedules"
    assert synced(api, "billing") == {"a": "dropped", "d": "dropped"}


def test_a_schedule_that_is_there_is_not_written_over(api: Api, queue: str) -> None:
    spec: Row = {"every": "5 minutes", "queue": queue, "task": TASK}
    name = made(api, **spec)
    with api.unchanged():
        assert api.value("create_schedule", name=name, spec=spec | {"every": 300}) is False
    secret = {"params": {"password": "hunter2"}, "options": {"headers": {"key": "hunter2"}}}
    api.rows("set_schedule", name=name, changes=secret)
    refusal = api.refused("QHD02", "create_schedule", name=name, spec=spec | {"every": 301})
    api.rows("drop_schedule", name=name)
    told = api.rows("list_events", filter={"code": ["schedule_set", "schedule_dropped"]}, limit=3)
    assert (len(told), "hunter2" in f"{told} {refusal.detail}") == (3, False)
    # nothing has fired: a scan of the table reads no row
    api.conn.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    for function in ("pause_schedule", "resume_schedule", "trigger_schedule", "schedule_history"):
        api.refused("QHD01", function, name="none")
    api.conn.execute("reset enable_indexscan; reset enable_bitmapscan")


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"cron": None}, "QHD03", "spec"),
        ({"every": 60}, "QHD03", "spec"),
        ({"cron": "0 2 * *"}, "QHD03", "spec.cron"),
        ({"cron": "@daily"}, "QHD03", "spec.cron"),
        ({"zone": "europe/berlin"}, "QHD03", "spec.zone"),
        ({"cron": None, "every": 9}, "QHA01", "spec.every"),
        ({"cron": None, "times": ["tomorrow"]}, "QHD03", "spec.times"),
        ({"missed": "some"}, "QHD03", "spec.missed"),
        ({"jitter": "2 days"}, "QHA01", "spec.jitter"),
        ({"task": None}, "QHD03", "spec"),
        ({"workflow": "w"}, "QHD03", "spec"),
        ({"input": {}}, "QHD03", "spec"),
        ({"nonsense": 1}, "QHD03", "spec.nonsense"),
        ({"starts_at": "2030-01-31T12:00:00Z"}, "QHD03", "spec.starts_at"),
        ({"options": {"unique": {"key": "a"}}}, "QHD03", "spec.options"),
        ({"options": {"deadline": "2030-01-31T12:00:00Z"}}, "QHD03", "spec.options"),
        ({"options": {"priority": "high"}}, "QHA01", "options.priority"),
        ({"queue": "none"}, "QHQ01", None),
    ],
)
def test_a_bad_specification_changes_nothing(
    api: Api, queue: str, changes: Row, code: str, field: str | None
) -> None:
    spec = NIGHTLY | {"queue": queue, "task": TASK} | changes
    assert api.refused(code, "create_schedule", name="bad", spec=spec).field == field


def test_runs_of_workflows_are_submitted(api: Api, clock: Clock, queue: str) -> None:
    api.rows("define_workflow", spec={"name": "nightly", "queue": queue, "steps": [step("a")]})
    name = made(api, every=600, workflow="nightly", input={"n": 1}, overlap="skip")
    for _ in range(2):
        clock.advance(10 * MINUTE)
        api.rows("reap")
    first, second = reversed(api.rows("schedule_history", name=name))
    assert (first["outcome"], second["outcome"]) == ("spawned", "skipped_overlap")
    assert (first["lease_id"], second["run_id"]) == (None, first["run_id"])
    assert isinstance(first["run_id"], UUID)
    assert api.value("run_input", run=first["run_id"]) == {"n": 1}
    api.rows("cancel_workflow_run", run=first["run_id"])
    clock.advance(10 * MINUTE)
    api.rows("reap")
    assert fires(api, name)[-1][1] == "spawned"


def test_tenants_take_turns(api: Api, clock: Clock, queue: str) -> None:
    """One with many schedules that are due for longer does not keep another one waiting."""
    many = made(api, every=600, queue=queue, options={"tenant": "film"})
    api.conn.execute(COPIES, [many])
    one = made(api, every=1200, queue=queue, options={"tenant": "games"})
    clock.advance(20 * MINUTE)
    with api.conn.transaction():
        api.conn.execute("set local hwqueue.tenant = 'music'")  # whoever reaps
        api.rows("reap", limit=2)
    names = [row["name"] for row in api.rows("list_schedules", limit=102) if row["last_at"]]
    assert (len(names), one in names) == (2, True)
    page = api.rows("list_schedules", limit=51)
    rest = api.rows("list_schedules", after=page[-1]["name"])
    assert (len(rest), len({row["name"] for row in page + rest})) == (51, 102)


def test_fires_are_kept_as_long_as_what_ended(api: Api, clock: Clock) -> None:
    queue = api.queue(retain_completed="2 days", retain_failed="3 days")
    name = made(api, every="10 days", queue=queue)
    clock.advance(listed(api, name)["next_at"] - clock.now())
    api.rows("reap")
    for day, kept in ((2, 1), (2, 0)):
        clock.advance(timedelta(days=day))
        api.rows("prune")
        assert len(fires(api, name)) == kept


def test_figures_say_what_is_dry_and_late(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    def figures() -> dict[str, float]:
        rows = api.rows("metrics")
        return {row["name"]: row["value"] for row in rows if row["name"].startswith("hwqueue_schedule")}

    made(api, **NIGHTLY)
    made(api, every=3600)
    paused = made(api, every=600)
    api.rows("pause_schedule", name=paused)
    failed = made(api, times=[(clock.now() + MINUTE).isoformat()], queue=(lost := api.queue()))
    api.rows("drop_queue", queue=lost)
    assert set(figures().values()) == {4, 0}
    clock.advance(MINUTE)
    api.rows("reap")
    assert (figures()["hwqueue_schedules_failed"], fires(api, failed)[0][1]) == (1, "failed")
    at = [row["next_at"] for row in api.rows("list_schedules")]
    clock.advance(2 * HOUR)
    late = (clock.now() - next(each for each in at if each)).total_seconds()
    assert figures() == {
        "hwqueue_schedules": 4,
        "hwqueue_schedules_dry": 1,
        "hwqueue_schedules_failed": 1,
        "hwqueue_schedule_oldest_due_seconds": late,
    }
