"""Who may have how many slots at a time: one of many tokens leaves as many to others as one of few.

Time passes only where a test says so: a slot is asked for, and the event loop runs until nothing
moves any more.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from hwqueue.client import Client
from hwqueue.server import event_streams
from hwqueue.server.fair_slots import Busy, FairSlots, Usage
from hwqueue.server.pools import Pools
from hwqueue.server.problems import HTTPProblem
from tests.server.conftest import V1, Http, Serving, Token, ok, problem

FOR_EVER = 3600.0


class Requests:
    """Requests that hold what they get until they are told to end."""

    def __init__(self, size: int, max_wait: float = FOR_EVER) -> None:
        self.now = 0.0
        self.slots = FairSlots(size, max_wait, "connections", Usage(lambda: self.now))
        self.running = Counter[str]()
        self.order: list[str] = []
        self._ends: dict[str, list[asyncio.Event]] = {}
        self._tasks: list[tuple[str, asyncio.Task[None]]] = []

    async def come(self, holder: str, count: int = 1) -> None:
        """So many more requests of this holder."""
        self._tasks += [(holder, asyncio.ensure_future(self._one(holder))) for _ in range(count)]
        await settled()

    async def _one(self, holder: str) -> None:
        end = asyncio.Event()
        async with self.slots.slot(holder):
            self.running[holder] += 1
            self.order.append(holder)
            self._ends.setdefault(holder, []).append(end)
            try:
                await end.wait()
            finally:
                self.running[holder] -= 1
                self._ends[holder].remove(end)

    async def end(self, holder: str, count: int = 1) -> None:
        """So many of those that run end."""
        for each in self._ends[holder][:count]:
            each.set()
        await settled()

    async def pass_(self, seconds: float) -> None:
        """Time passes, and those who wait are looked at, as a timer would."""
        self.now += seconds
        self.slots._hand_out()
        await settled()

    async def leave(self, holder: str) -> None:
        """All of them are broken off, as when a client disconnects."""
        for name, task in self._tasks:
            if name == holder:
                task.cancel()
        await settled()


async def settled() -> None:
    """Nothing moves any more."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", [2, 5, 50])
async def test_alone_one_has_all_but_one_and_beside_others_half(count: int) -> None:
    asked = Requests(8)
    await asked.come("a", count)
    assert asked.running["a"] == min(count, 7)
    await asked.come("b")
    assert asked.running["b"] == 1  # the one that was left, at once
    await asked.come("b", 50)
    for _ in range(10):  # what ends makes room for who has less
        await asked.end("a")
        assert asked.running.total() <= 8
    # one is left to a third
    assert asked.running == ({"a": 3, "b": 4} if count == 50 else {"a": 0, "b": 4})
    await asked.pass_(2)  # a had no request lately
    assert asked.running["b"] == (4 if count == 50 else 7)


@pytest.mark.parametrize(("size", "share"), [(1, 1), (2, 1), (3, 1), (8, 4), (9, 4)])
async def test_half_is_at_least_one(size: int, share: int) -> None:
    asked = Requests(size)
    await asked.come("b")
    await asked.come("a", 20)
    assert asked.running["a"] == (share if size > 1 else 0)
    await asked.end("b")
    await asked.pass_(2)
    assert asked.running["a"] == max(1, size - 1)


async def test_the_longer_its_requests_take_the_fewer_it_has_beside_others() -> None:
    asked = Requests(16)
    for holder, seconds in {"quick": 0.03, "longer": 0.075, "long": 0.6}.items():
        await asked.come(holder)
        asked.now += seconds
        await asked.end(holder)
    await asked.come("quick")
    for _ in range(60):  # however many quick ones between do not hide the long one
        await asked.come("long")
        asked.now += 0.001
        await asked.end("long")
    for holder, most in {"long": 1, "longer": 3}.items():
        await asked.come(holder, 20)
        assert asked.running[holder] == most
        await asked.leave(holder)
    await asked.leave("quick")
    asked.now += 2  # nobody else was there lately
    await asked.come("long", 20)
    assert asked.running["long"] == 15
    asked.now += 0.01
    await asked.come("quick")
    assert asked.running["quick"] == 1  # the last one, at once
    asked.now += 60
    await asked.leave("long")
    await asked.leave("quick")
    assert set(asked.slots._usage._uses) == {"long", "quick"}  # no others are remembered


