"""How the walk goes back to a state: by savepoints in one transaction, or by restored rows.

Savepoints are fast, but the queue sees one long transaction: what waits until a transaction has
ended (terms published, low-water marks, the cursor of reap) stands still. With commits each call is
a transaction of its own, as in use, and going back writes the rows as they were: as if the
transactions since then had been rolled back.
"""

import json
from collections.abc import Callable
from typing import Any, LiteralString, Protocol, TypeVar

import psycopg
from psycopg import sql

from tests.walk.seen import Dump, Seen

Conn = psycopg.Connection[Any]
T = TypeVar("T")

# What never changes, and what nobody decides by: the log of events.
_LEFT_OUT = "schema_info|event.*|lock_stripe"
_TABLES = """
  select c.relname from pg_class c
  where c.relnamespace = 'hwqueue'::regnamespace and c.relkind = 'r' and c.relname !~ %s
  order by 1
"""


# with each mark and each way back: chance takes the same way each time
_SEED = "select setseed(0.5)"
_WRITTEN = """
    select c.relname::text, array_agg(a.attname::text) from pg_attribute a
    join pg_class c on c.oid = a.attrelid and c.relnamespace = 'hwqueue'::regnamespace
    where a.attnum > 0 and not a.attisdropped and a.attgenerated = '' group by 1
"""  # not what is generated
_SET = "savepoint {0}; select setseed(0.5)"
_BACK = "rollback to savepoint {0}; select setseed(0.5)"


class Ground(Protocol):
    """A database that the walk can bring back to how it was."""

    conn: Conn

    def __init__(self, conn: Conn) -> None:
        """Stand on what is there now."""

    def look(self) -> Seen:
        """What is there now."""

    def mark(self, here: Seen) -> "Mark":
        """A way back to what is there now, which the caller has looked at."""

    def call(self, mark: "Mark", make: Callable[[], T]) -> T:
        """Make a call from the mark; one that is refused changes nothing."""

    def back(self, mark: "Mark", now: Seen) -> None:
        """Go back from what is there now; later marks are gone."""

    def drop(self, mark: "Mark") -> None:
        """Let go of the last mark, which nobody comes back to."""


class Mark:
    """A state to go back to: its rows, and a number for its savepoint."""

    def __init__(self, number: int, rows: Dump) -> None:
        self.number = number
        self.rows = rows


class _Tables:
    """All that is in the schema, in one look."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        conn.execute("set timezone = 'UTC'")
        names = [row[0] for row in conn.execute(_TABLES, [f"^({_LEFT_OUT})$"])]
        self.names: list[str] = names
        self.columns: dict[str, list[str]] = dict(conn.execute(_WRITTEN).fetchall())
        parts = [
            sql.SQL("{}, (select coalesce(jsonb_agg(to_jsonb(t)), '[]') from hwqueue.{} t)").format(
                sql.Literal(name), sql.Identifier(name)
            )
            for name in names
        ]
        # a function takes no more than 100 arguments
        halves = [parts[: len(parts) // 2], parts[len(parts) // 2 :]]
        query = sql.SQL("select {}").format(
            sql.SQL(" || ").join(
                sql.SQL("jsonb_build_object({})").format(sql.SQL(", ").join(half)) for half in halves
            )
        )
        self._query = query.as_bytes(conn)  # once: each look would compose it again

    def look(self) -> Seen:
        """Every row there is."""
        [(found,)] = self.conn.execute(self._query).fetchall()
        return Seen(found)

    def write(self, rows: Dump, instead_of: Dump) -> None:
        """Put the rows back, in the tables that differ."""
        commands = [
            sql.SQL(
                "delete from {table}; insert into {table} ({columns}) overriding system value"
                " select {columns} from jsonb_populate_recordset(null::{table}, {rows}::jsonb)"
            ).format(
                table=sql.Identifier("hwqueue", name),
                columns=sql.SQL(", ").join(map(sql.Identifier, self.columns[name])),
                rows=sql.Literal(json.dumps(rows[name])),
            )
            for name in self.names
            if rows[name] != instead_of[name]
        ]
        # sent as one, which is one transaction
        self.conn.execute(sql.SQL("; ").join([*commands, sql.SQL(_SEED)]))


class Savepoints:
    """One transaction; `conn` must not be in autocommit."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self.look = _Tables(conn).look
        self._depth = 0

    def mark(self, here: Seen) -> Mark:
        """Set a savepoint."""
        self._depth += 1
        self.conn.execute(_in_place(_SET, self._depth))
        return Mark(self._depth, here.rows)

    def call(self, mark: Mark, make: Callable[[], T]) -> T:
        """Make a call; one that is refused is rolled back to the savepoint before it."""
        try:
            return make()
        except psycopg.DatabaseError:
            self.conn.execute(_in_place(_BACK, mark.number))
            raise

    def back(self, mark: Mark, now: Seen) -> None:
        """Roll back to the savepoint."""
        self.conn.execute(_in_place(_BACK, mark.number))

    def drop(self, mark: Mark) -> None:
        """Release the savepoint."""
        self._depth = mark.number - 1
        self.conn.execute(_in_place("release savepoint {0}", mark.number))


class Commits:
    """Each call a transaction of its own; `conn` must be in autocommit."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self._tables = _Tables(conn)
        self.look = self._tables.look

    def mark(self, here: Seen) -> Mark:
        """Remember the rows."""
        self.conn.execute(_SEED)
        return Mark(0, here.rows)

    def call(self, mark: Mark, make: Callable[[], T]) -> T:
        """Make a call."""
        return make()

    def back(self, mark: Mark, now: Seen) -> None:
        """Write the rows back that have changed."""
        self._tables.write(mark.rows, now.rows)

    def drop(self, mark: Mark) -> None:
        """Nothing is held for it."""


def _in_place(command: LiteralString, number: int) -> sql.Composed:
    return sql.SQL(command).format(sql.Identifier(f"walk_{number}"))
