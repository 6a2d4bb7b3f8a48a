"""How durations, counts, hints and rows that read alike are written for people."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from typer.testing import CliRunner

from hwqueue import text
from hwqueue.alike import alike, folded
from hwqueue.cli.main import app
from hwqueue.dashboard.pages.pending import worst
from hwqueue.dashboard.pages.queues import worst_queue
from hwqueue.driver_errors import CONNECTION_ADVICE, hint_of
from hwqueue.errors import BY_SQLSTATE, HwqueueError
from hwqueue.hints import in_python, of_error
from hwqueue.types import Event, PendingReason, QueueDepth
from tests.unit.claims import bare

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        *((None, "-"), (-3, "0 s"), (0, "0 s"), (0.04, "0 s"), (0.05, "0.1 s"), (0.34, "0.3 s")),
        *((4.25, "4.3 s"), (59, "59 s"), (59.96, "60 s"), (60, "1 min"), (3599, "59 min")),
        *((3600, "1 h 00 min"), (12_000, "3 h 20 min"), (86_400, "1 d 0 h"), (187_200, "2 d 4 h")),
    ],
)
def test_durations_in_their_largest_units(seconds: float | None, written: str) -> None:
    assert text.duration(seconds) == written
    if seconds is not None:
        assert text.duration(timedelta(seconds=seconds)) == written


def test_ages_counts_memory_and_shares() -> None:
    assert text.age(NOW - timedelta(seconds=5.9), NOW) == "5 s"
    assert text.age(NOW + timedelta(seconds=5), NOW) == "0 s"
    assert text.age(None, NOW) == "-"
    assert text.ago(NOW - timedelta(seconds=200), NOW) == "3 min ago"
    assert text.ago(NOW + timedelta(hours=2), NOW) == "in 2 h 00 min"
    assert text.ago(NOW - timedelta(seconds=0.9), NOW) == "now"
    assert text.ago(NOW, NOW) == "now"
    assert (text.count(None), text.count(4.6), text.count(2**62 + 1)[-3:]) == ("-", "5", "905")
    assert text.plural(1, "lease") == "1 lease"
    assert text.plural(1204, "class", "classes") == "1,204 classes"
    amounts = (None, 0, 512, 1536 * 1024)
    assert [text.memory(mib) for mib in amounts] == ["-", "0", "512 MiB", "1.5 TiB"]
    latencies = (None, 0.0004, 0.34, 1.2)
    assert [text.milliseconds(each) for each in latencies] == ["-", "0.4 ms", "340 ms", "1,200 ms"]
    assert (text.percent(1, 3), text.percent(1, 0)) == ("33 %", "-")


SQL = Path(__file__).parents[2] / "sql"
_RUN = "01890a5d-ac96-774b-bcce-b302099a8057"
_CALLED = re.compile(r"(QH\w\d\d)'(?:(?!QH\w\d\d').)*?select hwqueue\.(\w+)\(p_\w+ => ''", re.DOTALL)


def called_in_hints() -> set[tuple[str, str]]:
    """The codes whose hints show a call in SQL, and the functions."""
    found = {
        (match[1], match[2])
        for path in SQL.glob("*/*.sql")
        for match in _CALLED.finditer(path.read_text(encoding="utf-8"))
    }
    assert ("QHQ01", "create_queue") in found
    assert ("QHF05", "cancel_workflow_run") in found
    return found


@pytest.mark.parametrize(("code", "function"), sorted(called_in_hints()))
def test_no_face_is_told_to_call_sql(code: str, function: str) -> None:
    told = f"do it (select hwqueue.{function}(p_run => '{_RUN}')) and go on with spawn_leases"
    facts = {"queue": "it's mine", "run_id": _RUN}
    hint = in_python(code, told, facts)
    assert hint is not None
    assert "select" not in hint
    assert "client" in hint
    error = BY_SQLSTATE[code]("no", sqlstate=code, detail=facts, hint=hint)
    faces: tuple[tuple[Literal["cli", "http"], str], ...] = (("cli", "hwqueue "), ("http", "/api/v1/"))
    for face, word in faces:
        worded = of_error(error, face)
        assert worded is not None
        assert word in worded
        assert "client." not in worded
        assert "spawn_leases" not in worded


def test_the_queue_is_written_as_the_face_writes_names() -> None:
    facts = {"queue": "it's mine"}
    hint = in_python("QHQ01", "create it", facts)
    assert hint is not None
    assert 'client.create_queue("it\'s mine")' in hint
    assert "create_queues(client, app)" in hint
    error = BY_SQLSTATE["QHQ01"]("no", detail=facts, hint=hint)
    assert f"hwqueue queue create {chr(39)}it" in str(of_error(error, "cli"))
    assert 'POST /api/v1/queues {"queue": "NAME"}' in str(of_error(error, "http"))
    other = BY_SQLSTATE["QHQ02"]("no", detail=facts, hint="change it with set_queue_policy")
    assert "PATCH /api/v1/queues/it%27s%20mine/policy" in str(of_error(other, "http"))


def test_what_names_no_call_stays_but_for_the_names_of_arguments() -> None:
    assert in_python("QHA01", "page with p_skip, for example", {}) == "page with skip, for example"
    assert in_python("QHA01", None, {}) is None
    for error in (HwqueueError("no", hint="say it once"), HwqueueError("no")):
        assert of_error(error, "http") == error.hint


LOOKED_AT = datetime(2030, 1, 1, tzinfo=UTC)


def row(class_id: int, pending: int, **said: Any) -> Any:
    """Leases of a class that wait, the older the higher its id."""
    given = {"queue": "q", "task_name": "draw", "words": "1 GPU", "tenant": "", "resources": {}}
    oldest = LOOKED_AT - timedelta(hours=class_id)
    facts = {"class_id": class_id, "pending": pending, "oldest_at": oldest, "nodes_matching": 0}
    return bare(PendingReason, **{**given, **facts, **said})


def test_classes_that_differ_in_what_is_not_said_are_one_row() -> None:
    rows = [row(1, 5), row(2, 9), row(3, 2, words="2 GPU"), row(4, 1, tenant="acme")]
    first, *others = alike([*rows, row(5, 1, words=None), row(6, 1, words=None)])
    assert (first.classes, first.row.pending, first.row.class_id) == (2, 14, 2)
    assert first.row.oldest_at == LOOKED_AT - timedelta(hours=2)
    assert [each.row.class_id for each in others] == [3, 4, 5, 6]


def test_what_is_worst_comes_first() -> None:
    few, many = row(1, 1), row(2, 75)
    busy = row(3, 900, nodes_matching=3, nodes_free=0)
    ready = row(4, 2000, nodes_matching=3, nodes_free=1)
    assert sorted([ready, busy, few, many], key=worst) == [many, few, busy, ready]

    def depth(name: str, **said: Any) -> Any:
        return bare(QueueDepth, **{"queue": name, "pending": 0, "expired": 0, **said})

    idle, late = depth("idle"), depth("late", pending=1, oldest_at=LOOKED_AT)
    paused = depth("paused", pending=1, paused_at=LOOKED_AT, oldest_at=LOOKED_AT + timedelta(hours=1))
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
