"""How long a test waits for what a transaction of another test, anywhere on the server, holds up.

An upgrade in one of them takes seconds; much of what hwqueue does waits for what was open before.
"""

import time
from collections.abc import Iterator

SECONDS = 60.0  # only a broken test waits that long
NO_BUDGET = (
    "create or replace function hwqueue.upkeep_budget() returns interval"
    " language sql stable as $$ select interval '1 hour' $$"
)
"""For a database of which upkeep is to do all it may in a call, however slow the machine is."""
_AT_ONCE = 5  # looks without a pause: mostly nothing is open
_PAUSE = 0.01  # seconds


def looks() -> Iterator[int]:
    """Count looks, with pauses between them, until it is time to give up.

    for look in looks():
        if happened():
            return
    raise AssertionError("it did not happen")
    """
    give_up_at = time.monotonic() + SECONDS
    look = 0
    while time.monotonic() < give_up_at:
        yield look
        look += 1
        if look > _AT_ONCE:
            time.sleep(_PAUSE)
