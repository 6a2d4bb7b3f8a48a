"""The text of calls of SQL functions, for psycopg and for the connections of callers.

Functions are called by argument name and asked for the columns by name, so that a newer schema may
add arguments and columns without breaking a client.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import UnionType

from hwqueue import types
from hwqueue.calls import SQL_TYPES, Call


@lru_cache(maxsize=512)
def statement(call: Call, given: tuple[str, ...]) -> str:
    """The statement that calls the function with these arguments, the others at their defaults."""
    arguments = ", ".join(f"{name} => %({name})s" for name in given)
    if call.columns:
        return f"select {', '.join(call.columns)} from hwqueue.{call.name}({arguments})"
    return f"select hwqueue.{call.name}({arguments})"


@lru_cache(maxsize=512)
def statement_of_texts(call: Call, given: tuple[str, ...]) -> str:
    """The same for connections of a caller: arguments are text, and so is all that comes.

    So nothing depends on how the driver, or the caller's connection, converts values; nor on
    settings of its session that change how the server writes times, spans, floats or bytes.
    """
    argument_types = call.arguments
    arguments = ", ".join(f"{name} => %({name})s::{_TEXT}::{_named(argument_types[name])}" for name in given)
    if not call.columns:
        value = _AS_TEXT.get(call.returns, "{}").format(f"hwqueue.{call.name}({arguments})")
        return f"select {value}"
    columns = ", ".join(
        f"{_AS_TEXT.get(sql_type, '{}').format(name)} as {name}"
        for name, sql_type in column_types(call).items()
    )
    return f"select {columns} from hwqueue.{call.name}({arguments})"


def numbered(sql: str, names: Sequence[str]) -> str:
    """A statement with the parameters `$1, $2` in this order, as asyncpg takes them."""
    for position, name in enumerate(names, 1):
        sql = sql.replace(f"%({name})s", f"${position}")
    return sql


def _named(sql_type: str) -> str:
    """A type of Postgres' own, whatever the search path of the caller's connection finds first."""
    is_name = sql_type.removesuffix("[]") in ("text", "uuid", "jsonb", "bytea")
    return f"pg_catalog.{sql_type}" if is_name else sql_type  # integer and the like are keywords


_TEXT = _named("text")
_SENT = "pg_catalog.encode(pg_catalog.{0}({{}}), 'hex')"
_AS_TEXT = {
    "jsonb": f"pg_catalog.to_jsonb({{}})::{_TEXT}",
    "uuid": f"{{}}::{_TEXT}",
    "uuid[]": f"{{}}::{_TEXT}[]",
    "bytea": "pg_catalog.encode({}, 'hex')",
    "timestamp with time zone": _SENT.format("timestamptz_send"),
    "interval": _SENT.format("interval_send"),
    "double precision": _SENT.format("float8send"),
}
_LIKE_ITSELF = (str, int, Enum)


@lru_cache(maxsize=512)
def column_types(call: Call) -> Mapping[str, str]:
    """The columns with their SQL types; `jsonb` stands for `text[]`, too.

    "" stands for texts, integers and booleans, which every driver reads alike.
    """
    # the rows of settle_and_claim are of two kinds, and have all columns of a Claim
    hints = typing.get_type_hints(call.kind or types.Claim)
    return {name: _sql_type(hints.get(name, str)) for name in call.columns}


def _sql_type(hint: typing.Any) -> str:
    """The SQL type of what a field of a row is annotated with."""
    some = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) in (UnionType, typing.Union) and len(some) == 1:
        hint = some[0]
    if typing.get_origin(hint) is typing.Literal:
        return ""
    if hint in SQL_TYPES:
        return SQL_TYPES[hint]
    return "" if isinstance(hint, type) and issubclass(hint, _LIKE_ITSELF) else "jsonb"
