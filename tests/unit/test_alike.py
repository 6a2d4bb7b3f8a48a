"""Rows that read alike are one; lists begin with what hurts most."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from hwqueue.alike import alike, folded
from hwqueue.cli.main import app
from hwqueue.dashboard.pages.pending import worst
from hwqueue.dashboard.pages.queues import worst_queue
from hwqueue.driver_errors import CONNECTION_ADVICE, hint_of
from hwqueue.types import Event, PendingReason, QueueDepth
from tests.unit.claims import bare

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def row(class_id: int, pending: int, **said: Any) -> Any:
    """Leases of a class that wait, the older the higher its id."""
    given = {"queue": "q", "task_name": "draw", "words": "1 GPU", "tenant": "", "resources": {}}
    oldest = NOW - timedelta(hours=class_id)
    facts = {"class_id": class_id, "pending": pending, "oldest_at": oldest, "nodes_matching": 0}
    return bare(PendingReason, **{**given, **facts, **said})


def test_classes_that_differ_in_what_is_not_said_are_one_row() -> None:
    rows = [row(1, 5), row(2, 9), row(3, 2, words="2 GPU"), row(4, 1, tenant="acme")]
    first, *others = alike([*rows, row(5, 1, words=None), row(6, 1, words=None)])
    assert (first.classes, first.row.pending, first.row.class_id) == (2, 14, 2)
    assert first.row.oldest_at == NOW - timedelta(hours=2)
    assert [each.row.class_id for each in others] == [3, 4, 5, 6]


def test_what_is_worst_comes_first() -> None:
    few, many = row(1, 1), row(2, 75)
    busy = row(3, 900, nodes_matching=3, nodes_free=0)
    ready = row(4, 2000, nodes_matching=3, nodes_free=1)
    assert sorted([ready, busy, few, many], key=worst) == [many, few, busy, ready]

    def depth(name: str, **said: Any) -> Any:
        return bare(QueueDepth, **{"queue": name, "pending": 0, "expired": 0, **said})

    idle, late = depth("idle"), depth("late", pending=1, oldest_at=NOW)
    paused = depth("paused", pending=1, paused_at=NOW, oldest_at=NOW + timedelta(hours=1))
    expired = depth("expired", expired=3)
    assert sorted([idle, late, paused, expired], key=worst_queue) == [expired, paused, late, idle]


def test_events_about_each_class_of_a_task_are_one() -> None:
    def event(number: int, code: str, asks: str, reason: str = "label_mismatch") -> Any:
        said = f"no live node matches leases of task draw that ask for {asks}: {reason}"
        detail = {"reason": reason}
        return bare(Event, event_id=number, code=code, queue="q", message=said, detail=detail)

    unmatched = [event(each, "class_unmatched", f"{each} GPU") for each in range(9, 4, -1)]
    other = event(4, "class_unmatched", "1 GPU", "label_missing")
    failed = [event(each, "lease_failed", "-") for each in (3, 2)]
    found = [(each.event_id, more) for each, more in folded([*unmatched, other, *failed])]
    assert found == [(9, 4), (4, 0), (3, 0), (2, 0)]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("webhook create", "'add'"),
        ("webhook delete", "'drop'"),
        ("lease get", "'show'"),
        ("node ls", "'list'"),
        ("workflow submit", "'run'"),
        ("queue lst", "'list'"),
    ],
)
def test_another_word_for_a_command_is_understood(line: str, meant: str) -> None:
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2
    assert "Did you mean" in result.output
    assert meant in result.output


def test_no_connection_says_what_to_check() -> None:
    with pytest.raises(psycopg.OperationalError) as refused:
        psycopg.connect("host=127.0.0.1 port=1 dbname=x connect_timeout=1")
    wrong = psycopg.OperationalError('FATAL:  password authentication failed for user "x"')
    assert hint_of(refused.value) == hint_of(wrong) == CONNECTION_ADVICE
    assert hint_of(psycopg.errors.UndefinedTable()) is None
