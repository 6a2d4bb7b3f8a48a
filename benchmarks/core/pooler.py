"""PgBouncer in transaction mode before the server that is measured."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_START_SECONDS = 10.0
_CONFIG = """\
[databases]
* = {server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = {pool_size}
"""


def installed() -> str | None:
    """The program, None if this machine does not have it."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def through_pooler(dsn: str, *, pool_size: int = 50) -> Iterator[str]:
    """The database of `dsn` through a pooler of its own, which has to be `installed`.

    Args:
        dsn: The server's, with a database.
        pool_size: Sessions in Postgres for each login.
    """
    port = free_port()
    config = _CONFIG.format(server=server_of(dsn), port=port, pool_size=pool_size)
    with running(config, port):
        yield make_conninfo(
            "", host="127.0.0.1", port=port, dbname=conninfo_to_dict(dsn)["dbname"], user="any"
        )


def server_of(dsn: str) -> str:
    """Where the server is, as a line of `[databases]` has it."""
    target = conninfo_to_dict(dsn)
    keys = ("host", "port", "user", "password")
    return " ".join(f"{key}={target[key]}" for key in keys if key in target)


@contextmanager
def running(config: str, port: int) -> Iterator[None]:
    """A pooler with this configuration, which says that it listens on `port`."""
    program = installed()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pgbouncer.ini"
        file.write_text(config, encoding="utf-8")
        as_user = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to run as root
        with subprocess.Popen([program, "-q", *as_user, str(file)]) as process:
            try:
                _wait_until_it_listens(port, process)
                yield
            finally:
                process.terminate()


def free_port() -> int:
    """A TCP port on which nobody listens now, and which no connection gets until somebody does.

    Linux gives those from 32768 on to whoever connects somewhere.
    """
    while True:
        port = 10_000 + secrets.randbelow(22_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"pgbouncer does not listen on port {port}")
        time.sleep(0.05)
