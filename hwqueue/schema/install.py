"""Install or upgrade the schema of a database, all in one transaction."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import alembic.command
import psycopg
from alembic.config import Config
from alembic.util import CommandError
from packaging.version import Version
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from hwqueue.connections import in_utf8
from hwqueue.errors import ConfigError, SchemaTooNew
from hwqueue.schema.bundle import OWNER, ROLES, load_bundle
from hwqueue.schema.files import SHIPPED, Sources, driver_connection
from hwqueue.schema.session import (
    OnWait,
    Standing,
    act_as_owner,
    databases_sharing,
    pin,
    read_standing,
    refuse_strangers_schema,
    take_lock,
)
from hwqueue.schema.state import (
    Installed,
    head_revision,
    is_current,
    known_revisions,
    package_version,
    parsed_version,
    read_installed,
    unknown_revision,
)

HEAD = "hwqueue@head"

_NO_ROLES_NOTE = (
    "Roles and grants were left out: this user may not create roles. Until they are there, only "
    f"the schema's owner can use it. To add them, create {', '.join(ROLES)} as a user who may, "
    "then run `hwqueue db upgrade` again."
)
_PATIENCE = timedelta(minutes=5)
_MOST_NAMED = 5


@dataclass(frozen=True)
class UpgradeResult:
    """What an upgrade did. `note` says what is left to do; None when nothing is.

    owner: the role that everything in the schema belongs to. warnings: what is worth a thought.
    """

    changed: bool
    revision: str
    bundle_sha256: str
    roles_installed: bool
    note: str | None
    owner: str
    warnings: tuple[str, ...]


def upgrade(
    dsn: str,
    *,
    roles: bool = True,
    sources: Sources = SHIPPED,
    patience: timedelta = _PATIENCE,
    on_wait: OnWait | None = None,
    from_owner: str | None = None,
) -> UpgradeResult:
    """Bring the schema of a database to this package's version; do nothing when it is there.

    `roles` False leaves out roles and grants. They are also left out when the user may not
    create roles and they do not exist; the result's `note` says so. A database that has them
    keeps them. Nothing is ever left open to PUBLIC. Safe to call from many processes at once.

    With roles, everything belongs to hwqueue_owner, which nobody can log in as; where the user
    may neither create that role nor act as it, to the user, and `warnings` says so.

    Args:
        patience: How long to wait for another session that holds the lock of upgrades.
        on_wait: Told once who that is; None: the log is.
        from_owner: Whose schema may be taken over, where it is neither the user's own, nor a
            superuser's, nor hwqueue_owner's: an upgrade runs what is in it with the user's rights.

    Raises:
        ConfigError: the roles were installed before, and now `roles` is False or they cannot be
            made again; or the schema is hwqueue_owner's, and the user is no member of it; or it
            is somebody's who is not `from_owner`; or the database has the encoding SQL_ASCII.
        SchemaLocked: another session kept the lock of upgrades for all of `patience`.
        SchemaTooNew: the schema was installed by a later version of this package; or its tables
            are at a revision that this package does not know, which may be of a version from
            before the first release.
        psycopg.errors.LockNotAvailable: a running transaction kept a table for 5 seconds.
        psycopg.errors.InsufficientPrivilege: the user may not create the schema.
    """
    engine = create_engine("postgresql+psycopg://", creator=partial(_connect, dsn), poolclass=NullPool)
    with _plain_errors(), engine.begin() as connection:
        driver = driver_connection(connection)
        _refuse_bytes(driver)
        pin(driver)
        take_lock(driver, patience, on_wait)
        standing = read_standing(driver, ROLES)
        refuse_strangers_schema(standing, from_owner)
        # a schema that was not there a moment ago may be anybody's: nothing is read from it
        installed = _read_as_owner(driver, standing) if standing.schema_owner else None
        _refuse_newer(installed)
        _refuse_unknown(installed, sources)
        had_roles = installed is not None and installed.roles_installed
        with_roles = roles and standing.may_use_roles
        if had_roles and not with_roles:
            raise _roles_would_go(roles)
        with_owner = with_roles and standing.may_use_owner
        changed = (
            not is_current(installed, sources)
            or (with_roles and not had_roles)
            or (with_owner and standing.schema_owner != OWNER)
        )
        if changed:
            _migrate(connection, sources, roles=with_roles, owner=with_owner, from_owner=from_owner)
        owner = OWNER if with_owner else standing.schema_owner or standing.installer
        shared = databases_sharing(driver, ROLES) if with_roles else []
    return UpgradeResult(
        changed=changed,
        revision=head_revision(sources),
        bundle_sha256=load_bundle(sources).sha256,
        roles_installed=with_roles if changed else had_roles,
        note=_NO_ROLES_NOTE if roles and not with_roles else None,
        owner=owner,
        warnings=tuple(_warnings(owner, shared, roles=roles)),
    )


def _connect(dsn: str) -> psycopg.Connection:
    """A connection whose first transaction is pinned: SQLAlchemy asks things of its own in it."""
    connection = psycopg.connect(in_utf8(dsn), prepare_threshold=None)
    pin(connection)
    return connection


def _read_as_owner(connection: psycopg.Connection, standing: Standing) -> Installed | None:
    """What is installed, read with the owner's rights; the user's own hold again after it."""
    with connection.transaction(force_rollback=True):
        act_as_owner(connection, standing)
        return read_installed(connection)


def _warnings(owner: str, shared: Sequence[str], *, roles: bool) -> Iterator[str]:
    if roles and owner != OWNER:
        yield (
            f"the functions run with the rights of {owner!r}, who installed them; to let them run "
            f"with those of a role that can do nothing else, have a user upgrade who may create "
            f"roles or is a member of {OWNER}"
        )
    if shared:
        more = f" and {len(shared) - _MOST_NAMED} more" if len(shared) > _MOST_NAMED else ""
        yield (
            f"roles belong to the whole server, and other databases have the schema, too: "
            f"{', '.join(shared[:_MOST_NAMED])}{more}. A login with a role for this one "
            "has it there, if they may connect: revoke connect on database ... from public"
        )


def alembic_config(sources: Sources = SHIPPED) -> Config:
    """Alembic's settings; made here, so that no alembic.ini has to be found at run time."""
    config = Config()
    config.set_main_option("script_location", str(sources.migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def install_script(*, roles: bool = True, sources: Sources = SHIPPED) -> str:
    """The whole installation into an empty database as one script; needs no connection.

    Run it in one transaction: `psql -1 -v ON_ERROR_STOP=1 -f FILE`.
    """
    config = alembic_config(sources)
    config.output_buffer = io.StringIO()
    config.attributes.update(sources=sources, roles=roles, owner=roles)
    alembic.command.upgrade(config, HEAD, sql=True)
    return config.output_buffer.getvalue()


def _migrate(
    connection: Connection, sources: Sources, *, roles: bool, owner: bool, from_owner: str | None
) -> None:
    """Hand over to migrations/env.py."""
    config = alembic_config(sources)
    config.attributes.update(
        connection=connection, sources=sources, roles=roles, owner=owner, from_owner=from_owner
    )
    alembic.command.upgrade(config, HEAD)


def _refuse_bytes(connection: psycopg.Connection) -> None:
    """Text of SQL_ASCII is bytes of any encoding: what one client wrote another cannot read."""
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        raise ConfigError(
            f"database {connection.info.dbname} has the encoding SQL_ASCII: Postgres takes any "
            "bytes for text there, so nobody can rely on letters other than A to Z",
            hint="install into a database in UTF-8: create database NAME encoding 'UTF8' "
            "locale 'C.UTF-8' template template0",
        )


def _refuse_newer(installed: Installed | None) -> None:
    """An older package would put its older functions over newer ones."""
    if installed and parsed_version(installed) > Version(package_version()):
        raise SchemaTooNew(
            f"the schema was installed by hwqueue {installed.package_version}, "
            f"this is {package_version()}; schemas only move forward",
            hint=f"upgrade the package: pip install 'hwqueue>={installed.package_version}'",
        )


def _refuse_unknown(installed: Installed | None, sources: Sources) -> None:
    """No revision of this package leads on from one that it does not know."""
    if installed and installed.revision not in known_revisions(sources):
        raise unknown_revision(installed)


def _roles_would_go(roles: bool) -> ConfigError:
    """Why an upgrade must not leave out roles that the database was installed with.

    A function that is created again has no grants: producers and workers would be locked out.
    """
    if not roles:
        return ConfigError(
            "this database was installed with roles; they cannot be left out any more",
            hint="leave out --no-roles",
        )
    return ConfigError(
        "this database was installed with roles that this server does not have, and this user "
        "may not create roles",
        hint=f"create {', '.join(ROLES)} as a user who may, then upgrade again",
    )


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise what the driver raised, not SQLAlchemy's wrapping of it."""
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from error
        raise
    except CommandError as error:  # schema_info and alembic_version differ
        raise SchemaTooNew(
            f"Alembic cannot upgrade the tables: {error}",
            hint="restore hwqueue.alembic_version: it names the revision of hwqueue.schema_info",
        ) from error
