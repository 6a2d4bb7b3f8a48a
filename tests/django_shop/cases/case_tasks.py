"""The backend of Django's tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from hwqueue.contrib.django import client, load_app
from hwqueue.contrib.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from hwqueue.contrib.django.tasks import HwqueueBackend, with_options
from hwqueue.errors import ConfigError
from hwqueue.testing import Fleet, drain
from tests.django_shop.orders import tasks
from tests.django_shop.orders.tasks import confirm_order

READY, SUCCESSFUL, FAILED = (TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)


def run(**options: Any) -> None:
    """Run what is due in this thread, on the connection of the test."""
    drain(client(), load_app(), raises=False, **options)


class Results(TestCase):
    """What becomes of tasks."""

    def test_a_task_runs_and_returns(self) -> None:
        result = tasks.add.enqueue(2, other=3)
        assert (result.status, result.args, result.kwargs) == (READY, [2], {"other": 3})
        run()
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 5, 1)
        assert result.errors == []
        assert result.started_at
        assert result.finished_at
        assert result.started_at <= result.finished_at
        assert tasks.add.get_result(result.id).return_value == 5

    async def test_an_async_task_is_enqueued_and_read_from_async_code(self) -> None:
        result = await tasks.add_async.aenqueue(2, 3)
        await sync_to_async(run)()
        await result.arefresh()
        assert (result.status, str(result.return_value)) == (SUCCESSFUL, "5")
        assert str((await tasks.add_async.aget_result(result.id)).return_value) == "5"

    def test_a_task_is_tried_again_and_knows_its_attempt(self) -> None:
        result = tasks.attempts.enqueue(2)
        run()
        result.refresh()
        assert (result.status, result.attempts) == (READY, 1)
        [error] = result.errors
        assert error.exception_class is LookupError
        assert "LookupError: attempt 1" in error.traceback
        run(retries=True)
        result.refresh()
        assert (result.status, result.return_value) == (SUCCESSFUL, [2, 2, 2])

    def test_the_last_attempt_fails_the_task(self) -> None:
        result = tasks.attempts.enqueue(9)
        run(retries=True)
        result.refresh()
        assert (result.status, len(result.errors), result.attempts) == (FAILED, 2, 2)
        assert result.finished_at
        with pytest.raises(ValueError, match="failed"):
            _ = result.return_value

    def test_errors_that_a_worker_made_have_classes_too(self) -> None:
        rejected, unstorable = tasks.reject.enqueue(), tasks.unstorable.enqueue()
        misfit = client().spawn_lease("default", tasks.add.module_path, {"args": [], "kwargs": {}})
        run()
        for result_id, name in (
            (rejected.id, "Reject"),
            (unstorable.id, "LeaseFailed"),
            (str(misfit.lease_id), "TypeError"),
        ):
            [error] = tasks.add.get_backend().get_result(result_id).errors
            assert error.exception_class.__name__ == name

    def test_a_cancelled_task_has_failed(self) -> None:
        result = tasks.add.enqueue(1)
        client().cancel_lease(result.id)
        result.refresh()
        assert result.status == FAILED
        assert result.errors[0].exception_class.__name__ == "LeaseCancelled"

    def test_what_is_no_result(self) -> None:
        other = confirm_order.spawn(client(), order_id=1)
        for result_id in (str(uuid4()), "no id", str(other.lease_id)):
            with pytest.raises(TaskResultDoesNotExist):
                tasks.add.get_result(result_id)

    @override_settings(USE_TZ=False)
    def test_times_are_naive_without_time_zones(self) -> None:
        later = datetime.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=later).enqueue(1)
        result.refresh()
        assert result.enqueued_at
        assert result.enqueued_at.tzinfo is None
        assert tasks.add.get_result(result.id).task.run_after == later


class Enqueued(TestCase):
    """What a lease is like."""

    def test_it_has_the_options_of_its_task(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(queue_name="renders", priority=-3, run_after=later).enqueue(1)
        lease = client().get_lease(result.id)
        assert (lease.task_name, lease.queue, lease.priority, lease.available_at) == (
            "tests.django_shop.orders.tasks.add",
            "renders",
            -3,
            later,
        )
        assert (lease.max_attempts, dict(lease.labels)) == (2, {"from": "shop"})
        found = tasks.add.get_result(result.id).task
        assert (found.queue_name, found.priority, found.run_after) == ("renders", -3, later)

    def test_it_is_placed(self) -> None:
        result = tasks.render.enqueue(7)
        assert client().get_lease(result.id).max_attempts == 1
        run(node=Fleet(client()).add("plain"))
        result.refresh()
        assert result.status == READY
        run(node=Fleet(client()).add("gpu", labels={"gpu": "true"}))
        result.refresh()
        assert result.return_value == "frame 7"

    def test_using_places_one_of_them(self) -> None:
        result = tasks.add.using(affinity_tags={"gpu": "true"}).enqueue(1)  # type: ignore[call-arg]
        run(node=Fleet(client()).add("plain"))
        result.refresh()
        assert result.status == READY

    def test_one_of_a_key_is_enough(self) -> None:
        keyed = tasks.add.using(idempotency_key="once")  # type: ignore[call-arg]
        first = keyed.enqueue(1)
        run()
        assert keyed.enqueue(1).id == first.id
        assert keyed.enqueue(1).return_value == 2

    def test_a_rolled_back_transaction_enqueues_nothing(self) -> None:
        with transaction.atomic():
            tasks.add.enqueue(1)
            transaction.set_rollback(True)
        assert client().list_leases() == []

    def test_workers_have_each_task_once_and_its_defaults(self) -> None:
        app = load_app()
        render = app.tasks["tests.django_shop.orders.tasks.render"]
        assert (render.defaults.queue, render.defaults.max_attempts) == ("renders", 1)
        assert app.tasks["tests.django_shop.orders.tasks.in_process"].process

    def test_what_is_refused(self) -> None:
        with pytest.raises(InvalidTask):
            tasks.add.using(queue_name="nowhere")
        with pytest.raises(InvalidTask, match="max_attempts must be an int"):
            tasks.add.using(max_attempts="two")  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            tasks.add.using(colour="red")  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="is no task of a backend of hwqueue"):
            with_options(max_attempts=1)(len)
        with pytest.raises(ImproperlyConfigured, match="has no key 'colour'"):
            HwqueueBackend("default", {"OPTIONS": {"colour": "red"}})
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.add.enqueue(object())  # type: ignore[arg-type]
        assert client().list_leases() == []


class Signals(TestCase):
    """What Django is told."""

    def setUp(self) -> None:
        self.told: list[tuple[str, TaskResultStatus, int]] = []
        for name, signal in (
            ("enqueued", task_enqueued),
            ("started", task_started),
            ("finished", task_finished),
        ):

            def tell(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
                assert sender is HwqueueBackend
                self.told.append((name, task_result.status, task_result.attempts))

            signal.connect(tell, weak=False, dispatch_uid=name)
            self.addCleanup(signal.disconnect, dispatch_uid=name)

    def test_of_a_task_that_returns(self) -> None:
        tasks.add.enqueue(1)
        run()
        assert self.told == [
            ("enqueued", READY, 0),
            ("started", TaskResultStatus.RUNNING, 1),
            ("finished", SUCCESSFUL, 1),
        ]

    def test_of_a_task_that_is_tried_again(self) -> None:
        tasks.attempts.enqueue(9)
        run()
        assert [name for name, *_ in self.told] == ["enqueued", "started"]

    def test_of_one_that_has_the_key_of_another(self) -> None:
        keyed = tasks.add.using(idempotency_key="once")  # type: ignore[call-arg]
        assert keyed.enqueue(1).id == keyed.enqueue(1).id
        assert [name for name, *_ in self.told] == ["enqueued"]

    def test_of_a_result_that_cannot_be_kept(self) -> None:
        tasks.unstorable.enqueue()
        run()
        assert SUCCESSFUL not in [status for _, status, _ in self.told]
