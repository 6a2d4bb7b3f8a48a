"""Take the schema out of a database, with all that is in it."""

from datetime import timedelta

import psycopg

from hwqueue.connections import in_utf8
from hwqueue.errors import SchemaTooOld
from hwqueue.schema.bundle import OWNER, ROLES
from hwqueue.schema.files import statement
from hwqueue.schema.session import OnWait, act_as_owner, pin, read_standing, take_lock


def drop(dsn: str, *, patience: timedelta, on_wait: OnWait | None = None) -> tuple[str, ...]:
    """Drop the schema: queues, leases, nodes, events, tokens; there is no way back.

    All or nothing. Roles stay, since they belong to the whole server: other databases may need
    them, and logins may have them.

    Args:
        patience: How long to wait for another session that holds the lock of upgrades.
        on_wait: Told once who that is; None: the log is.

    Returns: Those of the queue's roles that the server has.

    Raises:
        SchemaTooOld: there is no schema.
        SchemaLocked: another session kept the lock of upgrades for all of `patience`.
        ConfigError: the schema is hwqueue_owner's, and the user is no member of it.
        psycopg.errors.LockNotAvailable: a running transaction kept a table for 5 seconds.
        psycopg.errors.InsufficientPrivilege: the schema is somebody else's.
    """
    with psycopg.connect(in_utf8(dsn)) as connection:
        pin(connection)
        take_lock(connection, patience, on_wait)
        standing = read_standing(connection, ROLES)
        if standing.schema_owner is None:
            raise SchemaTooOld(
                f"database {connection.info.dbname} has no hwqueue schema",
                hint="name another database with --dsn",
            )
        act_as_owner(connection, standing)
        connection.execute(statement("drop_schema"), prepare=False)
    roles = ROLES if standing.roles_exist else ()
    return (*roles, OWNER) if standing.owner_exists else tuple(roles)
