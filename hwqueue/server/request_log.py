"""The outermost middleware: request id, security headers, access log, 500 for unhandled errors."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hwqueue.server.problems import unexpected

_log = logging.getLogger("hwqueue.access")
_errors = logging.getLogger("hwqueue.server")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""On every answer that does not say otherwise itself."""

_HTTPS_ONLY = {"Strict-Transport-Security": "max-age=31536000"}


class RequestLogMiddleware:
    """ASGI middleware, the outermost: an id and a line of the access log for every request."""

    def __init__(self, app: ASGIApp, *, has_https: bool) -> None:
        self._app = app
        self._headers = {**HEADERS, **(_HTTPS_ONLY if has_https else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _client_id(scope) or uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status: int | None = None
        began = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            _errors.exception("request %s failed", request_id)
            if status is not None:
                raise  # the answer has begun: all that is left is to close the connection
            await unexpected(Request(scope))(scope, receive, send_with_headers)
        finally:
            self._write_line(scope, status, time.perf_counter() - began)

    def _write_line(self, scope: Scope, status: int | None, seconds: float) -> None:
        """Write the log line. No query: it may hold what is not for logs."""
        state, client = scope["state"], scope.get("client")
        facts = {
            "request_id": state["request_id"],
            "client": client[0] if client else None,
            "actor": state.get("actor"),
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        line = " ".join(map(_word, facts.values()))
        _log.info("%s", line, extra=facts)


def _client_id(scope: Scope) -> str | None:
    """The id that the client, or a proxy, sent with the request, if it can go into a log."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if _REQUEST_ID.fullmatch(text) else None
    return None


def _word(fact: object) -> str:
    """A fact as one word of a line: nothing in it can begin another line."""
    return "-" if fact is None else str(fact).encode("unicode_escape").decode().replace(" ", "%20")
