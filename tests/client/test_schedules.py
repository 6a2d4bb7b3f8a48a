"""Schedules through both clients, and those that an app declares."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hwqueue import App, calls, cron, every
from hwqueue.client import AsyncClient
from hwqueue.errors import ConfigError, ScheduleExists, ScheduleInvalid, ScheduleUnknown

SPEC = {"cron": "0 2 * * *", "zone": "Europe/Berlin", "queue": "q", "task": "report"}


async def test_who_makes_one_plans_it(client: AsyncClient) -> None:
    """The rest both clients do for the tests of HTTP and of the command line."""
    await client.create_queue("q")
    assert await client.create_schedule("nightly", SPEC) is True
    assert (await client.get_schedule("nightly")).next_at is not None
    spec = await client.set_schedule("nightly", {"cron": "30 3 * * *", "zone": None})
    assert (spec["cron"], spec["zone"]) == ("30 3 * * *", "UTC")
    next_at = (await client.get_schedule("nightly")).next_at
    assert next_at is not None
    assert (next_at.hour, next_at.minute) == (3, 30)
    assert await client.list_schedules(after="nightly") == []
    since = datetime(2026, 3, 28, tzinfo=UTC)
    for call in (client.get_schedule("none"), client.backfill_schedule("none", since, since)):
        with pytest.raises(ScheduleUnknown):
            await call


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
