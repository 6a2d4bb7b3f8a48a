"""Roles belong to the whole server, and an upgrade says where else they mean something."""

import psycopg

from hwqueue.schema import upgrade
from hwqueue.schema.bundle import ROLES
from hwqueue.schema.session import databases_sharing


def shared_with(dsn: str) -> list[str]:
    """The databases that an upgrade of this one tells of; those of other tests may be there."""
    with psycopg.connect(dsn) as connection:
        return databases_sharing(connection, ROLES)


def test_another_database_with_the_schema_is_told(dsn: str, another_dsn: str) -> None:
    [warning] = upgrade(another_dsn).warnings
    assert "roles belong to the whole server" in warning
    assert "revoke connect on database" in warning


def test_one_that_is_closed_to_others_is_not(dsn: str, empty_dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = connection.info.dbname
        assert name not in shared_with(dsn)
        assert name in shared_with(empty_dsn)
        connection.execute(f"revoke connect on database {name} from public".encode())
    assert name not in shared_with(empty_dsn)
