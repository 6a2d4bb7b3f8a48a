"""HTTP/1.1 as uvicorn speaks it, without what makes two readers see two different requests.

A proxy in front and this server must agree on where each request ends. So of what RFC 9112 lets a
server take or refuse, this one refuses: folded header lines, lines that end without a carriage
return, and, in `hwqueue.server.body_limit`, two lengths of one body.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

DEFAULT_HEAD_SECONDS = 10.0
_END = re.compile(rb"\n\r?\n")
_LAX = re.compile(rb"(?<!\r)\n|\n[ \t]")


class StrictConnection(h11.Connection):
    """Refuses heads of requests that h11 alone would mend; sends heads of answers with what follows them."""

    _head = b""

    def send(self, event: Any) -> Any:
        """h11's own. A head with a length has a body at once: apart they would wake the caller twice."""
        output = super().send(event)
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = output or b""
            return b""
        if self._head:
            output, self._head = self._head + (output or b""), b""
        return output

    def next_event(self) -> Any:
        """h11's own. Raises: h11.RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            # at most h11's limit of a head, and what has come with it
            received = self.trailing_data[0]
            end = _END.search(received)
            if end is not None and _LAX.search(received, 0, end.end()):
                raise h11.RemoteProtocolError("a folded line, or one without a carriage return")
        return super().next_event()


class StrictProtocol(H11Protocol):
    """Closes connections that begin a request and do not end its head in time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        limit = self.config.h11_max_incomplete_event_size
        self.conn = StrictConnection(
            h11.SERVER, **({} if limit is None else {"max_incomplete_event_size": limit})
        )
        state = getattr(self.config.loaded_app, "state", None)
        self._head_seconds: float = getattr(state, "head_seconds", DEFAULT_HEAD_SECONDS)
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller is here."""
        super().connection_made(transport)
        # uvicorn answers 503 from the limit on; what is beyond it has no answer
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.close()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._forget_head()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Whatever has come; a request that has begun must go on."""
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._forget_head()
        elif self._head is None and self.timeout_keep_alive_task is None:
            self._expect_head()

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(self._head_seconds, self._give_up)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.close()
