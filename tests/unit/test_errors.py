"""The error tree: one class per code, translation from the driver, pickling, the page about it."""

import os
import pickle
import re
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from hwqueue import errors
from hwqueue.driver_errors import connecting, translate
from hwqueue.errors import BY_SQLSTATE, BadArgument, HwqueueError, LeaseLost
from hwqueue.schema.files import SQL_DIR

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
