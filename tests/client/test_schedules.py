"""Schedules through both clients, and those that an app declares."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hwqueue import App, calls, cron, every
from hwqueue.client import AsyncClient
from hwqueue.errors import ConfigError, ScheduleExists, ScheduleInvalid, ScheduleUnknown

SPEC = {"cron": "0 2 * * *", "zone": "Europe/Berlin", "queue": "q", "task": "report"}


async def test_from_created_to_dropped(client: AsyncClient) -> None:
    await client.create_queue("q")
    assert await client.create_schedule("nightly", SPEC) is True
    assert await client.create_schedule("nightly", SPEC) is False
    [schedule] = await client.list_schedules()
    assert schedule.next_at is not None  # who makes one plans it
    assert (schedule.name, schedule.kind, schedule.is_dry) == ("nightly", "cron", False)
    spec = await client.set_schedule("nightly", {"cron": "30 3 * * *", "zone": None})
    assert (spec["cron"], spec["zone"]) == ("30 3 * * *", "UTC")
    [schedule] = await client.list_schedules()
    assert schedule.next_at is not None
    assert (schedule.next_at.hour, schedule.next_at.minute) == (3, 30)
    assert await client.pause_schedule("nightly", "leave") is True
    assert await client.resume_schedule("nightly") is True
    fired = await client.trigger_schedule("nightly", {"day": 1})
    assert fired.lease_id is not None
    assert (await client.get_lease(fired.lease_id)).params == {"day": 1}
    [fire] = await client.schedule_history("nightly", limit=5)
    assert (fire.cause, fire.outcome, fire.lease_id) == ("trigger", "spawned", fired.lease_id)
    assert await client.schedule_history("nightly", before=fire.fire_at) == []
    assert await client.drop_schedule("nightly") is True
    assert await client.drop_schedule("nightly") is False


async def test_a_backfill_computes_its_times(client: AsyncClient) -> None:
    await client.create_queue("q")
    await client.create_schedule("nightly", SPEC)
    since = datetime(2026, 3, 28, tzinfo=UTC)
    span = since, since + timedelta(days=2)
    planned = await client.backfill_schedule("nightly", *span)
    # 02:00 is left out on the second night
    assert [(each.fire_at.hour, each.outcome) for each in planned] == [(1, "would_spawn")] * 2
    done = await client.backfill_schedule("nightly", *span, dry_run=False)
    assert [each.outcome for each in done] == ["spawned"] * 2
    assert [each.outcome for each in await client.backfill_schedule("nightly", *span)] == ["fired_before"] * 2
    with pytest.raises(ScheduleUnknown):
        await client.backfill_schedule("none", *span)


async def test_what_cannot_be_planned_is_refused_or_said(client: AsyncClient) -> None:
    await client.create_queue("q")
    never = {**SPEC, "cron": "0 3 31 2 *"}
    with pytest.raises(ScheduleInvalid):
        await client.create_schedule("never", never)
    await client._value(calls.CREATE_SCHEDULE, p_name="never", p_spec=never)  # as SQL may
    assert await client.plan_schedules() == 1
    assert await client.plan_schedules() == 0
    [schedule] = await client.list_schedules()
    assert schedule.plan_error is not None
    assert "no cron expression" in schedule.plan_error


async def test_an_app_declares_schedules(client: AsyncClient) -> None:
    app = App()

    @app.task("report", queue="q", priority=5, schedule=cron("0 2 * * *", missed="all", params={"day": 1}))
    def report(day: int) -> None: ...

    @app.task("sweep", queue="q", schedule=every(timedelta(minutes=5)))
    def sweep() -> None: ...

    @app.task("other", queue="q")
    def other() -> None: ...

    nightly = app.workflow("nightly", queue="q", schedule=cron("0 3 * * *", params={"n": 1}))

    @nightly.step()
    def load(params: Any) -> None: ...

    await client.create_queue("q")
    await nightly.workflow.define(client)
    synced = await client.sync_schedules("billing", app.schedules)
    assert [(each.name, each.change) for each in synced] == [
        (name, "created") for name in ("nightly", "report", "sweep")
    ]
    schedules = {each.name: each for each in await client.list_schedules()}
    assert {each.origin for each in schedules.values()} == {"billing"}
    spec = schedules["report"].spec
    assert (spec["missed"], spec["params"], spec["options"]) == ("all", {"day": 1}, {"priority": 5})
    fired = await client.trigger_schedule("nightly")
    assert fired.run_id is not None
    assert await client.run_input(fired.run_id) == {"n": 1}
    assert all(each.next_at for each in schedules.values())
    with pytest.raises(ScheduleExists):
        await client.create_schedule("sweep", SPEC)
    for bad in (App().task, App().workflow):
        with pytest.raises(ConfigError, match="schedule must be"):
            bad("bad", schedule="0 2 * * *")  # type: ignore[arg-type]
    app.workflow("sweep", schedule=cron("0 3 * * *"))
    with pytest.raises(ConfigError, match="of a task and of a workflow"):
        _ = app.schedules
