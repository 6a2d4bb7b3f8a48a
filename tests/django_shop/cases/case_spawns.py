"""Spawns in Django's transactions, handlers on its connections, what commands do."""

from __future__ import annotations

from io import StringIO
from unittest.mock import patch

import psycopg
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from hwqueue import Client
from hwqueue.contrib.django import app, aspawn, client, load_app
from hwqueue.contrib.django.conf import dsn_of
from hwqueue.testing import assert_not_spawned, assert_spawned, drain
from tests.django_shop.orders.models import Order
from tests.django_shop.orders.tasks import backend_pid, confirm_order


class InATest(TestCase):
    """What is spawned is rolled back with the test."""

    def test_a_view_spawns_and_a_handler_changes_a_row(self) -> None:
        order_id = self.client.get("/order/?item=lamp").json()["order"]
        assert_spawned(client(), confirm_order, params={"order_id": order_id})
        drain(client(), load_app())
        assert Order.objects.get(pk=order_id).confirmed

    def test_what_another_test_spawned_is_gone(self) -> None:
        assert_not_spawned(client(), confirm_order)

    async def test_an_async_view_spawns(self) -> None:
        answer = await self.async_client.get("/async/order/?item=lamp")
        lease_id = answer.json()["lease"]

        def state() -> str:
            return client().get_lease(lease_id).state

        assert await sync_to_async(state)() == "pending"

    def test_a_handler_has_the_connection_of_its_test(self) -> None:
        backend_pid.spawn(client())
        [run] = drain(client(), load_app()).runs
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            assert run.outcome.result == cursor.fetchone()[0]


class Commits(TransactionTestCase):
    """What other connections see."""

    def setUp(self) -> None:
        self.other = Client(dsn_of("default"), pool_size=1)
        self.other.open()
        self.addCleanup(self.other.close)
        self.addCleanup(self._delete)

    def _delete(self) -> None:
        self.other.cancel_leases("mail")
        self.other.delete_leases("mail")

    def test_a_lease_exists_once_its_transaction_has_committed(self) -> None:
        with transaction.atomic():
            spawned = confirm_order.spawn(client(), order_id=1)
            assert self.other.list_leases() == []
        assert self.other.get_lease(spawned.lease_id).state == "pending"

    def test_a_rolled_back_transaction_spawns_nothing(self) -> None:
        with transaction.atomic():
            confirm_order.spawn(client(), order_id=1)
            transaction.set_rollback(True)
        assert self.other.list_leases() == []

    def test_nor_does_a_rolled_back_savepoint(self) -> None:
        with transaction.atomic():
            confirm_order.spawn(client(), order_id=1)
            with transaction.atomic():
                confirm_order.spawn(client(), order_id=2)
                transaction.set_rollback(True)
        [lease] = self.other.list_leases()
        assert self.other.get_lease(lease.lease_id).params == {"order_id": 1}

    def test_a_request_that_fails_spawns_nothing_with_atomic_requests(self) -> None:
        self.client.raise_request_exception = False
        with patch.dict(connection.settings_dict, ATOMIC_REQUESTS=True):
            self.client.get("/order/?item=lamp&fail=1")
        assert (Order.objects.count(), self.other.list_leases()) == (0, [])
        self.client.get("/order/?item=lamp&fail=1")
        assert (Order.objects.count(), len(self.other.list_leases())) == (1, 1)

    def test_a_spawn_outside_of_a_transaction_commits_by_itself(self) -> None:
        spawned = async_to_sync(aspawn)(confirm_order, order_id=1)
        assert self.other.get_lease(spawned.lease_id).params == {"order_id": 1}

    def test_handlers_run_outside_of_a_transaction(self) -> None:
        """The connection is closed around each of them, since CONN_MAX_AGE is 0."""
        order = Order.objects.create(item="lamp")
        confirm_order.spawn(client(), order_id=order.pk)
        drain(client(), load_app())
        order.refresh_from_db()
        assert order.confirmed

    def test_a_client_comes_back_after_its_connection_was_lost(self) -> None:
        kept = client()
        confirm_order.spawn(kept, order_id=1)
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            pid = cursor.fetchone()[0]
        with psycopg.connect(dsn_of("default"), autocommit=True) as admin:
            admin.execute("select pg_terminate_backend(%s, 10000)", (pid,))
        with pytest.raises(psycopg.OperationalError):
            confirm_order.spawn(kept, order_id=2)
        confirm_order.spawn(kept, order_id=3)
        assert len(self.other.list_leases()) == 2


class Commands(TestCase):
    """`call_command`, for scripts and tests."""

    def test_it_prints_what_the_command_line_prints(self) -> None:
        with patch("sys.stdout", StringIO()) as out:
            call_command("hwqueue", "queue", "show", "mail", "--json")
        assert '"max_attempts": 3' in out.getvalue()

    def test_a_failure_has_the_exit_code(self) -> None:
        with patch("sys.stderr", StringIO()), pytest.raises(CommandError) as told:
            call_command("hwqueue", "queue", "show", "nothing")
        assert told.value.returncode == 3

    def test_queues_of_the_app_need_no_name_of_it(self) -> None:
        with patch("sys.stdout", StringIO()) as out:
            call_command("hwqueue", "queue", "create")
        assert "renders" in out.getvalue()

    def test_the_app_of_the_settings_is_meant(self) -> None:
        with patch("sys.stdout", StringIO()) as out, pytest.raises(CommandError):
            call_command("hwqueue", "task", "sync", "--dry-run", "--json")  # 1: something to do
        assert load_app() is app
        assert "tests.django_shop.orders.tasks.render" in out.getvalue()
