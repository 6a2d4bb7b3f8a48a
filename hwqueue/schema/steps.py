"""The steps of an upgrade around its table revisions, as migrations/env.py takes them."""

from collections.abc import Callable

from psycopg import sql

from hwqueue.schema.bundle import load_bundle
from hwqueue.schema.files import Sources, statement
from hwqueue.schema.state import head_revision, package_version

# Runs a script of several statements, or prints it.
Emit = Callable[[str], None]


def begin(emit: Emit, sources: Sources, *, roles: bool, owner: bool, from_owner: str | None) -> None:
    """Make the roles that are granted to logins, and the schema; hand it over to the owner's role.

    Args:
        from_owner: Whose schema is trusted, if there is one.
    """
    bundle = load_bundle(sources)
    if roles:
        emit(bundle.roles)
    emit(sql.SQL(statement("create_schema")).format(from_owner=from_owner).as_string())
    if owner:
        emit(bundle.owner)
        emit(statement("act_as_owner"))


def finish(emit: Emit, sources: Sources, *, roles: bool) -> None:
    """Apply every module again, say who may call what, and note what is installed now.

    Bodies are not checked meanwhile, as in pg_dump's scripts, so a function may stand before
    those that it calls. A test applies them once more with the check.
    """
    bundle = load_bundle(sources)
    emit("set local check_function_bodies = off;")
    for name, text in bundle.files.items():
        emit(f"-- sql/{name}\n{text}")
    emit("set local check_function_bodies = on;")
    emit(bundle.revoke)  # always, as Postgres opens a new function to everybody
    if roles:
        emit(bundle.grants)
    info = sql.SQL(statement("write_info")).format(
        revision=head_revision(sources),
        bundle_sha256=bundle.sha256,
        package_version=package_version(),
        roles_installed=roles,
    )
    emit(info.as_string())
