"""What is sent to receivers, where, and what becomes of their answers."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from typing import Any

import pytest

from hwqueue.client import AsyncClient, Client
from hwqueue.types import Delivery
from hwqueue.webhooks import verify
from hwqueue.webhooks.addresses import RefusedAddress, Resolver, is_public
from hwqueue.webhooks.deliver import Deliverer, Limits

pytestmark = pytest.mark.thorough
HERE = Limits(allow_private=True, allow_http=True, timeout=timedelta(seconds=5))
Answer = Callable[[], bytes]


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Receiver:
    """A server that keeps what it is sent, and answers as it is told."""

    answer: bytes = answer(204)
    url: str = ""
    heads: list[dict[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    open: int = 0
    most: int = 0
    keeps: bool = False
    connections: int = 0
    hold: asyncio.Event | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request, or all that come (`keeps`), unless the other side goes before."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await self._answer(reader, writer)
            while self.keeps:
                await self._answer(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def end(self) -> None:
        """End what is still open."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        first = await reader.readexactly(1)
        if first == b"\x16":  # the beginning of TLS
            writer.write(self.answer)
            return
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.strip().split("\r\n")
        headers = dict(each.lower().split(": ", 1) for each in rest)
        self.lines.append(line)
        self.heads.append({name: rest[i].split(": ", 1)[1] for i, name in enumerate(headers)})
        self.bodies.append(await reader.readexactly(int(headers["content-length"])))
        if self.hold is not None:
            await self.hold.wait()
        self.open -= 1
        writer.write(self.answer)
        await writer.drain()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.take, "127.0.0.1", 0)
    made.url = f"http://localhost:{server.sockets[0].getsockname()[1]}/hook?a=b"
    async with server:
        yield made
        await made.end()


@asynccontextmanager
async def sent(dsn: str, url: str, limits: Limits = HERE) -> AsyncIterator[Delivery]:
    """What became of a delivery to this address."""
    async with AsyncClient(dsn) as client:
        await client.set_webhook("hook", url, codes=["none"])
        await client.test_webhook("hook")
        assert await Deliverer(client, limits).run_once() == 1
        [delivery] = await client.list_deliveries("hook", limit=1)
        yield delivery


async def test_a_request_is_signed(dsn: str, receiver: Receiver) -> None:
    with Client(dsn) as client:
        secret = client.set_webhook("hook", receiver.url)
    assert secret is not None
    receiver.answer = answer(200, "thanks \N{SNOWMAN}\0\x1b[31m".encode())
    async with sent(dsn, receiver.url) as delivery:
        assert (delivery.state, delivery.status) == ("delivered", 200)
        assert delivery.response == "thanks \N{SNOWMAN}\ufffd\ufffd[31m"
    [head], [body] = receiver.heads, receiver.bodies
    assert verify(head, body, secret)["type"] == "webhook_test"
    assert receiver.lines == ["POST /hook?a=b HTTP/1.1"]
    assert head["host"] == receiver.url.split("/")[2]
    assert head["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (answer(302, b"", "location: http://127.0.0.1:1/"), "waiting"),
        (answer(500, b"x" * 100_000), "waiting"),
        (answer(410), "dead"),
        (answer(999), "waiting"),
        (b"nonsense\r\n\r\n", "waiting"),
        (b"", "waiting"),
    ],
)
async def test_what_is_no_success(dsn: str, receiver: Receiver, given: bytes, state: str) -> None:
    receiver.answer = given
    async with sent(dsn, receiver.url) as delivery:
        assert delivery.state == state
        assert delivery.status or delivery.error  # the attempt is recorded
        assert len(delivery.response or delivery.error or "") <= 1000
    assert len(receiver.lines) == 1  # no redirect is followed


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("dated", [True, False])
async def test_a_receiver_may_ask_to_wait(dsn: str, receiver: Receiver, status: int, dated: bool) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    asked = format_datetime(until, usegmt=True) if dated else "3600"
    receiver.answer = answer(status, b"", f"retry-after: {asked}")
    async with sent(dsn, receiver.url) as delivery:
        assert delivery.available_at is not None
        assert abs(delivery.available_at - until) < timedelta(minutes=10)


FAR = "Fri, 31 Dec 9999 23:59:59 GMT"
NO_TIME = "Mon, 01 Jan 2024 00:00:00 +99999999999999999999"


@pytest.mark.parametrize("asked", ["soon", "", "-5", "\xb2", FAR, NO_TIME])
async def test_a_wait_that_is_none_or_endless(dsn: str, receiver: Receiver, asked: str) -> None:
    receiver.answer = answer(503).replace(
        b"\r\n\r\n", b"\r\nretry-after: " + asked.encode("latin-1") + b"\r\n\r\n"
    )
    async with sent(dsn, receiver.url) as delivery:
        assert (delivery.state, delivery.status) == ("waiting", 503)


async def test_a_receiver_that_does_not_answer(dsn: str, receiver: Receiver) -> None:
    receiver.hold = asyncio.Event()
    limits = Limits(allow_private=True, allow_http=True, timeout=timedelta(seconds=0.05))
    async with sent(dsn, receiver.url, limits) as delivery:
        assert delivery.error == "no answer within 0.05 s"
    receiver.hold.set()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::ffff:10.0.0.1]", "10.0.0.1"),
        ("169.254.169.254", "169.254.169.254"),
        ("0.0.0.0", "0.0.0.0"),
    ],
)
async def test_the_inside_of_the_network_is_refused(
    dsn: str, receiver: Receiver, host: str, said: str
) -> None:
    url = receiver.url.replace("localhost", host)
    async with sent(dsn, url, Limits(allow_http=True)) as delivery:
        assert said in (delivery.error or "")
        assert "no address of the internet" in (delivery.error or "")
        assert delivery.state == "waiting"
    assert receiver.lines == []


