"""Where benchmarks run, and on what: databases of their own on one server, the machine's facts."""

import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.core.scratch import scratch_database
from hwqueue.embedded import EmbeddedServer
from hwqueue.embedded.server import default_data_dir

SETTINGS = (
    "server_version",
    "shared_buffers",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "max_wal_size",
    "wal_level",
    "jit",
    "max_connections",
)

# A background analyze of millions of rows may take that long.
_OUTLIVE_SECONDS = 60


@contextmanager
def server(dsn: str | None) -> Iterator[str]:
    """The server of `dsn`; None: a new one on disk, with durable commits and room in memory."""
    if dsn is not None:
        yield dsn
        return
    # Beside the embedded server's own folder: temporary folders may be in memory.
    parent = default_data_dir().parent
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="benchmark-", dir=parent))
    folder.chmod(0o755)  # as root the server runs as another user
    embedded = EmbeddedServer(folder / "server", settings=_settings())
    try:
        yield embedded.ensure_running()
    finally:
        embedded.stop()
        shutil.rmtree(folder)


@contextmanager
def databases(dsn: str | None, count: int) -> Iterator[list[str]]:
    """`count` fresh, upgraded databases on one server, see `server`; dropped at the end."""
    with ExitStack() as stack:
        base = stack.enter_context(server(dsn))
        yield [stack.enter_context(scratch_database(base)) for _ in range(count)]


@contextmanager
def database(dsn: str | None) -> Iterator[str]:
    """One fresh, upgraded database, as `databases`."""
    with databases(dsn, 1) as [made]:
        yield made


def with_setting(dsn: str, name: str, value: str) -> str:
    """`dsn` with a server setting for its sessions."""
    options = conninfo_to_dict(dsn).get("options") or ""
    return make_conninfo(dsn, options=f"{options} -c {name}={value}".strip())


def calm_down(dsn: str) -> None:
    """Leave nothing to do for the background: vacuum, analyse, write everything out."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")


def put_in_force(dsn: str) -> None:
    """Let what leases ask about other leases come into force, so that they can be claimed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        waiting = (
            "select exists (select from hwqueue.affinity_term where published_at is null) or exists"
            " (select from hwqueue.placement_class where terms <> '[]' and not terms_written)"
        )
        # What the background does in time: else each new term reads all classes and all terms.
        connection.execute("vacuum analyze hwqueue.placement_class")
        while connection.execute(waiting).fetchone() == (True,):
            connection.execute("select hwqueue.reap(100000)")
            connection.execute("analyze hwqueue.affinity_term, hwqueue.class_term")


def outlive(dsn: str) -> None:
    """Wait until every transaction that is open now, anywhere on the server, has ended.

    What one of them may not have seen yet, such as a class, is looked at anew by every claim.

    Raises: TimeoutError after a minute.
    """
    deadline = time.monotonic() + _OUTLIVE_SECONDS
    with psycopg.connect(dsn, autocommit=True) as connection:
        mine = connection.execute("select pg_current_xact_id()::text").fetchone()
        over = "select pg_snapshot_xmin(pg_current_snapshot()) > %s::xid8"
        while connection.execute(over, mine).fetchone() != (True,):
            if time.monotonic() > deadline:
                raise TimeoutError("a session on this server keeps a transaction open")
            time.sleep(0.05)


def machine(dsn: str) -> dict[str, str]:
    """What the figures were measured on."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select name, current_setting(name) from pg_settings where name = any(%s)",
            [list(SETTINGS)],
        ).fetchall()
    return {**host(), "psycopg": psycopg.__version__, **dict(sorted(rows))}


def host() -> dict[str, str]:
    """What they were measured on, where there is no server."""
    return {
        "cpu": _cpu_model(),
        "cores": str(psutil.cpu_count()),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.0f}",
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def _settings() -> dict[str, str]:
    """Room for what is measured, as anyone with a backlog of millions would give it."""
    mebibytes = min(2048, psutil.virtual_memory().total // 2**20 // 8)
    return {
        "shared_buffers": f"{mebibytes}MB",
        "max_wal_size": "4GB",
        "max_connections": "200",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, "")
