"""The server process of a data folder, as the folder and the system know it.

`postmaster.pid` alone is not believed: after a crash it stays, and its process id may be somebody
else's by then, in a container nearly always.
"""

from dataclasses import dataclass
from pathlib import Path

import psutil

# Lines of postmaster.pid, counted from 0. The last one is written when the server knows it.
_PID, _PORT, _STATE = 0, 3, 7
READY = "ready"


@dataclass(frozen=True)
class Postmaster:
    """A running server process. `port` and `state` are None until it has noted them.

    `state` is Postgres' own word: `starting`, `ready` (takes connections), `stopping`.
    """

    pid: int
    port: int | None
    state: str | None


def find_postmaster(data: Path) -> Postmaster | None:
    """The server that runs on a data folder; None when none does.

    Raises:
        PermissionError: the folder is closed to this user.
    """
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    pid, port, state = (_line(lines, number) for number in (_PID, _PORT, _STATE))
    if pid is None or not pid.isdecimal() or not _serves(int(pid), data):
        return None
    return Postmaster(int(pid), int(port) if port and port.isdecimal() else None, state)


def forget_dead_postmaster(data: Path) -> None:
    """Remove a `postmaster.pid` whose process is not the folder's server.

    Postgres does so itself when the process id is free, but refuses to start when another program
    of the same user has it now. The caller holds the lock that all starts take.
    """
    if find_postmaster(data) is None:
        (data / "postmaster.pid").unlink(missing_ok=True)


def _serves(pid: int, data: Path) -> bool:
    """Whether the process is a server, `postgres -D ...`, and `data` its working directory."""
    try:
        process = psutil.Process(pid)
        program, *arguments = process.cmdline() or [""]
        folder = Path(process.cwd())
    except psutil.Error:
        # Gone, or of a user whose processes we may not look at: so not one that we started.
        return False
    if Path(program).name != "postgres" or "-D" not in arguments[:-1]:
        return False
    return folder.exists() and folder.samefile(data)


def _line(lines: list[str], number: int) -> str | None:
    return lines[number].strip() or None if number < len(lines) else None
