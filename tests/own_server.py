"""A server of a test's own: it may be killed, and its disk rolled back."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import Connection

from benchmarks.core.pooler import free_port
from hwqueue.embedded.account import server_account
from hwqueue.embedded.binaries import Binaries
from hwqueue.embedded.server import HOST
from hwqueue.testing.databases import memory_disk
from tests.fix_db import THROWAWAY, strict_skip, temporary_folder
from tests.patience import looks


class OwnServer:
    """A server with its data in `folder`; its superuser is `postgres`, without a password."""

    def __init__(self, binaries: Binaries, folder: Path, port: int) -> None:
        self.data = folder / "data"
        self.dsn = f"postgresql://postgres@{HOST}:{port}/postgres?sslmode=disable"
        self._binaries = binaries
        settings = THROWAWAY | {"listen_addresses": HOST, "port": str(port), "unix_socket_directories": ""}
        self._options = " ".join(f"-c {key}={value}" for key, value in settings.items())

    def initialise(self) -> None:
        """Make the data folder."""
        self._run(
            *("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8"),
            *("--locale=C", "--no-sync"),
        )

    def start(self, **settings: str) -> None:
        """Start it, and wait until it takes connections."""
        options = self._options + "".join(f" -c {key}={value}" for key, value in settings.items())
        log = str(self.data / "server.log")
        self._run("pg_ctl", "start", "-w", "-D", str(self.data), "-l", log, "-o", options)

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and not stopped since."""
        return (self.data / "postmaster.pid").exists()

    def stop(self) -> None:
        """Stop it in order."""
        self._run("pg_ctl", "stop", "-w", "-D", str(self.data), "-m", "fast")

    def crash(self) -> None:
        """Stop it as a power cut does: what was not written is lost."""
        self._run("pg_ctl", "stop", "-w", "-D", str(self.data), "-m", "immediate")

    @contextmanager
    def crashing(self, dsn: str, *, in_place: bool, **settings: str) -> Iterator[Connection]:
        """A session that a crash ends, before the log of its last commit is written.

        Args:
            dsn: Of a database of this server.
            in_place: One backend is killed, and the server recovers; else it is started again.
            settings: As for `start`. It has been started with a long `wal_writer_delay`.
        """
        with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn) as witness:
            yield conn
            if in_place:
                os.kill(conn.info.backend_pid, signal.SIGKILL)
                assert any(_is_over(witness) for _ in looks())
                assert any(_takes_connections(dsn) for _ in looks())
            else:
                self.crash()
                self.start(**settings)

    def copy_data(self, target: Path) -> None:
        """Copy its disk, over what is there; while it is stopped."""
        _copy(self.data, target)

    def roll_back(self, copied: Path) -> None:
        """Bring its disk back to what was copied; while it is stopped."""
        _copy(copied, self.data)

    def _run(self, *command: str) -> None:
        answer = self._binaries.run(*command)
        assert answer.returncode == 0, answer.stdout


@contextmanager
def own_server(server_dsn: str, **settings: str) -> Iterator[OwnServer]:
    """Such a server, running; it is stopped and removed at the end. Skips where none can be made.

    Args:
        server_dsn: The server under test, whose programs are used.
        settings: Server settings besides those that tests use.
    """
    with psycopg.connect(server_dsn) as conn:
        row = conn.execute("select setting from pg_config where name = 'BINDIR'").fetchone()
    programs = Path(row[0] if row else "")
    if not os.access(programs / "initdb", os.X_OK):
        strict_skip("the programs of the server under test are not on this machine")
    with temporary_folder(memory_disk()) as folder:
        account = server_account(folder / "data")
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        server = OwnServer(Binaries(programs, account), folder, free_port())
        server.initialise()
        server.start(**settings)
        try:
            yield server
        finally:
            if server.is_running:
                server.crash()


def _is_over(conn: Connection) -> bool:
    try:
        conn.execute("select 1")
    except psycopg.OperationalError:
        return True
    return False


def _takes_connections(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    """With owners and modes, which the server checks."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
