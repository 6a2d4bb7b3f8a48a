"""Conditional GET: answers carry an `ETag`, and a request that names it is answered with 304."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ETagMiddleware:
    """ASGI middleware: tags the JSON answers of GET requests with a hash of their content.

    It saves bandwidth, not database work. Nothing is stored here: the client keeps the tag.
    """

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        """`prefix`: of the paths whose answers are tagged."""
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        is_get = scope["type"] == "http" and scope["method"] == "GET"
        if not is_get or not scope["path"].startswith(self._prefix):
            await self._app(scope, receive, send)
            return
        held: Message | None = None

        async def send_tagged(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and _is_json(message):
                held = message  # until there is a body to hash
                return
            if held is not None:
                start, held = held, None
                if not message.get("more_body", False):
                    start, message = _tagged(scope, start, message)
                await send(start)
            await send(message)

        await self._app(scope, receive, send_tagged)


def _is_json(start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("content-type")
    return start["status"] == 200 and kind == "application/json"


def _tagged(scope: Scope, start: Message, content: Message) -> tuple[Message, Message]:
    """The answer with its tag; 304 without content, if the request names the tag."""
    tag = f'"{hashlib.blake2b(content.get("body", b""), digest_size=16).hexdigest()}"'
    headers: Any = MutableHeaders(raw=list(start["headers"]))
    headers["ETag"] = tag
    known = ",".join(Headers(scope=scope).getlist("if-none-match")).split(",")
    if not any(each.strip().removeprefix("W/") in (tag, "*") for each in known):
        return {**start, "headers": headers.raw}, content
    del headers["content-length"], headers["content-type"]
    return {**start, "status": 304, "headers": headers.raw}, {**content, "body": b""}
