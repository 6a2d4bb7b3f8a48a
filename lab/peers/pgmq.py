"""pgmq by its SQL functions, from a file that the user names: read, then delete."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb

from benchmarks.core.payload import payload
from lab.peers.peer import ANY, Connection, SqlPeer, count, run_script
from lab.peers.sql_files import named_file

_QUEUE = "bench"
_CLAIM_SECONDS = 86_400

_SPAWN = "select pgmq.send_batch(%s, array_fill(%s::jsonb, array[%s]))"
_CLAIM = "select msg_id, message from pgmq.read(%s, %s, %s, %s)"
_COMPLETE = "select pgmq.delete(%s, %s::bigint[])"


@dataclass(frozen=True)
class Pgmq(SqlPeer):
    """pgmq without its extension; the file is pgmq-extension/sql/pgmq.sql of its repository."""

    file: Path | None = None
    name = "pgmq"
    best_batch = 1000
    routes_by = "read(conditional => ...)"
    cannot = ("let a job say what it needs; the worker says which content it wants",)

    def version(self) -> str:
        """See `Peer`."""
        return named_file(self.name, self.file).name

    def install(self, dsn: str) -> None:
        """Run the file, make a queue."""
        run_script(dsn, "create schema if not exists pgmq")
        run_script(dsn, named_file(self.name, self.file).read_text(encoding="utf-8"))
        run_script(dsn, f"select pgmq.create('{_QUEUE}')")

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Visible messages of a kind."""
        query = "select count(*) from pgmq.q_bench where vt <= clock_timestamp() and message @> %s"
        return count(dsn, query, _content(kind))

    def connect(self, dsn: str, number: int = 0, kind: str = ANY) -> "PgmqJobs":
        """See `SqlPeer`."""
        return PgmqJobs(dsn, kind)


class PgmqJobs(Connection):
    """See `Jobs`."""

    def __init__(self, dsn: str, kind: str) -> None:
        super().__init__(dsn)
        self._content = _content(kind)
        self._message = Jsonb({**payload(), **self._content.obj})

    def spawn(self, count: int) -> None:
        """See `Jobs`."""
        self.connection.execute(_SPAWN, [_QUEUE, self._message, count], prepare=True)

    def claim(self, quantity: int) -> list[Any]:
        """See `Jobs`."""
        values = [_QUEUE, _CLAIM_SECONDS, quantity, self._content]
        return [row[0] for row in self.connection.execute(_CLAIM, values, prepare=True)]

    def complete(self, claimed: list[Any]) -> None:
        """See `Jobs`."""
        self.connection.execute(_COMPLETE, [_QUEUE, claimed], prepare=True)


def _content(kind: str) -> Jsonb:
    return Jsonb({} if kind == ANY else {"pool": kind})
