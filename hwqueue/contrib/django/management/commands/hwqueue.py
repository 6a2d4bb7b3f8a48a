"""manage.py hwqueue: the command line of the queue, on the database and the app of the settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.autoreload import get_child_arguments

from hwqueue.cli.main import app as program
from hwqueue.cli.options import Host
from hwqueue.contrib.django.conf import dsn_of, read_settings
from hwqueue.contrib.django.loading import load_app
from hwqueue.errors import ConfigError

T = TypeVar("T")


class Command(BaseCommand):
    """Hands its arguments on as they are: they are those of `hwqueue`."""

    help = "The command line of hwqueue, on the database and the app of the settings."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """What `manage.py hwqueue ...` calls; ends the process with the exit code of `hwqueue`."""
        known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        known.add_argument("--settings")  # Django has read these already
        known.add_argument("--pythonpath")
        _, line = known.parse_known_args(argv[2:])
        program(line, prog_name=f"{self._program(argv)} hwqueue", obj=_host())

    def add_arguments(self, parser: CommandParser) -> None:
        """For `call_command("hwqueue", "queue", "list")`."""
        parser.add_argument("line", nargs=argparse.REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """What `call_command` calls. Raises: CommandError with the exit code."""
        try:
            program([*options["line"]], prog_name="manage.py hwqueue", obj=_host())
        except SystemExit as end:
            if end.code:
                said = f"hwqueue {' '.join(options['line'])} ended with {end.code}"
                code = end.code if isinstance(end.code, int) else 1
                raise CommandError(said, returncode=code) from None

    @staticmethod
    def _program(argv: Sequence[str]) -> str:
        return argv[0].rpartition("/")[2]


def _host() -> Host:
    return Host(
        origin="HWQUEUE['DATABASE']",
        dsn=lambda: _told(lambda: dsn_of(read_settings().database)),
        app=lambda: _told(load_app),
        line=tuple(get_child_arguments()),
    )


def _told(make: Callable[[], T]) -> T:
    """What is wrong with the settings, told as the command line tells errors."""
    try:
        return make()
    except ImproperlyConfigured as error:
        raise ConfigError(str(error)) from error
