"""Which queues a worker claims from while some of its own are missing."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Collection

_log = logging.getLogger("hwqueue.worker")

_ASK_AGAIN_SECONDS = 5.0


class Queues:
    """The worker's queues; one that does not exist is left out for a while, then asked for again.

    A claim is refused whole when one of its queues is unknown: a queue that was dropped, or is not
    there yet, would stop the work of all the others.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = list(names)
        self._ask_again_at: dict[str, float] = {}

    def usable(self) -> list[str]:
        """Those that exist as far as is known, and those that are to be asked for again."""
        now = time.monotonic()
        return [name for name in self._names if self._ask_again_at.get(name, now) <= now]

    def known(self) -> list[str]:
        """Those that exist as far as is known, without any that are to be asked for again."""
        return [name for name in self._names if name not in self._ask_again_at]

    def leave_out(self, name: object, why: Exception) -> bool:
        """A queue is unknown; False when it is not one of ours."""
        if name not in self._names:
            return False
        if name not in self._ask_again_at:
            others = "claiming from the others" if len(self._names) > 1 else "claiming nothing"
            hint = f"make it: hwqueue queue create {shlex.quote(str(name))}"
            _log.error("%s until there is this queue: %s; %s", others, why, hint)
        self._ask_again_at[str(name)] = time.monotonic() + _ASK_AGAIN_SECONDS
        return True

    def found(self, names: Collection[str]) -> None:
        """A claim from these was answered: they exist."""
        for name in self._ask_again_at.keys() & set(names):
            _log.info("queue %s is there now", name)
            del self._ask_again_at[name]
