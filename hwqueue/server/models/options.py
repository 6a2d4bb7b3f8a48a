"""Models of requests, derived from the options that the client takes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import create_model

from hwqueue.server.models.base import (
    Flag,
    Id,
    Moment,
    MomentOrSpan,
    Object,
    Request,
    Seconds,
    Whole,
)

# The type in JSON of an option, by the first of these that its annotation names.
_IN_JSON: Mapping[Any, Any] = {
    UUID: Id,
    datetime: Moment,
    timedelta: Seconds,
    bool: Flag,
    int: Whole,
    Mapping: Object,
    str: str,
}


def request_of(
    options: Any,
    *,
    doc: str,
    kinds: Mapping[str, Any],
    fields: Mapping[str, Any],
    base: type[Request] = Request,
) -> type[Request]:
    """The model of a TypedDict, or dataclass, of options: each may be left out or null.

    Args:
        kinds: Types of options that have bounds of their own, or that JSON has no other type for.
        fields: pydantic's Field of options that need a description.
        base: Holds the settings of the model.

    Raises: TypeError, for an option without a type in JSON.
    """
    members: dict[str, Any] = {}
    for name, hint in get_type_hints(options).items():
        kind = kinds.get(name) or _kind(name, hint)
        members[name] = (kind | None, fields.get(name))
    if unknown := (kinds.keys() | fields.keys()) - members.keys():
        raise TypeError(f"{options.__name__} has no {', '.join(sorted(unknown))}")
    return create_model(options.__name__, __base__=base, __doc__=doc, **members)


def _kind(name: str, hint: Any) -> Any:
    """The type of an option in JSON. Raises: TypeError."""
    members = get_args(hint) or (hint,)
    named = {get_origin(member) or member for member in members}
    if {datetime, timedelta} <= named:
        return MomentOrSpan
    for kind, in_json in _IN_JSON.items():
        if kind in named:
            return in_json
    raise TypeError(f"{name}: {hint} has no type in JSON; give it one in `kinds`")
