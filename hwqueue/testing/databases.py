"""Databases for tests: a throwaway server, a template, and copies of it that are dropped."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from filelock import FileLock
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hwqueue.embedded import EmbeddedServer
from hwqueue.schema import upgrade

Prepare = Callable[[str], object]

# The server's data is thrown away: speed matters, a crash does not.
THROWAWAY = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "shared_buffers": "256MB"}
_OPEN_SERVER_BYTES = 2 * 2**30


class TestRun:
    """The databases of one run of tests, shared by all of its processes.

    Nothing is made before the first database is asked for.

    Args:
        run_id: The same in all processes of the run; letters and digits.
        dsn: A server whose user may create databases and roles; empty: an embedded server that
            lives as long as the run.
    """

    __test__ = False  # its name looks like that of tests to pytest

    def __init__(self, run_id: str, dsn: str) -> None:
        self._prefix = f"hwqueue_test_{run_id}"
        self._given = dsn
        self._folder = Path(tempfile.gettempdir()) / f"hwqueue-test-{run_id}"
        self._server = self._folder / "server"

    def template(self, prepare: Prepare | None = None) -> tuple[str, str]:
        """The server's DSN and the name of the template, which the first caller makes.

        Args:
            prepare: Given the template's DSN when the schema is in it, and no other connection.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name, ready = f"{self._prefix}_template", self._folder / "ready"
        with FileLock(self._folder / "lock"):
            server = self._given or self._started()
            if not ready.exists():
                administer(server, "drop database if exists {}", name)  # half made
                administer(server, "create database {}", name)
                dsn = make_conninfo(server, dbname=name)
                with _alone(server):
                    upgrade(dsn)
                if prepare is not None:
                    prepare(dsn)
                ready.touch()
        return server, name

    def database(self, prepare: Prepare | None = None) -> AbstractContextManager[str]:
        """A context: the DSN of a copy of the template, dropped at the end."""
        server, template = self.template(prepare)
        return fresh_database(server, template, prefix=self._prefix)

    def finish(self) -> None:
        """Drop what is left and stop the server; for one process, when the others have ended."""
        if not self._folder.exists():
            return
        if self._given:
            for name in _named_like(self._given, self._prefix):
                administer(self._given, "drop database if exists {} with (force)", name)
        elif self._server.exists():
            folder = Path(self._server.read_text())
            EmbeddedServer(folder / "server").stop()
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _started(self) -> str:
        """The run's own server. Its folder is noted first, so that `finish` finds it always."""
        if not self._server.exists():
            self._server.write_text(str(open_folder(memory_disk())))
        folder = Path(self._server.read_text())
        return EmbeddedServer(folder / "server", settings=THROWAWAY).ensure_running()


@contextmanager
def fresh_database(
    server_dsn: str, template: str = "template1", *, prefix: str = "hwqueue_test"
) -> Iterator[str]:
    """A copy of `template`, dropped at the end even while somebody is connected."""
    name = f"{prefix}_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        # Copying files is a third of the work of copying through the WAL, where fsync is off.
        slow = connection.execute("select pg_catalog.current_setting('fsync') = 'on'").fetchone() == (True,)
        strategy: LiteralString = "wal_log" if slow else "file_copy"
        create: LiteralString = "create database {} template {} strategy "
        names = map(sql.Identifier, (name, template))
        connection.execute(sql.SQL(create + strategy).format(*names))
    try:
        yield make_conninfo(server_dsn, dbname=name)
    finally:
        administer(server_dsn, "drop database {} with (force)", name)


def administer(server_dsn: str, statement: LiteralString, *names: str) -> None:
    """Run a statement with these names in it, outside of a transaction."""
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def memory_disk() -> Path | None:
    """A file system in memory, where copying a database takes a twentieth of the time.

    Not one that forbids programs: the server's own may have to be copied there.
    """
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shutil.disk_usage(shm).free < _OPEN_SERVER_BYTES:
        return None
    return None if os.statvfs(shm).f_flag & os.ST_NOEXEC else shm


def open_folder(parent: Path | None = None) -> Path:
    """A new folder that every user can reach: as root the server runs as another one."""
    made = Path(tempfile.mkdtemp(prefix="hwqueue-test-", dir=parent))
    made.chmod(0o755)
    return made


@contextmanager
def _alone(server_dsn: str) -> Iterator[None]:
    """Roles belong to the server: runs of tests must not make them at once."""
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        connection.execute("select pg_catalog.pg_advisory_lock(pg_catalog.hashtext('hwqueue_test upgrade'))")
        yield  # the lock ends with the connection


def _named_like(server_dsn: str, prefix: str) -> list[str]:
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        rows = connection.execute(
            "select datname from pg_catalog.pg_database where pg_catalog.starts_with(datname, %s)",
            [f"{prefix}_"],
        )
        return [name for (name,) in rows.fetchall()]
