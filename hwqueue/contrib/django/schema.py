"""The schema beside Django's migrations: installed and dropped on a connection of its own.

An upgrade is one transaction with a lock, a search_path and maybe a role of its own. On Django's
connection all of that would leak into what the project does next in its transaction.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.apps.registry import Apps
from django.db import connections
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.loader import MigrationLoader

from hwqueue.client import Client
from hwqueue.contrib.django.compat import has_tasks
from hwqueue.contrib.django.conf import dsn_of, read_settings
from hwqueue.contrib.django.connecting import savepoint
from hwqueue.errors import QueueExists, SchemaTooOld
from hwqueue.schema import require_compatible, upgrade
from hwqueue.schema.drop import drop

_log = logging.getLogger("hwqueue.schema")

FIRST_MIGRATION = "0001_schema"
_PATIENCE = timedelta(minutes=5)


def install(_: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Bring the schema to this package's version, in the database that `HWQUEUE` names."""
    if editor.connection.alias == read_settings().database:
        _upgrade(editor.connection.alias)


def uninstall(_: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the schema with all leases in it. What is not there is no error."""
    alias = editor.connection.alias
    if alias == read_settings().database:
        try:
            drop(dsn_of(alias), patience=_PATIENCE)
        except SchemaTooOld:
            _log.info("DATABASES[%r] has no hwqueue schema to drop", alias)


def after_migrate(*, using: str, **_: Any) -> None:
    """Upgrade a schema that is older than this package, and make the queues of the settings.

    Does nothing before the first migration and after it was undone. Without migrations
    (`MIGRATION_MODULES`, `--nomigrations`) it installs.
    """
    found = read_settings()
    if using != found.database or not is_wanted(using):
        return
    connection = connections[using]
    connection.ensure_connection()
    try:
        require_compatible(connection.connection)
    except SchemaTooOld:
        _upgrade(using)
    client = Client.on(connection)
    queues = dict(found.queues)
    if has_tasks():
        from hwqueue.contrib.django.tasks import backends  # noqa: PLC0415

        # those that the backends of `TASKS` have, each at its defaults
        queues = {name: {} for each in backends() for name in each.queues} | queues
    for name, policy in queues.items():
        try:
            with savepoint():
                client.create_queue(name, policy=policy)
        except QueueExists as error:  # an operator has changed what the settings say
            _log.warning("queue %s is left as it is: %s", name, error)


def is_wanted(alias: str) -> bool:
    """Whether the first migration is applied, or the project has no migrations at all."""
    loader = MigrationLoader(connections[alias])
    return "hwqueue" not in loader.migrated_apps or (
        ("hwqueue", FIRST_MIGRATION) in loader.applied_migrations
    )


def _upgrade(alias: str) -> None:
    result = upgrade(dsn_of(alias), roles=read_settings().roles)
    for message in filter(None, (result.note, *result.warnings)):
        _log.info("%s", message)  # a test database has them each time
