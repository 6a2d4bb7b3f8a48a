"""What is kept of a failure, in one line: everywhere alike.

A worker keeps `{"type", "message", "traceback"}` of an exception. The database keeps `{"reason"}`
of what no handler said, with what it is about, and of steps that are made of others how many of
these failed. Programs that call SQL keep what they like.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from hwqueue.text import exact_duration, first_line

_REASONS = {
    "claim_expired": "its claim expired: its worker gave no sign of life",
    "run_time_exceeded": "it ran longer than its max_run",
    "node_superseded": "another instance took over the node that it ran on",
    "deadline_exceeded": "its deadline passed before it was claimed",
    "gang_incomplete": "its gang has ended",
    "gang_goes_on": "it was lost, and its gang goes on without it",
    "node_unmatched": "its node suits it no longer",
    "everywhere_stopped": "its everywhere task was stopped",
    "everywhere_replaced": "its everywhere task has another lease on its node",
    "over_is_not_a_list": "what it maps over is not a list",
    "nested_too_deep": "runs are nested too deep",
    "nested_refused": "its run was refused",
    "near_gone": "what it is to be near is gone",
}
_OURS = "hwqueue.app."
_LONGEST = 2_000
_LONGEST_RUN = 10 * 366 * 86_400
_SAID = frozenset({"reason", "detail", "first_error"})
_IDS = ("_id", "_at", "one_of", "taken")


def reason_words(reason: str) -> str:
    """A code of the database as people say it."""
    return _REASONS.get(reason, reason.replace("_", " "))


def error_line(error: Any, reason: str | None = None) -> str:
    """What went wrong, in one line: the first of each text; nothing where nothing is known.

    Args:
        reason: The code that a step, or a gang, has beside its error.
    """
    return _joined(map(first_line, _told(error, reason)))


def error_words(error: Any) -> str:
    """What went wrong, with every line of its texts, for who can show them all."""
    return _joined(_told(error, None))


def _joined(parts: Iterable[str]) -> str:
    return ": ".join(parts)[:_LONGEST]


def _told(error: Any, reason: str | None) -> list[str]:
    if isinstance(error, Mapping):
        parts = [*_parts(error, error.get("reason") or reason, reason), error.get("first_error")]
    else:
        told = error if isinstance(error, str) or error is None else json.dumps(error, default=str)
        parts = [reason_words(reason) if reason else "", told]
    return [text for part in parts if part and (text := str(part).strip())]


def _parts(error: Mapping[str, Any], code: Any, reason: str | None) -> list[Any]:
    """What an error says, from the kind to the particular."""
    kind, message = error.get("type") or error.get("code"), error.get("message")
    detail = _detail(error)
    items, failed = error.get("items"), error.get("failed")
    if isinstance(items, int) and isinstance(failed, int):
        what = "members" if "gang_id" in error else "items"
        return [f"{failed:,} of {items:,} {what} failed"]
    if "run_id" in error and "workflow" in error:
        how = (reason or "nested_failed").removeprefix("nested_").replace("_", " ")
        why = detail or error.get("reason")
        return [f"run of workflow {error['workflow']} {how}", None if "first_error" in error else why]
    if message or (kind and not code):
        return [str(kind or "").removeprefix(_OURS), message or detail]
    if code:
        return [_reason(str(code), error), detail]
    return [detail or json.dumps(error, default=str)]


def _detail(error: Mapping[str, Any]) -> str | None:
    """What somebody said with it."""
    detail = error.get("detail")
    if isinstance(detail, Mapping):
        detail = detail.get("reason")
    return None if detail is None else str(detail)


def _reason(code: str, error: Mapping[str, Any]) -> str:
    """The reason, and what it is about: `params too large, limit 1,048,576`."""
    ran = error.get("max_run")
    # a worker may say it, too: any number
    if code == "run_time_exceeded" and isinstance(ran, int | float) and 0 <= ran <= _LONGEST_RUN:
        return f"{reason_words(code)} of {exact_duration(timedelta(seconds=ran))}"
    if code in _REASONS:
        return reason_words(code)
    facts = [
        f"{name.replace('_', ' ')} {_fact(value)}"
        for name, value in error.items()
        if isinstance(value, str | int | dict | list) and not name.endswith(_IDS)
        if name not in _SAID
    ]
    return ", ".join([reason_words(code), *facts])


def _fact(value: str | int | dict[str, Any] | list[Any]) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
