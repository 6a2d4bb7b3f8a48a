"""pg_dump and psql, the ones that come with the embedded server; and a throwaway server."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hwqueue.embedded import EmbeddedServer
from hwqueue.embedded.binaries import package_folder
from hwqueue.schema import upgrade


@contextmanager
def installed() -> Iterator[str]:
    """A fresh install on a server that goes with the block."""
    folder = Path(tempfile.mkdtemp(prefix="hwqueue-"))
    folder.chmod(0o755)
    server = EmbeddedServer(folder / "server", settings={"fsync": "off"})
    try:
        dsn = server.ensure_running()
        upgrade(dsn)
        yield dsn
    finally:
        server.stop()
        shutil.rmtree(folder)


def dump(dsn: str, *options: str) -> str:
    """What pg_dump prints of a database."""
    run = subprocess.run(
        [_program("pg_dump"), *options, "--dbname", dsn], capture_output=True, text=True, check=True
    )
    return run.stdout


def run_psql(dsn: str, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a person would."""
    return subprocess.run(
        [_program("psql"), "-q", "-X", *options, "-d", dsn],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )


def _program(name: str) -> str:
    return str(package_folder() / "pginstall" / "bin" / name)
