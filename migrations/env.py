"""What Alembic runs for `hwqueue db upgrade` and `hwqueue db sql`.

The caller (hwqueue/schema/install.py) opens the transaction, takes the lock, and passes its
connection. There is no alembic.ini and no other way in, so that table revisions never run
without the function files that belong to them.
"""

from functools import partial
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from hwqueue.schema import steps
from hwqueue.schema.files import driver_connection, run_script, statement
from hwqueue.schema.state import head_revision

# The version table is in our own schema: a user's migrations in the same database have theirs.
VERSION_TABLE: dict[str, Any] = {
    "version_table": "alembic_version",
    "version_table_schema": "hwqueue",
}


def refuse_partial_upgrade() -> None:
    """The function files fit the newest tables only."""
    target, head = context.get_revision_argument(), head_revision(sources)
    if target not in (head, (head,)):
        raise CommandError(f"hwqueue can only be upgraded to its newest revision, {head}")


def finish(emit: steps.Emit) -> None:
    """What follows the table revisions."""
    steps.apply_bundle(emit, sources)
    steps.apply_revokes(emit, sources)
    if roles:
        steps.apply_grants(emit, sources)
    steps.write_info(emit, sources, roles=roles)


def begin(emit: steps.Emit) -> None:
    """What comes before the table revisions: roles, the schema, and whose it is."""
    if roles:
        steps.apply_roles(emit, sources)
    steps.create_schema(emit, context.config.attributes.get("from_owner"))
    if owner:
        steps.become_owner(emit, sources)


def upgrade(connection: Connection) -> None:
    """Upgrade in the caller's transaction."""
    emit = partial(run_script, driver_connection(connection))
    begin(emit)
    steps.drop_views(emit)
    context.configure(connection=connection, **VERSION_TABLE)
    context.run_migrations()
    finish(emit)


def print_script() -> None:
    """Print the script of an installation; `psql -1` adds the transaction around it."""
    context.configure(dialect_name="postgresql", as_sql=True, transactional_ddl=False, **VERSION_TABLE)
    emit = context.get_context().impl.static_output
    emit(statement("script_header"))
    emit(statement("limit_waits"))
    emit(statement("refuse_installed"))
    begin(emit)
    context.run_migrations()
    finish(emit)


roles: bool = context.config.attributes["roles"]
owner: bool = context.config.attributes.get("owner", roles)
sources = context.config.attributes["sources"]
refuse_partial_upgrade()
if context.is_offline_mode():
    print_script()
else:
    upgrade(context.config.attributes["connection"])
