"""Hints in the words of who reads them: no face is told another one's calls."""

import re
from pathlib import Path
from typing import Literal

import pytest

from hwqueue.errors import BY_SQLSTATE, HwqueueError
from hwqueue.hints import in_python, of_error

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
