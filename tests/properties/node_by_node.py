"""What match_nodes says of the fleet, beside what the rules say of each node by itself."""

from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

_DIFFERING = Path(__file__).with_name("node_by_node.sql").read_bytes()


def apart(
    conn: psycopg.Connection[Any], placement: dict[str, Any], options: dict[str, Any]
) -> list[tuple[Any, ...]]:
    """The nodes of which the two say something else, with both."""
    values = {"placement": Jsonb(placement), "options": Jsonb(options)}
    return conn.execute(_DIFFERING, values).fetchall()
