"""schema_version: what is installed."""

import psycopg

from hwqueue.schema.state import head_revision
from tests.sql.api import Api


def test_it_tells_what_the_upgrade_wrote(api: Api, conn: psycopg.Connection) -> None:
    row = api.row("schema_version")
    assert row["revision"] == head_revision()
    written = conn.execute(
        "select revision, bundle_sha256, package_version from hwqueue.schema_info"
    ).fetchone()
    assert tuple(row.values())[:3] == written
