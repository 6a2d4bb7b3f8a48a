"""Calls of the SQL functions by name, over one connection, as every wrapper in the tests uses.

Arguments go without their `p_`: `calls.rows("claim_task", queues=["q"], node=node, epoch=1)`.
Every argument that a function takes can be given, wrong ones included.
"""

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

Row = dict[str, Any]
TASK = "work"

_JSON = {
    *("policy", "params", "options", "leases", "changes", "spec", "claims", "settle"),
    *("placement", "result", "error", "filter", "taint", "nodes", "reports"),
    *("defaults", "cursor", "logs", "input", "runs", "payload", "items", "prices", "room"),
    "places",
    "schedules",
}
_NOT_JSON = {"create_token": {"nodes"}}
_PLAIN = (Jsonb, type(None))


class Calls:
    """The functions over one connection; commits when the connection does."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def rows(self, function: str, /, **arguments: Any) -> list[Row]:
        """Call a function; its rows."""
        call = sql.SQL("select * from hwqueue.{}({})").format(
            sql.Identifier(function),
            sql.SQL(", ").join(
                sql.SQL("{} => {}").format(sql.Identifier(f"p_{name}"), sql.Placeholder())
                for name in arguments
            ),
        )
        values = [
            Jsonb(value)
            if name in _JSON - _NOT_JSON.get(function, set()) and not isinstance(value, _PLAIN)
            else value
            for name, value in arguments.items()
        ]
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(call, values).fetchall()

    def row(self, function: str, /, **arguments: Any) -> Row:
        """Call a function that returns one row."""
        [only] = self.rows(function, **arguments)
        return only

    def value(self, function: str, /, **arguments: Any) -> Any:
        """Call a function that returns one value."""
        [only] = self.row(function, **arguments).values()
        return only
