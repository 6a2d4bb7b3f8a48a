"""Set up, start and stop the embedded server.

What the data folder holds: `data` (Postgres' own), `password` and `port` (ours), `lock`, and
`binaries-<version>` where root needed a copy. The server listens on 127.0.0.1 only and asks for
the password; docs/explanation/embedded.md says why.
"""

import os
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import platformdirs
from filelock import FileLock

from hwqueue.embedded.account import server_account
from hwqueue.embedded.binaries import MAJOR, Binaries, usable_binaries
from hwqueue.embedded.errors import (
    EmbeddedError,
    FolderNotOurs,
    NoPermission,
    PortTaken,
    WrongMajor,
    from_output,
)

USER = "postgres"
DATABASE = "postgres"
HOST = "127.0.0.1"
_OWN_FILES = ("password", "port")


@dataclass(frozen=True)
class ServerStatus:
    """What is known of the embedded server. `port` is the last one used when it is not running."""

    running: bool
    data_dir: Path
    version: str | None
    port: int | None
    pid: int | None


def default_data_dir() -> Path:
    """HWQUEUE_DATA_DIR, else a folder per user (as root below /var/lib)."""
    if chosen := os.environ.get("HWQUEUE_DATA_DIR"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        # Root's home is closed to the unprivileged user that runs the server.
        return Path("/var/lib/hwqueue") / f"postgres-{MAJOR}"
    return platformdirs.user_data_path("hwqueue") / f"postgres-{MAJOR}"


class EmbeddedServer:
    """One embedded server, known by its data folder. Safe to use from many processes at once."""

    def __init__(
        self, data_dir: Path | None = None, *, settings: Mapping[str, str] | None = None
    ) -> None:
        """`settings` are server settings for the next start, e.g. {"fsync": "off"}."""
        self.data_dir = data_dir or default_data_dir()
        self._data = self.data_dir / "data"
        self._log = self._data / "server.log"
        self._settings = dict(settings or {})

    def ensure_running(self) -> str:
        """Set up and start the server where needed; return its URL.

        Raises:
            EmbeddedError: see hwqueue.embedded.errors for the kinds.
        """
        with self._locked():
            if not self.status().running:
                self._start(None)
            return self.url()

    def start(self, port: int | None = None) -> ServerStatus:
        """Start the server; does nothing when it runs already.

        `port` None keeps the last one, or picks a free one the first time.

        Raises:
            PortTaken: another program listens there, or the server runs on another port.
            EmbeddedError: see hwqueue.embedded.errors for the other kinds.
        """
        with self._locked():
            status = self.status()
            if not status.running:
                self._start(port)
            elif port not in (None, status.port):
                raise PortTaken(
                    f"the embedded server already runs on port {status.port}",
                    hint=f"stop it first: hwqueue db stop; hwqueue db start --port {port}",
                )
            return self.status()

    def stop(self) -> bool:
        """Stop the server, open connections are closed. False when it was not running.

        Raises:
            ServerFailed: it does not stop.
        """
        if not self._data.exists():
            return False
        with self._locked():
            if not self.status().running:
                return False
            answer = self._pg_ctl("stop", "-m", "fast", "-w")
            if answer.returncode != 0:
                raise self._failed("stop the embedded server", answer.stdout)
            return True

    def status(self) -> ServerStatus:
        """Whether it runs and where; changes nothing."""
        version = self._read("data/PG_VERSION")
        pid = None
        if version is not None and self._pg_ctl("status").returncode == 0:
            pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        port = self._read("port")
        return ServerStatus(
            running=pid is not None,
            data_dir=self.data_dir,
            version=version,
            port=int(port) if port else None,
            pid=pid,
        )

    def url(self) -> str:
        """The URL of the server's database, password included, whether it runs or not.

        Raises:
            EmbeddedError: it was never set up.
        """
        password, port = (self._read(name) for name in _OWN_FILES)
        if password is None or port is None:
            raise EmbeddedError(
                f"no embedded server was set up in {self.data_dir}",
                hint="start one: hwqueue db start",
            )
        return f"postgresql://{USER}:{password}@{HOST}:{port}/{DATABASE}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock; makes the folder when it is missing."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign_folder()
            lock = FileLock(self.data_dir / "lock")
            lock.acquire()
        except PermissionError as error:
            raise self._no_permission(error) from error
        except OSError as error:
            raise self._failed("make the data folder", str(error)) from error
        try:
            yield
        finally:
            lock.release()

    def _refuse_foreign_folder(self) -> None:
        """Refuse a folder that someone or something else filled."""
        owner = self.data_dir.stat().st_uid
        if os.geteuid() not in (0, owner):
            raise FolderNotOurs(
                f"{self.data_dir} belongs to user id {owner}, not to you",
                hint="choose another folder with HWQUEUE_DATA_DIR",
            )
        names = {path.name for path in self.data_dir.iterdir()}
        if names and "lock" not in names:
            raise FolderNotOurs(
                f"{self.data_dir} is not empty and was not made by hwqueue",
                hint="choose an empty or new folder with HWQUEUE_DATA_DIR",
            )
        version = self._read("data/PG_VERSION")
        if version not in (None, MAJOR):
            raise WrongMajor(
                f"{self._data} was made by Postgres {version}, this package runs {MAJOR}",
                hint="dump it with its own version and load it here, or choose another folder "
                "with HWQUEUE_DATA_DIR",
            )

    def _start(self, port: int | None) -> None:
        """Start a server that is not running. The caller holds the lock."""
        try:
            if not self._data.exists():
                self._set_up()
            remembered = self._read("port")
            port = port or (int(remembered) if remembered else _free_port())
            if self._log.exists():
                # The last run's log is kept until the next start, no longer.
                self._log.replace(self._log.with_suffix(".log.1"))
            answer = self._pg_ctl(
                *("start", "-w", "-t", "120", "-l", str(self._log), "-o", self._options(port))
            )
            if answer.returncode != 0:
                log = self._log.read_text(errors="replace") if self._log.exists() else ""
                raise self._failed("start the embedded server", log or answer.stdout, port)
            (self.data_dir / "port").write_text(f"{port}\n")
        except PermissionError as error:
            raise self._no_permission(error) from error
        except OSError as error:
            raise self._failed("set up the embedded server", str(error)) from error

    def _set_up(self) -> None:
        """Run initdb into `data.new` and rename it, so that a half-made one is never used."""
        unfinished = self.data_dir / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        password_file = self.data_dir / "password"
        password_file.unlink(missing_ok=True)
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_hex(24))
        if account := self._binaries.account:
            for path in (unfinished, password_file):
                os.chown(path, account.uid, account.gid)
        answer = self._binaries.run(
            "initdb",
            *("-D", str(unfinished), "-U", USER, "--auth=scram-sha-256"),
            *("--pwfile", str(password_file), "-E", "UTF8", "--locale=C"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
        )
        if answer.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise self._failed("set up the embedded server", answer.stdout)
        unfinished.rename(self._data)

    def _options(self, port: int) -> str:
        """The server's command line, as the shell that pg_ctl uses wants it."""
        settings = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
        } | self._settings
        return " ".join(f"-c {shlex.quote(f'{key}={value}')}" for key, value in settings.items())

    def _pg_ctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self._binaries.run("pg_ctl", *args, "-D", str(self._data))

    def _failed(self, action: str, output: str, port: int | None = None) -> EmbeddedError:
        return from_output(action, output, data_dir=self.data_dir, port=port)

    @cached_property
    def _binaries(self) -> Binaries:
        return usable_binaries(self.data_dir, server_account(self._data))

    def _read(self, name: str) -> str | None:
        """The first line of one of the folder's files; None when it is not there."""
        try:
            return (self.data_dir / name).read_text().strip()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise self._no_permission(error) from error

    def _no_permission(self, error: PermissionError) -> NoPermission:
        return NoPermission(
            f"no permission on {error.filename}, needed for the embedded server",
            hint="make the folder yours, or choose another one with HWQUEUE_DATA_DIR",
        )


def _free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
