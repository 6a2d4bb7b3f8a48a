"""The steps of an upgrade, called by migrations/env.py in the order given there."""

from collections.abc import Callable

from psycopg import sql

from hwqueue.schema.bundle import load_bundle
from hwqueue.schema.files import Sources, statement
from hwqueue.schema.state import head_revision, package_version

# Runs a script of several statements, or prints it.
Emit = Callable[[str], None]


def apply_roles(emit: Emit, sources: Sources) -> None:
    """Make the roles that are granted to logins."""
    emit(load_bundle(sources).roles)


def create_schema(emit: Emit, from_owner: str | None) -> None:
    """Make the schema, unless it is there and trusted: `from_owner` is one whose schema is."""
    emit(sql.SQL(statement("create_schema")).format(from_owner=from_owner).as_string())


def become_owner(emit: Emit, sources: Sources) -> None:
    """Hand the schema and all in it over to the owner's role, and go on as that role."""
    emit(load_bundle(sources).owner)
    emit(statement("act_as_owner"))


def drop_views(emit: Emit) -> None:
    """Drop all our views: a table cannot change under one, and the function files make them."""
    emit(statement("drop_views"))


def apply_bundle(emit: Emit, sources: Sources) -> None:
    """Apply every module again.

    Bodies are not checked meanwhile, as in pg_dump's scripts, so a function may stand before
    those that it calls. A test applies them once more with the check.
    """
    emit("set local check_function_bodies = off;")
    for name, text in load_bundle(sources).files.items():
        emit(f"-- sql/{name}\n{text}")
    emit("set local check_function_bodies = on;")


def apply_revokes(emit: Emit, sources: Sources) -> None:
    """Close everything to PUBLIC; always, as Postgres opens a new function to everybody."""
    emit(load_bundle(sources).revoke)


def apply_grants(emit: Emit, sources: Sources) -> None:
    """Grant the roles what they need."""
    emit(load_bundle(sources).grants)


def write_info(emit: Emit, sources: Sources, *, roles: bool) -> None:
    """Note what is installed now in `hwqueue.schema_info`."""
    text = sql.SQL(statement("write_info")).format(
        revision=head_revision(sources),
        bundle_sha256=load_bundle(sources).sha256,
        package_version=package_version(),
        roles_installed=roles,
    )
    emit(text.as_string())
