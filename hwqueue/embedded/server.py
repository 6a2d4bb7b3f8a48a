"""Set up, start and stop the embedded server.

What the data folder holds: `data` (Postgres' own), `password` and `port` (ours), `lock`, and
`binaries-<version>` where root needed a copy. The server listens on 127.0.0.1 only and asks for
the password; docs/run/database.md says why.
"""

import errno
import logging
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from hwqueue.embedded.account import server_account
from hwqueue.embedded.binaries import MAJOR, Binaries, usable_binaries
from hwqueue.embedded.errors import (
    FolderNotOurs,
    NoPermission,
    PortTaken,
    ServerFailed,
    WrongMajor,
    from_output,
)
from hwqueue.embedded.postmaster import READY, Postmaster, find_postmaster, forget_dead_postmaster
from hwqueue.errors import EmbeddedError

USER = "postgres"
DATABASE = "postgres"
HOST = "127.0.0.1"
# The server asks for a password and encrypts nothing on the way to the same machine. Written out
# because PGSSLMODE and its like, set for other servers, would refuse that.
_PLAIN = "sslmode=disable&gssencmode=disable&channel_binding=disable"

# How long a start or a stop may take, a recovery after a crash included.
_SETTLE_S = 120
# Behind a first set-up, with a copy of the programs and a slow disk.
_LOCK_S = 300
_LOCK_NOTE_S = 5
# Ports tried where none was asked for: the last one, then free ones, which others may snatch.
_PORT_TRIES = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerStatus:
    """What is known of the embedded server.

    `running` says that it takes connections; a `pid` without it is one that starts or stops.
    `port` is the last one used when it is not running.
    """

    running: bool
    data_dir: Path
    version: str | None
    port: int | None
    pid: int | None


def default_data_dir() -> Path:
    """HWQUEUE_DATA_DIR, else a folder per user (as root below /var/lib).

    Raises: NoPermission: There is no home folder to put it into.
    """
    if chosen := os.environ.get("HWQUEUE_DATA_DIR"):
        try:
            return Path(chosen).expanduser().absolute()
        except RuntimeError as error:
            raise _no_home() from error
    if os.geteuid() == 0:
        # Root's home is closed to the unprivileged user that runs the server.
        return Path("/var/lib/hwqueue") / f"postgres-{MAJOR}"
    try:
        return platformdirs.user_data_path("hwqueue") / f"postgres-{MAJOR}"
    except RuntimeError as error:
        raise _no_home() from error


