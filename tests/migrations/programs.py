"""pg_dump and psql, the ones that come with the embedded server."""

import subprocess

from hwqueue.embedded.binaries import package_folder


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
