"""The table of calls and the functions in the database are the same thing."""

import psycopg
import pytest

from hwqueue.calls import CALLS
from hwqueue.statements import column_types

_READ_AS = (
    "jsonb",
    "uuid",
    "uuid[]",
    "bytea",
    "timestamp with time zone",
    "interval",
    "double precision",
)
Described = dict[str, tuple[dict[str, str], int, tuple[str, ...]]]


@pytest.fixture
def described(conn: psycopg.Connection) -> Described:
    """Of each function: argument types by name, how many have a default, result columns."""
    rows = conn.execute(
        """
        select p.proname,
               -- names of result columns come after those of arguments
               (select jsonb_object_agg(a.name, format_type(a.type, null))
                from unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) a(name, type)),
               p.pronargdefaults,
               array(select a.name from unnest(p.proargnames, p.proargmodes) a(name, mode)
                     where a.mode in ('t', 'o'))
        from pg_proc p
        where p.pronamespace = 'hwqueue'::regnamespace
        """
    ).fetchall()
    return {name: (arguments or {}, defaults, tuple(columns)) for name, arguments, defaults, columns in rows}


def test_the_table_of_calls_fits_the_database(described: Described) -> None:
    for call in CALLS:
        assert call.name in described
        arguments, defaults, columns = described[call.name]
        assert (call.name, dict(call.arguments)) == (call.name, arguments)
        assert (call.name, len(call.optional)) == (call.name, defaults)
        # further columns are fine: the client names those it reads
        assert not set(call.columns) - set(columns), call.name


def test_the_types_of_columns_fit_the_database(conn: psycopg.Connection) -> None:
    """What is said in the statement that callers' connections get."""
    rows = conn.execute(
        """
        select p.proname, format_type(p.prorettype, null),
               (select jsonb_object_agg(a.name, format_type(a.type, null))
                from unnest(p.proargnames, p.proallargtypes) a(name, type))
        from pg_proc p
        where p.pronamespace = 'hwqueue'::regnamespace
        """
    ).fetchall()
    returned = {name: (result, columns) for name, result, columns in rows}
    special = {each: each for each in _READ_AS} | {"text[]": "jsonb"}
    for call in CALLS:
        result, columns = returned[call.name]
        if not call.columns:
            assert (call.name, call.returns) == (call.name, special.get(result, ""))
        for name, sql_type in column_types(call).items():
            assert (call.name, name, sql_type) == (call.name, name, special.get(columns[name], ""))
