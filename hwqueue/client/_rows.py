"""Result rows to the dataclasses of `hwqueue.types`, as their fields are annotated."""

from __future__ import annotations

import types as python
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from hwqueue import types
from hwqueue.calls import CallOf

Row = Sequence[Any]
T = TypeVar("T")
_Convert = Callable[[Any], Any]


def decode(call: CallOf[T], rows: Iterable[Row]) -> list[T]:
    """The rows of a call, each as what the table of calls says."""
    assert call.kind is not None
    return [build(call.kind, dict(zip(call.columns, row, strict=True))) for row in rows]


def value_of(call: CallOf[T], value: Any) -> T:
    """The value of a call that returns one, as what the table of calls says."""
    is_enum = call.kind is not None and issubclass(call.kind, Enum)
    found: T = call.kind(value) if call.kind is not None and is_enum else value
    return found


def service_policy(value: Mapping[str, Any]) -> types.ServicePolicy:
    """The JSON object of `service_policy`."""
    return types.ServicePolicy(
        failure_domain=value["failure_domain"],
        anti_affinity_services=tuple(map(UUID, value["anti_affinity_services"])),
    )


def build(kind: Callable[..., T], values: dict[str, Any]) -> T:
    """The object of these values as they came from the database."""
    for name, convert in _of_columns(kind).items():
        if values.get(name) is not None:
            values[name] = convert(values[name])
    return kind(**values)


@cache
def _of_columns(kind: type) -> Mapping[str, _Convert]:
    """What makes of a column the field, where they differ; drivers have read ids and times."""
    return {name: convert for name, convert in _converters(kind, {}) if convert is not None}


@cache
def _of_json(kind: Any) -> tuple[Mapping[str, None], Mapping[str, _Convert | None]]:
    """The members that are None where JSON leaves them out, and what makes of each the field."""
    required = [
        each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING
    ]
    return dict.fromkeys(required), dict(_converters(kind, _FROM_TEXT))


def _read_object(kind: Callable[..., T], value: Mapping[str, Any]) -> T:
    """An object in JSON; members that the type does not know are left out: a newer schema may say more."""
    absent, converters = _of_json(kind)
    found = {
        name: value[name] if convert is None or value[name] is None else convert(value[name])
        for name, convert in converters.items()
        if name in value
    }
    return kind(**{**absent, **found})


def _read_list(convert: _Convert | None, value: Iterable[Any] | str) -> tuple[Any, ...]:
    if isinstance(value, str):  # something in it is nested too deep to be read
        return ()
    return tuple(value) if convert is None else tuple(map(convert, value))


def _headers(value: Mapping[str, Any] | str) -> Mapping[str, Any]:
    # text, where they are nested too deep to be read: what looks a header up finds none
    return {"unreadable": value} if isinstance(value, str) else value


def _known_or_none(value: Any) -> Any:
    return value or None  # "" and 0, in a list of devices of which others have it


_FROM_TEXT: Mapping[Any, _Convert] = {UUID: UUID, datetime: datetime.fromisoformat}
_SPECIAL: Mapping[tuple[type, str], _Convert] = {
    **{(kind, "headers"): _headers for kind in (types.LeaseSummary, types.Lease, types.Claim)},
    **{(types.NodeGpu, name): _known_or_none for name in ("model", "memory_mib")},
}


def _converters(kind: type, from_text: Mapping[Any, _Convert]) -> Iterator[tuple[str, _Convert | None]]:
    for name, hint in get_type_hints(kind).items():
        yield name, _SPECIAL.get((kind, name)) or _converter(hint, from_text)


def _converter(hint: Any, from_text: Mapping[Any, _Convert]) -> _Convert | None:
    """None: the value is as it should be."""
    some = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) in (python.UnionType, Union):
        return _converter(some[0], from_text) if len(some) == 1 else None
    if get_origin(hint) is tuple:
        return partial(_read_list, _converter(some[0], from_text))
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_read_object, hint)
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else from_text.get(hint)
