"""JSON on its way to the database: checked here, where the path of a bad value is still known.

And on its way back: other clients may have written what Python cannot read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from hwqueue.errors import BadArgument
from hwqueue.types.base import NoSpan
from hwqueue.types.base import given as given  # noqa: PLC0414 - for those who write JSON, too

MAX_DEPTH = 200
"""Deeper nesting is refused: every reader of the payload would have to recurse as far."""

MAX_BYTES = 104_857_600
"""The largest payload limit a queue policy can set, and so the most that is worth sending."""

MAX_INTEGER_BITS = 13_000
"""Python refuses to write integers of more than 4300 digits."""


_READ_DEPTH = MAX_DEPTH + 20
"""Deeper nesting is not read: room for what is around a payload, below the 255 of pydantic."""

_ALWAYS_READ = 300
"""Bytes of JSON in which no number can be too large, and nothing nested too deep."""

_DECODER = json.JSONDecoder()
"""`json.loads` asks first which encoding bytes have; the database sends UTF-8."""

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 309
"""Digits of a number that is too large; jsonb writes no exponents."""


def read_json(data: bytes | str) -> Any:
    """JSON from the database.

    What Python cannot hold becomes text, so that one value does not keep anybody from the others:
    a number of too many digits, and as a whole what is nested more than 220 deep.
    """
    if len(data) < _ALWAYS_READ:
        return _DECODER.decode(data if isinstance(data, str) else data.decode())
    raw = data.encode() if isinstance(data, str) else data
    try:
        # a call for each number takes several times as long, so it is for where it may be needed
        if _MANY_DIGITS in raw.translate(_DIGITS):
            value = json.loads(raw, parse_int=_integer, parse_float=_float)
        else:
            value = json.loads(raw)
    except RecursionError:
        return raw.decode()
    may_be_deep = raw.count(b"[") + raw.count(b"{") > _READ_DEPTH
    return raw.decode() if may_be_deep and _is_deep(value) else value


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


def _float(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else digits


def _is_deep(value: Any) -> bool:
    level: list[dict[Any, Any] | list[Any]] = [[value]]
    for _ in range(_READ_DEPTH + 1):
        level = [
            member
            for each in level
            for member in (each.values() if isinstance(each, dict) else each)
            if type(member) in (dict, list)
        ]
        if not level:
            return False
    return True


def jsonb(value: Any, field: str) -> Jsonb:
    """The value as a parameter of type jsonb.

    Raises: BadArgument, with the path of what is not JSON (`params.a[3]`) or too large.
    """
    check_json(value, field)
    return Jsonb(value, dumps=lambda checked: _dump(checked, field))


def _dump(value: Any, field: str) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_BYTES:
        raise BadArgument(
            f"{field} has {len(text)} bytes of JSON, the limit is {MAX_BYTES}",
            detail={"field": field, "bytes": len(text), "limit": MAX_BYTES},
            hint="store large data elsewhere and pass a reference",
        )
    return text


def check_json(value: Any, path: str, depth: int = 0) -> None:
    """Refuse what JSON or Postgres cannot hold, naming its path.

    The path is put together on the way out of what was refused, so values that pass cost none.

    Args:
        depth: How deep `value` itself is nested.

    Raises: BadArgument.
    """
    try:
        _check(value, depth)
    except _NotJson as found:
        where = f"{path}{''.join(reversed(found.steps))}"
        raise _refused(where, found.what, found.hint) from None


class _NotJson(Exception):
    """What was refused, and the steps from it outwards to the value that was checked."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.steps: list[str] = []


def _check(value: Any, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise _NotJson("has too many digits", "send it as a string")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _NotJson(f"is {value}, which JSON has no word for", "use null or a string")
    elif isinstance(value, Mapping | list | tuple):
        if depth >= MAX_DEPTH:
            raise _NotJson(f"is nested more than {MAX_DEPTH} deep", "flatten it")
        _check_members(value, depth)
    else:
        raise _NotJson(
            f"is of type {type(value).__qualname__}, not JSON",
            "convert it first: dataclasses, pydantic models, datetimes, UUIDs and Decimals are not "
            "converted for you",
        )


def _check_members(value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> None:
    if not isinstance(value, Mapping):
        index = 0
        try:
            for index, member in enumerate(value):  # noqa: B007
                _check(member, depth + 1)
        except _NotJson as found:
            found.steps.append(f"[{index}]")
            raise
        return
    for key, member in value.items():
        _check_key(key)
        try:
            _check(member, depth + 1)
        except _NotJson as found:
            found.steps.append(f".{key}")
            raise


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise _NotJson(f"has the key {key!r}, which is not a string", "use string keys")
    try:
        _check_text(key)
    except _NotJson as found:
        found.steps.append(f" (key {key[:40]!r})")
        raise


def check_text(value: str, path: str) -> None:
    """Refuse the two kinds of str that Postgres text cannot hold. Raises: BadArgument."""
    try:
        _check_text(value)
    except _NotJson as found:
        raise _refused(path, found.what, found.hint) from None


def _check_text(value: str) -> None:
    if "\x00" in value:
        raise _NotJson("contains a NUL character", "remove it; binary data goes as base64")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _NotJson("contains a lone surrogate", "decode the bytes it came from properly") from None


def _refused(path: str, what: str, hint: str) -> BadArgument:
    return BadArgument(f"{path} {what}", detail={"field": path}, hint=hint)


# Members that belong to the user: never converted, so that a mistake in them is not papered over.
_PAYLOADS = frozenset({"params", "result", "error", "headers", "labels"})


def plain(value: Any, field: str) -> Any:
    """The JSON form of an API object or mapping: ids, spans and times at the top converted."""
    if hasattr(value, "as_json"):
        value = _as_json(value, field)
    if not isinstance(value, Mapping):
        return value
    return {key: _plain_member(key, member, field) for key, member in value.items()}


def _as_json(value: Any, field: str) -> Any:
    """The JSON form of an API object. Raises: BadArgument, for a span without a unit."""
    try:
        return value.as_json()
    except NoSpan as error:
        raise BadArgument(
            f"{field}: {error}", detail={"field": field}, hint="a plain number has no unit"
        ) from None


def _plain_member(key: Any, value: Any, field: str) -> Any:
    if key in _PAYLOADS:
        return value
    if hasattr(value, "as_json"):
        return _as_json(value, f"{field}.{key}")
    if key == "wire" and isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return aware(value, f"{field}.{key}").isoformat() if isinstance(value, datetime) else value


def aware(value: datetime, field: str) -> datetime:
    """The time itself. Raises: BadArgument when it has no time zone."""
    if value.utcoffset() is None:
        raise _refused(field, "is a time without a time zone", "use datetime.now(UTC) or attach a tzinfo")
    return value
