"""Rate limits of each server process: requests, bytes and unknown tokens."""

from __future__ import annotations

import math
import time

from limits import RateLimitItem, RateLimitItemPerSecond, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from hwqueue.server.problems import HTTPProblem
from hwqueue.server.settings import ServerSettings

# Of one address: tokens that let nobody in. They cannot be guessed; this spares the database.
_UNKNOWN_TOKENS = parse("20/second")


class RateLimits:
    """Counts requests and bytes of each caller, and unknown tokens of each address."""

    def __init__(self, settings: ServerSettings) -> None:
        self._rate = settings.rate
        # one request is never more than may come in a second
        limit = max(settings.bytes_per_second or 0, settings.max_body_bytes)
        self._bytes = RateLimitItemPerSecond(limit) if settings.bytes_per_second else None
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def count_request(self, caller: str) -> None:
        """Count a request. Raises: HTTPProblem (429)."""
        if self._rate is not None and not await self._limiter.hit(self._rate, "request", caller):
            raise await self._too_many(self._rate, "request", caller)

    async def count_bytes(self, caller: str, size: int) -> None:
        """Count what a request sends. Raises: HTTPProblem (429)."""
        if self._bytes is not None and not await self._limiter.hit(self._bytes, "bytes", caller, cost=size):
            raise HTTPProblem(
                429,
                f"too much in a second: {self._bytes.amount} bytes at most",
                hint="wait, or send less at a time",
                headers={"Retry-After": "1"},
            )

    async def check_unknown(self, address: str) -> None:
        """Check whether this address may try another token. Raises: HTTPProblem (429)."""
        if not await self._limiter.test(_UNKNOWN_TOKENS, "unknown", address):
            raise await self._too_many(_UNKNOWN_TOKENS, "unknown", address)

    async def count_unknown(self, address: str) -> None:
        """Count a token that let nobody in."""
        await self._limiter.hit(_UNKNOWN_TOKENS, "unknown", address)

    async def _too_many(self, rate: RateLimitItem, *who: str) -> HTTPProblem:
        window = await self._limiter.get_window_stats(rate, *who)
        seconds = max(1, math.ceil(window.reset_time - time.time()))
        return HTTPProblem(
            429,
            f"too many requests: {rate} at most",
            hint="wait, or have several leases in one request: POST /api/v1/leases/batch",
            headers={"Retry-After": str(seconds)},
        )
