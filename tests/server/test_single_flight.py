"""Concurrent calls with one key share one execution."""

import asyncio

from hwqueue.single_flight import SingleFlight
from tests.dashboard.test_cache import Source


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
