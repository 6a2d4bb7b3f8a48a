"""The app that workers run: the settings name it, and each installed app may add tasks to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from hwqueue.app import App
from hwqueue.contrib.django.compat import has_tasks
from hwqueue.contrib.django.conf import read_settings
from hwqueue.contrib.django.connecting import close_old_connections
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext

_OURS = "hwqueue.contrib.django"
_CHILD = f"{_OURS}.child:app"


@cache
def load_app() -> App:
    """The project's app with all its tasks, ready for a worker; made once.

    Imports the modules of tasks of each installed app. Around each handler old connections of
    Django are closed, as around a request.

    Raises: ImproperlyConfigured: `HWQUEUE["APP"]` names no `hwqueue.App`. What a module raises.
    """
    settings = read_settings()
    for config in apps.get_app_configs():
        for name in settings.task_modules:
            # our own module `tasks` is a backend
            if config.name != _OURS and module_has_submodule(config.module, name):
                import_module(f"{config.name}.{name}")
    app = _named_app(settings.app)
    if has_tasks():
        from hwqueue.contrib.django.running import add_tasks  # noqa: PLC0415

        add_tasks(app)
    app.middleware(close_connections)
    app.middleware(aclose_connections)
    app.child_import = _CHILD
    return app


def close_connections(call_next: Callable[[Any], Any], context: LeaseContext) -> Any:
    """Close what is broken or older than CONN_MAX_AGE, before a handler and after it."""
    close_old_connections()
    try:
        return call_next(context)
    finally:
        close_old_connections()


async def aclose_connections(call_next: Callable[[Any], Any], context: AsyncLeaseContext) -> Any:
    """The same for an async handler: Django's connections are in the thread of `sync_to_async`."""
    await sync_to_async(close_old_connections)()
    try:
        return await call_next(context)
    finally:
        await sync_to_async(close_old_connections)()


def _named_app(name: str) -> App:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ImproperlyConfigured(f"HWQUEUE['APP']: {name!r} is not module:name")
    found = getattr(import_module(module), attribute, None)
    if not isinstance(found, App):
        kind = "does not exist" if found is None else f"is a {type(found).__name__}"
        raise ImproperlyConfigured(f"HWQUEUE['APP']: {name} {kind}; an hwqueue.App is needed")
    return found
