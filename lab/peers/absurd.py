"""absurd by its SQL functions, from a file that the user names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb

from benchmarks.core.payload import payload
from lab.peers.peer import ANY, KINDS, Connection, SqlPeer, count, run_script
from lab.peers.sql_files import named_file

_CLAIM_SECONDS = 86_400

_SPAWN = "select absurd.spawn_task(%s, 'work', %s) from generate_series(1, %s)"
_CLAIM = "select run_id, params from absurd.claim_task(%s, 'bench', %s, %s)"
_COMPLETE = "select absurd.complete_run(%s, run_id) from unnest(%s::uuid[]) run_id"


@dataclass(frozen=True)
class Absurd(SqlPeer):
    """absurd; the file is sql/absurd.sql of its repository."""

    file: Path | None = None
    name = "absurd"
    best_batch = 500
    routes_by = "a queue of its own, which is tables of its own"
    cannot = (
        "complete in batches: complete_run is called for each run, here all in one statement",
        "route within a queue; each kind of work needs tables of its own",
    )

    def version(self) -> str:
        """See `Peer`."""
        return named_file(self.name, self.file).name

    def install(self, dsn: str) -> None:
        """Run the file, make a queue for each kind."""
        run_script(dsn, named_file(self.name, self.file).read_text(encoding="utf-8"))
        for kind in KINDS:
            run_script(dsn, f"select absurd.create_queue('{kind}')")

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Pending runs of the kind's queue."""
        return count(dsn, f"select count(*) from absurd.r_{kind} where state = 'pending'")

    def connect(self, dsn: str, number: int = 0, kind: str = ANY) -> "AbsurdJobs":
        """See `SqlPeer`."""
        return AbsurdJobs(dsn, kind)


class AbsurdJobs(Connection):
    """See `Jobs`."""

    def __init__(self, dsn: str, kind: str) -> None:
        super().__init__(dsn)
        self._queue = kind

    def spawn(self, count: int) -> None:
        """One spawn_task for each: it has no bulk call."""
        self.connection.execute(_SPAWN, [self._queue, Jsonb(payload()), count], prepare=True)

    def claim(self, quantity: int) -> list[Any]:
        """See `Jobs`."""
        values = [self._queue, _CLAIM_SECONDS, quantity]
        return [row[0] for row in self.connection.execute(_CLAIM, values, prepare=True)]

    def complete(self, claimed: list[Any]) -> None:
        """See `Jobs`."""
        self.connection.execute(_COMPLETE, [self._queue, claimed], prepare=True)