@pytest.mark.parametrize(("answer", "every", "busy"), [(0.0004, 0, 0), (0.0017, 0, 1), (0.0017, 30, 0)])
async def test_on_a_busy_machine_long_requests_pause(answer: float, every: float, busy: bool) -> None:
    """Nor is one busy that stood still once, or is slower than the last one was."""
    asked = Requests(8)
    usage = asked.slots._usage
    for each in (0.0002, answer):
        for _ in range(100):
            asked.now += every
            for holder, seconds in {"quick": 0.01, "long": 0.5}.items():
                usage.note(holder, seconds)
                usage.note_answer(holder, each)
    usage.note_answer("quick", 10.0)
    await asked.pass_(9)
    usage.note("quick", 0.01)
    await asked.come("long", 2)
    assert asked.running["long"] == 1
    asked.now += 0.5
    usage.note("quick", 0.01)
    await asked.end("long")  # it had a slot for 0.39 of the last second, and may have it for a quarter
    await asked.come("quick", 9)
    assert asked.running == {"long": not busy, "quick": 1 if busy else 4}
    refusal = asked.slots._busy("long")
    assert (refusal.is_own, "pause" in str(refusal)) == (True, busy)
    await asked.pass_(0.4)
    assert asked.running["long"] == (not busy)
    await asked.pass_(0.1)
    assert asked.running["long"] == 1


@pytest.mark.parametrize(
    ("requests", "pausing"),
    [
        ({"quick": (300, 0.004), "some": (1, 0.01), "most": (1, 0.5)}, ["most"]),
        ({"flood": (300, 0.005), "some": (30, 0.015)}, []),
        ({"flood": (300, 0.002), "some": (30, 0.01)}, []),  # long beside these, but short by itself
    ],
)
async def test_only_who_has_slots_for_longest_pauses(
    requests: dict[str, tuple[int, float]], pausing: list[str]
) -> None:
    usage = Usage(lambda: 0.0)
    for holder, (count, seconds) in requests.items():
        for _ in range(count):
            usage.note(holder, seconds)
        for answer in (0.0002, *[0.02] * 100):
            usage.note_answer(holder, answer)
    share = usage.shares(8, {*requests})
    assert [holder for holder in requests if share(holder) < 1] == pausing


async def test_who_waits_counts_as_being_there() -> None:
    asked = Requests(3)
    for holder in "abc":
        await asked.come(holder)
    await asked.come("d")
    await asked.come("a")
    await asked.end("b")
    await asked.end("c")
    assert asked.running == {"a": 1, "d": 1, "b": 0, "c": 0}  # not two of three
    asked.now += 2
    await asked.leave("d")
    await asked.pass_(2)
    assert asked.running["a"] == 2


async def test_nobody_waits_for_ever() -> None:
    asked = Requests(4)
    await asked.come("a", 30)
    for number in range(6):
        await asked.come(f"small {number}")
    for _ in range(6):
        for holder in [name for name, count in asked.running.items() if count]:
            await asked.end(holder, 9)
    assert asked.order.count("a") > 10
    assert all(asked.order.count(f"small {number}") == 1 for number in range(6))
    first = [name for name in asked.order if name != "a"]
    assert first == sorted(first)  # of equals, who came first


async def test_who_leaves_takes_nothing_along() -> None:
    asked = Requests(4)
    await asked.come("a", 20)
    await asked.come("b", 20)
    await asked.leave("a")
    await asked.pass_(2)
    assert asked.running == {"a": 0, "b": 3}
    await asked.leave("b")
    assert (asked.slots._held, asked.slots._waiting) == ({}, [])
    asked.now += 2
    # one that leaves in the moment in which it gets its slot
    await asked.come("a", 3)
    late = asyncio.ensure_future(asked.slots.slot("b").__aenter__())
    await asyncio.sleep(0)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert asked.slots._held == {"a": 3}


