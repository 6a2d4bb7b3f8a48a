"""Log lines about leases: attempts that failed, leases that are dead, cancelled or handed back.

Every line carries `lease_id`, `task`, `queue` and `attempt` as fields of its record (`extra`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import psycopg

from hwqueue import error_text
from hwqueue.app import App, Task
from hwqueue.errors import HwqueueError
from hwqueue.logs import about, lease_fields
from hwqueue.text import duration, exact_duration, one_line
from hwqueue.types import Claim, LeaseOutlook, LeaseState, Settled, TaskDifference, Verdict
from hwqueue.worker.outcome import Ended, Outcome

_log = logging.getLogger("hwqueue.worker")

_MOST_ASKED = 100
_MOST_MESSAGE_CHARS = 500
_MOST_OPTION_CHARS = 200
_LAST_LINES_SECONDS = 3.0
_LOOK_AGAIN_SECONDS = 60.0


def tell(level: int, claim: Claim, said: str, *facts: object, extra: dict[str, Any] | None = None) -> None:
    """Log what is said of a lease behind `lease ID of task NAME`, with its fields."""
    if _log.isEnabledFor(level):
        fields = lease_fields(claim) | (extra or {})
        line = f"lease %s of task %s{said}"
        _log.log(level, line, claim.lease_id, claim.task_name, *facts, extra=fields, stacklevel=2)


AskOutlook = Callable[[Sequence[UUID]], Awaitable[Iterable[LeaseOutlook]]]
Answered = tuple[Ended, Settled]


def error_line(error: Mapping[str, Any] | None) -> str:
    """What went wrong in one line of a log, with each line of its message.

    Often the first says least: `1 validation error for Params`.
    """
    return one_line((error_text.error_words(error) or "error")[:_MOST_MESSAGE_CHARS])


class Reports:
    """Tells what became of leases, and calls the hooks of those that failed.

    How many attempts there may be, and when the next one starts, is asked for afterwards and in the
    background, in one call for a batch: completions cost no statement.
    """

    def __init__(self, app: App, ask: AskOutlook) -> None:
        self._app = app
        self._ask = ask
        self._under_way: set[asyncio.Future[None]] = set()
        self._look_at: dict[str, float] = {
            name: 0.0
            for name, task in app.tasks.items()
            if (task.defaults.max_attempts, task.defaults.placement) != (None, None)
        }

    def settled(self, ended: Sequence[Ended], answers: Mapping[int, Settled]) -> None:
        """A batch was settled; the answers are by place, from 1, and what has none is completed."""
        failed: list[Answered] = []
        tells_completed = _log.isEnabledFor(logging.INFO)
        for place in range(1, len(ended) + 1) if tells_completed else answers:
            one, answer = ended[place - 1], answers.get(place)
            if answer is None:
                _tell_completed(one)
            elif answer.verdict is Verdict.BUSY:
                tell(logging.WARNING, one.claim, ": another session holds its claim; settling it later")
            elif answer.verdict is not Verdict.OK:
                _tell_verdict(one, answer)
            elif one.how.kind == "fail":
                failed.append((one, answer))
            elif one.how.kind in ("release", "suspend"):
                _tell_release(one, answer)
            elif tells_completed:
                _tell_completed(one)
        if failed:
            self._begin(self._tell_failures(failed))

    def started(self, claims: Iterable[Claim]) -> None:
        """Handlers start: check now and then whether leases have the defaults of their tasks."""
        now = asyncio.get_running_loop().time()
        for claim in claims:
            if self._look_at.get(claim.task_name, now) < now:
                self._look_at[claim.task_name] = now + _LOOK_AGAIN_SECONDS
                self._begin(self._compare(claim))

    async def finish(self) -> None:
        """Wait for the lines that are under way, for a moment."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_LAST_LINES_SECONDS)

    def _begin(self, telling: Any) -> None:
        begun = asyncio.ensure_future(telling)
        self._under_way.add(begun)
        begun.add_done_callback(self._under_way.discard)

    async def _tell_failures(self, failed: Sequence[Answered]) -> None:
        known = await self._known([one.claim.lease_id for one, _answer in failed])
        for one, answer in failed:
            _tell_failure(one, answer, known.get(one.claim.lease_id))
        for one, answer in failed:
            if answer.state is not LeaseState.CANCELLED:
                with about(one.claim):
                    await self._call_hooks(one.claim, one.how.error or {}, answer)

    async def _call_hooks(self, claim: Claim, error: Mapping[str, Any], answer: Settled) -> None:
        await self._app.call_hooks("failure", claim, error)
        if answer.state is LeaseState.FAILED:
            await self._app.call_hooks("dead", claim, error)

    async def _known(self, lease_ids: Sequence[UUID]) -> Mapping[UUID, LeaseOutlook]:
        """What the database knows of the first of them; nothing when it cannot be asked."""
        try:
            found = await self._ask(lease_ids[:_MOST_ASKED])
        except (HwqueueError, psycopg.Error) as error:
            _log.debug("no outlook of leases: %s", error)
            return {}
        return {one.lease_id: one for one in found}

    async def _compare(self, claim: Claim) -> None:
        """Warn once for a task when a lease of it was spawned without the task's defaults."""
        one = (await self._known([claim.lease_id])).get(claim.lease_id)
        task = self._app.tasks[claim.task_name]
        if one is None or not (missing := missing_defaults(task, one)):
            return
        self._look_at.pop(claim.task_name, None)
        tell(
            logging.WARNING,
            claim,
            " was spawned without the task's defaults (%s): Task.spawn uses "
            "them, other spawns do after hwqueue task sync (said once for each task)",
            ", ".join(missing),
        )


