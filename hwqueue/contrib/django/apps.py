"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate

from hwqueue.contrib.django.checks import check_database, check_settings
from hwqueue.contrib.django.schema import after_migrate


class HwqueueConfig(AppConfig):
    """`"hwqueue.contrib.django"` in INSTALLED_APPS.

    Imports no tasks: those who spawn import what they spawn, and workers all of it.
    """

    name = "hwqueue.contrib.django"
    label = "hwqueue"
    verbose_name = "hwqueue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the checks and what follows a `migrate`."""
        checks.register(check_settings)
        checks.register(check_database, checks.Tags.database)
        post_migrate.connect(after_migrate, sender=self)
