"""`HWQUEUE` of the settings, and the connection string of the database that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from psycopg.conninfo import make_conninfo

_TEXTS = ("APP", "DATABASE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `HWQUEUE` holds, in lower case.

    Attributes:
        database: Which of `DATABASES` has the queue.
        app: `module:name` of the `hwqueue.App` that workers run.
        task_modules: Modules of this name in each installed app hold tasks; workers import them.
        queues: Queues that `migrate` makes, with their policies.
        dashboard_url: Where `hwqueue serve` is, for the links of the admin; None: no links.
        roles: Whether `migrate` makes the roles of the queue, if its login may.
    """

    database: str = "default"
    app: str = "hwqueue.contrib.django:app"
    task_modules: tuple[str, ...] = ("tasks",)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dashboard_url: str | None = None
    roles: bool = True


def read_settings() -> Settings:
    """`HWQUEUE` as it is now, so that `override_settings` holds.

    Raises: ImproperlyConfigured, naming the key.
    """
    given = getattr(settings, "HWQUEUE", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"HWQUEUE must be a dict, not {given!r}")
    known = {each.name.upper(): each.name for each in fields(Settings)}
    for key in given:
        if key not in known:
            raise ImproperlyConfigured(f"HWQUEUE has no key {key!r}: it has {', '.join(known)}")
    for key in _TEXTS:
        if key in given and not isinstance(given[key], str):
            raise ImproperlyConfigured(f"HWQUEUE[{key!r}] must be text, not {given[key]!r}")
    values = {known[key]: value for key, value in given.items()}
    if "task_modules" in values:
        values["task_modules"] = _names(values["task_modules"], "TASK_MODULES")
    if "queues" in values:
        named = values["queues"]  # names with policies, or alone
        is_mapping = isinstance(named, Mapping)
        values["queues"] = dict(named) if is_mapping else {name: {} for name in _names(named, "QUEUES")}
    read = Settings(**values)
    if read.database not in connections.settings:
        raise ImproperlyConfigured(f"HWQUEUE['DATABASE']: DATABASES has no {read.database!r}")
    return read


def dsn_of(alias: str) -> str:
    """The connection string of one of `DATABASES`, for what connects by itself, such as a worker.

    It is what Django connects with, a test database's name included: its keywords of libpq, with
    `OPTIONS`; and `assume_role`. Settings of psycopg and of Django's pool are left out.

    Raises: ImproperlyConfigured: the engine is not one for Postgres.
    """
    connection = connections[alias]
    given = connection.settings_dict
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] has the engine {given['ENGINE']!r}: hwqueue needs Postgres, "
            "'django.db.backends.postgresql' or an engine that is built on it"
        )
    known = {each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults()}
    params = connection.get_connection_params()
    named = {name: value for name, value in params.items() if name in known}
    if role := given["OPTIONS"].get("assume_role"):
        # one word for libpq, which reads a backslash as the next character itself
        word = f"role={role}".replace("\\", "\\\\").replace(" ", "\\ ")
        named["options"] = " ".join(filter(None, (named.get("options"), f"-c {word}")))
    return make_conninfo(**named)


def _names(given: Any, key: str) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise ImproperlyConfigured(f"HWQUEUE[{key!r}] must be a list of names, not {given!r}")
    return tuple(given)
