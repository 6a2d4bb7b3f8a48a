"""What both kinds of context know of the lease that a handler runs, and what they tell of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

from hwqueue.client._items import Named
from hwqueue.errors import BadArgument
from hwqueue.handler.attempt_log import log_line
from hwqueue.handler.gang import GangContext
from hwqueue.handler.steps import Memory
from hwqueue.logs import LogLevel, TellLine
from hwqueue.types import Assignment, Claim, Json

Report = dict[str, Any]
"""What a handler has said of its progress, as the database takes it."""

_MOST_MESSAGE_CHARS = 200
_TOO_MUCH = 2**63  # for a bigint


def progress_report(done: float, message: str, total: float | None) -> Report:
    """What a handler said, as the database takes it.

    Raises: BadArgument.
    """
    for name, value in (("done", done), ("total", total)):
        if value is not None and not 0 <= value < _TOO_MUCH:  # nor is NaN
            raise BadArgument(
                f"{name} must be a number of at least 0 and below 2**63, got {_said(value)}",
                detail={"field": name},
                hint="progress(0.4) is a fraction, progress(40, total=100) a count",
            )
    # what Postgres cannot hold must not fail a handler that has done its work
    text = message.replace("\0", " ").encode("utf-8", "replace").decode()
    said: Report = {"message": text[:_MOST_MESSAGE_CHARS]} if text else {}
    if total is None:
        return {"fraction": min(done, 1.0)} | said
    if total == 0:
        return {"fraction": 1.0} | said
    counts = {"done": int(min(done, total)), "total": int(total)} if total >= 1 else {}
    return {"fraction": min(done / total, 1.0)} | counts | said


def _said(value: float) -> str:
    """A number that Python may refuse to write out in full."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return str(value)


def _forget(_said: dict[str, Any]) -> None:
    """Where nobody keeps reports and lines, as in a test of a handler."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LeaseFacts:
    """What both kinds of context tell.

    Attributes:
        claim: The claim that this run is; the properties below are its parts.
        tell_progress: Keeps what `progress` reports.
        tell_line: Keeps what `log` is told.
        memory: What the lease's claims have saved.
        gang: The other members, once all of them are there; None for a lease of no gang.
    """

    claim: Claim
    tell_progress: Callable[[Report], None] = _forget
    tell_line: TellLine = _forget
    memory: Memory = field(default_factory=Memory)
    gang: GangContext | None = None

    @property
    def task_name(self) -> str:
        """The task."""
        return self.claim.task_name

    @property
    def queue(self) -> str:
        """The queue."""
        return self.claim.queue

    @property
    def params(self) -> Json:
        """The params of the lease, as JSON."""
        return self.claim.params

    def with_params(self, params: Json) -> Self:
        """A context that differs in its params: for `call_next` of a middleware."""
        return replace(self, claim=replace(self.claim, params=params))

    @property
    def lease_id(self) -> UUID:
        """The lease."""
        return self.claim.lease_id

    @property
    def claim_token(self) -> int:
        """Fence token of this run: it rises with every grant of the lease.

        Hand it to whatever the handler writes to, so that a stale run can be refused there.
        """
        return self.claim.claim_token

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.claim.attempt

    @property
    def headers(self) -> dict[str, Any]:
        """The producer's headers."""
        return dict(self.claim.headers or {})

    @property
    def run_id(self) -> UUID | None:
        """The run of a workflow that the lease is a step of; None outside of runs."""
        found = (self.claim.headers or {}).get("workflow_run_id")
        return UUID(found) if isinstance(found, str) else None

    @property
    def step_name(self) -> str | None:
        """The name of the step in its run; None outside of runs."""
        return (self.claim.headers or {}).get("step") if self.run_id else None

    def _step_of_run(self, step: str | Named) -> dict[str, Any]:
        """A step of this run, as `step_results` names it. Raises: BadArgument outside of runs."""
        run = self.run_id
        if run is None:
            raise BadArgument(
                f"lease {self.lease_id} is no step of a run, so it has no other steps",
                hint="submit a workflow; leases that are spawned one by one have no run",
            )
        return {"run_id": run, "step": step if isinstance(step, str) else step.name}

    @property
    def item_no(self) -> int | None:
        """The number of the item of a step that this is, from 0; None: it is no item.

        Of a map its place in the list; items that were added come behind that. Of a gang its rank.
        """
        headers = self.claim.headers or {}
        number = headers.get("item") if "workflow_run_id" in headers else None
        return number if isinstance(number, int) else None

    @property
    def assignment(self) -> Assignment | None:
        """What was set aside (CPU, memory, GPUs); None when nothing is counted."""
        return self.claim.assignment

    def progress(self, done: float, message: str = "", *, total: float | None = None) -> None:
        """Say how far the work has come: `progress(0.4)`, `progress(40, "frame 40", total=100)`.

        The lease shows it while it runs, and afterwards with the attempt. It costs nothing to
        call often: the worker sends the last report of each claim, once a second at most.

        Args:
            done: From 0 to 1; with `total` how many of these are done. What is more counts as all.
            message: What is being done; 200 characters of it are kept.
            total: How many there are to do.

        Raises:
            BadArgument: `done` or `total` is negative, 2**63 or more, or no number.

        SQL: report_progress, in the worker.
        """
        self.tell_progress(progress_report(done, message, total))

    def log(self, message: object, level: LogLevel = "info", **fields: Any) -> None:
        """Log a line that is kept with the attempt: `log("texture missing", "warning", frame=7)`.

        The lease shows it within a second, and until the lease is pruned: `hwqueue lease logs`. The
        last 1000 lines of each attempt are kept. It does not go to the worker's own log.

        Args:
            message: What happened, as text; 4096 bytes of it are kept.
            level: debug, info, warning or error.
            **fields: More about it, as JSON; what JSON has no form for is kept as its text. More
                than 4096 bytes of them are left out.

        Raises:
            BadArgument: There is no such level.

        SQL: append_logs, in the worker.
        """
        self.tell_line(log_line(message, level, fields))
