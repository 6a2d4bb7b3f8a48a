"""Concurrent calls with one key share one execution."""

import asyncio

import pytest

from hwqueue.single_flight import SingleFlight


class Call:
    """Something to wait for, counted."""

    def __init__(self) -> None:
        self.count = 0
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.count += 1
        number = self.count
        await self.go.wait()
        if number == 3:
            raise ConnectionError("gone")
        return number


async def test_one_call_answers_all_who_wait() -> None:
    flights, call = SingleFlight[int](), Call()
    waiting = [asyncio.ensure_future(flights.do("x", call)) for _ in range(5)]
    other = asyncio.ensure_future(flights.do("y", call))
    await asyncio.sleep(0)
    waiting[0].cancel()  # it does not take the answer from the others
    await asyncio.sleep(0)
    call.go.set()
    assert await asyncio.gather(*waiting[1:]) == [1, 1, 1, 1]
    assert await other == 2
    # an error reaches all who wait, and is not remembered
    call.go.clear()
    failing = [asyncio.ensure_future(flights.do("x", call)) for _ in range(2)]
    await asyncio.sleep(0)
    call.go.set()
    assert [type(each) for each in await asyncio.gather(*failing, return_exceptions=True)] == [
        ConnectionError,
        ConnectionError,
    ]
    assert await flights.do("x", call) == 4


async def test_a_forgotten_call_ends_for_those_who_wait_and_no_others() -> None:
    flights, call = SingleFlight[int](), Call()
    before = asyncio.ensure_future(flights.do("x", call))
    await asyncio.sleep(0)
    flights.forget()
    after = asyncio.ensure_future(flights.do("x", call))
    await asyncio.sleep(0)
    call.go.set()
    assert (await before, await after) == (1, 2)
    call.count = 2
    with pytest.raises(ConnectionError):
        await flights.do("x", call)
