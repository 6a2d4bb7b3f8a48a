"""Forms of answers, derived from the dataclasses that the client returns.

A column is declared once, in `hwqueue.types`. What JSON adds to it stands in `_SHAPES`.
"""

from __future__ import annotations

import re
import types
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import ConfigDict, Field, PlainSerializer, TypeAdapter, WithJsonSchema, create_model
from pydantic_core.core_schema import any_schema, json_or_python_schema

from hwqueue import types as rows
from hwqueue.server.models.base import Answer, BigInt, Id, Moment

# Integers that may be beyond what the doubles of many JSON readers hold.
_LARGE = frozenset({"claim_token", "class_id", "event_id", "node_epoch", "profile_id"})


Span = Annotated[timedelta, WithJsonSchema({"type": "number", "description": "Seconds."})]
Base64 = Annotated[
    bytes, PlainSerializer(lambda value: b64encode(value).decode()), WithJsonSchema({"type": "string"})
]
_IN_JSON = {"None": "null", "True": "true", "False": "false"}
_JSON_WORD = re.compile("|".join(rf"\b{word}\b" for word in _IN_JSON))
_PLAIN = {timedelta: Span, datetime: Moment, UUID: Id, bytes: Base64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the JSON of a dataclass adds to its columns, or leaves out.

    name: in the OpenAPI document. notes: pydantic's Field of a column. more: members that the
    answer has besides. hidden: columns that it has not. doc: instead of the docstring, where that
    speaks of hidden columns.
    """

    name: str | None = None
    doc: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()


_WARNINGS = Field(
    description="What keeps every live node from it, in sentences; null: not known, as of a batch.",
    examples=[['no live node has a handler for task "trian"; did you mean train?']],
)
Warnings = Annotated[tuple[str, ...] | None, _WARNINGS]

_SHAPES: Mapping[type, Shape] = {
    rows.Attempt: Shape(
        notes={"outcome": Field(description="failed, expired, superseded, released or cancelled.")}
    ),
    rows.LeaseSummary: Shape(
        notes={
            "labels": Field(examples=[{"app": "render"}]),
            "attempt": Field(description="Used up, the running one included."),
            "expires_at": Field(description="When the claim ends without a heartbeat."),
            "stop_reason": Field(description="Why the claim was asked to stop."),
        }
    ),
    rows.Lease: Shape(
        notes={
            "wire": Field(
                description="The params blob as it was sent, in base64; `placement` says what it asks."
            )
        }
    ),
    rows.MatchPage: Shape(
        name="Match",
        notes={
            "nodes": Field(description="Registered."),
            "eligible": Field(description="That could run it now."),
            "reasons": Field(
                description="Nodes that could not, by reason; one with two counts for both.",
                examples=[{"label_mismatch": 12}],
            ),
        },
        more={"next": Annotated[int | None, Field(description="`skip` of the page after; null at the end.")]},
    ),
    rows.Node: Shape(
        notes={
            "live": Field(description="Seen within its heartbeat timeout."),
            "slots": Field(description="Most claims at a time; null: no limit."),
            "claims": Field(description="Running now."),
            "login": Field(description="The role whose members may act for it."),
        }
    ),
    rows.NodeGpu: Shape(
        doc="A device of a node; `milli_used`: thousandths set aside.",
        hidden=frozenset({"parent_resource_id"}),
    ),
    rows.Reason: Shape(
        doc="Why a node may not run something. predicate: the expression that failed.",
        notes={"code": Field(examples=["label_mismatch"])},
        hidden=frozenset({"stage"}),
    ),
    rows.SpawnResult: Shape(name="Spawned", notes={"warnings": _WARNINGS}),
    rows.SpawnedEverywhere: Shape(more={"warnings": Warnings}),
}


class _AsItIs:
    """Rows are not checked before they are written: that takes longer, and tests do it.

    A column is found by its name, in a dataclass of whatever type.
    """

    def __get_pydantic_core_schema__(self, source: Any, schema_of: Any) -> Any:
        return json_or_python_schema(json_schema=schema_of(source), python_schema=any_schema())


def answer_of(kind: type) -> Any:
    """The form of a dataclass in an answer, made of it or of one like it; nothing is checked."""
    return Annotated[_form_of(kind), _AsItIs()]


@cache
def _form_of(kind: type) -> type:
    """The form of a dataclass: its fields, and its docstring as description."""
    own = _SHAPES.get(kind, Shape())
    # a subclass has the notes of what it inherits
    notes = {
        name: note
        for base in reversed(kind.__mro__)
        for name, note in _SHAPES.get(base, Shape()).notes.items()
    }
    hints = get_type_hints(kind)
    members: dict[str, Any] = {
        each.name: Annotated[_member(each.name, hints[each.name]), notes.get(each.name)]
        for each in fields(kind)
        if each.name not in own.hidden
    }
    members |= own.more
    doc = own.doc or _JSON_WORD.sub(lambda found: _IN_JSON[found[0]], kind.__doc__ or "")
    more = {"__doc__": doc, "__pydantic_config__": ConfigDict(ser_json_timedelta="float")}
    return make_dataclass(own.name or kind.__name__, members.items(), namespace=more, kw_only=True)


def with_more(row: Any, **more: Any) -> Any:
    """The answer of a row with the members that it has besides."""
    kind: Any = type(row)
    return _form_of(kind)(**{each.name: getattr(row, each.name) for each in fields(row)}, **more)


def written(row: Any) -> str:
    """A row as JSON."""
    kind: Any = type(row)
    return _adapter(_form_of(kind)).dump_json(row).decode()


_adapter = cache(TypeAdapter)


@cache
def list_of(
    kind: type, *, pages: bool = False, name: str | None = None, doc: str | None = None
) -> type[Answer]:
    """The model of a list of them; with pages there is a cursor of the page after, or null."""
    members: dict[str, Any] = {"items": (list[answer_of(kind)], ...)}  # type: ignore[misc]
    if pages:
        members["next"] = (str | None, ...)
    name = name or f"{kind.__name__}{'Page' if pages else 'List'}"
    return create_model(name, __base__=Answer, __doc__=doc, **members)


def _member(name: str, hint: Any) -> Any:
    if name in _LARGE:
        return BigInt | None if type(None) in get_args(hint) else BigInt
    return _plain(hint)


def _plain(hint: Any) -> Any:
    """The type that a field of this type has in JSON."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return _form_of(hint)
    origin, members = get_origin(hint), get_args(hint)
    if origin is tuple:
        return tuple[_plain(members[0]), ...]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, _plain(members[1])]  # type: ignore[misc]
    if origin in (Union, types.UnionType):
        return Union[tuple(_plain(member) for member in members)]  # noqa: UP007
    return hint
