"""Functions and operators that somebody else left in schema public, for an upgrade to run.

Postgres takes the candidate whose argument types fit best, wherever in the search_path it is. So
one that is exact beats a built-in one that is polymorphic or needs an implicit cast, although
pg_catalog comes first. What can be planted follows from the catalog: of every built-in function
and operator whose name occurs in the scripts, every combination of exact types that it takes.
"""

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, product
from pathlib import Path

import psycopg
from psycopg import sql

import hwqueue
from hwqueue.schema.files import MIGRATIONS_DIR, SQL_DIR

_PACKAGE = Path(hwqueue.__file__).parent
# What SQLAlchemy and psycopg ask of a new connection on their own.
_DRIVERS = (
    "sqlalchemy.dialects.postgresql.base",
    "sqlalchemy.dialects.postgresql.psycopg",
    "psycopg._typeinfo",
)
_TYPES = (
    *("text", "name", '"char"', "boolean", "smallint", "integer", "bigint", "oid", "numeric"),
    *("double precision", "uuid", "json", "jsonb", "bytea", "interval", "timestamp with time zone"),
    *("xid8", "pg_snapshot", "regclass", "regnamespace"),
)
_ELEMENTS = {"anyelement", "anynonarray", "anycompatible", "anycompatiblenonarray", '"any"'}
_ARRAYS = {"anyarray", "anycompatiblearray"}
_MOST = 60  # combinations of exact types of one built-in signature that is not polymorphic

# The value of a sequence is not taken back with the transaction: what ran shows in any case.
_BODY = (
    "begin perform pg_catalog.nextval('public.planted_ran');"
    " raise exception 'planted % ran as %', {}, current_user; end"
)
_SIGNATURES = """
  select p.proname::text, array(select pg_catalog.format_type(a, null)
           from pg_catalog.unnest(p.proargtypes) with ordinality u(a, n) order by n)::text[],
         pg_catalog.format_type(p.prorettype, null), p.proretset, p.provariadic <> 0
  from pg_catalog.pg_proc p
  where p.pronamespace = 'pg_catalog'::regnamespace and p.proname::text = any (%s)
    and pg_catalog.format_type(p.prorettype, null) not like '%%handler'
    and p.prorettype <> 'cstring'::regtype  -- no PL/pgSQL function returns that
    and p.prokind in ('f', 'a') and p.pronargs between 1 and 4
  order by 1, 2
"""
_OPERATORS = """
  select o.oprname::text, array[pg_catalog.format_type(o.oprleft, null),
           pg_catalog.format_type(o.oprright, null)]::text[],
         pg_catalog.format_type(o.oprresult, null)
  from pg_catalog.pg_operator o
  where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprname::text = any (%s)
    and o.oprleft <> 0
  order by 1, 2
"""
_IMPLICIT = """
  select pg_catalog.format_type(c.casttarget, null), pg_catalog.format_type(c.castsource, null)
  from pg_catalog.pg_cast c where c.castcontext = 'i'
"""


@dataclass
class Plants:
    """A script that makes them, and how many there are."""

    script: str
    functions: int
    operators: int


@dataclass
class _Exact:
    """What an argument of a built-in function takes without a better candidate in sight."""

    implicit: dict[str, list[str]] = field(default_factory=dict)

    def of(self, kind: str, element: str) -> list[str]:
        if kind in _ELEMENTS:
            return [element]
        if kind in _ARRAYS:
            return [f"{element}[]"]
        return [kind, *(k for k in self.implicit.get(kind, []) if k in _TYPES)]

    def combinations(self, kinds: list[str], result: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """Exact types of the arguments, each with a type of the result that goes with them."""
        polymorphic = {*kinds, result} & (_ELEMENTS | _ARRAYS)
        for element in _TYPES if polymorphic else ["text"]:
            [returned] = self.of(result, element) if result in polymorphic else [result]
            chosen = product(*(self.of(kind, element) for kind in kinds))
            for exact in islice(chosen, _MOST):
                yield exact, returned


@cache
def _texts() -> str:
    files = [*SQL_DIR.rglob("*.sql"), *MIGRATIONS_DIR.rglob("*.sql"), *_PACKAGE.rglob("*.sql")]
    files += _PACKAGE.rglob("*.py")
    files += [Path(str(importlib.import_module(name).__file__)) for name in _DRIVERS]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def plants(connection: psycopg.Connection) -> Plants:
    """What can be planted on this server; nothing is made yet."""
    words = sorted(set(re.findall(r"\b([a-z_0-9]+)\s*\(", _texts())))
    marks = sorted(set(re.findall(r"[-+*/<>=~!@#%^&|`?]+", _texts())))
    exact = _Exact()
    for target, source in connection.execute(_IMPLICIT):
        exact.implicit.setdefault(target, []).append(source)
    functions: dict[tuple[str, tuple[str, ...]], tuple[str, bool]] = {}
    for name, kinds, result, returns_set, is_variadic in connection.execute(_SIGNATURES, [words]):
        longer = [kinds + kinds[-1:] * more for more in range(3)] if is_variadic else [kinds]
        for arguments in longer:
            for chosen, returned in exact.combinations(arguments, result):
                functions.setdefault((name, chosen), (returned, returns_set))
    operators: dict[tuple[str, tuple[str, ...]], str] = {}
    for name, kinds, result in connection.execute(_OPERATORS, [marks]):
        for chosen, returned in exact.combinations(kinds, result):
            operators.setdefault((name, chosen), returned)
    made = ["create sequence public.planted_ran minvalue 0 start 0;", "select nextval('public.planted_ran');"]
    for (name, chosen), (returned, returns_set) in functions.items():
        made.append(_function(name, chosen, f"setof {returned}" if returns_set else returned))
    for number, ((name, chosen), returned) in enumerate(operators.items()):
        made.append(_function(f"planted_{number}", chosen, returned, said=name))
        made.append(
            f"create operator public.{name} (leftarg = {chosen[0]}, rightarg = {chosen[1]},"
            f" function = public.planted_{number});"
        )
    return Plants("\n".join(made), len(functions), len(operators))


def plant(dsn: str) -> Plants:
    """Leave them in the database, and put them before what is built in, too."""
    with psycopg.connect(dsn) as connection:
        found = plants(connection)
        connection.execute("set local client_min_messages = error")
        connection.execute(found.script.encode())
    come_first(dsn)
    return found


def come_first(dsn: str) -> None:
    """Put what is in the database before what is built in; a copy of it does not have that."""
    with psycopg.connect(dsn) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("alter database {} set search_path = public, pg_catalog").format(name))


def times_run(dsn: str) -> int:
    """How many calls there were of anything planted, in transactions that failed, too."""
    with psycopg.connect(dsn, options="-c search_path=pg_catalog") as connection:
        row = connection.execute("select last_value from public.planted_ran").fetchone()
    assert row is not None
    return int(row[0])


def _function(name: str, arguments: tuple[str, ...], result: str, said: str | None = None) -> str:
    label = f"{said or name}({', '.join(arguments)})".replace("'", "''")
    body = _BODY.format(f"'{label}'").replace("'", "''")
    return (
        f'create function public."{name}"({", ".join(arguments)}) returns {result}'
        f" language plpgsql as '{body}';"
    )
