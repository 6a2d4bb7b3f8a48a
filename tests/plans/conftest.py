"""One database with large tables for all guards of a file."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_db import fresh_database
from tests.plans.backlog import fill
from tests.sql.api import Api

# Moving a low-water mark costs pages, and which claim does it is left to chance; the look for due
# leases goes by the clock.
MARKS_STAY = """
  create or replace function hwqueue.should_advance_low_water(p_qty int) returns boolean
  language sql volatile as $$ select false $$
"""
NO_DUE_LOOKS = """
  create or replace function hwqueue.promote_if_due(p_queues text[], p_queue_ids int[], p_limit int,
                                                  p_folds boolean, p_now timestamptz) returns int
  language sql volatile as $$ select null::int $$
"""

# An analyze in the middle of a test would have plans made again, and their pages counted.
NO_AUTOVACUUM = """
  do $$
  declare
    v_table regclass;
  begin
    for v_table in
      select c.oid from pg_class c
      where c.relnamespace = 'hwqueue'::regnamespace and c.relkind = 'r'
    loop
      execute format('alter table %s set (autovacuum_enabled = off)', v_table);
    end loop;
  end
  $$
"""


def leave_alone(conn: psycopg.Connection) -> None:
    """Let nothing happen in a filled database but what its test does."""
    for command in (MARKS_STAY, NO_DUE_LOOKS, NO_AUTOVACUUM, "vacuum analyze"):
        conn.execute(command)


@pytest.fixture(scope="session")
def filled(server_dsn: str, template: str) -> Iterator[str]:
    """The name of a migrated database with much going on in it: to copy it takes a moment."""
    with fresh_database(server_dsn, template) as made:
        with psycopg.connect(made, autocommit=True) as conn:
            fill(Api(conn))
            leave_alone(conn)
        yield str(conninfo_to_dict(made)["dbname"])


@pytest.fixture(scope="module")
def database(server_dsn: str, filled: str) -> Iterator[str]:
    """A copy of it for the guards of one file."""
    with fresh_database(server_dsn, filled) as made:
        yield made


@pytest.fixture
def fresh(server_dsn: str, template: str) -> Iterator[str]:
    """A migrated database of the test's own, with nothing in it, which nobody analyzes meanwhile."""
    with fresh_database(server_dsn, template) as made:
        with psycopg.connect(made) as conn:
            conn.execute(NO_AUTOVACUUM)
        yield made


@pytest.fixture
def dsn(request: pytest.FixtureRequest) -> str:
    """The file's database; the test's own where a test or its file is marked with `fresh`."""
    name = "fresh" if "fresh" in request.fixturenames else "database"
    return str(request.getfixturevalue(name))


@pytest.fixture
def api(conn: psycopg.Connection) -> Api:
    """The SQL functions on the file's database."""
    return Api(conn)


@pytest.fixture
def old_snapshot(dsn: str) -> Iterator[None]:
    """Somebody who began to read before the test, and still does."""
    with psycopg.connect(dsn) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from hwqueue.queue")
        yield
