"""Sessions of signed-in viewers: random ids in cookies, their records in a folder of the server.

Records are files, because all processes of a server share them: signing out ends a session in all
of them. The cookie holds an id alone, neither the token nor anything derived from it. A file holds
the hash of the token, as the database does, under a name that is the hash of the id.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from hwqueue.errors import ConfigError
from hwqueue.server.settings import ServerSettings

MAX_PER_TOKEN = 50
"""Sessions of one token; another one ends the oldest."""

_KEY = "key"
_SUFFIX = ".session"


class SessionStore:
    """The sessions of a server, and the key that its CSRF tokens are made with."""

    def __init__(self, settings: ServerSettings) -> None:
        self._given = settings.session_dir
        self._seconds = settings.session_lifetime.total_seconds()

    def create(self, token: bytes) -> str:
        """A new session for the bearer of the token with this hash; its id.

        Raises: ConfigError, if others may look into the folder.
        """
        mine = []
        for path, record in self._all():
            if record["until"] <= time.time():
                path.unlink(missing_ok=True)
            elif record["token"] == token.hex():
                mine.append((record["until"], path))
        for _, path in sorted(mine)[: max(0, len(mine) - MAX_PER_TOKEN + 1)]:
            path.unlink(missing_ok=True)
        # it may have been cleared away with old temporary files, and somebody else have made it
        _make_closed(self._folder)
        session = secrets.token_urlsafe(32)
        record = {"token": token.hex(), "until": time.time() + self._seconds}
        _write(self._file(session), json.dumps(record).encode())
        return session

    def find(self, session: str | None) -> bytes | None:
        """The hash of the token that a session was begun with; None: there is no such session."""
        record = _read(self._file(session)) if session else None
        return bytes.fromhex(record["token"]) if record and time.time() < record["until"] else None

    def delete(self, session: str) -> None:
        """End a session, if there is one."""
        self._file(session).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder, unless it was given."""
        if self._given is None and "_folder" in self.__dict__:
            shutil.rmtree(self._folder, ignore_errors=True)
            for name in ("_folder", "key"):
                self.__dict__.pop(name, None)

    @cached_property
    def key(self) -> bytes:
        """The same in all processes of a server."""
        path = self._folder / _KEY
        while True:
            with suppress(FileNotFoundError):
                return path.read_bytes()
            new = self._folder / f"{_KEY}.{secrets.token_hex(8)}"
            _write(new, secrets.token_bytes(32))
            with suppress(FileExistsError):  # another process was first
                os.link(new, path)
            new.unlink()

    @cached_property
    def _folder(self) -> Path:
        """The folder. Raises: ConfigError, if others may look into it."""
        if self._given is None:
            return Path(tempfile.mkdtemp(prefix="hwqueue-sessions-"))
        folder = Path(self._given)
        _make_closed(folder)
        return folder

    def _file(self, session: str) -> Path:
        return self._folder / f"{hashlib.sha256(session.encode()).hexdigest()}{_SUFFIX}"

    def _all(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for path in self._folder.glob(f"*{_SUFFIX}"):
            record = _read(path)
            if record is not None:
                yield path, record


def _make_closed(folder: Path) -> None:
    """Make the folder, if it is not there. Raises: ConfigError, if others may look into it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"session_dir: {folder} must be a folder of yours that is closed to others",
            hint=f"chmod 700 {folder}, or remove it",
        )


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _read(path: Path) -> dict[str, Any] | None:
    """What a session's file holds; None: it is gone, or not written yet."""
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return record
