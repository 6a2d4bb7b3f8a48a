"""What a worker's log says of leases, and with which fields."""

from __future__ import annotations

import json
import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from hwqueue.client import AsyncClient
from hwqueue.logs import JsonFormatter, TextFormatter
from hwqueue.testing import Clock
from hwqueue.types import LeaseState, QueuePolicy, RetryPolicy
from tests.e2e.programs import read_until, running
from tests.e2e.worker_app import picky
from tests.e2e.worker_support import QUEUE, RARELY, ended, until, worker, worker_process

pytestmark = pytest.mark.embedded

FIVE_SECONDS = RetryPolicy(kind="fixed", base=timedelta(seconds=5), jitter=0)
COMMAND = ("worker", "run", "--app=tests.e2e.worker_app:app", "--queue", QUEUE, "--no-detect")
FIELDS = ("lease_id", "task", "queue", "attempt")


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(max_attempts=3, retry=FIVE_SECONDS)


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hwqueue.worker")


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if words in record.getMessage()]


async def line(caplog: pytest.LogCaptureFixture, words: str) -> logging.LogRecord:
    """The only record that says this, once it is there."""
    await until(lambda: bool(lines(caplog, words)))
    [record] = lines(caplog, words)
    return record


def told(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record about a lease."""
    return {name: vars(record)[name] for name in FIELDS}


ATTEMPTS = {
    "boom": (logging.WARNING, "failed, attempt 1 of 3, again in 5 s: RuntimeError: smtp down"),
    "slow": (logging.WARNING, "failed, attempt 1 of 3, again in 5 s: Timeout: ran longer than"),
    "die": (logging.WARNING, "failed, attempt 1 of 3, again in 5 s: ProcessDied: the handler's process was"),
    "reject": (logging.ERROR, "is dead after attempt 1 of 3: Reject: no way"),
    "paint": (logging.INFO, "started, attempt 1"),
    "add": (logging.INFO, "completed in "),
}


async def test_what_becomes_of_an_attempt_is_told(
    client: AsyncClient, dsn: str, *, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.freeze()
    params = {"add": {"a": 1, "b": 2}, "paint": {"folder": str(tmp_path)}}
    spawned = {task: (await client.spawn_lease(QUEUE, task, params.get(task))).lease_id for task in ATTEMPTS}
    async with worker(dsn):
        records = {task: await line(caplog, f"of task {task} {said}") for task, (_, said) in ATTEMPTS.items()}
    for task, (level, said) in ATTEMPTS.items():
        record, lease_id = records[task], spawned[task]
        assert record.levelno == level
        assert record.getMessage().startswith(f"lease {lease_id} of task {task} {said}")
        assert told(record) == {"lease_id": str(lease_id), "task": task, "queue": QUEUE, "attempt": 1}
    assert re.search(r"in \d+\.\d{3} s$", records["add"].getMessage())
    assert vars(records["add"])["duration_s"] >= 0


async def test_a_dead_lease_is_an_error_with_its_traceback(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    spawned = await client.spawn_lease(QUEUE, "boom", "a\nb\x1b[2J", max_attempts=1)
    async with worker(dsn):
        record = await line(caplog, " is dead after ")
    trace = (record.exc_text or "").splitlines()
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        f"lease {spawned.lease_id} of task boom is dead after attempt 1 of 1: "
        r"RuntimeError: a\nb\x1b[2J"
    )
    assert trace[0].startswith("Traceback")
    assert "in boom" in "\n".join(trace)
    assert "\x1b" not in TextFormatter().format(record)
    line_of_json = json.loads(JsonFormatter().format(record))
    assert line_of_json["message"] == record.getMessage()
    assert line_of_json["exception"].splitlines() == trace
    indented = [f"  {one}" for one in trace]
    assert TextFormatter().format(record).splitlines()[1:] == indented


async def test_a_snoozed_lease_is_told_and_uses_no_attempt(
    client: AsyncClient, dsn: str, *, tmp_path: Path, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    clock.freeze()
    params = {"folder": str(tmp_path), "seconds": 60}
    spawned = await client.spawn_lease(QUEUE, "snooze", params, max_attempts=1)
    async with worker(dsn):
        record = await line(caplog, "is snoozed")
        lease = await client.get_lease(spawned.lease_id)
        assert (lease.state, lease.available_at) == (LeaseState.SCHEDULED, clock.now() + timedelta(minutes=1))
        clock.advance(timedelta(minutes=1))
        lease = await ended(client, spawned.lease_id)
    assert record.getMessage().endswith(r"of task snooze is snoozed, again in 1 min: not\nyet")
    assert (record.levelno, told(record)["task"]) == (logging.INFO, "snooze")
    assert (lease.state, lease.result) == (LeaseState.COMPLETED, 1)
    assert [one.outcome for one in lease.attempts] == ["released"]


@pytest.mark.parametrize(
    ("then", "level", "said"),
    [
        (None, logging.INFO, "it was settled already"),
        ("fail", logging.WARNING, "settled too late: finished; its handler failed: RuntimeError"),
    ],
)
async def test_a_lease_that_its_handler_completed_is_no_warning(
    client: AsyncClient,
    dsn: str,
    *,
    caplog: pytest.LogCaptureFixture,
    then: str | None,
    level: int,
    said: str,
) -> None:
    await client.spawn_lease(QUEUE, "settles-itself", {"dsn": dsn, "then": then})
    async with worker(dsn, **RARELY):  # a heartbeat between the two would find it gone
        record = await line(caplog, said)
    assert record.levelno == level


async def test_a_lease_without_its_tasks_defaults_is_told_once(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    spawned = [await client.spawn_lease(QUEUE, "picky", None) for _ in range(3)]
    async with worker(dsn):
        record = await line(caplog, "without the task's defaults")
        for one in spawned:
            await ended(client, one.lease_id)
    assert record.levelno == logging.WARNING
    assert "(placement, max_attempts 1, it has 3)" in record.getMessage()
    assert "hwqueue task sync" in record.getMessage()
    assert len(lines(caplog, "without the task's defaults")) == 1


async def test_a_lease_and_a_database_with_the_tasks_defaults_are_not_told(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    spawned = [await picky.spawn(client, queue=QUEUE)]
    await client.set_task("picky", picky.defaults)
    spawned.append(await client.spawn_lease(QUEUE, "picky"))
    async with worker(dsn, labels={"gpu": True}):
        await line(caplog, "registered, epoch")
        for one in spawned:
            await ended(client, one.lease_id)
    assert lines(caplog, "without the task's defaults") == []
    assert lines(caplog, "other defaults in the database") == []


async def test_other_defaults_in_the_database_are_told_at_the_start(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.set_task("picky", {"max_attempts": 3, "priority": 5})
    await client.set_task("add", {"priority": 5})  # the app declares nothing of it
    async with worker(dsn):
        record = await line(caplog, "other defaults in the database")
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "task picky has other defaults in the database: max_attempts 1, there 3; "
        'placement {"require": [{"tags": {"gpu": true}}]}, there none: '
    )
    assert "hwqueue task sync" in record.getMessage()


async def test_a_worker_sets_the_defaults_of_its_tasks_where_it_may_and_they_are_newer(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(dsn):
        record = await line(caplog, "the database has the defaults of")
    assert "picky" in record.getMessage()
    assert lines(caplog, "other defaults in the database") == []
    newer = {"max_attempts": 7}
    await client.sync_tasks({"picky": newer})
    async with worker(dsn):  # what the task had before is older
        await line(caplog, "task picky has other defaults in the database")
    found = {one.task: one.defaults for one in await client.list_tasks()}
    assert found["picky"] == newer


async def test_a_worker_that_may_not_set_them_says_so_or_has_a_login_for_it(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = make_conninfo(dsn, options="-c role=hwqueue_worker")
    async with worker(plain):
        record = await line(caplog, "task picky has other defaults in the database")
        assert record.levelno == logging.WARNING
        await line(caplog, "registered, epoch")
        spawned = await client.spawn_lease(QUEUE, "picky")
        told = await client.spawn_warnings(spawned.lease_id)
        assert any("defaults that workers declare for task" in one for one in told)
        assert "picky" in {one.task for one in await client.list_tasks() if one.set_at is None}
    async with worker(plain, sync_dsn=plain):
        await line(caplog, "--sync-dsn may not set the tasks' defaults")
    async with worker(plain, sync_dsn=dsn):
        await line(caplog, "the database has the defaults of")


async def test_a_process_that_outlives_its_timeout_is_killed(
    client: AsyncClient, dsn: str, tmp_path: Path
) -> None:
    late = await client.spawn_lease(QUEUE, "late-process", {"folder": str(tmp_path)}, max_attempts=1)
    async with worker(dsn, cancel_grace=timedelta(milliseconds=50)):
        lease = await ended(client, late.lease_id)
    assert (lease.state, lease.error["type"]) == (LeaseState.FAILED, "Timeout")


async def test_a_worker_announces_what_it_serves(client: AsyncClient, dsn: str) -> None:
    await client.create_queue("nobody")
    unheard = await client.spawn_lease(QUEUE, "boomm")
    unpolled = await client.spawn_lease("nobody", "boom")
    with worker_process(dsn) as process:
        read_until(process, " registered, epoch 1")
        found = await client.explain_lease(unheard.lease_id)
        assert found.headline == 'no live node has a handler for task "boomm"; did you mean boom?'
        found = await client.explain_lease(unpolled.lease_id)
    assert (found.code, found.permanent) == ("no_handler", True)
    assert found.headline == 'no live node polls queue "nobody"'


async def test_the_log_of_the_command_has_times_and_the_fields_of_leases(
    client: AsyncClient, dsn: str
) -> None:
    lease_id = (await client.spawn_lease(QUEUE, "boom", None, max_attempts=1)).lease_id
    with running(dsn, *COMMAND) as process:
        said = read_until(process, "is dead after attempt 1 of 1")
    began = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|ERROR) hwqueue\.worker: ")
    assert [line for line in said if not began.match(line)] == []
    assert said[-1].endswith(f"[lease_id={lease_id} task=boom queue={QUEUE} attempt=1]\n")


@pytest.mark.parametrize(
    ("task", "said"),
    [("logs", "in the loop"), ("logs-sync", "in a thread"), ("logs-process", "in a process")],
)
async def test_handlers_log_under_their_lease(client: AsyncClient, dsn: str, task: str, said: str) -> None:
    lease_id = (await client.spawn_lease(QUEUE, task)).lease_id
    with running(dsn, *COMMAND, "--log-format=json") as process:
        lines = read_until(process, said, " completed in ")
    records = [json.loads(line) for line in lines]
    [record] = [one for one in records if one["message"] == said]
    record.pop("time")
    assert record == {
        **{"level": "INFO", "logger": "shop", "message": said, "lease_id": str(lease_id)},
        **{"task": task, "queue": QUEUE, "attempt": 1},
    }
    [completed] = [one for one in records if " completed in " in one["message"]]
    assert (completed["lease_id"], completed["duration_s"] > 0) == (str(lease_id), True)
