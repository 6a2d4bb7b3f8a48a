"""A server of a test's own: it may be killed, and its disk rolled back."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from hwqueue.embedded.account import server_account
from hwqueue.embedded.binaries import Binaries
from hwqueue.embedded.server import HOST
from hwqueue.testing.databases import memory_disk
from tests.fix_db import THROWAWAY, strict_skip, temporary_folder


class OwnServer:
    """A server with its data in `folder`; its superuser is `postgres`, without a password."""

    def __init__(self, binaries: Binaries, folder: Path, port: int) -> None:
        self.data = folder / "data"
        self.dsn = f"postgresql://postgres@{HOST}:{port}/postgres?sslmode=disable"
        self._binaries = binaries
        settings = THROWAWAY | {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
        }
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

    def stop(self) -> None:
        """Stop it in order."""
        self._run("pg_ctl", "stop", "-w", "-D", str(self.data), "-m", "fast")

    def crash(self) -> None:
        """Stop it as a power cut does: what was not written is lost."""
        self._run("pg_ctl", "stop", "-w", "-D", str(self.data), "-m", "immediate")

    def copy_data(self, target: Path) -> None:
        """A copy of its disk, or back from one; while it is stopped."""
        _copy(self.data, target)

    def roll_back(self, copied: Path) -> None:
        """Bring its disk back to what was copied; while it is stopped."""
        shutil.rmtree(self.data)
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
            if (server.data / "postmaster.pid").exists():
                server.crash()


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _copy(source: Path, target: Path) -> None:
    """With owners and modes, which the server checks."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
