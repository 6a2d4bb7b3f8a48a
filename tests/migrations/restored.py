"""Databases of earlier releases, upgraded."""

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg

from hwqueue.schema import upgrade
from hwqueue.testing import install_clock
from tests.migrations.programs import run_psql
from tests.sql.api import Api, Row

RELEASES = sorted(Path(__file__).parent.glob("releases/*.sql.gz"))


def restore_and_upgrade(release: Path, empty_dsn: str, queue: str) -> list[Row]:
    """What get_lease said of each lease of the queue before the upgrade."""
    run_psql(empty_dsn, gzip.decompress(release.read_bytes()).decode())
    with psycopg.connect(empty_dsn) as conn:
        listed = everything(Api(conn), queue)
    assert upgrade(empty_dsn).changed
    return listed


@contextmanager
def at_the_time_of(before: Sequence[Row], dsn: str) -> Iterator[Api]:
    """The database as if it were just after these leases were spawned."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        clock = install_clock(conn)
        clock.advance(max(row["created_at"] for row in before) + timedelta(seconds=1) - clock.now())
        yield Api(conn)


def everything(api: Api, queue: str) -> list[Row]:
    """What get_lease says of each lease of a queue."""
    leases = [row["lease_id"] for row in api.rows("list_leases", queue=queue, limit=1000)]
    return [api.lease(lease) for lease in leases]
