"""Limits through both clients, and those that tasks name."""

from datetime import timedelta

import pytest

from hwqueue import App, Keyed, every
from hwqueue.client import AsyncClient
from hwqueue.errors import BadArgument, ConfigError, LimitExists, LimitInvalid, LimitUnknown

SPEC = {"rate": {"count": 600, "per": timedelta(minutes=1)}}


async def test_from_created_to_dropped(client: AsyncClient) -> None:
    assert await client.create_limit("api", SPEC) is True
    assert await client.create_limit("api", SPEC) is False
    with pytest.raises(LimitExists):
        await client.create_limit("api", {"slots": 1})
    with pytest.raises(LimitInvalid):
        await client.create_limit("other", {"slots": 0})
    assert (await client.set_limit("api", {"rate": {"count": 6, "per": 6}}))["rate"]["burst"] == 2
    until = await client.throttle_limit("api", retry_after=timedelta(minutes=1))
    [limit] = await client.list_limits()
    assert (limit.name, limit.kind, limit.closed_until, limit.queues) == ("api", "rate", until, ())
    [lane] = await client.limit_lanes("api", order="wait", limit=1)
    assert (lane.key, lane.most, lane.parked, lane.lease_id) == ("", 2, 0, None)
    assert await client.throttle_limit("api") is None
    assert await client.drop_limit("api") is True
    with pytest.raises(LimitUnknown):
        await client.limit_lanes("api")


async def test_a_task_names_its_limits(client: AsyncClient) -> None:
    app = App()

    @app.task(
        "call",
        queue="q",
        limits=["api", Keyed("per_user", "user")],
        schedule=every(timedelta(hours=1), params={"user": "nightly"}),
    )
    def call(user: int | str | None = None) -> None: ...

    await client.create_queue("q")
    await client.create_limit("api", {"slots": 3})
    await client.create_limit("per_user", {"slots": 1, "by": "key"})
    specs = [call.spec(user=7), call.with_options(limits=["api"]).spec(user=8)]
    assert [spec.options["limits"] for spec in specs] == [{"api": None, "per_user": "7"}, ["api"]]
    await client.spawn_leases("q", specs)
    assert app.schedules["call"]["options"]["limits"] == {"api": None, "per_user": "nightly"}
    assert await client.sync_schedules("app", app.schedules)
    with pytest.raises(BadArgument, match=r"params\.user is the key"):
        await client.spawn_leases("q", [call.spec()])
    with pytest.raises(ConfigError, match="limits has names"):
        app.task("bad", limits=[7])  # type: ignore[list-item]
