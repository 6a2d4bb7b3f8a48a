"""Sending deliveries: claim some, send them at once, record how each ended, again and again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import psycopg
from psycopg_pool import PoolTimeout

from hwqueue.client import AsyncClient
from hwqueue.errors import HwqueueError
from hwqueue.stopping import waited
from hwqueue.text import first_line
from hwqueue.types import ClaimedDelivery
from hwqueue.webhooks.addresses import RefusedAddress, Resolver

_log = logging.getLogger("hwqueue.webhooks")

_KEPT_CHARACTERS = 1000  # of an answer
_ASK_TO_WAIT = (429, 503)
_LONGEST_WAIT_SECONDS = 86_400  # as settle_delivery has it
# Of a claim, beyond what a request may take: for recording how it ended.
_GRACE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What requests may do.

    Attributes:
        timeout: Longest time of a request, from resolving the name to the answer's end.
        concurrency: Requests at once; at most ten go to one webhook, whatever this is.
        allow_private: Send to private, loopback and link-local addresses, too.
        allow_http: Send without TLS, too.
    """

    timeout: timedelta = timedelta(seconds=15)
    concurrency: int = 20
    allow_private: bool = False
    allow_http: bool = False


class Deliverer:
    """Sends what webhooks are to be told of. Any number of processes may run one.

    Needs a login with `hwqueue_operator`. It gets signatures and never a secret.

    Args:
        client: An open one.
        limits: What requests may do.
    """

    def __init__(self, client: AsyncClient, limits: Limits | None = None) -> None:
        self._client = client
        self._limits = limits or Limits()
        self._resolver = Resolver(allow_private=self._limits.allow_private)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let `run` return when the requests under way have ended."""
        self._stopping.set()

    async def run(self, *, poll: timedelta = timedelta(seconds=1)) -> None:
        """Send until `stop`; while the database does not answer, try again.

        Args:
            poll: Time between two looks when there was nothing to send.
        """
        running: set[asyncio.Task[None]] = set()
        async with self._http() as http:
            while not self._stopping.is_set():
                claimed = await self._claim(self._limits.concurrency - len(running))
                for delivery in claimed or ():
                    task = asyncio.create_task(self._deliver(http, delivery))
                    running.add(task)
                    task.add_done_callback(running.discard)
                await self._pause(poll if not claimed else timedelta(0), running)
            if running:
                await asyncio.wait(running)

    async def run_once(self) -> int:
        """Send what is due now, and return how many requests that were."""
        sent = 0
        async with self._http() as http:
            while claimed := await self._client.claim_deliveries(
                self._limits.concurrency, claim_timeout=self._limits.timeout + _GRACE
            ):
                await asyncio.gather(*(self._deliver(http, each) for each in claimed))
                sent += len(claimed)
        return sent

    async def _claim(self, room: int) -> list[ClaimedDelivery] | None:
        """What is due; None while the database does not answer."""
        if room <= 0:
            return []
        try:
            return await self._client.claim_deliveries(room, claim_timeout=self._limits.timeout + _GRACE)
        except (psycopg.OperationalError, PoolTimeout) as error:
            _log.warning("the database did not answer: %s", first_line(error))
            return None

    async def _pause(self, span: timedelta, running: set[asyncio.Task[None]]) -> None:
        """Wait for a while, until the stop, or while there is no room until a request has ended."""
        if len(running) >= self._limits.concurrency:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            return
        # a little more or less, so that several processes do not ask at the same moment
        await waited(self._stopping, span.total_seconds() * random.uniform(0.8, 1.2))

    def _http(self) -> httpx.AsyncClient:
        """Without proxies, which resolve names themselves, and without redirects.

        Connections are not kept: httpx would use one for every name of its address, and the
        certificate was checked for one.
        """
        return httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
            follow_redirects=False,
            timeout=self._limits.timeout.total_seconds(),
            headers={"user-agent": "hwqueue-webhook", "accept-encoding": "identity"},
        )

    async def _deliver(self, http: httpx.AsyncClient, delivery: ClaimedDelivery) -> None:
        """Send one, and record how that ended."""
        result = await self._send(http, delivery)
        try:
            state = await self._client.settle_delivery(delivery.delivery_id, delivery.attempt, **result)
        except (psycopg.Error, PoolTimeout, HwqueueError) as error:
            # its claim ends, and it is sent again
            _log.warning("%s is not recorded: %s", delivery.delivery_id, first_line(error))
            return
        level = logging.INFO if state == "delivered" else logging.WARNING
        _log.log(
            level,
            "webhook %s, delivery %s of %s, attempt %d: %s (%s)",
            delivery.webhook,
            delivery.delivery_id,
            delivery.code,
            delivery.attempt,
            state,
            result.get("status") or result.get("error"),
        )

    async def _send(self, http: httpx.AsyncClient, delivery: ClaimedDelivery) -> dict[str, Any]:
        """What `settle_delivery` is told of an attempt. Never the URL: it may hold a secret."""
        try:
            async with asyncio.timeout(self._limits.timeout.total_seconds()):
                request = await self._request(http, delivery)
                answer = await http.send(request, stream=True)
                try:
                    return {
                        "status": answer.status_code,
                        "response": await _beginning(answer),
                        "retry_after": _asked_wait(answer.status_code, answer.headers),
                    }
                finally:
                    await answer.aclose()
        except TimeoutError:
            return {"error": f"no answer within {self._limits.timeout.total_seconds():g} s"}
        except RefusedAddress as error:
            return {"error": str(error)}
        except Exception as error:  # whatever a receiver causes ends an attempt, and nothing else
            return {"error": _printable(f"{type(error).__name__}: {error}")}

    async def _request(self, http: httpx.AsyncClient, delivery: ClaimedDelivery) -> httpx.Request:
        """The request to the address that was checked, under the receiver's name.

        Raises: RefusedAddress, OSError, httpx.InvalidURL.
        """
        url = httpx.URL(delivery.url)
        if url.scheme != "https" and not self._limits.allow_http:
            raise RefusedAddress("the address is not https; permit it: hwqueue webhook run --allow-http")
        port = url.port or (443 if url.scheme == "https" else 80)
        address = await self._resolver.resolve(url.host, port)
        return http.build_request(
            "POST",
            url.copy_with(host=address),
            content=delivery.body.encode(),
            headers={
                **delivery.headers,
                "host": url.netloc.decode("ascii"),
                "content-type": "application/json",
            },
            extensions={"sni_hostname": url.host},
        )


async def _beginning(answer: httpx.Response) -> str | None:
    """The first characters of an answer's body; the rest is not read."""
    found = b""
    async for chunk in answer.aiter_raw():
        found += chunk
        if len(found) >= 4 * _KEPT_CHARACTERS:
            break
    return _printable(found.decode("utf-8", "replace")) or None


def _printable(text: str) -> str:
    """Text that Postgres and terminals take, not too long."""
    kept = text[:_KEPT_CHARACTERS]
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in kept)


def _asked_wait(status: int, headers: Mapping[str, str]) -> int | None:
    """Seconds that a receiver asks to wait, in seconds or as a date; None: it does not."""
    asked = headers.get("retry-after", "").strip() if status in _ASK_TO_WAIT else ""
    if asked.isascii() and asked.isdigit():
        return min(int(asked[:9]), _LONGEST_WAIT_SECONDS)
    try:
        until = parsedate_to_datetime(asked)
    except (ValueError, TypeError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    seconds = round((until - datetime.now(UTC)).total_seconds())
    return min(max(0, seconds), _LONGEST_WAIT_SECONDS)
