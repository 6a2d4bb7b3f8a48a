"""What one call does, counted and not timed: pages, log, rows. The machine's mood is not in it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

_EXPLAIN: LiteralString = "explain (analyze, buffers, wal, timing off, summary off, format json) "
_ROW_COUNTS = Path(__file__).with_name("row_counts.sql").read_bytes()
_TABLES = """
    select schemaname, relname from pg_stat_user_tables
    where schemaname in ('hwqueue', 'public') order by 1, 2
"""
# A row that carries this transaction and can still be seen is locked, and neither new nor gone.
_LOCKED = "select {name} as relname, count(*) as locked from {table} where xmax = {xid}"


@dataclass(frozen=True)
class Cost:
    """What one call did, with all that it calls.

    Attributes:
        pages: Buffers touched, found in memory or not.
        wal_bytes: Written to the log, without the commit's own record.
        page_images: Of `wal_bytes`: whole pages, because a checkpoint came before.
        rows: By table and what happened to them, e.g. {"ready deleted": 1}.
    """

    pages: int
    wal_bytes: int
    page_images: int
    rows: Counter[str]

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.pages + other.pages,
            self.wal_bytes + other.wal_bytes,
            self.page_images + other.page_images,
            self.rows + other.rows,
        )


def cost_of(connection: psycopg.Connection[Any], call: LiteralString, values: Sequence[object]) -> Cost:
    """Make a call, commit it and say what it did. `connection` is in autocommit."""
    with connection.transaction():
        before = _row_counts(connection)
        plan = connection.execute(_EXPLAIN + call, values, prepare=True).fetchone()
        rows = _row_counts(connection) - before
        rows += _locked(connection)
    assert plan is not None
    root = plan[0][0]["Plan"]
    return Cost(
        pages=root["Shared Hit Blocks"] + root["Shared Read Blocks"],
        wal_bytes=root["WAL Bytes"],
        page_images=root["WAL FPI"],
        rows=rows,
    )


def _row_counts(connection: psycopg.Connection[Any]) -> Counter[str]:
    with connection.cursor(row_factory=dict_row) as cursor:
        tables = cursor.execute(_ROW_COUNTS).fetchall()
    return Counter(
        {
            f"{table['relname']} {what}": count
            for table in tables
            for what, count in table.items()
            if what != "relname"
        }
    )


def _locked(connection: psycopg.Connection[Any]) -> Counter[str]:
    """Rows that this transaction has locked and left as they are."""
    [xid] = cast(
        tuple[str | None],
        connection.execute("select pg_current_xact_id_if_assigned()::text").fetchone(),
    )
    if xid is None:
        return Counter()
    low_half = str(int(xid) % 2**32)  # what rows carry
    queries = [
        sql.SQL(_LOCKED).format(
            name=sql.Literal(table), table=sql.Identifier(schema, table), xid=sql.Literal(low_half)
        )
        for schema, table in connection.execute(_TABLES).fetchall()
    ]
    rows = connection.execute(sql.SQL(" union all ").join(queries)).fetchall()
    return Counter({f"{table} locked": count for table, count in rows})
