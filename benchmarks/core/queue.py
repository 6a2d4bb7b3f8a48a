"""The benchmarks' queue, and one with nothing in it."""

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.fill import QUEUE

IDLE = "idle"


def create_queue(dsn: str, **policy: Any) -> None:
    """Make the queue; claims last long enough that none expires while something is measured."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select hwqueue.create_queue(p_queue => %s, p_policy => %s)",
            [QUEUE, Jsonb({"claim_timeout": 86400, **policy})],
        )


def create_idle_queue(dsn: str) -> None:
    """Make a queue that stays empty."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select hwqueue.create_queue(p_queue => %s)", [IDLE])
