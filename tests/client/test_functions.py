"""The table of calls, and how durations are spelled, are the same here and in the database."""

from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwqueue.calls import CALLS
from hwqueue.statements import column_types
from hwqueue.text import duration, plural

_READ_AS = ("jsonb", "uuid", "uuid[]", "bytea", "timestamp with time zone", "interval", "double precision")
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


SECOND = timedelta(seconds=1)
TABLE = [
    *(timedelta(seconds=each) for each in (-90, -0.1, 0, 0.04, 0.05, 0.34, 0.95, 4.25, 12.34)),
    *(timedelta(seconds=each) for each in (59.94, 59.95, 59.999999, 60, 61, 3599.999999, 3600)),
    *(timedelta(seconds=each) for each in (7199, 7260, 86_399.999999, 86_400, 90_000, 187_199)),
    *(timedelta(days=each) for each in (30, 31, 365, 366, 36_500)),
]


def _by_database(conn: psycopg.Connection, spans: list[timedelta]) -> list[str]:
    rows = conn.execute(
        "select hwqueue.span_words(s) from unnest(%s::interval[]) with ordinality t (s, n) order by n",
        [spans],
    )
    return [row[0] for row in rows]


def test_a_duration_is_spelled_as_in_sql(conn: psycopg.Connection) -> None:
    assert [duration(span) for span in TABLE] == _by_database(conn, TABLE)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the database is only read
)
@given(
    st.lists(
        st.timedeltas(-SECOND, 90 * SECOND) | st.timedeltas(-SECOND, timedelta(days=10_000)), min_size=10
    )
)
def test_any_duration_is_spelled_as_in_sql(conn: psycopg.Connection, spans: list[timedelta]) -> None:
    assert [duration(span) for span in spans] == _by_database(conn, spans)


def test_a_count_has_its_noun_as_in_sql(conn: psycopg.Connection) -> None:
    for count in (0, 1, 2, 999):
        row = conn.execute("select hwqueue.count_words(%s, 'class', 'classes')", [count]).fetchone()
        assert row == (plural(count, "class", "classes"),)