async def test_without_tls_only_where_that_is_permitted(dsn: str, receiver: Receiver) -> None:
    async with sent(dsn, receiver.url, Limits(allow_private=True)) as delivery:
        assert "--allow-http" in (delivery.error or "")
    assert receiver.lines == []
    async with sent(dsn, receiver.url.replace("http:", "https:")) as delivery:  # here it is no TLS at all
        assert delivery.status is None
        assert delivery.error


PUBLIC = ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")
PRIVATE = (
    *("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "0.0.0.0"),
    *("224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "::1", "fe80::1", "fe80::1%eth0"),
    *("fc00::1", "ff02::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "fec0::1", "64:ff9b:1:a00:1::808:808"),
    *("2001:db8::1", "3fff::1", "5f00::1", "::7f00:1"),
)


@pytest.mark.every_variant
@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE])
def test_addresses_of_the_internet(address: str) -> None:
    assert is_public(ip_address(address)) is (address in PUBLIC)


async def test_one_private_address_among_others_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(*_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", (each, 443)) for each in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    with pytest.raises(RefusedAddress):
        await Resolver(allow_private=False).resolve("rebinds.example", 443)
    assert await Resolver(allow_private=True).resolve("rebinds.example", 443) == "8.8.8.8"


async def test_a_name_that_nobody_answers_for_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the few that look names up, so that other receivers are found meanwhile."""
    asked, answered = [], asyncio.Event()

    async def lookup(host: Any, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        await answered.wait()
        return [(2, 1, 6, "", ("8.8.8.8", 443))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    resolver = Resolver(allow_private=False)
    first, *others = (asyncio.create_task(resolver.resolve("slow.example", 443)) for _ in range(10))
    while not asked:
        await asyncio.sleep(0)
    first.cancel()  # its time is over
    with suppress(asyncio.CancelledError):
        await first
    last = asyncio.create_task(resolver.resolve("slow.example", 443))
    await asyncio.sleep(0)
    answered.set()
    assert set(await asyncio.gather(*others, last)) == {"8.8.8.8"}
    assert asked == ["slow.example"]
    await resolver.resolve("slow.example", 443)
    assert len(asked) == 2  # an answer is not kept


async def test_the_name_is_resolved_once(
    dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the second answer of a name that changes is never connected to."""
    loop = asyncio.get_running_loop()
    asked, real = [], loop.getaddrinfo

    async def lookup(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "rebinds.example":
            asked.append(host)
            return [(2, 1, 6, "", ("127.0.0.1", 0))]
        assert str(host).replace(".", "").isdigit(), host
        return await real(host, *rest, **more)

    monkeypatch.setattr(loop, "getaddrinfo", lookup)
    async with AsyncClient(dsn) as client:
        url = receiver.url.replace("localhost", "rebinds.example")
        await client.set_webhook("hook", url, codes=["none"])
        await client.test_webhook("hook")
        await Deliverer(client, HERE).run_once()
    assert asked == ["rebinds.example"]
    assert receiver.heads[0]["host"].startswith("rebinds.example:")


async def test_receivers_of_one_address_share_no_connection(dsn: str, receiver: Receiver) -> None:
    """A connection is checked for one name: behind another one may be somebody else."""
    receiver.keeps = True
    other = receiver.url.replace("localhost", "127.0.0.1")
    async with AsyncClient(dsn) as client:
        for name, url in (("one", receiver.url), ("other", other)):
            await client.set_webhook(name, url, codes=["none"])
            await client.test_webhook(name)
        limits = Limits(allow_private=True, allow_http=True, concurrency=1)
        assert await Deliverer(client, limits).run_once() == 2
    assert len({head["host"] for head in receiver.heads}) == 2
    assert receiver.connections == 2


async def test_it_runs_until_it_is_stopped(dsn: str, receiver: Receiver) -> None:
    """Requests under way end and are recorded; no more than allowed are open at once."""
    receiver.hold = asyncio.Event()
    limits = Limits(allow_private=True, allow_http=True, concurrency=3)
    async with AsyncClient(dsn) as client:
        await client.set_webhook("hook", receiver.url, codes=["none"])
        for _ in range(5):
            await client.test_webhook("hook")
        deliverer = Deliverer(client, limits)
        running = asyncio.create_task(deliverer.run(poll=timedelta(milliseconds=10)))
        while receiver.open < limits.concurrency:
            await asyncio.sleep(0)
        deliverer.stop()
        receiver.hold.set()
        await running
        states = [each.state for each in await client.list_deliveries("hook")]
    assert receiver.most == limits.concurrency
    assert sorted(states) == ["delivered"] * 3 + ["waiting"] * 2
    assert len(receiver.bodies) == 3


def test_tls_is_checked() -> None:
    """What httpx takes by itself: nobody turns it off here."""
    http = Deliverer(AsyncClient("host=nowhere"))._http()
    context: ssl.SSLContext = http._transport._pool._ssl_context  # type: ignore[attr-defined]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
