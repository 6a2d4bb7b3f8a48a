"""How often functions are called, counted by the server."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg


@contextmanager
def counting(conn: psycopg.Connection[Any]) -> Iterator[Counter[str]]:
    """Count the calls in the block, which is one transaction; a function that is inlined has none.

    The counts, by name, are there after the block.
    """
    calls: Counter[str] = Counter()
    with conn.transaction():
        conn.execute("set local track_functions = 'all'")
        before = _counted(conn)
        yield calls
        calls.update(_counted(conn) - before)


def _counted(conn: psycopg.Connection[Any]) -> Counter[str]:
    found = conn.execute(
        "select funcname, calls from pg_stat_xact_user_functions where schemaname = 'hwqueue'"
    )
    return Counter(dict(found.fetchall()))
