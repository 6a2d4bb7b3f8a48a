"""The benchmarks' queue."""

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.fill import QUEUE


def create_queue(dsn: str, **policy: Any) -> None:
    """Make the queue; claims last long enough that none expires while something is measured."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select hwqueue.create_queue(p_queue => %s, p_policy => %s)",
            [QUEUE, Jsonb({"claim_timeout": 86400, **policy})],
        )
