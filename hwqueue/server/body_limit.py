"""Limits of request bodies: their size, how long they may take to arrive, where they end.

Starlette's own limit answers with plain text instead of problem details.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hwqueue.server.problems import answer

# The rest of the body is not waited for.
_CLOSE = {"Connection": "close"}


class BodyLimitMiddleware:
    """ASGI middleware: 413 for a body that is too large, 408 for one that arrives too slowly.

    A `Content-Length` beyond the limit is refused before anything is read.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, larger: Mapping[str, int], seconds: float) -> None:
        """`larger`: patterns of paths whose requests may have another number of bytes than `max_bytes`."""
        self._app = app
        self._max_bytes = max_bytes
        self._larger = larger
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if _has_ambiguous_length(headers, scope):
            message = "the request says in two ways where it ends"
            await answer(Request(scope), 400, message, headers=_CLOSE)(scope, receive, send)
            return
        limit = next(
            (most for path, most in self._larger.items() if re.fullmatch(path, scope["path"])),
            self._max_bytes,
        )
        message_413 = f"a request may have {limit} bytes here"
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            await answer(Request(scope), 413, message_413, headers=_CLOSE)(scope, receive, send)
            return
        size, is_complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def receive_counted() -> Message:
            nonlocal size, is_complete
            if is_complete:  # what comes now is that the client has disconnected
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, "the request did not arrive in time", _CLOSE) from error
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, message_413, _CLOSE)
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, receive_counted, send)


def _has_ambiguous_length(headers: Headers, scope: Scope) -> bool:
    """Whether a proxy in front may have seen another end of the body (RFC 9112, 6.1 and 6.3)."""
    if "transfer-encoding" not in headers:
        return False
    return "content-length" in headers or scope.get("http_version") == "1.0"
