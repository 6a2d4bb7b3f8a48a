"""A failure of any kind says in one line what happened."""

import re
from itertools import product
from typing import Any

import pytest

from hwqueue.cli.lease_view import error_line as of_cli
from hwqueue.dashboard.formatting import error_line as of_dashboard
from hwqueue.error_text import error_line
from hwqueue.schema.files import SHIPPED
from hwqueue.worker.report import error_line as of_log

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
