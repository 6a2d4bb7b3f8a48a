"""Which leases a worker claims ahead of its free slots, and what becomes of them there."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from hwqueue.app import App
from hwqueue.errors import BadArgument
from hwqueue.types import Assignment, Claim
from hwqueue.worker.loop import ClaimLoop
from hwqueue.worker.runner import Runner, StopReason
from hwqueue.worker.signals import Shutdown
from tests.unit.claims import bare, make_runner
from tests.unit.claims import claim as any_claim

app = App()


@app.task("quick")
async def wait(params: asyncio.Event | None) -> None:
    if params:
        await params.wait()


app.task("slow")(wait.handler)
app.task("new")(wait.handler)
app.task("once", max_attempts=1)(wait.handler)


def claim(task: str = "quick", params: Any = None, seconds: float = 60.0, **changes: Any) -> Claim:
    ends_at = datetime.now(UTC) + timedelta(seconds=seconds)
    return replace(any_claim(task, params), expires_at=ends_at, **changes)


COUNTED = {"assignment": bare(Assignment)}
OF_A_GANG = {"headers": {"gang_id": "1"}}


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    """Two slots; calls take as long as eight handlers of `quick`, and `slow` is no short task."""
    made = make_runner(app, concurrency=2)
    made.ahead._lasted |= {"quick": 0.001, "slow": 0.06, "once": 0.001}
    made.ahead._lasts, made.ahead._answer_takes = 0.001, 0.008
    made.ahead.clock = lambda: 1000.0  # nothing waits too long by itself
    yield made
    made.stop_all(StopReason.SHUTDOWN)
    await made.wait(30)
    made.close()


def answered(runner: Runner, asked: int, *claims: Claim) -> int:
    runner.ahead.answered(asked, claims, 0.008)
    return runner.ahead.room


async def ends(runner: Runner) -> None:
    async with asyncio.timeout(30):
        await runner.wake.wait()
    runner.wake.clear()


async def test_what_may_be_ahead_grows_to_what_runs_in_two_calls(runner: Runner) -> None:
    assert answered(runner, 1, claim("new")) == 0  # nobody knows how long that takes
    assert [answered(runner, 1, claim()) for _ in range(6)] == [2, 6, 14, 30, 32, 32]
    runner.ahead.wait([claim()] * 4)
    runner.ahead.most = 5
    assert (runner.ahead.room, answered(runner, 1, claim())) == (1, 1)
    assert answered(runner, 2, claim()) == 0  # the queue is nearly empty: the rest is for other workers


async def test_a_call_that_a_server_kept_waiting_counts_for_half_a_second_at_most(runner: Runner) -> None:
    runner.ahead._lasts = 0.05
    for _ in range(9):
        runner.ahead.answered(1, [claim()], 60.0)
    assert runner.ahead.room == 20  # what runs in it on two slots


@pytest.mark.parametrize("other", [COUNTED, OF_A_GANG, {"task": "slow"}, {"task": "once"}, {"seconds": 1.0}])
async def test_what_must_not_wait_there_ends_it_for_a_while(runner: Runner, other: dict[str, Any]) -> None:
    now = runner.ahead.clock()
    assert answered(runner, 2, claim(), claim()) == 2
    assert answered(runner, 2, claim(), claim(**other)) == answered(runner, 2, claim(), claim()) == 0
    runner.ahead.clock = lambda: now + 90
    assert answered(runner, 2, claim(), claim()) == 2


async def test_what_should_not_be_ahead_is_the_next_to_start(runner: Runner) -> None:
    first, long, counted, last = claim(), claim("slow"), claim(**COUNTED), claim()
    runner.ahead.wait([first, long])
    runner.ahead.wait([last, counted])
    taken = [runner.ahead.take() for _ in range(5)]
    assert taken == [(counted, False), (long, False), (first, True), (last, True), None]


async def test_what_has_waited_too_long_goes_back_with_all_others(runner: Runner) -> None:
    now = 1000.0
    runner.ahead.clock = lambda: now
    answered(runner, 2, claim(), claim())
    first, later, long = claim(), claim(), claim("slow")
    runner.ahead.wait([first])
    now += 0.75
    runner.ahead.wait([later, long])
    assert (runner.due_in, runner.take_ended()) == (0.25, [])
    now += 0.25
    assert runner.ahead.take() is None
    assert [(one.claim, one.how.kind) for one in runner.take_ended()] == [
        (each, "release") for each in (long, first, later)
    ]
    assert (runner.ahead.room, runner.due_in) == (0, None)


async def test_what_is_ahead_starts_when_a_handler_ends_unless_its_claim_is_in_doubt(runner: Runner) -> None:
    session: Any = runner._session
    go = [asyncio.Event() for _ in range(6)]
    claims = [claim(params=each) for each in go]
    runner.take(claims)
    assert ([one.claim for one in runner.running], runner.held) == (claims[:2], claims)
    go[1].set()
    await ends(runner)
    assert [one.claim for one in runner.running] == [claims[0], claims[2]]
    session.in_doubt = True
    go[0].set()
    await ends(runner)
    assert [one.claim for one in runner.running] == [claims[2]]
    go[2].set()
    await ends(runner)
    assert (len(runner.take_ended()), runner.wanted) == (3, 0)
    session.settle_and_claim = AsyncMock(return_value=[])
    heartbeat = Mock(beat=AsyncMock(side_effect=lambda: setattr(session, "in_doubt", False)))
    await ClaimLoop(session, runner, heartbeat, Shutdown(), 3600.0, Mock())._round()
    assert [one.claim for one in runner.running] == claims[3:5]  # the node is known to live


async def test_a_worker_asks_for_more_than_its_slots_while_all_that_runs_is_short(runner: Runner) -> None:
    answered(runner, 1, claim())
    wanted = [runner.wanted]
    for task in ("quick", "slow"):
        runner.take([claim(task, asyncio.Event())])
        wanted.append(runner.wanted)
    assert wanted == [2 + 2, 1 + 2, 0]


@pytest.mark.parametrize(
    ("reason", "settled"), [(StopReason.CANCELLED, 1), (StopReason.PREEMPTED, 1), (StopReason.LOST, 0)]
)
async def test_what_is_ahead_hears_of_its_claim(runner: Runner, reason: StopReason, settled: int) -> None:
    claims = [claim(params=asyncio.Event()) for _ in range(5)]
    runner.take(claims)
    runner.stop_claims({(claims[3].lease_id, claims[3].claim_token): reason})
    assert runner.ahead.claims == [claims[2], claims[4]]
    assert [(one.claim, one.how.kind) for one in runner.take_ended()] == [(claims[3], "release")] * settled


async def test_at_a_stop_what_is_ahead_goes_back_at_once(runner: Runner) -> None:
    claims = [claim(params=asyncio.Event()) for _ in range(4)]
    runner.take(claims)
    assert [one.claim for one in runner.abandon()] == claims  # if nobody does it before the end
    assert runner.has_ended  # the loop goes on until they are settled
    runner._now.set()
    claims[0].params.set()
    await ends(runner)
    assert [one.claim for one in runner.running] == [claims[1]]  # the node may be lost
    runner.stop_waiting(StopReason.SHUTDOWN)
    assert [one.claim for one in runner.take_ended()] == [claims[0], *claims[2:]]
    assert runner.wake.is_set()


async def test_a_stop_is_over_even_if_its_last_settlement_was_refused(runner: Runner) -> None:
    session: Any = runner._session
    session.settle_and_claim, session.settle = AsyncMock(side_effect=BadArgument("no")), AsyncMock()
    runner.hand_back([claim()])
    shutdown = Shutdown()
    shutdown.drain()
    await asyncio.wait_for(ClaimLoop(session, runner, Mock(), shutdown, 3600.0, Mock()).run(), 30)
    assert session.settle.await_count == 1


async def test_once_all_slots_have_what_takes_long_the_others_go_back(runner: Runner) -> None:
    go = asyncio.Event()
    runner.take([first := claim(params=go), claim("slow", asyncio.Event())])
    runner.take([last := claim(), claim("slow", asyncio.Event())])
    assert runner.take_ended() == []
    go.set()
    await ends(runner)
    ended = [(one.claim, one.how.kind) for one in runner.take_ended()]
    assert ended == [(first, "complete"), (last, "release")]
