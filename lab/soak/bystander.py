"""A query of the application that has nothing to do with the queue: rows of a table by key."""

import random

import psycopg

_CREATE = "create table bystander (id bigint primary key, body text not null)"
_FILL = "insert into bystander select n, repeat('x', 100) from generate_series(1, %s) n"
_LOOK_UP = "select body from bystander where id = %s"


def install(dsn: str, rows: int) -> None:
    """Create the table and fill it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_CREATE)
        connection.execute(_FILL, [rows])
        connection.execute("analyze bystander")


class Bystander:
    """Reads one row after the other, at random."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._chance = random.Random(1)
        row = connection.execute("select max(id) from bystander").fetchone()
        assert row is not None
        self._rows: int = row[0]

    def look_up(self) -> None:
        """Read one row."""
        key = self._chance.randint(1, self._rows)
        assert self._connection.execute(_LOOK_UP, [key], prepare=True).fetchone() is not None
