"""What the settings say, what `migrate` does, and what `check` tells."""

from __future__ import annotations

from io import StringIO
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.test import SimpleTestCase, TransactionTestCase, override_settings
from psycopg.conninfo import conninfo_to_dict

from hwqueue import Client
from hwqueue.contrib.django.conf import dsn_of, read_settings
from hwqueue.contrib.django.loading import load_app


def dsn_with(**changes: Any) -> dict[str, Any]:
    """The keywords of the connection string with other settings of the database."""
    given = connections["default"].settings_dict
    cleared: dict[str, Any] = {"NAME": "a", "USER": "", "PASSWORD": "", "HOST": "", "PORT": ""}
    with patch.dict(given, {**cleared, "OPTIONS": {}, **changes}):
        return dict(conninfo_to_dict(dsn_of("default")))


class Names(SimpleTestCase):
    """The connection string."""

    def test_odd_characters_survive(self) -> None:
        odd = "a b'c\\d%e=f@g:h/ü"
        found = dsn_with(PASSWORD=odd, NAME=odd, USER=odd)
        assert (found["password"], found["dbname"], found["user"]) == (odd, odd, odd)

    def test_options_of_libpq_are_kept_and_others_are_not(self) -> None:
        options = {"sslmode": "require", "options": "-c lock_timeout=1s", "pool": True}
        found = dsn_with(OPTIONS={**options, "server_side_binding": True, "isolation_level": 1})
        assert (found["sslmode"], found["options"]) == ("require", "-c lock_timeout=1s")
        assert not {"pool", "isolation_level", "context", "cursor_factory"} & set(found)

    def test_a_service_names_it_all(self) -> None:
        found = dsn_with(NAME="", OPTIONS={"service": "shop"})
        assert found["service"] == "shop"
        assert not {"dbname", "host", "user"} & set(found)

    def test_a_role_that_django_assumes_is_assumed(self) -> None:
        assert dsn_with(OPTIONS={"assume_role": "a b"})["options"] == r"-c role=a\ b"

    def test_other_engines_are_refused(self) -> None:
        with pytest.raises(ImproperlyConfigured, match="needs Postgres"):
            dsn_of("other")


class Keys(SimpleTestCase):
    """`HWQUEUE`."""

    def test_what_is_wrong_is_named(self) -> None:
        wrong: list[tuple[Any, str]] = [
            ([], "must be a dict"),
            ({"QUEUE": []}, "has no key 'QUEUE'"),
            ({"QUEUES": "mail"}, r"\['QUEUES'\] must be a list of names"),
            ({"TASK_MODULES": "jobs"}, r"\['TASK_MODULES'\] must be a list of names"),
            ({"DATABASE": "third"}, "DATABASES has no 'third'"),
            ({"APP": 1}, r"\['APP'\] must be text"),
        ]
        for given, said in wrong:
            with override_settings(HWQUEUE=given), pytest.raises(ImproperlyConfigured, match=said):
                read_settings()

    def test_an_app_that_is_none(self) -> None:
        self.addCleanup(load_app.cache_clear)
        for name, said in (
            ("shop", "is not module:name"),
            ("tests.django_shop.urls:app", "does not exist"),
            ("tests.django_shop.urls:path", "is a "),
        ):
            load_app.cache_clear()
            with override_settings(HWQUEUE={"APP": name}), pytest.raises(ImproperlyConfigured, match=said):
                load_app()

    @override_settings(HWQUEUE={"DATABASE": "other"})
    def test_the_check_tells_of_another_engine(self) -> None:
        [told] = [each for each in run_checks() if each.id == "hwqueue.E001"]
        assert "hwqueue needs Postgres" in str(told.msg)


def migrate(*arguments: str) -> None:
    """`manage.py migrate` without a word."""
    call_command("migrate", *arguments, verbosity=0, stdout=StringIO(), stderr=StringIO())


class Schema(TransactionTestCase):
    """The schema of the queue in the test database."""

    databases = {"default", "other"}  # noqa: RUF012

    def setUp(self) -> None:
        self.client_of_queue = Client(dsn_of("default"), pool_size=1)
        self.client_of_queue.open()
        self.addCleanup(self.client_of_queue.close)
        self.addCleanup(migrate)

    def warnings(self) -> list[str]:
        """What the check of the database says."""
        return [
            f"{each.id} {each.msg}: {each.hint}"
            for each in run_checks(databases=["default"])
            if str(each.id).startswith("hwqueue.")
        ]

    def seem(self, **columns: str) -> None:
        """Let the schema seem to be of another release."""
        with psycopg.connect(dsn_of("default"), autocommit=True) as connection:
            for name, value in columns.items():
                connection.execute(f"update hwqueue.schema_info set {name} = %s", (value,))

    def test_the_first_migration_made_queues(self) -> None:
        found = {each.queue: each.policy for each in self.client_of_queue.list_queues()}
        assert set(found) == {"mail", "default", "renders"}
        assert found["mail"]["max_attempts"] == 3

    def test_a_policy_that_an_operator_has_changed_stays(self) -> None:
        self.client_of_queue.set_queue_policy("mail", {"max_attempts": 7})
        self.addCleanup(self.client_of_queue.set_queue_policy, "mail", {"max_attempts": 3})
        with self.assertLogs("hwqueue.schema", "WARNING") as told:
            migrate()
        assert "queue mail is left as it is" in told.output[0]
        [mail] = [each for each in self.client_of_queue.list_queues() if each.queue == "mail"]
        assert mail.policy["max_attempts"] == 7

    def test_no_migration_is_missing(self) -> None:
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)

    def test_an_old_schema_is_told_and_migrate_upgrades_it(self) -> None:
        assert self.warnings() == []
        self.seem(bundle_sha256="0" * 64)
        [told] = self.warnings()
        assert told.startswith("hwqueue.W001 ")
        assert "run: manage.py hwqueue db upgrade" in told
        migrate()
        assert self.warnings() == []
        self.client_of_queue.check_schema()

    def test_a_newer_schema_is_an_error_and_stays(self) -> None:
        self.addCleanup(self.seem, package_version=self.client_of_queue.schema_version().package_version)
        self.seem(package_version="99.0")
        [told] = self.warnings()
        assert told.startswith("hwqueue.E002 ")

    def test_the_migration_undone_drops_it(self) -> None:
        migrate("hwqueue", "zero")
        self.addCleanup(migrate, "hwqueue")
        with psycopg.connect(dsn_of("default")) as connection:
            [[there]] = connection.execute("select to_regnamespace('hwqueue') is not null")
        assert not there
        migrate("orders")  # what follows a migrate does not bring it back
        assert self.warnings() == []

    def test_other_databases_have_none(self) -> None:
        migrate("--database", "other")
        assert connections["other"].introspection.table_names()

    def test_a_project_without_migrations_has_it(self) -> None:
        migrate("hwqueue", "zero")
        self.addCleanup(migrate, "hwqueue")
        with override_settings(MIGRATION_MODULES={"hwqueue": None}):
            migrate("--run-syncdb")
        assert self.client_of_queue.schema_version()
