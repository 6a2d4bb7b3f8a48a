"""Forced interleavings: park one session on a lock, see that it waits, let the other go on.

    one, two = actor().begin(), actor()
    one.direct.claim(...)                    # holds its locks
    cancelled = two.parked(lambda d: d.cancel(lease))   # the server says so, no sleep decides it
    one.commit()
    cancelled.result(TIMEOUT)

A call that waits although it was not started to do so fails.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager
from typing import Any, LiteralString, Self, TypeVar

import psycopg

from tests.direct import Direct

First = TypeVar("First")
Result = TypeVar("Result")

TIMEOUT = 60.0  # seconds: only a broken test waits that long
_POLL = 0.002  # seconds between two looks at pg_stat_activity
_PARKED = """
  select wait_event_type = 'Lock' from pg_stat_activity where pid = %s
"""
_BLOCKED_BY = "select %s = any (pg_blocking_pids(%s))"
PAUSE = """
    if pg_backend_pid() = 0 /* pid */ then
      perform pg_advisory_lock_shared(4711);
      perform pg_advisory_unlock_shared(4711);
    end if;
"""
_SLEEPY_CLOCK = f"""
  create or replace function hwqueue.clock() returns timestamptz language plpgsql as $$
  declare
    v_now timestamptz := clock_timestamp();
  begin
    {PAUSE}
    return v_now;
  end $$
"""


class Actor:
    """One session; its calls run here, or in a thread of its own when they are to block."""

    def __init__(self, conn: psycopg.Connection[Any], observer: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.direct = Direct(conn)
        self._observer = observer
        self._pool = ThreadPoolExecutor(1)
        bound_waits(conn)

    def begin(self, isolation: str = "read committed", *, has_id: bool = False) -> Self:
        """Open a transaction, left open until it is ended; if so asked, one that has its id."""
        self.conn.execute("select set_config('default_transaction_isolation', %s, false)", [isolation])
        self.conn.execute("begin")
        if has_id:
            self.conn.execute("select pg_current_xact_id()")
        return self

    def commit(self) -> None:
        """Commit the open transaction."""
        self.conn.execute("commit")

    def rollback(self) -> None:
        """Roll the open transaction back."""
        self.conn.execute("rollback")

    def end(self, commits: bool) -> None:
        """Commit the open transaction, or roll it back."""
        self.conn.execute("commit" if commits else "rollback")

    def start(self, call: Callable[[Direct], Result]) -> Future[Result]:
        """Make the call, which may wait, in the actor's thread; its result comes later."""
        return self._pool.submit(call, self.direct)

    def parked(self, call: Callable[[Direct], Result], behind: "Actor | None" = None) -> Future[Result]:
        """Start the call, and return once the server shows that it waits for a lock.

        Of the one `behind` which it is to wait, if that is given. Raises AssertionError if the call
        ends instead, for then it met no lock.
        """
        started = self.start(call)
        if behind is None:
            self._wait_until(started, _PARKED, [self._pid])
        else:
            self.wait_until_behind(started, behind)
        return started

    def wait_until_behind(self, started: Future[Any], other: "Actor") -> None:
        """Return once the call waits for something that the other one holds."""
        self._wait_until(started, _BLOCKED_BY, [other._pid, self._pid])

    @property
    def _pid(self) -> int:
        return self.conn.info.backend_pid

    def _wait_until(self, started: Future[Any], question: LiteralString, values: list[int]) -> None:
        for _ in range(int(TIMEOUT / _POLL)):
            row = self._observer.execute(question, values).fetchone()
            if row is not None and row[0]:
                return
            done, _pending = wait_for([started], timeout=_POLL)
            assert not done, f"the call did not wait; it gave {started.result()!r}"
        raise AssertionError("the call neither waited for a lock nor ended")

    def close(self) -> None:
        """End the session, whatever it is doing."""
        self.conn.cancel_safe(timeout=TIMEOUT)
        self._pool.shutdown()
        self.conn.close()


Actors = Callable[[], Actor]


class Meet:
    """The most usual interleaving: one call stays open, and another one waits for it."""

    def __init__(self, actor: Actors) -> None:
        self._actor = actor

    def __call__(
        self, first: Callable[[Direct], First], then: Callable[[Direct], Result], *, commits: bool = True
    ) -> tuple[First, Future[Result]]:
        """Let the two meet; then the first is committed, or undone. What they give."""
        holder, waiter = self._actor().begin(), self._actor()
        done = first(holder.direct)
        waiting = waiter.parked(then, behind=holder)
        holder.end(commits)
        return done, waiting


@contextmanager
def kept(
    direct: Direct, actor: Actor, call: Callable[[Direct], Result], source: str
) -> Iterator[Future[Result]]:
    """Start a call, and keep it at the PAUSE in the new source of a function, until the block ends."""
    direct.conn.execute(source.replace("0 /* pid */", str(actor.conn.info.backend_pid)).encode())
    direct.conn.execute("select pg_advisory_lock(4711)")
    try:
        yield actor.parked(call)
    finally:
        direct.conn.execute("select pg_advisory_unlock(4711)")


@contextmanager
def asleep(direct: Direct, actor: Actor, call: Callable[[Direct], Result]) -> Iterator[Future[Result]]:
    """Start a call, which falls asleep with the time in hand, until the block ends."""
    with kept(direct, actor, call, _SLEEPY_CLOCK) as started:
        yield started


@contextmanager
def interleave(dsn: str) -> Iterator[Actors]:
    """Hand out actors on the database."""
    with ExitStack() as stack:
        observer = stack.enter_context(psycopg.connect(dsn, autocommit=True))

        def actor() -> Actor:
            made = Actor(psycopg.connect(dsn, autocommit=True), observer)
            stack.callback(made.close)
            return made

        yield actor


def bound_waits(conn: psycopg.Connection[Any]) -> None:
    """Let a session fail where it waits for a lock that nobody gives it, however slow the machine is."""
    conn.execute("set lock_timeout = '15s'")


def sqlstate_of(call: Future[Any]) -> str | None:
    """The SQLSTATE with which a started call is refused."""
    error = call.exception(TIMEOUT)
    assert isinstance(error, psycopg.Error), error
    return error.sqlstate
