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


def upgrade(connection: Connection) -> None:
    """Upgrade in the caller's transaction."""
    emit = partial(run_script, driver_connection(connection))
    steps.begin(emit, sources, roles=roles, owner=owner, from_owner=from_owner)
    # a table cannot change under a view, and the function files make them all again
    emit(statement("drop_views"))
    context.configure(connection=connection, **VERSION_TABLE)
    context.run_migrations()
    steps.finish(emit, sources, roles=roles)


def print_script() -> None:
    """Print the script of an installation; `psql -1` adds the transaction around it."""
    context.configure(dialect_name="postgresql", as_sql=True, transactional_ddl=False, **VERSION_TABLE)
    emit = context.get_context().impl.static_output
    emit(statement("script_header"))
    emit(statement("limit_waits"))
    emit(statement("refuse_installed"))
    steps.begin(emit, sources, roles=roles, owner=owner, from_owner=from_owner)
    context.run_migrations()
    steps.finish(emit, sources, roles=roles)


roles: bool = context.config.attributes["roles"]
owner: bool = context.config.attributes.get("owner", roles)
from_owner: str | None = context.config.attributes.get("from_owner")
sources = context.config.attributes["sources"]
refuse_partial_upgrade()
if context.is_offline_mode():
    print_script()
else:
    upgrade(context.config.attributes["connection"])
