"""Calling the function of a durable step again within one run, when it fails for a moment.

payment = context.step("charge", charge, card, retry=Retrying(3, on=ConnectionError))
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hwqueue.errors import ConfigError, LeaseError

_MOST_CALLS = 100
_LONGEST = timedelta(minutes=5)
_MOST_MESSAGE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Retrying:
    """How often a durable step calls its function again before its exception fails the attempt.

    The waits are within the run, which keeps its slot and its claim. For longer ones let the
    attempt fail: the lease has a retry policy of its own.

    Attributes:
        attempts: Calls in a run at most, 1 to 100.
        delay: The wait after the first one that failed, up to 5 minutes.
        factor: What each wait is longer by than the one before, 1 to 10.
        longest: No wait is longer, up to 5 minutes.
        on: The exceptions after which it is called again. Others fail the attempt at once; so do
            `Retry`, `Reject`, `Snooze` and the loss of the lease, whatever is given here.

    Raises:
        ConfigError: A value is not possible.
    """

    attempts: int
    delay: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(seconds=30)
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= _MOST_CALLS:
            raise ConfigError(f"attempts must be 1 to {_MOST_CALLS}, got {self.attempts!r:.100}")
        for name in ("delay", "longest"):
            span = getattr(self, name)
            if not isinstance(span, timedelta) or not timedelta(0) <= span <= _LONGEST:
                raise ConfigError(f"{name} must be a timedelta up to 5 minutes, got {span!r:.100}")
        if type(self.factor) not in (int, float) or not 1 <= self.factor <= 10:
            raise ConfigError(f"factor must be 1 to 10, got {self.factor!r:.100}")
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(isinstance(k, type) and issubclass(k, Exception) for k in kinds):
            raise ConfigError(f"on must be exceptions, got {self.on!r:.100}")

    def pause(self, calls: int, error: Exception) -> float | None:
        """Seconds until the next call; None: there is none.

        Args:
            calls: How many there were.
            error: What the last one raised.
        """
        if calls >= self.attempts or not isinstance(error, self.on):
            return None
        if isinstance(error, LeaseError) or getattr(error, "ends_attempt", False):
            return None
        longest = self.longest.total_seconds()
        return float(min(self.delay.total_seconds() * self.factor ** (calls - 1), longest))


async def aresult(value: Any) -> Any:
    """What a function returned; of an async one, what it returns in the end."""
    return await value if inspect.isawaitable(value) else value


def plain_result(value: Any) -> Any:
    """The twin of `aresult` in a sync context, where no function may be async."""
    return value


def words(name: str, error: Exception, pause: float) -> str:
    """What the log says of a call that failed."""
    told = f"{type(error).__name__}: {error}"[:_MOST_MESSAGE_CHARS]
    return f"step {name!r} failed, and is called again in {pause:g} s: {told}"
