"""Python values to SQL arguments, by the argument's SQL type; bad ones are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.numeric import Int8

from hwqueue.calls import Call
from hwqueue.client._json import aware, check_text, jsonb
from hwqueue.errors import BadArgument, HwqueueError

_PAIR = "(lease_id, claim_token)"
_WANTED: Mapping[str, str] = {
    "uuid": "a UUID or its text",
    "uuid[]": "a list of UUIDs or their texts",
    "text": "a str",
    "text[]": "a list of str",
    "boolean": "True or False",
    "integer": "an int of at most 32 bits",
    "bigint": "an int of at most 64 bits",
    "bigint[]": "a list of ints of at most 64 bits",
    "interval": "a timedelta",
    "timestamp with time zone": "a datetime with a time zone",
    "timestamp with time zone[]": "a list of datetimes with time zones",
    "bytea": "bytes",
    "jsonb": "JSON other than None",
    _PAIR: "a pair (lease_id, claim_token)",
}


def arguments(call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call: checked, and without those that are None, which keep their default.

    Raises: BadArgument, naming the argument without its `p_`.
    """
    types = call.arguments
    given: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None:
            given[name] = _ENCODERS[types[name]](value, name.removeprefix("p_"))
        elif name in call.required:
            raise _refused(name.removeprefix("p_"), None, types[name])
    return given


def claim_keys(
    claims: Iterable[tuple[UUID | str, int]], field: str = "claims"
) -> tuple[list[UUID], list[int]]:
    """The lease ids and the tokens of claims, apart.

    Raises: BadArgument, naming the claim and what is wrong with it.
    """
    given = list(claims)
    if set(map(type, given)) == {tuple} and set(map(len, given)) == {2}:
        ids, tokens = (list(parts) for parts in zip(*given, strict=True))
        if _are_uuids(ids) and _are_bigints(tokens):
            return ids, tokens
    ids, tokens = [], []
    for index, claim in enumerate(given):
        if not isinstance(claim, tuple) or len(claim) != 2:
            raise _refused(f"{field}[{index}]", claim, _PAIR)
        ids.append(_uuid(claim[0], f"{field}[{index}].lease_id"))
        tokens.append(_bigint(claim[1], f"{field}[{index}].claim_token"))
    return ids, tokens


def checked_actor(actor: Any) -> str:
    """The name itself. Raises: BadArgument for what is none."""
    return _text(actor, "actor")


def check_span(value: Any, field: str, kind: type[HwqueueError] = BadArgument, where: str = "") -> None:
    """Refuse what is no span, a plain number above all: 5 what? None passes.

    Args:
        where: What the message begins with, such as `task 'draw': `.

    Raises: `kind`.
    """
    if value is not None and not isinstance(value, timedelta):
        shown = value if isinstance(value, int | float) and not isinstance(value, bool) else 5
        raise kind(
            f"{where}{field} must be a timedelta, such as timedelta(seconds={shown}), not {_shown(value)}",
            detail={"field": field},
            hint=f"pass {field} as a timedelta: a plain number has no unit",
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refused(field: str, value: object, sql_type: str) -> BadArgument:
    wanted = _WANTED[sql_type]
    return BadArgument(
        f"{field} must be {wanted}, got {_shown(value)}",
        detail={"field": field},
        hint=f"pass {field} as {wanted}",
    )


def _uuid(value: Any, field: str) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise _refused(field, value, "uuid") from None


# Workers send many ids and tokens that are as they should be: one look at all of their types, not
# a call and a name for each.


def _are_uuids(values: list[Any]) -> bool:
    return set(map(type, values)) == {UUID}


def _are_bigints(values: list[Any]) -> bool:
    if not values or set(map(type, values)) != {int}:
        return False
    return _fits(min(values), 63) and _fits(max(values), 63)


def _uuids(value: Any, field: str) -> list[UUID]:
    if isinstance(value, list) and _are_uuids(value):
        return value
    return [_uuid(member, each) for member, each in _members(value, field, "uuid[]")]


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise _refused(field, value, "text")
    check_text(value, field)
    return value


def _texts(value: Any, field: str) -> list[str]:
    return [_text(member, each) for member, each in _members(value, field, "text[]")]


def _members(value: Any, field: str, sql_type: str) -> Iterator[tuple[Any, str]]:
    """The members of a list, each with its name."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _refused(field, value, sql_type)
    return ((member, f"{field}[{index}]") for index, member in enumerate(value))


def _checked(sql_type: str, fits: Callable[[Any], bool], make: type) -> Callable[[Any, str], Any]:
    def encode(value: Any, field: str) -> Any:
        if not fits(value):
            raise _refused(field, value, sql_type)
        return make(value)

    return encode


_bigint = _checked("bigint", lambda value: _fits(value, 63), int)


def _bigints(value: Any, field: str) -> list[Int8]:
    # Int8: small numbers would go as smallint[], which is not taken for bigint[]
    if isinstance(value, list) and _are_bigints(value):
        return [Int8(member) for member in value]
    return [Int8(_bigint(member, each)) for member, each in _members(value, field, "bigint[]")]


def _fits(value: Any, bits: int) -> bool:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return is_int and -(1 << bits) <= value < 1 << bits


def _interval(value: Any, field: str) -> timedelta:
    check_span(value, field)
    span: timedelta = value
    return span


def _time(value: Any, field: str) -> datetime:
    if not isinstance(value, datetime):
        raise _refused(field, value, "timestamp with time zone")
    return aware(value, field)


def _times(value: Any, field: str) -> list[datetime]:
    return [_time(member, each) for member, each in _members(value, field, "timestamp with time zone[]")]


_ENCODERS: Mapping[str, Callable[[Any, str], Any]] = {
    "uuid": _uuid,
    "uuid[]": _uuids,
    "text": _text,
    "text[]": _texts,
    "boolean": _checked("boolean", lambda value: isinstance(value, bool), bool),
    "integer": _checked("integer", lambda value: _fits(value, 31), int),
    "bigint": _bigint,
    "bigint[]": _bigints,
    "interval": _interval,
    "timestamp with time zone": _time,
    "timestamp with time zone[]": _times,
    "bytea": _checked("bytea", lambda value: isinstance(value, bytes), bytes),
    "jsonb": jsonb,
}
