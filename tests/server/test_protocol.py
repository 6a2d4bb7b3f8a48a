"""Requests as they come through a socket: a proxy in front must see the same ones."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import h11
import pytest

from hwqueue.serve import run
from hwqueue.server import ServerSettings
from hwqueue.server.protocol import StrictConnection
from tests.server.conftest import live

# Only so that a test that fails ends.
BOUND_SECONDS = 20.0
SECOND = (
    b"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-User: root\r\n"
    b"X-Forwarded-Role: admin\r\nX-Forwarded-Tenant: *\r\n\r\n"
)
POST = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n"
Listening = Callable[..., AbstractContextManager[socket.socket]]


@pytest.fixture
def listening(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Listening:
    """A connection to a server that is run as `hwqueue serve` runs it."""

    @contextmanager
    def listen(**changes: Any) -> Iterator[socket.socket]:
        told: dict[str, Any] = {}
        with monkeypatch.context() as patch:
            patch.setattr("hwqueue.serve._set_up_logs", lambda **_: None)
            patch.setattr("uvicorn.run", lambda app, **options: told.update(app=app, **options))
            run(ServerSettings(dsn=dsn, pool_size=2, **changes))
        app = told.pop("app")
        with live(app, **told) as url:
            address = urlsplit(url)
            at = (str(address.hostname), address.port or 0)
            with socket.create_connection(at, BOUND_SECONDS) as connection:
                yield connection

    return listen


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    told = b""
    while more := connection.recv(65_536):
        told += more
    return told


def statuses(told: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+) ", told)


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\nX-Length: %d\r\n\r\n",
    ],
)
def test_two_lengths_of_one_body_are_refused(listening: Listening, head: bytes) -> None:
    """A proxy that goes by the other one takes the second request for a part of the first."""
    rest = b"0\r\n\r\n" + SECOND
    with listening(auth="proxy", proxy_networks=("127.0.0.1/32",)) as connection:
        connection.sendall(head % len(rest) + rest)
        told = all_of(connection)
    assert statuses(told) == [b"400"]
    assert b"connection: close" in told.lower()
    assert b"user:root" not in told


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n\tc\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: b\nX-C: d\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\n\r\n",
    ],
)
@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_lines_that_not_everybody_ends_alike_are_refused(
    listening: Listening, before: bytes, head: bytes
) -> None:
    with listening() as connection:
        connection.sendall(before + head)
        assert statuses(all_of(connection)) == [b"200", b"400"][0 if before else 1 :]


def test_what_is_in_a_body_is_no_line_of_a_head(listening: Listening) -> None:
    good = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    body = b"a\n b\n\nc"
    post = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    with listening() as connection:
        connection.sendall(post + body + good)
        assert statuses(all_of(connection)) == [b"405", b"200"]


def test_a_head_may_come_in_pieces(listening: Listening) -> None:
    good = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with listening() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(good)):
            connection.sendall(good[number : number + 1])
        assert statuses(all_of(connection)) == [b"200"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: local",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        POST + b"Content-Length: 2\r\n\r\n{}GET /hea",
    ],
)
def test_a_head_that_does_not_come_is_not_waited_for(listening: Listening, sent: bytes) -> None:
    """Whoever waits for ever here has found a connection that stays open."""
    with listening(head_timeout=timedelta(milliseconds=200)) as connection:
        connection.sendall(sent)
        assert len(statuses(all_of(connection))) == sent.count(b"\r\n\r\n")


def test_an_answer_may_take_longer_than_a_head(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwqueue.server.event_streams._IDLE_POLLS", 1)
    with listening(head_timeout=timedelta(milliseconds=400)) as connection:
        connection.sendall(b"GET /api/v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told = b""
        while b"from here on" not in told:
            more = connection.recv(65_536)
            assert more, told
            told += more
        # its next sign of life comes after more than twice the limit
        while told.count(b": ") < 2 or b"nothing new" not in told:
            more = connection.recv(65_536)
            assert more, told
            told += more


def test_there_is_an_end_of_connections(listening: Listening) -> None:
    with listening(max_connections=10, head_timeout=timedelta(seconds=BOUND_SECONDS)) as first:
        peer = first.getpeername()
        others: list[socket.socket] = []
        try:
            while len(others) < 30:
                others.append(socket.create_connection(peer, BOUND_SECONDS))
            # those beyond the limit are closed without a word
            assert others[-1].recv(1) == b""
            first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert statuses(first.recv(65_536)) == [b"503"]
        finally:
            for each in others:
                each.close()


def test_a_head_with_a_length_is_sent_with_its_body() -> None:
    """Apart they would wake the caller twice."""
    connection = StrictConnection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.next_event()
    assert connection.send(h11.Response(status_code=200, headers=[("Content-Length", "1")])) == b""
    assert connection.send(h11.Data(data=b"x")).endswith(b"\r\n\r\nx")
