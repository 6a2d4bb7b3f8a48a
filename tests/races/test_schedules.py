"""A time fires once, however many sessions reap, and what one of them holds keeps no other one."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pytest

from hwqueue.testing import Clock, install_clock
from tests.races.interleave import TIMEOUT, Actors
from tests.sql.api import Api

MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock(conn: psycopg.Connection) -> Clock:
    clock = install_clock(conn)
    clock.freeze()
    return clock


@pytest.fixture
def api(actor: Actors, clock: Clock) -> Api:
    return Api(actor().conn)


def made(api: Api, name: str, **spec: object) -> str:
    queue = api.queue()
    api.rows("create_schedule", name=name, spec={"every": 60, "queue": queue, "task": "t"} | spec)
    return queue


def fired(api: Api, name: str) -> list[datetime]:
    rows = api.rows("schedule_history", name=name)
    assert {row["outcome"] for row in rows} <= {"spawned"}
    return [row["fire_at"] for row in rows]


def test_twenty_callers_fire_each_time_once(dsn: str, api: Api, clock: Clock) -> None:
    """One of ten transactions is rolled back; what it fired is fired by another one."""
    queues = [made(api, f"s{n}", missed="all") for n in range(5)]

    def reap_ten_times(number: int) -> None:
        with psycopg.connect(dsn) as conn:
            for turn in range(10):
                conn.execute("select hwqueue.reap()")
                conn.rollback() if (number + turn) % 10 == 0 else conn.commit()

    for _ in range(3):
        clock.advance(2 * MINUTE)
        with ThreadPoolExecutor(20) as pool:
            assert [*pool.map(reap_ten_times, range(20))]
        api.rows("reap")
    for number, queue in enumerate(queues):
        times = fired(api, f"s{number}")
        assert len(times) == len({*times}) == 6
        assert len(api.rows("list_leases", filter={"queue": queue})) == 6


def test_who_reaps_beside_another_one_fires_nothing_twice(actor: Actors, api: Api, clock: Clock) -> None:
    made(api, "s")
    clock.advance(MINUTE)
    one, two = Api(actor().begin().conn), Api(actor().conn)
    one.rows("reap")
    two.rows("reap")
    assert fired(two, "s") == []  # the other one holds it, and may yet roll back
    one.conn.execute("rollback")
    two.rows("reap")
    assert len(fired(two, "s")) == 1


def test_a_key_that_is_held_puts_one_schedule_off(actor: Actors, api: Api, clock: Clock) -> None:
    queue = made(api, "held", overlap="skip")
    made(api, "other")
    holder = actor().begin()
    key = "select 'schedule:' || schedule_id from hwqueue.schedule where name = 'held'"
    Api(holder.conn).spawn(queue, unique={"key": api.one(key)})
    clock.advance(MINUTE)
    leader = actor().begin()
    leader.conn.execute("select from hwqueue.reap_cursor order by version desc limit 1 for update")
    assert not api.row("reap")["more"]  # to whom does not lead, or it would try again and again
    leader.rollback()
    api.rows("reap")
    assert (fired(api, "held"), len(fired(api, "other"))) == ([], 1)
    [event] = api.rows("list_events", filter={"code": "upkeep_postponed"})
    assert event["detail"]["part"] == "schedule"
    holder.rollback()
    api.rows("reap")
    assert fired(api, "held") == []  # a second later
    clock.advance(timedelta(seconds=1))
    api.rows("reap")
    assert len(fired(api, "held")) == 1


def test_a_backfill_meets_the_reaper(actor: Actors, api: Api, clock: Clock) -> None:
    """It waits for it, and fires nothing again."""
    made(api, "s")
    clock.advance(MINUTE)
    [row] = api.rows("list_schedules")
    reaper, other = actor().begin(), actor()
    Api(reaper.conn).rows("reap")
    call = {"name": "s", "times": [row["next_at"]], "dry_run": False}
    waits = other.parked(lambda d: Api(d.conn).rows("backfill_schedule", **call))
    reaper.commit()
    assert [each["outcome"] for each in waits.result(TIMEOUT)] == ["fired_before"]
    assert len(fired(api, "s")) == 1


def test_a_plan_meets_an_edit(actor: Actors, api: Api) -> None:
    made(api, "s", cron="0 2 * * *", every=None)
    [due] = api.rows("due_plans")
    editor, planner = actor().begin(), actor()
    Api(editor.conn).rows("set_schedule", name="s", changes={"cron": "0 3 * * *"})
    call = {
        "name": "s",
        "revision": due["revision"],
        "times": [due["now"].replace(second=0, microsecond=0) + MINUTE],
    }
    waits = planner.parked(lambda d: Api(d.conn).value("plan_schedule", **call))
    assert api.rows("due_plans") == []  # no other planner waits for it
    editor.commit()
    assert waits.result(TIMEOUT) is False
    assert api.rows("list_schedules")[0]["next_at"] is None


def test_two_that_declare_the_same(actor: Actors, api: Api) -> None:
    queue = api.queue()
    call = {"origin": "app", "schedules": {"s": {"every": 60, "queue": queue, "task": "t"}}}
    one, two = actor().begin(), actor()
    Api(one.conn).rows("sync_schedules", **call)
    waits = two.parked(lambda d: Api(d.conn).rows("sync_schedules", **call))
    one.commit()
    assert [row["change"] for row in waits.result(TIMEOUT)] == ["same"]
