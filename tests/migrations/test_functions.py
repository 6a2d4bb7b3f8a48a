"""plpgsql_check reads every function against the tables it uses."""

import psycopg
import pytest

from tests.fix_db import strict_skip

# Left out: implicit casts in assignments (other_warnings), which Postgres means to be used; and
# the two messages below, where the checker cannot know that hwqueue.refuse never returns, and
# where it would rather have a function with one result.
CHECK = """
select p.oid::regprocedure::text, c.lineno, c.level, c.message
from pg_proc p
join pg_language l on l.oid = p.prolang
cross join lateral plpgsql_check_function_tb(
  p.oid, other_warnings => false, performance_warnings => false, extra_warnings => true) c
where p.pronamespace = 'hwqueue'::regnamespace and l.lanname = 'plpgsql'
  and c.message <> 'control reached end of function without RETURN'
  and c.message not like 'composite OUT variable % is not single argument'
order by 1, 2
"""
COUNT = """
select count(*)
from pg_proc p
join pg_language l on l.oid = p.prolang
where p.pronamespace = 'hwqueue'::regnamespace and l.lanname = 'plpgsql'
"""


@pytest.fixture
def checked(conn: psycopg.Connection[tuple[object, ...]]) -> psycopg.Connection[tuple[object, ...]]:
    """A connection to a database that has plpgsql_check."""
    try:
        conn.execute("create extension plpgsql_check")
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported):
        if conn.info.server_version // 10000 == 15:
            strict_skip("plpgsql_check is not installed: apt install postgresql-15-plpgsql-check")
        pytest.skip("this server does not carry plpgsql_check; the run on Postgres 15 has it")
    return conn


def test_plpgsql_check_is_clean(checked: psycopg.Connection[tuple[object, ...]]) -> None:
    assert checked.execute(COUNT).fetchone() != (0,)
    assert checked.execute(CHECK).fetchall() == []


def test_plpgsql_check_would_complain(checked: psycopg.Connection[tuple[object, ...]]) -> None:
    checked.execute(
        "create function hwqueue.broken() returns void language plpgsql"
        " as $$ begin perform no_such_column from hwqueue.queue; end $$"
    )
    found = {(name, level) for name, _, level, _ in checked.execute(CHECK)}
    assert ("hwqueue.broken()", "error") in found