def missing_defaults(task: Task[..., Any], lease: LeaseOutlook) -> list[str]:
    """Which defaults of its task a lease does not have: it was not spawned by `Task.spawn`.

    Options that were given at the spawn are no defaults: they win.
    """
    missing = []
    defaults = task.defaults
    if defaults.placement and not lease.placement:
        missing.append("placement")
    is_of_queue = lease.own_max_attempts is None
    if is_of_queue and defaults.max_attempts not in (None, lease.max_attempts):
        missing.append(f"max_attempts {defaults.max_attempts}, it has {lease.max_attempts}")
    return missing


def tell_differences(found: Iterable[TaskDifference]) -> None:
    """What an app declares of its tasks and the database has otherwise: a line for each task.

    The worker may not set them, or those of the database are newer or were set by a person.
    """
    for task, options in groupby(found, key=lambda one: one.task):
        _log.warning(
            "task %s has other defaults in the database: %s: Task.spawn uses the app's, other "
            "spawns the database's until hwqueue task sync",
            task,
            "; ".join(f"{one.option} {_value(one.declared)}, there {_value(one.stored)}" for one in options),
            extra={"task": task},
        )


def _value(option: Any) -> str:
    """An option as JSON in one line, cut short."""
    return "none" if option is None else one_line(json.dumps(option))[:_MOST_OPTION_CHARS]


def tell_started(claim: Claim) -> None:
    """A handler is about to run."""
    if _log.isEnabledFor(logging.INFO):
        tell(logging.INFO, claim, " started, attempt %d", claim.attempt)


def tell_unsettled(ended: Ended, why: str) -> None:
    """A settlement was refused and dropped."""
    said = ": not settled, it comes back by its timeout: %s%s"
    tell(logging.ERROR, ended.claim, said, why, _and_failure(ended.how), extra=_lasting(ended))


def _and_failure(how: Outcome) -> str:
    return f"; its handler failed: {error_line(how.error)}" if how.kind == "fail" else ""


def _tell_verdict(ended: Ended, answer: Settled) -> None:
    """What came too late. `finished` is no news unless the handler failed.

    The handler settled the lease in a transaction of its own, or an answer was lost and the
    settlement sent again.
    """
    is_news = answer.verdict is not Verdict.FINISHED or ended.how.kind == "fail"
    tell(
        logging.WARNING if is_news else logging.INFO,
        ended.claim,
        ": %s%s",
        f"settled too late: {answer.verdict.value}" if is_news else "it was settled already",
        _and_failure(ended.how),
        extra=_lasting(ended),
    )


