"""Handlers of a gang's members: when they begin, what ends the wait, what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.app import App
from hwqueue.errors import BadArgument, ConfigError, GangNotFound, HwqueueError, LeaseCancelled, LeaseLost
from hwqueue.handler.gang import GangContext
from hwqueue.testing import make_context
from hwqueue.types import Claim, GangMember, GangStatus, LeaseState
from hwqueue.worker import AsyncLeaseContext, LeaseContext
from hwqueue.worker.outcome import Ended
from hwqueue.worker.runner import Runner, StopReason
from tests.unit.claims import claim, make_runner, unanswered

GANG = uuid4()
app = App()


@app.task("rank")
async def rank(_params: Any, context: AsyncLeaseContext) -> int | None:
    return None if context.gang is None else context.gang.rank


@app.task("rank-sync")
def rank_sync(_params: Any, context: LeaseContext) -> int | None:
    return None if context.gang is None else context.gang.rank


@app.task("brief", timeout=timedelta(milliseconds=50))
async def brief(_params: Any) -> str:
    return "in time"


@app.task("hangs", timeout=timedelta(milliseconds=50))
async def hangs(_params: Any) -> None:
    await asyncio.sleep(600)


class Database:
    """Answers `gang_status`: not ready for some looks, then ready, or with an error."""

    def __init__(self, looks: int, error: Exception | None = None) -> None:
        self.looks = looks
        self.error = error
        self.asked = asyncio.Event()

    async def __call__(self, one: Claim, call: str, arguments: Mapping[str, Any]) -> GangStatus:
        assert (call, arguments) == ("gang_status", {})
        self.looks -= 1
        self.asked.set()
        if self.looks >= 0:
            return status(one, retry_after=timedelta(milliseconds=30))
        if self.error is not None:
            raise self.error
        return status(one)


def gang_member(ordinal: int, lease_id: UUID, **labels: Any) -> GangMember:
    return GangMember(
        ordinal=ordinal,
        lease_id=lease_id,
        state=LeaseState.CLAIMED,
        node_id=uuid4(),
        node=f"node-{ordinal}",
        labels=labels,
        reserved_until=None,
    )


def status(one: Claim, *, retry_after: timedelta | None = None) -> GangStatus:
    members = (gang_member(0, uuid4()), gang_member(1, one.lease_id))
    return GangStatus(
        gang_id=GANG, ready=retry_after is None, size=2, min_size=2, members=members, retry_after=retry_after
    )


def member(task: str) -> Claim:
    return replace(claim(task), headers={"gang_id": str(GANG), "gang_rank": 1, "gang_size": 2})


@asynccontextmanager
async def runner(asks: Any) -> AsyncIterator[Runner]:
    made = make_runner(app, ask=asks)
    try:
        yield made
    finally:
        made.close()


async def ends(made: Runner) -> list[Ended]:
    """What has ended, once something has; nothing runs any more."""
    async with asyncio.timeout(30):
        await made.wake.wait()
    assert (made.free, list(made.running)) == (1, [])
    return made.take_ended()


@pytest.mark.parametrize("task", ["rank", "rank-sync"])
async def test_a_member_begins_when_all_are_there(task: str) -> None:
    database = Database(looks=3)
    granted = member(task)
    async with runner(database) as made:
        made.start(granted)
        await database.asked.wait()
        assert (made.free, made.held) == (0, [granted])  # the slot is taken, heartbeats go on
        [ended] = await ends(made)
    assert (ended.how.kind, ended.how.result) == ("complete", 1)
    assert database.looks == -1


@pytest.mark.parametrize("task", ["rank", "rank-sync"])
async def test_a_lease_of_no_gang_costs_no_call(task: str) -> None:
    async with runner(unanswered) as made:
        made.start(claim(task))
        [ended] = await ends(made)
    assert (ended.how.kind, ended.how.result) == ("complete", None)


async def test_what_the_database_refuses_fails_the_attempt_unless_there_is_no_gang() -> None:
    async with runner(Database(0, GangNotFound("of no gang"))) as made:
        made.start(member("rank"))
        [ended] = await ends(made)
    assert (ended.how.kind, ended.how.result) == ("complete", None)
    async with runner(Database(1, HwqueueError("no"))) as made:
        made.start(member("rank"))
        [ended] = await ends(made)
    assert ended.how.error is not None
    assert (ended.how.kind, ended.how.error["message"]) == ("fail", "no")


async def test_the_timeout_counts_from_the_beginning_of_the_handler() -> None:
    async with runner(Database(looks=20)) as made:  # longer than the timeout
        made.start(member("brief"))
        [ended] = await ends(made)
        assert (ended.how.kind, ended.how.result) == ("complete", "in time")
        assert ended.lasted is not None
        assert ended.lasted < 0.5
        made.forget_settled()
        made.wake.clear()
        made.start(member("hangs"))
        [ended] = await ends(made)
    assert ended.how.error is not None
    assert ended.how.error["type"] == "Timeout"


@pytest.mark.parametrize("task", ["rank", "rank-sync"])
@pytest.mark.parametrize("reason", list(StopReason))
async def test_a_stop_ends_the_wait(task: str, reason: StopReason) -> None:
    database = Database(looks=10**6)
    granted = member(task)
    async with runner(database) as made:
        made.start(granted)
        await database.asked.wait()
        made.stop_claims({(granted.lease_id, granted.claim_token): reason})
        ended = await ends(made)
    settled = [] if reason is StopReason.LOST else ["release"]
    assert [one.how.kind for one in ended] == settled
    assert [one.lasted for one in ended] == [None for _ in ended]  # it never began


async def test_a_stop_in_the_moment_in_which_the_gang_is_there() -> None:
    """The wait is over, and its handler has not begun: then it does not."""
    async with runner(Database(looks=0)) as made:
        made.start(member("rank"))
        [execution] = made.running
        while not execution.future.done():
            await asyncio.sleep(0)
        made.stop_all(StopReason.SHUTDOWN)
        [ended] = await ends(made)
    assert ended.how.kind == "release"


async def test_only_what_waits_is_given_up_by_a_drain() -> None:
    database = Database(looks=10**6)
    async with runner(database) as made:
        made.start(claim("hangs"))
        made.stop_waiting(StopReason.SHUTDOWN)
        assert [one.reason for one in made.running] == [None]
        await ends(made)
        made.forget_settled()
        made.wake.clear()
        made.start(member("rank"))
        made.stop_waiting(StopReason.SHUTDOWN)
        [ended] = [one for one in await ends(made) if one.claim.task_name == "rank"]
    assert ended.how.kind == "release"


@pytest.mark.parametrize("error", [LeaseLost("lost"), LeaseCancelled("cancelled")])
async def test_a_lost_claim_ends_the_wait(error: HwqueueError, caplog: pytest.LogCaptureFixture) -> None:
    async with runner(Database(1, error)) as made:
        made.start(member("rank"))
        assert await ends(made) == []
    assert "lost, its outcome is dropped" in caplog.text


def test_what_a_gang_says_of_its_members() -> None:
    members = (gang_member(0, uuid4(), address="10.0.0.1", ip="::1"), gang_member(1, uuid4(), address=7))
    gang = GangContext(gang_id=GANG, rank=1, size=2, members=members)
    assert gang.address() == "10.0.0.1"
    assert gang.address(0, label="ip") == "::1"
    with pytest.raises(ConfigError, match=r"node node-1 of rank 1 has no label 'address'") as caught:
        gang.address(1)
    assert caught.value.hint == "start its worker with --label address=ADDRESS"
    for unknown in (2, -1):
        with pytest.raises(BadArgument, match="ranks 0 to 1"):
            gang.address(unknown)
    assert gang.environment(port=29500, label="ip") == {
        "MASTER_ADDR": "::1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "1",
    }
    assert make_context({}, gang=gang).gang is gang


def test_what_a_gang_says_that_may_grow() -> None:
    """Its first member was lost: the others run, and know how many they may become."""
    absent = replace(gang_member(0, uuid4()), state=LeaseState.SCHEDULED, node_id=None, node=None)
    members = (absent, *(gang_member(n, uuid4(), address=f"10.0.0.{n}") for n in (1, 2)))
    gang = GangContext(gang_id=GANG, rank=1, size=3, min_size=2, members=members)
    assert [each.rank for each in gang.present] == [1, 2]
    lost = {state for state in (*LeaseState, None) if replace(absent, state=state).is_lost}
    assert lost == {LeaseState.FAILED, LeaseState.CANCELLED}  # one that waits comes back
    with pytest.raises(ConfigError, match="rank 0 is not there"):
        gang.address(0)
    with pytest.raises(ConfigError, match="2 to 3 members") as caught:
        gang.environment(port=29500)
    assert caught.value.hint == "run torchrun --nnodes 2:3 with --rdzv-endpoint"
