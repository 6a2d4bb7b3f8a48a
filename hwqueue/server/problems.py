"""What went wrong, as RFC 9457 problem details."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from psycopg_pool import PoolClosed, PoolTimeout
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from hwqueue.driver_errors import PASSING
from hwqueue.errors import HwqueueError
from hwqueue.hints import message_of, of_error
from hwqueue.server.fair_slots import Busy
from hwqueue.text import one_line

MEDIA_TYPE = "application/problem+json"
SCHEMA = "the schema of requests is at /api/v1/openapi.json"
_TRY_AGAIN = {"Retry-After": "1"}
_MAX_EXACT = 2**53 - 1
# Of a request: answers are no larger for requests that are wrong all over.
MOST_ERRORS = 100
_MOST_OF_A_PATH = 300
_log = logging.getLogger("hwqueue.server")


class InvalidParam(BaseModel):
    """One of several things that are wrong with a request."""

    field: str = Field(description="Path of what was refused.", examples=["options.priority"])
    message: str = Field(examples=["Input should be less than or equal to 32767"])


class Problem(BaseModel):
    """What went wrong, where, and what to do about it (RFC 9457)."""

    type: str = Field(examples=["urn:hwqueue:error:QHL04"])
    title: str = Field(description="The status in words.", examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(
        description="What was wrong, for people.",
        examples=["lease 01890a5d-ac96-774b-bcce-b302099a8057 does not exist"],
    )
    code: str | None = Field(
        default=None,
        description="SQLSTATE, from class QH where it is about the queue.",
        examples=["QHL04"],
    )
    field: str | None = Field(
        default=None,
        description="Path of the argument that was refused.",
        examples=["options.placement.require[0].op"],
    )
    hint: str | None = Field(default=None, examples=["check the id"])
    retryable: bool = Field(default=False, description="The same request may succeed later.")
    facts: dict[str, Any] | None = Field(
        default=None, description="Facts for programs; integers beyond 2^53 are strings."
    )
    errors: list[InvalidParam] | None = Field(
        default=None,
        description="What is wrong, where it is more than one thing: the first 100.",
    )
    request_id: str | None = Field(default=None, examples=["0b5c1f7e8f1d4b0f9a53c4a0d6c1e1aa"])


class HTTPProblem(Exception):
    """A problem that the server itself finds, to be raised anywhere in a request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        hint: str | None = None,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.hint = hint
        self.field = field
        self.headers = dict(headers or {})


def answer(
    request: Request, status: int, message: str, *, headers: Mapping[str, str] = {}, **rest: Any
) -> Response:
    """A problem as the answer to a request."""
    code = rest.get("code")
    problem = Problem(
        type=f"urn:hwqueue:error:{code}" if code else "about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=message,
        request_id=request.scope.get("state", {}).get("request_id"),
        **rest,
    )
    return Response(
        problem.model_dump_json(exclude_none=True),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers=dict(headers),
    )


def install(app: FastAPI) -> None:
    """Make every error of a request a problem."""
    app.exception_handler(HwqueueError)(_of_the_queue)
    app.exception_handler(HTTPProblem)(_of_the_server)
    app.exception_handler(RequestValidationError)(_of_the_request)
    app.exception_handler(HTTPException)(_of_http)
    app.exception_handler(psycopg.Error)(_of_the_database)
    app.exception_handler(PoolTimeout)(_of_the_pool)
    app.exception_handler(PoolClosed)(_of_the_pool)


def _of_the_queue(request: Request, error: HwqueueError) -> Response:
    status = error.http_status
    if status >= 500:
        _log.error("request %s: %s", one_line(request.scope.get("path")), one_line(error))
    return answer(
        request,
        status,
        message_of(error),
        code=error.sqlstate,
        field=_field_of(error, request),
        hint=of_error(error, "http"),
        retryable=error.retryable or status == 503,
        facts=_exact(error.detail) or None,
        headers=_TRY_AGAIN if status == 503 else {},
    )


def _field_of(error: HwqueueError, request: Request) -> str | None:
    """The path of what was refused; in a batch with its element, as where the server itself refuses."""
    index = error.detail.get("index")
    if index is not None and error.field and request.scope["path"].endswith("/leases/batch"):
        return f"leases[{index}].{error.field}"
    if request.method == "GET":  # the keys of a filter are query parameters
        return error.field and error.field.removeprefix("filter.")
    return error.field


