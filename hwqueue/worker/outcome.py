"""How a handler ended, in the form that settles its lease."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from hwqueue import tracing
from hwqueue.app import BadParams, Reject, Retry
from hwqueue.convert import jsonable
from hwqueue.errors import BadArgument
from hwqueue.types import Claim, Settlement

_MAX_MESSAGE_CHARS = 2_000
_MAX_TRACEBACK_CHARS = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What to tell the database about one ended run.

    Attributes:
        kind: `complete`, `fail` or `release` (hand the lease back; no attempt is used).
        result: JSON, for `complete`.
        error: `{"type", "message", "traceback"}`, for `fail`.
        retry: Whether a failed lease may be tried again.
        retry_at: When; None: as its retry policy says.
    """

    kind: Literal["complete", "fail", "release"]
    result: Any = None
    error: Mapping[str, Any] | None = None
    retry: bool = True
    retry_at: datetime | None = None

    def settle(self, claim: Claim) -> Settlement:
        """The settlement of the claim that ended so."""
        lease_id, token = claim.lease_id, claim.claim_token
        if self.kind == "complete":
            return Settlement.complete(lease_id, token, result=self.result)
        if self.kind == "release":
            return Settlement.release(lease_id, token)
        return Settlement.fail(
            lease_id, token, error=self.error or {}, retry=self.retry, retry_at=self.retry_at
        )

    def to_json(self) -> str:
        """Text that `from_json` reads back, for the way out of a child process."""
        return json.dumps(asdict(self) | {"retry_at": self.retry_at and self.retry_at.isoformat()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Outcome:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        if fields["retry_at"] is not None:
            fields["retry_at"] = datetime.fromisoformat(fields["retry_at"])
        return cls(**fields)


RELEASED = Outcome(kind="release")
_COMPLETED = Outcome(kind="complete")


@contextmanager
def traced(claim: Claim) -> Iterator[Callable[[Outcome | None], Outcome | None]]:
    """A span around a handler. Pass how it ended through what this yields; None: it gave way."""
    with tracing.handling(claim) as note:

        def ended(how: Outcome | None) -> Outcome | None:
            note("stopped" if how is None else how.kind, None if how is None else how.error)
            return how

        yield ended


def of_result(result: Any) -> Outcome:
    """The handler returned: complete, or fail when the result has no JSON form in Postgres."""
    if result is None:
        return _COMPLETED
    try:
        result = jsonable(result, "result")
    except BadArgument as error:
        # Running it again would give the same, after doing the same work.
        return failure("ResultNotJson", f"what the handler returned: {error}", retry=False)
    return Outcome(kind="complete", result=result)


def of_exception(error: BaseException, *, may_retry: bool = True) -> Outcome:
    """The handler raised: fail, with or without another attempt.

    Args:
        may_retry: What the task says of such exceptions; `Retry` and `Reject` say it themselves.
    """
    retry_at = None
    if isinstance(error, BadParams):
        return failure("BadParams", _storable(str(error)[:_MAX_MESSAGE_CHARS]), retry=False)
    if isinstance(error, Retry):
        retry_at = error.at if error.after is None else datetime.now(UTC) + error.after
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
        "message": _storable(message[:_MAX_MESSAGE_CHARS]),
        "traceback": _storable(trace[-_MAX_TRACEBACK_CHARS:]),
    }


def _storable(text: str) -> str:
    """Text that jsonb takes: no NUL, no lone surrogates."""
    return text.replace("\x00", "\\0").encode(errors="backslashreplace").decode()
