"""Models of what the client returns, made from its dataclasses: nothing is written down twice."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BeforeValidator, Field, create_model

from hwqueue.server.models.base import Answer, BigInt, Id, Moment

# Integers that may be beyond what the doubles of many JSON readers hold.
_LARGE = frozenset({"claim_token", "class_id", "event_id", "node_epoch", "profile_id"})


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


Span = Annotated[float, BeforeValidator(_seconds), Field(description="Seconds.")]


@cache
def answer_of(kind: type) -> type[Answer]:
    """The model of a dataclass: its fields, and its docstring as description."""
    hints = get_type_hints(kind)
    members: dict[str, Any] = {
        field.name: (_member(field.name, hints[field.name]), ...) for field in fields(kind)
    }
    return create_model(kind.__name__, __base__=Answer, __doc__=kind.__doc__, **members)


@cache
def list_of(kind: type, *, pages: bool = False) -> type[Answer]:
    """The model of a list of them; with pages there is a cursor of the page after, or null."""
    members: dict[str, Any] = {"items": (list[answer_of(kind)], ...)}  # type: ignore[misc]
    if pages:
        members["next"] = (str | None, ...)
    name = f"{kind.__name__}{'Page' if pages else 'List'}"
    return create_model(name, __base__=Answer, **members)


def _member(name: str, hint: Any) -> Any:
    if name in _LARGE:
        return BigInt | None if type(None) in get_args(hint) else BigInt
    return _plain(hint)


def _plain(hint: Any) -> Any:
    """The type that a field of this type has in JSON."""
    simple = {timedelta: Span, datetime: Moment, UUID: Id}
    if hint in simple:
        return simple[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return answer_of(hint)
    origin, members = get_origin(hint), get_args(hint)
    if origin is tuple:
        return list[_plain(members[0])]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, _plain(members[1])]  # type: ignore[misc]
    if origin in (Union, types.UnionType):
        return Union[tuple(_plain(member) for member in members)]  # noqa: UP007
    return hint