class EmbeddedServer:
    """One embedded server, known by its data folder. Safe to use from many processes at once."""

    def __init__(self, data_dir: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are server settings for the next start, e.g. {"fsync": "off"}."""
        self.data_dir = data_dir or default_data_dir()
        self._data = self.data_dir / "data"
        self._log_file = self._data / "server.log"
        self._settings = dict(settings or {})

    def ensure_running(self) -> str:
        """Set up and start the server where needed; return its URL.

        Raises:
            EmbeddedError: see hwqueue.embedded.errors for the kinds.
        """
        with self._locked():
            if self._settled() is None:
                self._start(None)
            return self.url()

    def start(self, port: int | None = None) -> ServerStatus:
        """Start the server; does nothing when it runs already.

        `port` None keeps the last one; the first time, and when another program has taken that
        since, it picks a free one.

        Raises:
            PortTaken: another program listens on `port`, or the server runs on another one.
            EmbeddedError: see hwqueue.embedded.errors for the other kinds.
        """
        with self._locked():
            found = self._settled()
            if found is None:
                self._start(port)
            elif port not in (None, found.port):
                raise PortTaken(
                    f"the embedded server already runs on port {found.port}",
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
            if self._postmaster() is None:
                return False
            answer = self._pg_ctl("stop", "-m", "fast", "-w")
            if answer.returncode != 0:
                raise self._failed("stop the embedded server", answer.stdout)
            return True

    def status(self) -> ServerStatus:
        """Whether it runs and where; changes nothing."""
        version = self._read("data/PG_VERSION")
        found = self._postmaster()
        return ServerStatus(
            running=found is not None and found.state == READY,
            data_dir=self.data_dir,
            version=version,
            port=self._port(found),
            pid=found.pid if found else None,
        )

    def url(self) -> str:
        """The URL of the server's database, password included, whether it runs or not.

        Raises:
            EmbeddedError: it was never set up.
        """
        password, port = self._read("password"), self._port(self._postmaster())
        if password is None or port is None:
            raise EmbeddedError(
                f"no embedded server was set up in {self.data_dir}", hint="start one: hwqueue db start"
            )
        return f"postgresql://{USER}:{password}@{HOST}:{port}/{DATABASE}?{_PLAIN}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock; makes the folder when it is missing."""
        try:
            # root's server runs as another user, who must get through to the data
            mode = 0o711 if os.geteuid() == 0 else 0o700
            self.data_dir.mkdir(mode=mode, parents=True, exist_ok=True)
            self._refuse_foreign_folder()
            path = self.data_dir / "lock"
            # who can open it can hold it, so nobody else can open it
            with open(path, "a", opener=_own) as file:
                os.fchmod(file.fileno(), 0o600)
            lock = FileLock(path, mode=0o600)
            self._wait_for(lock)
        except PermissionError as error:
            raise self._no_permission(error) from error
        except OSError as error:
            raise self._failed("make the data folder", str(error)) from error
        try:
            yield
        finally:
            lock.release()

    def _wait_for(self, lock: FileLock) -> None:
        """Take the lock; somebody who waits longer than a moment is told for what."""
        try:
            lock.acquire(timeout=_LOCK_NOTE_S)
        except Timeout:
            _log.warning("waiting for another process that holds %s ...", lock.lock_file)
        else:
            return
        try:
            lock.acquire(timeout=_LOCK_S)
        except Timeout as error:
            raise EmbeddedError(
                f"another process has held {lock.lock_file} for {_LOCK_S} s, to set up, start or "
                "stop the embedded server",
                hint="end that process (fuser shows which one it is), or choose another folder "
                "with HWQUEUE_DATA_DIR",
            ) from error

    def _postmaster(self) -> Postmaster | None:
        """The server's process, looked up afresh."""
        try:
            return find_postmaster(self._data)
        except PermissionError as error:
            raise self._no_permission(error) from error

    def _settled(self) -> Postmaster | None:
        """The server once it takes connections; None when it does not run.

        The caller holds the lock, so a server that is on its way up or down was left behind by a
        process that was interrupted. It gets there by itself.
        """
        deadline = time.monotonic() + _SETTLE_S
        while (found := self._postmaster()) and found.state != READY:
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"the embedded server (process {found.pid}) has been "
                    f"{found.state or 'starting'} for {_SETTLE_S} s",
                    hint=f"see its log, {self._log_file}, or stop it: hwqueue db stop",
                )
            time.sleep(0.05)
        return found

    def _port(self, found: Postmaster | None) -> int | None:
        """The port that the server has, else the last one."""
        if found and found.port:
            return found.port
        remembered = self._read("port") or ""
        is_port = remembered.isascii() and remembered.isdecimal() and len(remembered) <= 5
        return int(remembered) if is_port and 0 < int(remembered) <= 65_535 else None

    def _refuse_foreign_folder(self) -> None:
        """Refuse a folder that someone or something else filled."""
        user, owner, linked_by = (os.geteuid(), self.data_dir.stat().st_uid, self.data_dir.lstat().st_uid)
        if owner == user and linked_by not in (0, user):
            owner = linked_by  # who made the link decides where it leads
        if owner != user:
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
            forget_dead_postmaster(self._data)
            if self._log_file.exists():
                # The last run's log is kept until the next start, no longer.
                self._log_file.replace(self._log_file.with_suffix(".log.1"))
            taken = self._start_on(port) if port else self._start_anywhere()
            with open(self.data_dir / "port", "w", opener=_own) as file:
                file.write(f"{taken}\n")
        except PermissionError as error:
            raise self._no_permission(error) from error
        except OSError as error:
            raise self._failed("set up the embedded server", str(error)) from error

    def _start_anywhere(self) -> int:
        """Start on the last port, else on a free one; return which it was."""
        for attempt in range(_PORT_TRIES):
            port = (self._port(None) if attempt == 0 else None) or _free_port()
            try:
                return self._start_on(port)
            except PortTaken as error:
                taken = error
                # The next attempt's failure must not be read out of this one's words.
                self._log_file.unlink(missing_ok=True)
        raise taken

    def _start_on(self, port: int) -> int:
        """Start on one port and wait until it takes connections."""
        wait = ("-w", "-t", str(_SETTLE_S))
        answer = self._pg_ctl(
            "start", *wait, "-l", f"{self._data.name}/{self._log_file.name}", "-o", self._options(port)
        )
        if answer.returncode != 0:
            log = self._read("data/server.log")
            raise self._failed("start the embedded server", log or answer.stdout, port)
        return port

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
            # Calls that are refused are told to who makes them; here they would fill the disk.
            "log_min_messages": "log",
        } | self._settings
        return " ".join(f"-c {shlex.quote(f'{key}={value}')}" for key, value in settings.items())

    def _pg_ctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        # from within the folder: pg_ctl hands its paths to a shell that reads $, `, " and \ in them
        return self._binaries.run("pg_ctl", *args, "-D", self._data.name, folder=self.data_dir)

    def _failed(self, action: str, output: str, port: int | None = None) -> EmbeddedError:
        return from_output(action, output, data_dir=self.data_dir, port=port)

    @cached_property
    def _binaries(self) -> Binaries:
        return usable_binaries(self.data_dir, server_account(self._data))

    def _read(self, name: str) -> str | None:
        """What one of the folder's files holds; None when it is not there.

        Raises: NoPermission, FolderNotOurs (it is a symbolic link).
        """
        path = self.data_dir / name
        try:
            with open(path, errors="replace", opener=_own) as file:
                return file.read().strip()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise self._no_permission(error) from error
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise FolderNotOurs(
                f"{path} is a symbolic link, which hwqueue never makes",
                hint="remove it, or choose another folder with HWQUEUE_DATA_DIR",
            ) from error

    def _no_permission(self, error: PermissionError) -> NoPermission:
        return NoPermission(
            f"no permission on {error.filename}, needed for the embedded server",
            hint="make the folder yours, or choose another one with HWQUEUE_DATA_DIR",
        )


def _own(path: str, flags: int) -> int:
    """Open a file of the folder itself, never what a link in it leads to."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def _no_home() -> NoPermission:
    return NoPermission(
        "no database is named, and the embedded server has no folder: this user has no home",
        hint="name a database with --dsn or HWQUEUE_DSN; for the embedded server set HOME, or name "
        "a folder with HWQUEUE_DATA_DIR",
    )


def _free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
