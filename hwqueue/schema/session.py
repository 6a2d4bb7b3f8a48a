"""The session of an upgrade: a fixed search_path, one at a time, as the schema's owner."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from hwqueue.errors import ConfigError, SchemaLocked
from hwqueue.schema.bundle import OWNER
from hwqueue.schema.files import run_script, statement

_log = logging.getLogger("hwqueue.schema")

_PAUSE_SECONDS = 0.1  # between two tries of the lock
_SOON_SECONDS = 2.0
_ROLES_CHECKED_BY_SET = 160000  # server version since which SET ROLE is a right of its own

# Told once that an upgrade waits, and for whom.
OnWait = Callable[[str], None]


@dataclass(frozen=True)
class Standing:
    """What the user may do about roles, and whose the schema is.

    may_be_owner: SET ROLE to the owner's role works. may_join_owner: may make itself a member.
    schema_owner: None where there is no schema. trusts_schema: it is the user's own, a superuser's,
    or of the owner's role.
    """

    roles_exist: bool
    may_create_roles: bool
    owner_exists: bool
    may_be_owner: bool
    may_join_owner: bool
    schema_owner: str | None
    trusts_schema: bool
    installer: str

    @property
    def may_use_roles(self) -> bool:
        """Whether the grants can be applied."""
        return self.roles_exist or self.may_create_roles

    @property
    def may_use_owner(self) -> bool:
        """Whether the schema can belong to the owner's role."""
        if self.owner_exists:
            return self.may_be_owner or self.may_join_owner
        return self.may_create_roles


def pin(connection: psycopg.Connection) -> None:
    """Let names be found in pg_catalog alone until the transaction ends.

    First in every transaction here: any role that may create in a schema of the search_path could
    leave functions there that fit better than the built-in ones.
    """
    connection.execute(statement("pin"), prepare=False)


def take_lock(connection: psycopg.Connection, patience: timedelta, on_wait: OnWait | None) -> None:
    """Take the lock of upgrades until the transaction ends; the wait for tables is limited then.

    Raises: SchemaLocked, with who has it, when it is not free within `patience`.
    """
    began = time.monotonic()
    give_up_at = began + patience.total_seconds()
    told = False
    while not _try_lock(connection):
        holder = _holder(connection)
        if time.monotonic() >= give_up_at:
            raise SchemaLocked(
                f"the lock of upgrades was not free within {patience}: {holder} holds it",
                detail={"waited_seconds": patience.total_seconds()},
                hint="if that is no upgrade, end it: select pg_terminate_backend(PID)",
            )
        # programs that start together wait for each other, which is nothing to warn of
        if not told and (on_wait or time.monotonic() - began > _SOON_SECONDS):
            (on_wait or _log.warning)(f"waiting for the lock of upgrades: {holder} holds it")
            told = True
        time.sleep(_PAUSE_SECONDS)
    connection.execute(statement("limit_waits"), prepare=False)


def read_standing(connection: psycopg.Connection, roles: Sequence[str]) -> Standing:
    """Ask what the user may do."""
    is_right = connection.info.server_version >= _ROLES_CHECKED_BY_SET
    text = sql.SQL(statement("standing")).format(
        roles=list(roles), owner=OWNER, set="SET" if is_right else "MEMBER", any_creator=not is_right
    )
    with connection.cursor(row_factory=class_row(Standing)) as cursor:
        [standing] = cursor.execute(text).fetchall()
    return standing


def databases_sharing(connection: psycopg.Connection, roles: Sequence[str]) -> list[str]:
    """Other databases of the server where the roles mean something and anybody may connect."""
    text = sql.SQL(statement("shared_with")).format(roles=[*roles, OWNER])
    return [name for (name,) in connection.execute(text)]


def refuse_strangers_schema(standing: Standing, from_owner: str | None) -> None:
    """Refuse a schema that somebody else has made: what is in it would run with the user's rights.

    Raises: ConfigError, unless its owner is named as `from_owner`.
    """
    if not standing.trusts_schema and standing.schema_owner != from_owner:
        raise ConfigError(
            f"the schema belongs to {standing.schema_owner}: this would run what "
            f"{standing.schema_owner} has put into it with the rights of {standing.installer}",
            hint="do it as that user; or, if you trust what is in the schema: "
            f"--from-owner {standing.schema_owner}",
        )


def act_as_owner(connection: psycopg.Connection, standing: Standing) -> None:
    """Go on with the owner's rights, where the schema is the owner's role's.

    Raises: ConfigError: the user is no member of it.
    """
    if standing.schema_owner != OWNER:
        return
    if not standing.may_be_owner:
        if not standing.may_join_owner:
            raise ConfigError(
                f"the schema belongs to {OWNER}, and {standing.installer} is no member of it",
                hint=f'grant {OWNER} to "{standing.installer}"',
            )
        run_script(connection, statement("join_owner"))
    run_script(connection, statement("act_as_owner"))


def _try_lock(connection: psycopg.Connection) -> bool:
    row = connection.execute(statement("try_lock")).fetchone()
    return row is not None and bool(row[0])


def _holder(connection: psycopg.Connection) -> str:
    """Who has the lock, as far as this user is told."""
    row = connection.execute(statement("lock_holder")).fetchone()
    if row is None:
        return "a session that is ending"
    pid, user, application = row
    named = f", application {application!r}" if application else ""
    return f"session {pid} of user {user!r}{named}"
