"""Durations are spelled alike by the client's side and by the database."""

from datetime import timedelta

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwqueue.text import duration, plural

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
        st.timedeltas(-SECOND, 90 * SECOND) | st.timedeltas(-SECOND, timedelta(days=10_000)),
        min_size=10,
    )
)
def test_any_duration_is_spelled_as_in_sql(conn: psycopg.Connection, spans: list[timedelta]) -> None:
    assert [duration(span) for span in spans] == _by_database(conn, spans)


def test_a_count_has_its_noun_as_in_sql(conn: psycopg.Connection) -> None:
    for count in (0, 1, 2, 999):
        row = conn.execute("select hwqueue.count_words(%s, 'class', 'classes')", [count]).fetchone()
        assert row == (plural(count, "class", "classes"),)
