"""Sessions that keep vacuum from removing anything for as long as they are open."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum

import psycopg


class Holder(StrEnum):
    """Who does nothing beside the load."""

    SNAPSHOT = "snapshot"
    WRITER = "writer"
    BOTH = "both"
    NOBODY = "nobody"


@contextmanager
def holding(dsn: str, holder: Holder) -> Iterator[None]:
    """That session, or both, until the end of the block."""
    with ExitStack() as stack:
        if holder in (Holder.SNAPSHOT, Holder.BOTH):
            stack.enter_context(_old_snapshot(dsn))
        if holder in (Holder.WRITER, Holder.BOTH):
            stack.enter_context(idle_writer(dsn))
        yield


@contextmanager
def _old_snapshot(dsn: str) -> Iterator[None]:
    """Another session that looks at the database as it is now, for as long as this lasts."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select")
        yield


@contextmanager
def idle_writer(dsn: str) -> Iterator[None]:
    """A session that has written something and idles until the end of the block."""
    with psycopg.connect(dsn) as connection:
        connection.execute("select pg_current_xact_id()")
        yield
        connection.rollback()
