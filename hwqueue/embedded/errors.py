"""Why the embedded server could not be set up, started or stopped."""

import shutil
from pathlib import Path

from hwqueue.errors import EmbeddedError


class PortTaken(EmbeddedError):
    """Another program listens on the port."""


class FolderNotOurs(EmbeddedError):
    """The data folder holds something else, or belongs to another user."""


class WrongMajor(EmbeddedError):
    """The data folder was made by another major version of Postgres."""


class DiskFull(EmbeddedError):
    """No space is left for the data."""


class NoPermission(EmbeddedError):
    """The data folder cannot be written, or cannot be reached by the server's user."""


class BinariesUnusable(EmbeddedError):
    """The server's programs are missing or do not run on this machine."""


class ServerFailed(EmbeddedError):
    """The server failed for a reason not foreseen here; the message carries its own words."""


_FULL = ("No space left on device", "Disk quota exceeded")
# Long enough for the server's last complaint and its hint, short enough to read.
_TAIL_LINES = 15


def from_output(action: str, output: str, *, data_dir: Path, port: int | None) -> EmbeddedError:
    """Turn what a server program printed into the error that names the cause and the fix."""
    if "Address already in use" in output:
        return PortTaken(
            f"port {port} on 127.0.0.1 is taken by another program",
            hint="choose another one: hwqueue db start --port N",
        )
    # on a full disk the server cannot even write its complaint into the log
    is_full = data_dir.exists() and shutil.disk_usage(data_dir).free < 2**20
    if is_full or any(words in output for words in _FULL):
        return DiskFull(
            f"could not {action}: no space left on the disk that holds {data_dir}",
            hint="free some space, or choose another folder with HWQUEUE_DATA_DIR",
        )
    tail = "\n".join(output.strip().splitlines()[-_TAIL_LINES:])
    if "Permission denied" in output:
        return NoPermission(
            f"could not {action}: permission denied\n{tail}",
            hint=f"make {data_dir} writable, and every folder above it open to the user that "
            "runs the server, or choose another folder with HWQUEUE_DATA_DIR",
        )
    return ServerFailed(
        f"could not {action}:\n{tail or '(no output)'}",
        hint=f"see the server's log in {data_dir / 'data' / 'server.log'}",
    )