def _of_the_server(request: Request, error: HTTPProblem) -> Response:
    return answer(
        request,
        error.status,
        str(error),
        hint=error.hint,
        field=error.field,
        retryable=error.status in (429, 503),
        headers=error.headers,
    )


def _of_the_request(request: Request, error: RequestValidationError) -> Response:
    found = [
        # of what is no JSON, the place is a number of characters
        InvalidParam(
            field="body" if each["type"] == "json_invalid" else _path(each["loc"]),
            message=each["msg"],
        )
        for each in error.errors()
    ]
    first = found[0]
    message, hint = f"{first.field}: {first.message}", SCHEMA
    # FastAPI hands on what does not say that it is JSON as bytes
    if first.field == "body" and error.errors()[0]["type"] != "missing" and not _is_json(request):
        kind = request.headers.get("content-type")
        message = f"body: its Content-Type is {kind[:100]}" if kind else "body: no Content-Type"
        message, hint = f"{message}, and JSON is needed", "add Content-Type: application/json"
    return answer(
        request,
        422,
        message,
        code="QHA01",
        field=first.field,
        hint=hint,
        errors=found[:MOST_ERRORS] if len(found) > 1 else None,
    )


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _of_http(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods_of(request))
        message = f"{request.method} is not for this address, which takes {headers['Allow']}"
        return answer(request, 405, message, hint=SCHEMA, headers=headers)
    if error.status_code == 400 and isinstance(error.__cause__, ValueError | RecursionError):
        # JSON that Python's reader gives up on: FastAPI says no more than that
        return answer(
            request,
            400,
            "the body is JSON that cannot be read",
            code="QHA01",
            field="body",
            hint="integers may have 4300 digits, and nesting has its bounds",
            headers=headers,
        )
    return answer(request, error.status_code, str(error.detail), headers=headers)


def _methods_of(request: Request) -> list[str]:
    """The methods that the path takes: each of them may be a route of its own."""
    scope = dict(request.scope)
    return [
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(route.matches(scope | {"method": method})[0] is Match.FULL for route in request.app.routes)
    ]


def _of_the_database(request: Request, error: psycopg.Error) -> Response:
    """Errors that are not about the queue; what the server says of them is not for callers."""
    state = error.sqlstate or ("08000" if isinstance(error, psycopg.OperationalError) else "")
    if isinstance(error, psycopg.errors.QueryCanceled):
        return answer(
            request,
            504,
            "the database took too long; nothing was changed",
            code=state,
            hint="ask for less: fewer rows, or a filter that more rows meet",
            retryable=True,
            headers=_TRY_AGAIN,
        )
    path = one_line(request.scope.get("path"))
    _log.error("request %s: SQLSTATE %s: %s", path, state, one_line(error))
    if state.startswith(PASSING):
        return answer(
            request,
            503,
            "the database is not there just now; whether something was changed is unknown",
            code=state,
            hint="ask again; a spawn with the same Idempotency-Key",
            retryable=True,
            headers=_TRY_AGAIN,
        )
    if state == "42501":  # bound to tenants, say
        message = "the login of the database that the server has may not do this"
        return answer(request, 403, message, code=state, hint="its roles say what it may: docs/use/http.md")
    return answer(request, 500, "the database refused", code=state or None, hint="the server's log says more")


def _of_the_pool(request: Request, error: Exception) -> Response:
    message = "no connection to the database became free in time; nothing was changed"
    hint = "wait, and ask again; GET /readyz says whether the database answers"
    if isinstance(error, Busy):
        message = f"{message}: {error}"
        hint = "wait, and ask for less at a time; all tokens of a tenant share its connections"
    return answer(
        request,
        429 if isinstance(error, Busy) and error.is_own else 503,
        message,
        hint=hint,
        retryable=True,
        headers=_TRY_AGAIN,
    )


def unexpected(request: Request) -> Response:
    """The answer when the server itself has failed."""
    return answer(request, 500, "the server failed", hint="its log says more")


def _path(location: Sequence[str | int]) -> str:
    """`("body", "leases", 3, "task")` as `leases[3].task`."""
    path = ""
    for part in location[1:] or location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path[:_MOST_OF_A_PATH]


def _exact(value: Any) -> Any:
    """JSON that survives readers whose numbers are doubles."""
    if isinstance(value, Mapping):
        return {key: _exact(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(member) for member in value]
    if isinstance(value, int) and abs(value) > _MAX_EXACT:
        return str(value)
    return value
