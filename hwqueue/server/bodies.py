"""How large a request may be, how long it may take to arrive, and where it ends.

Starlette's own limit answers with plain text, outside of all that is around an answer here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hwqueue.server.problems import answer

# What is still on its way is not waited for.
_GO = {"Connection": "close"}


class BodyLimit:
    """ASGI middleware: refuses what says that it is too large, and stops reading what is.

    Nor does it wait for ever for what comes too slowly.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, larger: Mapping[str, int], seconds: float
    ) -> None:
        """`larger`: paths whose requests may have another number of bytes than `max_bytes`."""
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
        if _has_two_ends(headers, scope):
            message = "the request says in two ways where it ends"
            await answer(Request(scope), 400, message, headers=_GO)(scope, receive, send)
            return
        most = self._larger.get(scope["path"], self._max_bytes)
        message_413 = f"a request may have {most} bytes here"
        said = headers.get("content-length", "0")
        if said.isdecimal() and int(said) > most:
            await answer(Request(scope), 413, message_413, headers=_GO)(scope, receive, send)
            return
        size, is_all_here = 0, False
        until = asyncio.get_running_loop().time() + self._seconds

        async def receive_counted() -> Message:
            nonlocal size, is_all_here
            if is_all_here:  # what comes now is that the caller has gone
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, "the request did not arrive in time", _GO) from error
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(413, message_413, _GO)
            is_all_here = not message.get("more_body", False)
            return message

        await self._app(scope, receive_counted, send)


def _has_two_ends(headers: Headers, scope: Scope) -> bool:
    """Whether a proxy in front may have seen another end of the body (RFC 9112, 6.1 and 6.3)."""
    if "transfer-encoding" not in headers:
        return False
    return "content-length" in headers or scope.get("http_version") == "1.0"
