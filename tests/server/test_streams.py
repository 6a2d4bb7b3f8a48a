"""What a stream follows, and concurrent calls with one key, which share one execution."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import psycopg
import pytest
from fastapi.sse import ServerSentEvent

from hwqueue.server import event_streams
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.routers import shared
from hwqueue.single_flight import SingleFlight
from tests.dashboard.test_cache import Source


def _event(number: int) -> ServerSentEvent:
    return ServerSentEvent(id=str(number))


class Script:
    """What happens at each look, in order; then whoever follows may no more.

    Nothing is added any more once `left` looks are left.
    """

    def __init__(self, *looks: list[ServerSentEvent] | Exception, left: int = -1) -> None:
        self.looks = list(looks)
        self.left = left
        self.asked: list[int | None] = []

    async def check(self) -> None:
        """Raises: HTTPProblem, at the end of the script."""
        if not self.looks:
            raise HTTPProblem(401, "revoked")

    async def fetch(self, seen: int | None) -> tuple[list[ServerSentEvent], bool]:
        """The next part of the script."""
        self.asked.append(seen)
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found, len(self.looks) == self.left


async def told(script: Script, seen: int | None) -> list[str | int]:
    """All that a follower is told: ids of events, and comments."""
    following = event_streams.EventStreams(1, 1).follow(
        seen, check=script.check, fetch=script.fetch, place_of=lambda event: int(event.id or 0), beginning=0
    )
    return [each if isinstance(each, str) else int(each.id or 0) async for each in following]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "_POLL_SECONDS", 0.0)


async def test_it_goes_on_from_the_last_one() -> None:
    script = Script([_event(5), _event(6)], [], [_event(9)])
    assert await told(script, 4) == [event_streams.CAUGHT_UP, 5, 6, 9]
    assert script.asked == [4, 6, 6]


async def test_from_now_on_is_after_the_last_of_all() -> None:
    script = Script([_event(7)], [_event(8)])
    assert await told(script, None) == [event_streams.CAUGHT_UP, 8]
    assert script.asked == [None, 7]


async def test_it_says_when_the_database_is_away_and_when_it_is_back() -> None:
    gone = psycopg.OperationalError("gone")
    script = Script(gone, gone, [], [_event(3)])
    here, away = event_streams.CAUGHT_UP, event_streams.UNAVAILABLE
    assert await told(script, 2) == [here, away, away, here, 3]
    assert await told(Script(gone, [_event(7)], [_event(8)]), None) == [away, here, 8]


async def test_it_is_never_silent_for_long() -> None:
    looks: list[list[ServerSentEvent]] = [[]] * 31
    assert (await told(Script(*looks), 2)).count(event_streams.IDLE) == 2


async def test_what_is_added_before_the_end_comes() -> None:
    script = Script([_event(5)], [_event(6)], [], left=1)
    assert await told(script, 4) == [event_streams.CAUGHT_UP, 5, 6]
    assert len(script.looks) == 1


async def test_an_end_is_told_only_after_all_that_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may follow no more between two looks comes back for the rest, and is told then."""
    script = Script([_event(5)] * event_streams.BATCH)
    monkeypatch.setattr(shared, "authenticate", lambda *_: script.check())

    async def fetch(seen: str | None) -> tuple[list[ServerSentEvent], str]:
        return (await script.fetch(int(seen or 0)))[0], "completed"

    caller = Mock(services=Mock(streams=event_streams.EventStreams(1, 1)))
    found = [each async for each in shared.followed(caller, Mock(), "4", fetch)]
    assert (len(found), found[-1].event) == (1 + event_streams.BATCH, None)


async def test_one_call_answers_all_who_wait() -> None:
    flights, source = SingleFlight[int](), Source()
    source.go.clear()
    waiting = [asyncio.ensure_future(flights.do("x", source.read)) for _ in range(5)]
    other = asyncio.ensure_future(flights.do("y", source.read))
    await asyncio.sleep(0)
    waiting[0].cancel()  # it does not take the answer from the others
    await asyncio.sleep(0)
    source.go.set()
    assert await asyncio.gather(*waiting[1:]) == [1, 1, 1, 1]
    assert await other == 2
    # an error reaches all who wait, and is not remembered
    source.go.clear()
    source.fails = True
    failing = [asyncio.ensure_future(flights.do("x", source.read)) for _ in range(2)]
    await asyncio.sleep(0)
    source.go.set()
    errors = await asyncio.gather(*failing, return_exceptions=True)
    assert [type(each) for each in errors] == [ConnectionError] * 2
    source.fails = False
    assert await flights.do("x", source.read) == 4


async def test_a_forgotten_call_ends_for_those_who_wait_and_no_others() -> None:
    flights, source = SingleFlight[int](), Source()
    source.go.clear()
    before = asyncio.ensure_future(flights.do("x", source.read))
    await asyncio.sleep(0)
    flights.forget()
    after = asyncio.ensure_future(flights.do("x", source.read))
    await asyncio.sleep(0)
    source.go.set()
    assert (await before, await after) == (1, 2)
