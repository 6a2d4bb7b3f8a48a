"""How large a request may be.

Starlette's own limit answers with plain text, outside of all that is around an answer here.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hwqueue.server.problems import answer


class BodyLimit:
    """ASGI middleware: refuses what says that it is too large, and stops reading what is."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "0")
        if said.isdecimal() and int(said) > self._max_bytes:
            await answer(Request(scope), 413, self._message)(scope, receive, send)
            return
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, self._message)
            return message

        await self._app(scope, receive_counted, send)

    @property
    def _message(self) -> str:
        return f"a request may have {self._max_bytes} bytes"
