"""Options and settings that a program has fixed: refused where they are written, not at their use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from hwqueue.client._arguments import check_span
from hwqueue.client._spawn import SPANS
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.placement import PLACEMENT_KEYS
from hwqueue.types import RetryPolicy

Kind = type[BadArgument] | type[ConfigError]


def check_options(options: Mapping[str, Any], kind: Kind, where: str = "") -> None:
    """Refuse options of the wrong type, and a placement with a key that there is none of.

    What the values mean is left to the database. None counts as not given.

    Args:
        where: What the message begins with, such as `task 'draw': `.

    Raises: `kind`, naming the option.
    """
    for name in (*SPANS, "timeout"):
        check_span(options.get(name), name, kind, where)
    for name, (fits, wanted) in _WANTED.items():
        value = options.get(name)
        if value is not None and not fits(value):
            raise kind(f"{where}{name} must be {wanted}, not {value!r}", detail={"field": name})
    retry = options.get("retry")
    if isinstance(retry, RetryPolicy):
        check_span(retry.base, "retry.base", kind, where)
        check_span(retry.max, "retry.max", kind, where)
    _check_placement(options.get("placement"), kind, where)


def check_range(name: str, value: Any, low: Any, high: Any) -> None:
    """Refuse what is no integer, or no span, from `low` to `high`. Raises: ConfigError."""
    is_span = isinstance(low, timedelta)
    if isinstance(value, bool) or not isinstance(value, timedelta if is_span else int):
        raise ConfigError(f"{name} must be {'a timedelta' if is_span else 'an integer'}, not {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, not {value}")


def _check_placement(placement: Any, kind: Kind, where: str) -> None:
    if not isinstance(placement, Mapping):
        return
    for key in placement:
        if key not in PLACEMENT_KEYS:
            raise kind(
                f"{where}placement has no key {key!r}",
                detail={"field": f"placement.{key}"},
                hint=f"its keys are {', '.join(PLACEMENT_KEYS)}",
            )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "as_json")


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(each, str) for pair in value.items() for each in pair
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime | timedelta)


_WANTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_attempts": (_is_int, "an int"),
    "priority": (_is_int, "an int"),
    "placement": (_is_object, "a Placement or a mapping"),
    "affinity_tags": (lambda value: isinstance(value, Mapping), "a mapping"),
    "labels": (_is_texts, "a mapping of text to text"),
    "retry": (_is_object, "a RetryPolicy or a mapping"),
    "available_at": (_is_time, "a datetime or a timedelta"),
    "deadline": (_is_time, "a datetime or a timedelta"),
}
