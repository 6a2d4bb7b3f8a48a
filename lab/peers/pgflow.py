"""pgflow by its SQL functions: the tasks of a map, as its workers start and complete them.

Its SQL is in npm's `@pgflow/core`, that of pgmq, which it needs, in PyPI's `pgmq`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from lab.peers.peer import NotAtHand, count, run_script
from lab.peers.sql_files import named_file

_FLOW = "maps"
_STUBS = Path(__file__).with_suffix(".sql")
_CLAIM_SECONDS = 86_400
_EXTENSION = re.compile(r'^create extension .*"?pgmq"?.*;$', re.IGNORECASE | re.MULTILINE)

_CREATE = """
    select pgflow.create_flow('maps');
    select pgflow.add_step('maps', 'each', step_type => 'map');
    select pgflow.add_step('maps', 'last', array['each']);
"""
_START = "select run_id from pgflow.start_flow(%s, %s)"
_REGISTER = "insert into pgflow.workers (worker_id, queue_name, function_name) values (%s, %s, %s)"
_READ = """
    select msg_id from pgmq.read_with_poll(
      queue_name => %s, vt => %s, qty => %s, max_poll_seconds => 1, poll_interval_ms => 100)
"""
_START_TASKS = """
    select run_id, step_slug, task_index from pgflow.start_tasks(
      flow_slug => %s, msg_ids => %s::bigint[], worker_id => %s)
"""
_COMPLETE = """
    select from pgflow.complete_task(
      run_id => %s, step_slug => %s, task_index => %s, output => %s)
"""


@dataclass(frozen=True)
class Pgflow:
    """pgflow without its extension.

    Attributes:
        migrations: The folder dist/supabase/migrations of @pgflow/core.
        pgmq: pgmq's SQL, 1.5 or newer.
    """

    migrations: Path | None = None
    pgmq: Path | None = None

    def scripts(self) -> list[Path]:
        """Its migrations, in order.

        Raises: NotAtHand when the folder was not named, or has none.
        """
        found = [] if self.migrations is None else sorted(self.migrations.glob("*.sql"))
        if not found:
            raise NotAtHand("name dist/supabase/migrations of npm's @pgflow/core: --pgflow FOLDER")
        named_file("pgmq", self.pgmq)
        return found

    def version(self) -> str:
        """Its newest migration."""
        return self.scripts()[-1].stem

    def install(self, dsn: str) -> None:
        """Run all of it, and define a flow of a map and a step after it."""
        scripts = self.scripts()
        run_script(dsn, _STUBS.read_text(encoding="utf-8"))
        run_script(dsn, named_file("pgmq", self.pgmq).read_text(encoding="utf-8"))
        for script in scripts:
            run_script(dsn, _EXTENSION.sub("", script.read_text(encoding="utf-8")))
        run_script(dsn, _CREATE)

    def submit(self, dsn: str, items: int) -> UUID:
        """Start a run of a map of so many items; its id."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute(_START, [_FLOW, Jsonb(list(range(items)))]).fetchone()
        assert row is not None
        return UUID(str(row[0]))

    def waiting(self, dsn: str) -> int:
        """Messages that no worker has read."""
        return count(dsn, "select count(*) from pgmq.q_maps where vt <= clock_timestamp()")


@dataclass(frozen=True)
class Tasks:
    """Opens sessions that work as pgflow's worker does: read, start, complete each task."""

    dsn: str
    batch: int = 1

    def __call__(self, number: int) -> "TasksSession":
        return TasksSession(self.dsn, self.batch)


class TasksSession:
    """One connection; each call is a commit of its own."""

    def __init__(self, dsn: str, batch: int) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._worker = uuid4()
        self._batch = batch
        self._connection.execute(_REGISTER, [self._worker, _FLOW, "bench"])

    def step(self) -> int:
        """Read a batch of messages, start their tasks, complete each."""
        read = [_FLOW, _CLAIM_SECONDS, self._batch]
        messages = [row[0] for row in self._connection.execute(_READ, read, prepare=True)]
        if not messages:
            return 0
        started = self._connection.execute(
            _START_TASKS, [_FLOW, messages, self._worker], prepare=True
        ).fetchall()
        for task in started:
            self._connection.execute(_COMPLETE, [*task, Jsonb({})], prepare=True)
        return len(started)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
