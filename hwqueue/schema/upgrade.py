"""Install or upgrade the schema of a database, all in one transaction."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import alembic.command
import psycopg
from alembic.util import CommandError
from packaging.version import Version
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from hwqueue.errors import ConfigError, SchemaTooNew
from hwqueue.schema.bundle import ROLES, load_bundle
from hwqueue.schema.files import SHIPPED, Sources, driver_connection, statement
from hwqueue.schema.state import (
    HEAD,
    Installed,
    alembic_config,
    head_revision,
    is_current,
    package_version,
    parsed_version,
    read_installed,
)

_NO_ROLES_NOTE = (
    "Roles and grants were left out: this user may not create roles. Until they are there, only "
    f"the schema's owner can use it. To add them, create {', '.join(ROLES)} as a user who may, "
    "then run `hwqueue db upgrade` again."
)


@dataclass(frozen=True)
class UpgradeResult:
    """What an upgrade did. `note` says what is left to do; None when nothing is."""

    changed: bool
    revision: str
    bundle_sha256: str
    roles_installed: bool
    note: str | None


def upgrade(dsn: str, *, roles: bool = True, sources: Sources = SHIPPED) -> UpgradeResult:
    """Bring the schema of a database to this package's version; do nothing when it is there.

    `roles` False leaves out roles and grants. They are also left out when the user may not
    create roles and they do not exist; the result's `note` says so. A database that has them
    keeps them. Nothing is ever left open to PUBLIC. Safe to call from many processes at once.

    Raises:
        ConfigError: the roles were installed before, and now `roles` is False or they cannot be
            made again.
        SchemaTooNew: the schema was installed by a later version of this package.
        psycopg.errors.LockNotAvailable: a running transaction kept a table for 5 seconds.
        psycopg.errors.InsufficientPrivilege: the user may not create the schema.
    """
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, prepare_threshold=None),
        poolclass=NullPool,
    )
    with _plain_errors(), engine.begin() as connection:
        driver = driver_connection(connection)
        driver.execute(statement("lock"), prepare=False)
        installed = read_installed(driver)
        _refuse_newer(installed)
        had_roles = installed is not None and installed.roles_installed
        with_roles = roles and _may_use_roles(driver)
        if had_roles and not with_roles:
            raise _roles_would_go(roles)
        changed = not is_current(installed, sources) or (with_roles and not had_roles)
        if changed:
            _migrate(connection, sources, roles=with_roles)
    return UpgradeResult(
        changed=changed,
        revision=head_revision(sources),
        bundle_sha256=load_bundle(sources).sha256,
        roles_installed=with_roles if changed else had_roles,
        note=_NO_ROLES_NOTE if roles and not with_roles else None,
    )


def install_script(*, roles: bool = True, sources: Sources = SHIPPED) -> str:
    """The whole installation into an empty database as one script; needs no connection.

    Run it in one transaction: `psql -1 -v ON_ERROR_STOP=1 -f FILE`.
    """
    config = alembic_config(sources)
    config.output_buffer = io.StringIO()
    config.attributes.update(sources=sources, roles=roles)
    alembic.command.upgrade(config, HEAD, sql=True)
    return config.output_buffer.getvalue()


def _migrate(connection: Connection, sources: Sources, *, roles: bool) -> None:
    """Hand over to migrations/env.py."""
    config = alembic_config(sources)
    config.attributes.update(connection=connection, sources=sources, roles=roles)
    alembic.command.upgrade(config, HEAD)


def _refuse_newer(installed: Installed | None) -> None:
    """An older package would put its older functions over newer ones."""
    if installed and parsed_version(installed) > Version(package_version()):
        raise SchemaTooNew(
            f"the schema was installed by hwqueue {installed.package_version}, "
            f"this is {package_version()}; schemas only move forward",
            hint=f"upgrade the package: pip install 'hwqueue>={installed.package_version}'",
        )


def _roles_would_go(roles: bool) -> ConfigError:
    """Why an upgrade must not leave out roles that the database was installed with.

    A function that is made anew has no grants: producers and workers would be locked out.
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
    except CommandError as error:
        raise SchemaTooNew(
            f"the tables were made by a release that this package does not know: {error}",
            hint="upgrade the package: pip install --upgrade hwqueue",
        ) from error


def _may_use_roles(connection: psycopg.Connection) -> bool:
    row = connection.execute(statement("may_use_roles"), {"roles": list(ROLES)}).fetchone()
    return row is not None and bool(row[0])
