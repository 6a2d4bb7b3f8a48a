"""PgBouncer in transaction mode before the server that is measured."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
default_pool_size = 50
"""


def installed() -> str | None:
    """The program, None if this machine does not have it."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def through_pooler(dsn: str) -> Iterator[str]:
    """The database of `dsn` through a pooler of its own, which has to be `installed`."""
    program = installed()
    assert program is not None
    target = conninfo_to_dict(dsn)
    server = " ".join(
        f"{key}={target[key]}" for key in ("host", "port", "user", "password") if key in target
    )
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "pgbouncer.ini"
        config.write_text(_CONFIG.format(server=server, port=port), encoding="utf-8")
        as_user = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to run as root
        with subprocess.Popen([program, "-q", *as_user, str(config)]) as process:
            try:
                _wait_until_it_listens(port)
                yield make_conninfo(
                    "", host="127.0.0.1", port=port, dbname=target["dbname"], user="any"
                )
            finally:
                process.terminate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _wait_until_it_listens(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"pgbouncer does not listen on port {port}")
        time.sleep(0.05)
