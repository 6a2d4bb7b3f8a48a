"""System checks: of the settings always, of the schema with `check --database` and `migrate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from hwqueue.contrib.django.conf import dsn_of, read_settings
from hwqueue.contrib.django.schema import is_wanted
from hwqueue.errors import SchemaError, SchemaTooOld
from hwqueue.schema import require_compatible

_UPGRADE = "run: manage.py hwqueue db upgrade (manage.py migrate does it, too)"


def check_settings(**_: Any) -> list[CheckMessage]:
    """Whether `HWQUEUE` can be read and names a Postgres."""
    try:
        dsn_of(read_settings().database)
    except ImproperlyConfigured as error:
        return [Error(str(error), id="hwqueue.E001")]
    return []


def check_database(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Whether the schema is as old as this package; a warning, since `migrate` upgrades it.

    Silent before the first migration: Django tells of migrations that are not applied.
    """
    try:
        alias = read_settings().database
        dsn_of(alias)
        if alias not in (databases or ()) or not is_wanted(alias):
            return []
    except ImproperlyConfigured:
        return []  # `check_settings` tells of it
    try:
        connections[alias].ensure_connection()
        require_compatible(connections[alias].connection)
    except SchemaTooOld as error:
        return [checks.Warning(str(error), hint=_UPGRADE, id="hwqueue.W001")]
    except SchemaError as error:
        return [Error(str(error), hint=error.hint, id="hwqueue.E002")]
    return []
