"""The error tree: a class per code, what happened in one line, and no password of a connection string."""

from __future__ import annotations

import os
import pickle
import re
import traceback
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import psycopg_pool
import pytest
from sqlalchemy.exc import DBAPIError

from hwqueue import errors
from hwqueue.cli.lease_view import error_line as of_cli
from hwqueue.client import AsyncClient, Client
from hwqueue.connections import check_conninfo, with_timeouts
from hwqueue.dashboard.formatting import error_line as of_dashboard
from hwqueue.driver_errors import connecting, translate
from hwqueue.error_text import error_line
from hwqueue.errors import BY_SQLSTATE, BadArgument, ConfigError, HwqueueError, LeaseLost
from hwqueue.metrics import HwqueueCollector
from hwqueue.schema.files import SHIPPED, SQL_DIR
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.worker.report import error_line as of_log
from hwqueue.worker.settings import WorkerSettings, worker_conninfo
from hwqueue.worker.transient import is_transient, may_come_up

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


class Refusal(psycopg.DatabaseError):
    """A driver error as the server's answer would make it."""

    def __init__(self, sqlstate: str, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        told = {"message_primary": message, "message_detail": detail, "message_hint": "do something else"}
        self._told: Any = SimpleNamespace(**told)

    @property
    def diag(self) -> Any:
        return self._told


def translated(error: Exception) -> Exception:
    with pytest.raises(Exception) as caught, translate():  # noqa: PT011
        raise error
    return caught.value


def test_codes_in_sql_errors_and_page_are_the_same() -> None:
    in_sql = {
        code
        for file in SQL_DIR.rglob("*.sql")
        for code in re.findall(r"'(QH[A-Z][0-9]{2})'", file.read_text(encoding="utf-8"))
    }
    # raised by the package itself, before it asks the functions of another version
    about_versions = {"QHS01", "QHS02"}
    assert in_sql | about_versions == set(BY_SQLSTATE)
    rows = re.findall(r"^\| `(QH\w+)` \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(code, BY_SQLSTATE[code].__name__) for code, _ in rows]
    assert {code for code, _ in rows} == set(BY_SQLSTATE)


def test_codes_become_classes_with_the_facts() -> None:
    error = translated(Refusal("QHL01", "claim 3 is lost", '{"claim_token": 3, "field": "p_token"}'))
    assert type(error) is LeaseLost
    assert isinstance(error.__cause__, Refusal)
    assert str(error) == "claim 3 is lost"
    assert (error.sqlstate, error.hint) == ("QHL01", "do something else")
    assert (error.detail["claim_token"], error.field) == (3, "token")
    assert not error.retryable
    assert "hint: do something else" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("detail", [None, "", "not JSON", "[1]"])
def test_a_detail_that_is_not_ours_does_no_harm(detail: str | None) -> None:
    error = translated(Refusal("QHL04", "gone", detail))
    assert isinstance(error, HwqueueError)
    assert error.detail in ({}, {"text": detail})
    assert error.field is None


def test_a_newer_schema_sqlalchemy_and_the_drivers_own_refusals() -> None:
    newer = translated(Refusal("QHZ99", "something new"))
    assert (type(newer), getattr(newer, "sqlstate", None)) == (HwqueueError, "QHZ99")
    cause = Refusal("QHQ01", "queue nope does not exist")
    wrapped = translated(DBAPIError("select 1", {}, cause))
    assert (type(wrapped), wrapped.__cause__) == (errors.QueueUnknown, cause)
    odd = translated(psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"))
    assert (type(odd), getattr(odd, "sqlstate", None)) == (BadArgument, "QHA01")


def test_what_is_not_about_the_queue_stays_what_it_is_but_for_a_missing_schema() -> None:
    for plain in (psycopg.OperationalError("connection lost"), Refusal("40001", "try again"), KeyError("x")):
        assert translated(plain) is plain
    error = translated(Refusal("3F000", 'schema "hwqueue" does not exist'))
    assert type(error) is errors.SchemaTooOld
    assert error.hint is not None
    assert "hwqueue db upgrade" in error.hint
    other = Refusal("42883", "function other.fn() does not exist")
    assert translated(other) is other


@pytest.mark.parametrize("kind", [*BY_SQLSTATE.values(), errors.ConfigError, HwqueueError])
def test_errors_survive_pickling(kind: type[HwqueueError]) -> None:
    error = kind("message", detail={"field": "a"}, hint="fix it", retryable=True)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "message"
    assert (copy.sqlstate, copy.detail, copy.hint, copy.retryable) == (
        error.sqlstate,
        error.detail,
        error.hint,
        error.retryable,
    )


def test_only_what_may_pass_later_is_retryable() -> None:
    assert [kind for kind in BY_SQLSTATE.values() if kind("x").retryable] == [
        errors.LeaseClaimed,
        errors.LeaseBusy,
        errors.NodeBusy,
    ]


@pytest.mark.parametrize(
    ("conninfo", "variables", "hint"),
    [
        ("client_encoding=UTF8", {}, "no database is named: pass a DSN or set HWQUEUE_DSN"),
        ("client_encoding=UTF8", {"PGHOST": "db"}, "check host, port, database"),
        ("host=db client_encoding=UTF8", {}, "check host, port, database"),
    ],
)
def test_who_cannot_connect_reads_what_to_do(
    monkeypatch: pytest.MonkeyPatch, conninfo: str, variables: dict[str, str], hint: str
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    with pytest.raises(psycopg.OperationalError) as caught, connecting(conninfo):
        raise psycopg.OperationalError("no such file")
    [note] = caught.value.__notes__
    assert note.startswith(f"hint: {hint}")


LOST = "its claim expired: its worker gave no sign of life"
RUN = {"run_id": "0195", "workflow": "load"}
KINDS: list[tuple[Any, str | None, str | None]] = [
    (None, None, ""),
    (None, "run_stopped", "run stopped"),
    ("text\nmore", None, "text"),
    ([1, {"a": 2}], None, '[1, {"a": 2}]'),
    ({}, None, "{}"),
    ({"log": "x"}, None, '{"log": "x"}'),
    ({"message": "disk full"}, None, "disk full"),
    ({"type": "Oops", "message": "first\nsecond"}, None, "Oops: first"),
    ({"type": "Oops", "message": "", "traceback": "..."}, None, "Oops"),
    ({"type": "Oops", "message": "\n"}, None, "Oops"),
    ({"type": "hwqueue.app.Reject", "message": "no"}, None, "Reject: no"),
    ({"type": "CommandFailed", "message": "exit 3", "exit_status": 3}, None, None),
    ({"type": "BadParams", "message": "frame: missing"}, None, "BadParams: frame: missing"),
    ({"reason": "claim_expired", "expires_at": "2026-01-01T00:00:00Z"}, None, LOST),
    ({"reason": "run_time_exceeded", "max_run": 90}, None, None),
    ({"reason": "node_superseded"}, None, "another instance took over the node that it ran on"),
    ({"reason": "deadline_exceeded", "deadline": "2026-01-01"}, None, None),
    ({"reason": "cancelled", "detail": "why"}, None, "cancelled: why"),
    ({"reason": "cancelled", "detail": None}, None, "cancelled"),
    ({"reason": "gang_incomplete", "gang_id": "0195", "detail": "rank 1 failed: Oops"}, None, None),
    ({"binding": "steps.a"}, "binding_missing", "binding missing, binding steps.a"),
    ({"limit": 1048576}, "params_too_large", "params too large, limit 1,048,576"),
    ({"type": "object"}, "over_is_not_a_list", "what it maps over is not a list"),
    ({"workflow": "x", "code": "QHF01", "message": "no workflow"}, "nested_refused", None),
    ({**RUN, "reason": "operator"}, "nested_cancelled", "run of workflow load cancelled: operator"),
]
SPELLED = {
    "CommandFailed": "CommandFailed: exit 3",
    "run_time_exceeded": "it ran longer than its max_run of 1 min 30 s",
    "deadline_exceeded": "its deadline passed before it was claimed",
    "gang_incomplete": "its gang has ended: rank 1 failed: Oops",
    "nested_refused": "QHF01: no workflow",
}
ITEM = "item 137: ValueError: bad date"
COUNTED: list[tuple[Any, str | None, str | None]] = [
    (
        {"items": 200, "failed": 1, "tolerated": 0, "first_error": ITEM},
        "items_failed",
        f"1 of 200 items failed: {ITEM}",
    ),
    ({"items": 2000, "failed": 1200, "tolerated": 0}, "items_failed", "1,200 of 2,000 items failed"),
    (
        {"items": 4, "failed": 1, "gang_id": "0195", "first_error": "item 0: Oops"},
        "gang_failed",
        "1 of 4 members failed: item 0: Oops",
    ),
    (
        {**RUN, "reason": "step_failed", "detail": {"step": "a"}, "first_error": f"step a: {ITEM}"},
        "nested_failed",
        f"run of workflow load failed: step a: {ITEM}",
    ),
]
_CODE = re.compile(r"""reason["']?(?:,|:| :=) (?:case [^']*)?["']([a-z]{3,}_?[a-z_]*)["']""")
CODES = {code for path in SHIPPED.sql.glob("*/*.sql") for code in _CODE.findall(path.read_text())} | {
    "items_failed",
    "gang_failed",
    "nested_failed",
    "run_stopped",
}


@pytest.mark.parametrize(("error", "reason", "line"), KINDS + COUNTED)
def test_what_happened_in_one_line(error: Any, reason: str | None, line: str | None) -> None:
    if line is None:
        line = SPELLED[reason or error.get("reason") or error["type"]]
    for spelled in (error_line, of_cli, of_dashboard):
        assert spelled(error, reason) == line


def test_a_log_says_every_line_and_a_line_is_cut_off_and_has_no_secrets() -> None:
    message = "1 validation error for Params\nframe\n  Field required\x1b[2J\n"
    assert of_log({"type": "ValidationError", "message": message}) == (
        r"ValidationError: 1 validation error for Params\nframe\n  Field required\x1b[2J"
    )
    assert (of_log(None), of_log({})) == ("error", "{}")
    assert len(of_cli({"log": "x" * 300})) == 120
    assert len(of_dashboard("x" * 900)) == 300
    assert "abc" not in of_dashboard({"api_key": "abc"})


def test_no_code_of_the_database_is_shown_as_it_is() -> None:
    assert {"claim_expired", "binding_missing", "nested_too_deep", "replaced"} <= CODES
    for code in CODES:
        for said in (error_line({"reason": code}), error_line(None, code), error_line({}, code)):
            assert said, code
            assert "_" not in said.replace("max_run", ""), code
            assert "{" not in said, code


ODD = (None, True, -1, 1e300, float("nan"), "x", [1], {"a": [None]})
TOLD: list[dict[str, Any]] = [
    {"items": 2, "failed": 1, "gang_id": "0195", "first_error": ITEM},
    {"reason": "run_time_exceeded", "max_run": 90, "detail": "why", "limit": 1},
    {**RUN, "type": "Oops", "code": "QHF01", "message": "m"},
]


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("reason", [None, "nested_failed"])
def test_what_a_worker_keeps_as_an_error_stops_no_reader(told: dict[str, Any], reason: str | None) -> None:
    """Workers and programs keep what they like: a page with such a lease shows the others, too."""
    for name, odd in product(told, ODD):
        for spelled in (error_line, of_cli, of_dashboard):
            assert "\n" not in spelled(told | {name: odd}, reason)
        assert of_log(told | {name: odd})


@pytest.mark.parametrize(
    ("sqlstates", "passes"),
    [
        ("08006 25006 40001 40P01 53300 55P03 57014 57P01 57P03", True),
        ("3D000 28000 28P01 42501 54000 22003", False),
    ],
)
def test_what_passes_is_repeated(sqlstates: str, passes: bool) -> None:
    for sqlstate in sqlstates.split():
        assert is_transient(psycopg.errors.lookup(sqlstate)("no")) is passes, sqlstate


def test_a_lost_connection_passes_and_a_refusal_does_not() -> None:
    assert is_transient(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert is_transient(psycopg_pool.PoolTimeout("no connection after 30 s"))
    assert may_come_up(psycopg.errors.ConnectionTimeout("no answer"))
    assert is_transient(errors.NodeUnknown("deregistered"))
    assert not is_transient(errors.BadArgument("no"))
    assert not is_transient(ValueError("no"))


@pytest.mark.parametrize(
    ("words", "may"),
    [
        ('connection to server at "::1", port 5432 failed: Connection refused', True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  sorry, too many clients already", True),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", True),
        ('on socket "/tmp/.s.PGSQL.5432" failed: No such file or directory', True),
        ("session is read-only", True),
        ('FATAL:  password authentication failed for user "worker"', False),
        ('FATAL:  role "worker" does not exist', False),
        ('FATAL:  database "app" does not exist', False),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', False),
        ("SSL error: certificate verify failed", False),
    ],
)
def test_a_server_may_come_up_and_wrong_settings_stay_wrong(words: str, may: bool) -> None:
    assert may_come_up(psycopg.OperationalError(f"connection failed: {words}")) is may


WRONG = [
    "postgresql+psycopg://u:s3cret@localhost/x",
    "mysql://u:s3cret@localhost/x",
    "postgresql://u:SEK%zzs3cret@localhost/x",
    "host=localhost password='s3cret",
    "host=localhost pasword=s3cret",
    "s3cret",
]
READERS: list[Callable[[str], object]] = [
    lambda dsn: check_conninfo(dsn, "--dsn"),
    lambda dsn: with_timeouts(dsn, seconds=2),
    Client,
    AsyncClient,
    worker_conninfo,
    lambda dsn: create_app(ServerSettings(dsn=dsn)),
    lambda dsn: HwqueueCollector(dsn)._connect(),
]


@pytest.mark.parametrize("dsn", WRONG)
@pytest.mark.parametrize("read", READERS)
def test_what_is_wrong_is_not_repeated(read: Callable[[str], object], dsn: str) -> None:
    with pytest.raises(ConfigError, match="is not a connection string") as caught:
        read(dsn)
    error = caught.value
    told = "".join(traceback.format_exception_only(error)) + f"{error.hint} {error.detail}"
    chain = (error.__cause__, None if error.__suppress_context__ else error.__context__)
    assert chain == (None, None)
    assert "s3cret" not in told
    assert "SEK" not in told


@pytest.mark.parametrize("read", [Client, AsyncClient, worker_conninfo])
def test_empty_is_refused_as_on_the_command_line(
    read: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for empty in ("", " "):
        with pytest.raises(ConfigError, match="is empty"):
            read(empty)
    monkeypatch.setenv("HWQUEUE_DSN", "")
    with pytest.raises(ConfigError, match="HWQUEUE_DSN is empty"):
        read(None)


def test_none_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWQUEUE_DSN", "dbname=named")
    assert "dbname=named" in worker_conninfo(None)
    monkeypatch.delenv("HWQUEUE_DSN")
    assert "dbname" not in worker_conninfo(None)


def test_what_to_write_is_told_and_no_connection_string_shown() -> None:
    for dsn, words in ((WRONG[0], "SQLAlchemy"), (WRONG[2], "%25"), (WRONG[1], "postgresql://")):
        with pytest.raises(ConfigError) as caught:
            check_conninfo(dsn, "--dsn")
        assert words in (caught.value.hint or "")
    dsn = "postgresql://u:s3cret@localhost/x"
    for settings in (WorkerSettings(dsn=dsn, listen=dsn), ServerSettings(dsn=dsn)):
        assert "s3cret" not in repr(settings)
        assert "dsn=" not in repr(settings)