def _tell_completed(ended: Ended) -> None:
    tell(
        logging.INFO,
        ended.claim,
        " completed %s%s",
        "although asked to stop, in " if ended.is_despite_cancel else "in ",
        "an unknown time" if ended.lasted is None else _lasted(ended.lasted),
        extra=_lasting(ended),
    )


def _tell_release(ended: Ended, answer: Settled) -> None:
    how = ended.how
    if answer.state is LeaseState.CANCELLED:
        said = "is cancelled: its handler was stopped"
    elif how.kind == "suspend":
        said = f"is suspended, {_awaited(how)}"
        said += ": it is there already" if answer.state is LeaseState.PENDING else ""
    elif how.throttles is not None:
        said = f"was handed back: limit {how.throttles} is closed" + (
            f": {one_line(how.message)}" if how.message else ""
        )
    elif how.is_snooze:
        said = f"is snoozed, {_later(how)}" + (f": {one_line(how.message)}" if how.message else "")
    else:
        said = "was handed back"
    tell(logging.INFO, ended.claim, " %s", said, extra=_lasting(ended))


def _awaited(how: Outcome) -> str:
    if how.signal is None:
        return f"goes on in {exact_duration(how.delay)}"
    most = "" if how.delay is None else f", {exact_duration(how.delay)} at most"
    return f"waits for signal {how.signal!r}{most}"


def _later(how: Outcome) -> str:
    if how.available_at is not None:
        return f"available at {how.available_at.isoformat(timespec='seconds')}"
    return f"again in {exact_duration(how.delay)}"


def _lasted(seconds: float) -> str:
    """A time that was measured: to the millisecond while it is short."""
    return f"{seconds:.3f} s" if seconds < 10 else duration(seconds)


def _lasting(ended: Ended) -> dict[str, Any]:
    """The field of a record about a run that has ended: how long it lasted."""
    return {} if ended.lasted is None else {"duration_s": round(ended.lasted, 6)}


def _tell_failure(ended: Ended, answer: Settled, outlook: LeaseOutlook | None) -> None:
    claim = ended.claim
    of = "" if outlook is None else f" of {outlook.max_attempts}"
    attempt = f"attempt {claim.attempt}{of}"
    if answer.state is LeaseState.FAILED:
        _tell_dead(ended, attempt)
        return
    tell(
        logging.WARNING,
        claim,
        " failed, %s, %s: %s",
        attempt,
        "it is cancelled" if answer.state is LeaseState.CANCELLED else _again(outlook),
        error_line(ended.how.error),
        extra=_lasting(ended),
    )


def _tell_dead(ended: Ended, attempt: str) -> None:
    """The traceback goes where logging keeps that of an exception; there is only its text here."""
    if not _log.isEnabledFor(logging.ERROR):
        return
    path, line, function, _stack = _log.findCaller()
    said = "lease %s of task %s is dead after %s: %s"
    claim, error = ended.claim, ended.how.error
    facts = (claim.lease_id, claim.task_name, attempt, error_line(error))
    extra = lease_fields(claim) | _lasting(ended)
    record = _log.makeRecord(_log.name, logging.ERROR, path, line, said, facts, None, function, extra)
    trace = str((error or {}).get("traceback", ""))
    record.exc_text = "\n".join(map(one_line, trace.splitlines())) or None
    _log.handle(record)


def _again(outlook: LeaseOutlook | None) -> str:
    if outlook is None or (outlook.again_in is None and outlook.state == "scheduled"):
        return "again later"  # once its gang has room, or what it waits for is there
    seconds = 0.0 if outlook.again_in is None else outlook.again_in.total_seconds()
    if seconds < 0.05:
        return "again at once"
    return f"again in {math.ceil(seconds) if seconds >= 1 else round(seconds, 1):g} s"
