"""Models of requests, derived from the options that the client takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import Field, create_model

from hwqueue.meanings import meaning
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

R = TypeVar("R", bound=Request)

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


def options_of(
    options: Any,
    of: str,
    *,
    only: Collection[str] | None = None,
    common: Mapping[str, Any] = MappingProxyType({}),
    kinds: Mapping[str, Any] = MappingProxyType({}),
    notes: Mapping[str, str] = MappingProxyType({}),
    examples: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[type[R]], type[R]]:
    """Give a model the options of a TypedDict, or dataclass: each may be left out or null.

    Args:
        of: Their kind in hwqueue/meanings.toml, which says what they mean.
        only: Names of options; None: all.
        common: Types of options, of which there need not be all.
        kinds: Types of options that have bounds of their own, or that JSON has no other type for.
        notes: What this API adds to the meaning of options.
        examples: Values of options.

    Raises: TypeError, for an option without a type in JSON. KeyError, for one without a meaning.
    """
    hints = get_type_hints(options)
    if only is not None:
        hints = {name: hints[name] for name in only}
    if unknown := (kinds.keys() | notes.keys() | examples.keys()) - hints.keys():
        raise TypeError(f"{options.__name__} has no {', '.join(sorted(unknown))}")
    members: dict[str, Any] = {}
    for name, hint in hints.items():
        kind = kinds.get(name) or common.get(name) or _kind(name, hint)
        about = meaning(f"{of}.{name}", *([notes[name]] if name in notes else []))
        shown = [examples[name]] if name in examples else None
        members[name] = (kind | None, Field(default=None, description=about, examples=shown))

    def made(model: type[R]) -> type[R]:
        return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **members)

    return made


def told(of: str) -> Callable[[type[R]], type[R]]:
    """Describe the members of a model by what the options of this kind mean. Raises: KeyError."""

    def made(model: type[R]) -> type[R]:
        for name, member in model.model_fields.items():
            member.description = meaning(f"{of}.{member.alias or name}")
        model.model_rebuild(force=True)
        return model

    return made


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
