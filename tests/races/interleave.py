"""Forced interleavings: park one session on a lock, see that it waits, let the other go on.

    with interleave(dsn) as actors:
        one, two = actors("one"), actors("two")
        one.begin()
        one.direct.claim(...)                    # holds its locks
        blocked = two.start(lambda d: d.cancel(lease))
        two.wait_until_parked()                  # the server says so, no sleep decides it
        one.commit()
        blocked.result(TIMEOUT)

Every session has a lock_timeout, so that a wait that must not be fails its call, and fast.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager
from typing import Any, LiteralString, TypeVar

import psycopg

from tests.direct import Direct

Result = TypeVar("Result")

TIMEOUT = 60.0  # seconds: only a broken test waits that long
_POLL = 0.002  # seconds between two looks at pg_stat_activity
_PARKED = """
  select wait_event_type = 'Lock' from pg_stat_activity where pid = %s
"""
_BLOCKED_BY = "select %s = any (pg_blocking_pids(%s))"


class Actor:
    """One session; its calls run here, or in a thread of its own when they are to block."""

    def __init__(self, conn: psycopg.Connection[Any], observer: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.direct = Direct(conn)
        self._observer = observer
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[Any] | None = None

    def begin(self, isolation: str = "read committed") -> None:
        """Open a transaction, left open until `commit` or `rollback`."""
        self.conn.execute("select set_config('default_transaction_isolation', %s, false)", [isolation])
        self.conn.execute("begin")

    def commit(self) -> None:
        """Commit the open transaction."""
        self.conn.execute("commit")

    def rollback(self) -> None:
        """Roll the open transaction back."""
        self.conn.execute("rollback")

    def start(self, call: Callable[[Direct], Result]) -> Future[Result]:
        """Make the call in the actor's thread; its result comes later."""
        started = self._pool.submit(call, self.direct)
        self._running = started
        return started

    def wait_until_parked(self) -> None:
        """Return once the server shows the started call waiting for a lock.

        Raises AssertionError if the call ends instead, for then it met no lock.
        """
        self._wait_until(_PARKED, [self._pid])

    def wait_until_blocked_by(self, other: "Actor") -> None:
        """Return once the started call waits for something that the other one holds.

        Raises AssertionError if the call ends instead.
        """
        self._wait_until(_BLOCKED_BY, [other._pid, self._pid])

    @property
    def _pid(self) -> int:
        return self.conn.info.backend_pid

    def _wait_until(self, question: LiteralString, values: list[int]) -> None:
        assert self._running is not None, "nothing was started"
        for _ in range(int(TIMEOUT / _POLL)):
            row = self._observer.execute(question, values).fetchone()
            if row is not None and row[0]:
                return
            done, _pending = wait_for([self._running], timeout=_POLL)
            assert not done, f"the call did not wait; it gave {self._running.result()!r}"
        raise AssertionError("the call neither waited for a lock nor ended")

    def close(self) -> None:
        """End the session, whatever it is doing."""
        self.conn.cancel_safe(timeout=TIMEOUT)
        self._pool.shutdown()
        self.conn.close()


@contextmanager
def interleave(dsn: str, lock_timeout: str = "15s") -> Iterator[Callable[[], Actor]]:
    """Hand out actors on the database; `lock_timeout` bounds each of their waits."""
    with ExitStack() as stack:
        observer = stack.enter_context(psycopg.connect(dsn, autocommit=True))

        def actor() -> Actor:
            conn = psycopg.connect(dsn, autocommit=True)
            conn.execute("select set_config('lock_timeout', %s, false)", [lock_timeout])
            made = Actor(conn, observer)
            stack.callback(made.close)
            return made

        yield actor
