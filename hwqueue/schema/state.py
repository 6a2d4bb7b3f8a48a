"""What is installed in a database, and whether this package can work with it."""

import importlib.metadata
from dataclasses import dataclass
from datetime import datetime

import psycopg
from packaging.version import InvalidVersion, Version
from psycopg.rows import class_row

from hwqueue.errors import SchemaError, SchemaTooNew, SchemaTooOld
from hwqueue.schema.bundle import load_bundle
from hwqueue.schema.files import SHIPPED, Sources, statement
from hwqueue.types import SchemaVersion


@dataclass(frozen=True)
class Installed(SchemaVersion):
    """The row of `hwqueue.schema_info`."""

    roles_installed: bool
    applied_at: datetime


def package_version() -> str:
    """The version of this package."""
    return importlib.metadata.version("hwqueue")


def known_revisions(sources: Sources = SHIPPED) -> frozenset[str]:
    """The revisions that this package brings: revisions are numbered files."""
    return frozenset(path.stem for path in (sources.migrations / "versions").glob("[0-9]*.py"))


def head_revision(sources: Sources = SHIPPED) -> str:
    """The newest revision that this package brings."""
    return max(known_revisions(sources))


_MADE_BEFORE = (
    "to keep its leases beside the new ones: "
    "psql \"$(hwqueue db url)\" -c 'alter schema hwqueue rename to hwqueue_before'; "
    "to begin with nothing: hwqueue db drop; then: hwqueue db upgrade. To leave it as it is, name "
    "another database with --dsn, or another folder of the embedded server with HWQUEUE_DATA_DIR"
)


def unknown_revision(installed: SchemaVersion) -> SchemaTooNew:
    """Why this package can neither use nor upgrade tables that are at this revision."""
    theirs, ours = parsed_version(installed), Version(package_version())
    of, hint = f"of hwqueue {theirs}", f"upgrade the package: pip install 'hwqueue>={theirs}'"
    if theirs <= ours:
        of, hint = "from before the first release", _MADE_BEFORE
    return SchemaTooNew(
        f"the tables are at revision {installed.revision}, {of}, which hwqueue {ours} can neither "
        "use nor upgrade; nothing was changed",
        detail={"revision": installed.revision},
        hint=hint,
    )


def read_version(connection: psycopg.Connection) -> SchemaVersion | None:
    """What is installed; None when nothing is. Any role of the queue may ask.

    SQL: hwqueue.schema_version.
    """
    try:
        with connection.transaction(), connection.cursor(row_factory=class_row(SchemaVersion)) as cursor:
            return cursor.execute(statement("version")).fetchone()
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction):
        return None


def read_installed(connection: psycopg.Connection) -> Installed | None:
    """What is installed; None when nothing is. For the schema's owner."""
    exists = connection.execute(statement("exists")).fetchone()
    if exists is None or not exists[0]:
        return None
    with connection.cursor(row_factory=class_row(Installed)) as cursor:
        return cursor.execute(statement("state")).fetchone()


def is_current(installed: SchemaVersion | None, sources: Sources = SHIPPED) -> bool:
    """Whether the tables and functions are the ones of `sources`."""
    return (
        installed is not None
        and installed.revision == head_revision(sources)
        and installed.bundle_sha256 == load_bundle(sources).sha256
    )


def require_compatible(connection: psycopg.Connection) -> None:
    """Refuse to work with a schema that is older than this package, or breaks with it.

    A newer schema is fine within one major version: the functions that a release's clients
    call stay callable, so that databases can be upgraded before workers.

    Raises:
        SchemaTooOld: nothing is installed, or an upgrade is due.
        SchemaTooNew: the schema was installed by a later major version; or its tables are at a
            revision that this package does not know.
        psycopg.errors.InsufficientPrivilege: the user has none of the queue's roles.

    SQL: hwqueue.schema_version.
    """
    installed = read_version(connection)
    if installed is None:
        raise SchemaTooOld(
            f"database {connection.info.dbname} has no hwqueue schema", hint="install it: hwqueue db upgrade"
        )
    refuse_incompatible(installed)


def parsed_version(installed: SchemaVersion) -> Version:
    """The version of the package that installed the schema.

    Raises:
        SchemaError: what is noted there is no version.
    """
    try:
        return Version(installed.package_version)
    except InvalidVersion as error:
        raise SchemaError(
            f"hwqueue.schema_info names {installed.package_version!r} as the version that "
            "installed the schema, which is no version",
            hint=f"restore its column package_version: this package is {package_version()}",
        ) from error


def refuse_incompatible(installed: SchemaVersion) -> None:
    """The rule of `require_compatible`, for who has asked the database already.

    Raises:
        SchemaTooOld, SchemaTooNew: as there.
    """
    ours, theirs = Version(package_version()), parsed_version(installed)
    if theirs.major > ours.major:
        raise SchemaTooNew(
            f"the schema was installed by hwqueue {theirs}, this is {ours}",
            hint=f"upgrade the package: pip install 'hwqueue>={theirs}'",
        )
    if theirs <= ours and installed.revision not in known_revisions():
        raise unknown_revision(installed)
    if theirs <= ours and not is_current(installed):
        raise SchemaTooOld(
            f"the schema is of an older hwqueue ({theirs}, this is {ours}): an upgrade is due",
            hint="upgrade the schema: hwqueue db upgrade",
        )
