"""Install or upgrade the schema of a database, all in one transaction."""

import io
from dataclasses import dataclass

import alembic.command
import psycopg
from packaging.version import Version
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from hwqueue.errors import SchemaTooNew
from hwqueue.schema.bundle import ROLES, load_bundle
from hwqueue.schema.files import SHIPPED, Sources, driver_connection, statement
from hwqueue.schema.state import (
    HEAD,
    Installed,
    alembic_config,
    head_revision,
    is_current,
    package_version,
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
    create roles and they do not exist; the result's `note` says so. Safe to call from many
    processes at once.

    Raises:
        SchemaTooNew: the schema was installed by a later version of this package.
        psycopg.errors.LockNotAvailable: a running transaction kept a table for 5 seconds.
        psycopg.errors.InsufficientPrivilege: the user may not create the schema.
    """
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, prepare_threshold=None),
        poolclass=NullPool,
    )
    with engine.begin() as connection:
        driver = driver_connection(connection)
        driver.execute(statement("lock"), prepare=False)
        installed = read_installed(driver)
        _refuse_newer(installed)
        had_roles = installed is not None and installed.roles_installed
        with_roles = roles and _may_use_roles(driver)
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
    if installed and Version(installed.package_version) > Version(package_version()):
        raise SchemaTooNew(
            f"the schema was installed by hwqueue {installed.package_version}, "
            f"this is {package_version()}; schemas only move forward",
            hint=f"upgrade the package: pip install 'hwqueue>={installed.package_version}'",
        )


def _may_use_roles(connection: psycopg.Connection) -> bool:
    row = connection.execute(statement("may_use_roles"), {"roles": list(ROLES)}).fetchone()
    return row is not None and bool(row[0])