async def test_who_waits_too_long_is_told_who_holds_what() -> None:
    asked = Requests(4, max_wait=0)
    await asked.come("a", 3)
    with pytest.raises(Busy, match="of 4 connections you hold 3, and others hold 0") as alone:
        await asked.slots._acquire("a")
    await asked.come("b")
    with pytest.raises(Busy, match=r"you hold 3, and others hold 1; 1 of your req") as beside:
        await asked.slots._acquire("a")
    assert (alone.value.is_own, beside.value.is_own) == (False, True)
    with pytest.raises(Busy, match="you hold 0, and others hold 4"):
        await asked.slots._acquire("c")
    await asked.end("a", 3)
    assert asked.slots._held == {"b": 1}


@pytest.mark.parametrize("kind", ["read", "call"])
async def test_tokens_of_a_tenant_share_its_connections(
    serving: Serving, token: Token, sql: Client, queue: str, kind: str
) -> None:
    """Such as with calls that wait for what somebody has locked."""
    film, games = token("producer", tenant="film"), token("producer", tenant="games")

    async def ask(http: Http, headers: dict[str, str]) -> Any:
        if kind == "read":
            return await http.get(f"{V1}/leases", headers=headers)
        body = {"queue": queue, "task": "draw"}
        return await http.post(f"{V1}/leases", json=body, headers=headers)

    async with serving(auth="tokens", pool_size=4, read_pool_size=4) as http, AsyncExitStack() as on:
        pools: Pools = http.app.state.services.pools
        hold, slots = getattr(pools, kind), getattr(pools, f"_{kind}_slots")
        slots._max_wait = 0.01
        for number in range(3):
            await on.enter_async_context(hold(f"token:{number}", "film"))
        refused = await ask(http, film)
        assert "you hold 3, and others hold 0" in problem(refused, 503)["detail"]
        assert refused.headers["retry-after"] == "1"
        assert (await ask(http, games)).is_success
        async with hold("token:games", "games"):
            found = problem(await ask(http, film), 429)
            assert "all tokens of a tenant share its connections" in found["hint"]
            assert found["retryable"] is True
            ok(await http.get("/readyz"))
        await on.aclose()
        ok(await ask(http, film), 201 if kind == "call" else 200)


async def test_one_viewer_of_the_dashboard_cannot_keep_the_others_from_looking(
    serving: Serving, token: Token, sql: Client, queue: str
) -> None:
    page = f"/leases/{sql.spawn_lease(queue, 'draw').lease_id}"
    ada, bob = token("operator"), token("operator")
    async with serving(auth="tokens") as http, AsyncExitStack() as on:
        pools: Pools = http.app.state.dashboard.pools
        pools._read_slots._max_wait = 0.01
        name = (await http.get(f"{V1}/me", headers=ada)).json()["actor"]
        for _ in range(2):
            await on.enter_async_context(pools.read(name))
        refused = await http.get(page, headers=ada)
        assert (refused.status_code, "you hold 2" in refused.text) == (503, True)
        assert (await http.get(page, headers=bob)).status_code == 200


async def test_tokens_of_a_tenant_share_its_rate(serving: Serving, token: Token) -> None:
    async with serving(auth="tokens", rate_limit="2/hour") as http:
        url = f"{V1}/me"
        for _ in range(2):
            ok(await http.get(url, headers=token("producer", tenant="film")))
        response = await http.get(url, headers=token("viewer", tenant="film"))
        found = problem(response, 429)
        assert ("too many requests" in found["detail"], found["retryable"]) == (True, True)
        assert 1 <= int(response.headers["retry-after"]) <= 3600
        for other in (token("producer", tenant="games"), token("producer")):
            for status in (200, 200, 429):
                assert (await http.get(url, headers=other)).status_code == status
        ok(await http.get("/healthz"))


def test_the_last_stream_is_for_who_has_none() -> None:
    streams = event_streams.EventStreams(3, 20)
    with streams.slot("tenant:film"), streams.slot("tenant:film"):
        with pytest.raises(HTTPProblem, match="of 3 streams you have 2 open, and others 0"):
            streams.slot("tenant:film").__enter__()
        with streams.slot("tenant:games"):
            pass
