"""Values that all viewers share: read once, kept when they cannot be read."""

import asyncio

import pytest

from hwqueue.dashboard.cache import ReadCache


class Source:
    """Something to read that counts how often it was."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails = False
        self.go = asyncio.Event()
        self.go.set()

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.go.wait()
        if self.fails:
            raise ConnectionError("gone")
        return number


async def test_many_who_ask_at_once_cause_one_read() -> None:
    source, cache = Source(), ReadCache()
    source.go.clear()
    asking = [asyncio.ensure_future(cache.get("x", 5, source.read)) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()  # who leaves does not take it from the others
    await asyncio.sleep(0)
    source.go.set()
    answers = await asyncio.gather(*asking[1:])
    assert {each.value for each in answers} == {1}
    assert source.reads == 1


async def test_a_value_is_good_for_its_time() -> None:
    now = 100.0
    source, cache = Source(), ReadCache(lambda: now)
    assert (await cache.get("x", 5, source.read)).value == 1
    now = 104.9
    assert (await cache.get("x", 5, source.read)).value == 1
    now = 105.0
    assert (await cache.get("x", 5, source.read)).value == 2
    assert (await cache.get("y", 5, source.read)).value == 3
    cache.forget()
    assert (await cache.get("x", 5, source.read)).value == 4


async def test_what_cannot_be_read_stays_as_it_was() -> None:
    source, cache = Source(), ReadCache(lambda: 0.0)
    first = await cache.get("x", 0, source.read)
    source.fails = True
    kept = await cache.get("x", 0, source.read)
    assert (kept.value, kept.at, kept.stale) == (1, first.at, True)
    with pytest.raises(ConnectionError):
        await cache.get("y", 0, source.read)
    source.fails = False
    assert not (await cache.get("x", 0, source.read)).stale


async def test_what_was_read_before_a_change_is_not_kept() -> None:
    source, cache = Source(), ReadCache(lambda: 0.0)
    source.go.clear()
    early = asyncio.ensure_future(cache.get("x", 5, source.read))
    while not source.reads:
        await asyncio.sleep(0)
    cache.forget()
    late = asyncio.ensure_future(cache.get("x", 5, source.read))
    await asyncio.sleep(0)
    source.go.set()
    assert ((await early).value, (await late).value) == (1, 2)
    assert (await cache.get("x", 5, source.read)).value == 2


async def test_nothing_old_is_shown_while_it_can_be_read() -> None:
    """After a quiet time, when the first viewer comes."""
    now = 0.0
    source, cache = Source(), ReadCache(lambda: now, wait=0)
    await cache.get("x", 5, source.read)
    now = 31.0
    source.go.clear()
    asking = asyncio.ensure_future(cache.get("x", 5, source.read))
    while source.reads == 1:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asking.done()
    now = 131.0  # however long it took, the next one is not shown for longer
    source.go.set()
    assert (await asking).value == 2
    assert (await cache.get("x", 5, source.read)).value == 3
    source.fails, now = True, 1000.0
    kept = await cache.get("x", 5, source.read)
    assert (kept.value, kept.stale) == (3, True)


async def test_what_is_slow_to_read_is_shown_as_it_was_and_read_more_rarely() -> None:
    now = 0.0
    source, cache = Source(), ReadCache(lambda: now, wait=0)
    assert (await cache.get("x", 5, source.read)).value == 1
    source.go.clear()
    now = 6.0
    shown = await cache.get("x", 5, source.read)
    assert (shown.value, shown.stale) == (1, False)
    now = 9.0  # it took 3 s: it is good for 30
    source.go.set()
    while (await cache.get("x", 5, source.read)).value == 1:
        await asyncio.sleep(0)
    now = 35.9
    assert (await cache.get("x", 5, source.read)).value == 2
    assert source.reads == 2
    now = 41.1
    await cache.get("x", 5, source.read)
    assert source.reads == 3
