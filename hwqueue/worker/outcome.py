"""How a handler ended, in the form that settles its lease."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from hwqueue.app import BadParams, CommandFailed, Reject, Retry, Snooze, Throttled
from hwqueue.convert import jsonable
from hwqueue.errors import BadArgument
from hwqueue.handler.attempt_log import storable
from hwqueue.handler.steps import wait_of
from hwqueue.types import Claim, Settlement

_MAX_MESSAGE_CHARS = 2_000
_MAX_TRACEBACK_CHARS = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What to tell the database about one ended run.

    Attributes:
        kind: `complete`, `fail`, `release` (hand the lease back; no attempt is used) or `suspend`
            (the handler waits: a release that the next run goes on from).
        result: JSON, for `complete`.
        error: `{"type", "message", "traceback"}`, for `fail`.
        retry: Whether a failed lease may be tried again.
        retry_at: When, or how long from now; None: as its retry policy says.
        delay: How long a released lease is not claimable, or a suspended one at most.
        available_at: When it is claimable again. With neither, at once.
        signal: What a suspended lease waits for; None: it sleeps.
        name: Of the wait.
        near: `self`: a suspended lease prefers the node that it was on.
        throttles: The limit that lets no lease start for `delay`, this one neither.
        message: Why it was released, if the handler said so; for the log.
        traceparent: Of a step that has ended: the trace context of the span around its handler.
    """

    kind: Literal["complete", "fail", "release", "suspend"]
    result: Any = None
    error: Mapping[str, Any] | None = None
    retry: bool = True
    retry_at: datetime | timedelta | None = None
    delay: timedelta | None = None
    available_at: datetime | None = None
    signal: str | None = None
    name: str | None = None
    near: Literal["self"] | None = None
    throttles: str | None = None
    message: str = ""
    traceparent: str | None = None

    @property
    def is_snooze(self) -> bool:
        """Whether the handler put its lease off."""
        return self.delay is not None or self.available_at is not None

    def settle(self, claim: Claim) -> Settlement:
        """The settlement of the claim that ended so."""
        told = {name: getattr(self, name) for name in _TOLD}
        return Settlement(lease_id=claim.lease_id, claim_token=claim.claim_token, outcome=self.kind, **told)

    def to_json(self) -> str:
        """Text that `from_json` reads back, for the way out of a child process."""
        return json.dumps(asdict(self), default=_spelled)

    @classmethod
    def from_json(cls, text: str | bytes) -> Outcome:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        for name in ("retry_at", "available_at", "delay"):
            if isinstance(value := fields[name], str):
                fields[name] = datetime.fromisoformat(value)
            elif value is not None:
                fields[name] = timedelta(microseconds=value)
        return cls(**fields)


_TOLD = Outcome.__dataclass_fields__.keys() & Settlement.__dataclass_fields__.keys()


def _spelled(value: datetime | timedelta) -> str | int:
    """A time as text, a span in microseconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value // timedelta(microseconds=1)


def traced(how: Outcome | None, traceparent: str) -> Outcome | None:
    """The outcome with the trace context of its span."""
    return None if how is None else replace(how, traceparent=traceparent)


RELEASED = Outcome(kind="release")
COMPLETED = Outcome(kind="complete")
"""Of handlers that return nothing; they are settled for less than those with a result."""


class Ended(NamedTuple):
    """A run that has ended.

    Attributes:
        claim: Its claim.
        how: What to tell the database.
        lasted: Seconds that the handler ran; None: not measured, or it never started.
        is_despite_cancel: The handler completed after it was asked to stop as cancelled.
    """

    claim: Claim
    how: Outcome
    lasted: float | None = None
    is_despite_cancel: bool = False


def of_result(result: Any) -> Outcome:
    """The handler returned: complete, or fail when the result has no JSON form in Postgres."""
    if result is None:
        return COMPLETED
    try:
        result = jsonable(result, "result")
    except BadArgument as error:
        # Running it again would give the same, after doing the same work.
        return failure("ResultNotJson", f"what the handler returned: {error}", retry=False)
    return Outcome(kind="complete", result=result)


def of_exception(error: BaseException, *, may_retry: bool = True) -> Outcome:
    """The handler raised: fail, with or without another attempt; put its lease off; or wait.

    Args:
        may_retry: What the task says of such exceptions; `Retry` and `Reject` say it themselves.
    """
    if wait := wait_of(error):
        return Outcome(kind="suspend", name=wait.name, signal=wait.signal, delay=wait.timeout, near=wait.near)
    if isinstance(error, Snooze):
        return Outcome(kind="release", delay=error.after, available_at=error.at, message=str(error))
    if isinstance(error, Throttled):
        limit = storable(error.limit)
        return Outcome(kind="release", delay=error.retry_after, throttles=limit, message=str(error))
    retry_at: datetime | timedelta | None = None
    if isinstance(error, BadParams):
        return failure("BadParams", storable(str(error)[:_MAX_MESSAGE_CHARS]), retry=False)
    if isinstance(error, CommandFailed):
        message = storable(str(error)[:_MAX_MESSAGE_CHARS])
        told = {"type": "CommandFailed", "message": message, "exit_status": error.exit_status}
        return Outcome(kind="fail", error=told)
    if isinstance(error, Retry):
        retry_at = error.after if error.at is None else error.at
        may_retry = True
    return Outcome(
        kind="fail",
        error=_describe(error),
        retry=may_retry and not isinstance(error, Reject),
        retry_at=retry_at,
    )


def failure(kind: str, message: str, *, retry: bool = True) -> Outcome:
    """A failure that no exception of the handler stands for."""
    return Outcome(kind="fail", error={"type": kind, "message": message}, retry=retry)


CANCELLED_ITSELF = failure("Cancelled", "the handler cancelled itself")
"""The handler gave way although nobody had asked it to."""


def _describe(error: BaseException) -> dict[str, Any]:
    """Type, message and the end of the traceback, where the cause is."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception as nested:  # a broken __str__ must not hide the failure
        message = f"(no message: {type(nested).__name__} in __str__)"
    trace = "".join(traceback.format_exception(error, chain=True))
    return {
        "type": name,
        "message": storable(message[:_MAX_MESSAGE_CHARS]),
        "traceback": storable(trace[-_MAX_TRACEBACK_CHARS:]),
    }
