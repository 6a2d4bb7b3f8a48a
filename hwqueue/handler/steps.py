"""Durable steps: what a handler has done already, and the waits that end its run.

`context.step`, `context.sleep` and `context.wait_for` are built of this. `Memory` knows what
earlier runs of the lease have saved. It is read once, at the first step, and not at all for a lease
that is claimed for the first time.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NoReturn

from hwqueue.client import AsyncClient, Client
from hwqueue.client._arguments import check_span
from hwqueue.client._json import check_json
from hwqueue.convert import jsonable
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.types import Checkpoint, Claim, Json, SignalTaken

IN_PLACE = timedelta(seconds=30)
"""A sleep that is shorter keeps its slot."""

_LONGEST = timedelta(days=3650)
_MOST_NAME_CHARS = 190  # of 200; the rest is for the number

Ask = Callable[..., Any]
"""Makes a call for the claim that runs, `ask("take_signal", name=...)`: see `make_call`."""
AsyncAsk = Callable[..., Awaitable[Any]]

_OF_THE_CLAIM = (
    "checkpoints",
    "save_checkpoint",
    "take_signal",
    "add_items",
    "add_steps",
    "gang_status",
    "extend_claim",
)
_OF_THE_RUN = ("step_results", "run_input")


def make_call(client: Client | AsyncClient, claim: Claim, call: str, arguments: Mapping[str, Any]) -> Any:
    """Make a call that a handler asks for, about its claim or the run that its lease is of.

    Raises: ConfigError: it may not ask for that.
    """
    if call in _OF_THE_RUN:
        return getattr(client, call)(**arguments, lease_id=claim.lease_id)
    if call in _OF_THE_CLAIM:
        return getattr(client, call)(claim.lease_id, claim.claim_token, **arguments)
    raise ConfigError(f"a handler may ask for {', '.join(_OF_THE_CLAIM + _OF_THE_RUN)}, not for {call!r}")


def refuse_reading(call: str) -> None:
    """Refuse to read the run of a step where nothing is connected. Raises: ConfigError."""
    if call in _OF_THE_RUN:
        raise ConfigError(
            "the run of a step cannot be read here: a handler in a process, or one that a test calls, "
            "has no connection",
            hint="bind what it needs into its params: result(...), run_input(...)",
        )


Near = Literal["self"] | None
"""Where a suspended lease goes on."""

Connect = Callable[[], AbstractContextManager[Any]]
AsyncConnect = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Wait:
    """What a handler waits for.

    Attributes:
        name: Of the checkpoint that keeps the wait.
        signal: None: it sleeps.
        timeout: How long at most; None: for ever.
        near: `self`: its lease prefers the node that it was on. None: any node that it may have.
    """

    name: str
    signal: str | None
    timeout: timedelta | None
    near: Near = None


class Suspended(BaseException):
    """Raised by `context.sleep` and `context.wait_for`: the handler ends, and runs again later.

    The lease is suspended; no attempt is used up. A `BaseException`, so that `except Exception` in
    a handler does not swallow it. Middleware that sees it lets it pass.

    Attributes:
        wait: What the handler waits for.
    """

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait)
        self.wait = wait

    def __str__(self) -> str:
        """In words."""
        if self.wait.signal is None:
            return f"sleeps as {self.wait.name!r}"
        return f"waits for signal {self.wait.signal!r}"


def wait_of(error: BaseException) -> Wait | None:
    """The wait that ended a handler; None if it ended in another way.

    Steps that wait at once in a task group end it with a group of exceptions. The first wait
    counts, unless something else went wrong as well.
    """
    if isinstance(error, BaseExceptionGroup):
        waits, others = error.split(Suspended)
        if waits is None or others is not None:
            return None
        error = waits.exceptions[0]
        return wait_of(error)
    return error.wait if isinstance(error, Suspended) else None


class Memory:
    """What the claims of a lease have saved, and the names that this run has used."""

    def __init__(self) -> None:
        self._known: dict[str, Checkpoint] | None = None
        self._names: dict[str, int] = {}

    @property
    def is_read(self) -> bool:
        """Whether it knows what was saved before this run."""
        return self._known is not None

    def read(self, saved: Iterable[Checkpoint]) -> None:
        """Know what was saved."""
        self._known = {one.name: one for one in saved}

    def found(self, name: str) -> Checkpoint | None:
        """What was saved under a name before this run."""
        assert self._known is not None
        return self._known.get(name)

    def name(self, given: str) -> str:
        """The name of a checkpoint: as given, then `#2`, `#3`, in the order of the calls.

        Raises: BadArgument.
        """
        if not isinstance(given, str) or not 0 < len(given) <= _MOST_NAME_CHARS or "#" in given:
            raise BadArgument(
                f"the name of a step is text of 1 to {_MOST_NAME_CHARS} characters without '#', "
                f"got {given!r:.100}",
                detail={"field": "name"},
                hint="the number of a repeated name is added for you",
            )
        # of several threads at once the order is theirs
        count = self._names[given] = self._names.get(given, 0) + 1
        return given if count == 1 else f"{given}#{count}"


def was_claimed_before(claim: Claim) -> bool:
    """Whether an earlier claim of the lease may have saved something."""
    return claim.claim_token % 2 == 1  # the token of a lease's first claim is even


def result_of(name: str, value: Any) -> Json:
    """What a step returned, as later runs read it.

    Raises: BadArgument: It has no JSON form. The step has run, but is not saved.
    """
    path = f"result of step {name!r}"
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigError(f"step {name!r} is async: only a step of an async handler may be")
    plain = jsonable(value, path)
    check_json(plain, path)
    return json.loads(json.dumps(plain))


def end_of_wait(saved: Checkpoint) -> Json:
    """The payload of a wait that has ended. Raises: TimeoutError."""
    if saved.status == "timed_out":
        time_out(saved.waits_for)
    return saved.state


def end_of_taking(wait: Wait, taken: SignalTaken) -> Json:
    """The payload of the signal that was taken. Raises: TimeoutError, Suspended."""
    if taken.verdict == "timed_out":
        time_out(wait.signal)
    if taken.verdict == "none":
        raise Suspended(wait)
    return taken.payload


def time_out(signal: str | None) -> NoReturn:
    """Say that the signal did not come. Raises: TimeoutError."""
    raise TimeoutError(f"signal {signal!r} did not come within its timeout")


def checked_span(span: timedelta, field: str) -> timedelta:
    """A span that a lease can wait. Raises: BadArgument."""
    check_span(span, field)
    if span > _LONGEST:
        raise BadArgument(f"{field} is at most 3650 days, got {span}", detail={"field": field})
    return span


def checked_near(near: Near) -> Near:
    """Where a lease may want to go on. Raises: BadArgument."""
    if near not in (None, "self"):
        raise BadArgument(f"near is 'self' or None, got {near!r:.100}", detail={"field": "near"})
    return near


def connect_nowhere() -> NoReturn:
    """Where no database is at hand. Raises: ConfigError."""
    raise ConfigError(
        "transaction_step has no connection here: pass one of yours, transaction_step(name, connection=...)"
    )


def ask_nobody(call: str, /, **_arguments: Any) -> NoReturn:
    """Where nobody keeps what steps save. Raises: ConfigError."""
    raise ConfigError(
        f"{call} is not possible here: no worker and no test kit runs the handler; "
        "hwqueue.testing.make_context makes a context that keeps steps in memory"
    )
