"""The script that installs, the functions that it applies, and roles that databases share."""

from pathlib import Path

import psycopg
import pytest

from hwqueue.embedded.binaries import MAJOR
from hwqueue.schema import check, install_script, upgrade
from hwqueue.schema.bundle import ROLES, load_bundle
from hwqueue.schema.drift import compare
from hwqueue.schema.files import SQL_DIR
from hwqueue.schema.session import databases_sharing
from tests.fix_db import strict_skip
from tests.migrations.conftest import catalog_of
from tests.migrations.programs import run_psql
from tests.migrations.snapshot import SNAPSHOT, snapshot_of

ALL_OR_NOTHING = ("-1", "-v", "ON_ERROR_STOP=1")


def test_the_script_installs_the_same(empty_dsn: str, dsn: str) -> None:
    run = run_psql(empty_dsn, install_script(), *ALL_OR_NOTHING)
    assert run.returncode == 0, run.stderr
    assert compare(catalog_of(dsn), catalog_of(empty_dsn)) == ()
    assert check(empty_dsn).ok


def test_the_script_without_roles(empty_dsn: str) -> None:
    run = run_psql(empty_dsn, install_script(roles=False), *ALL_OR_NOTHING)
    assert run.returncode == 0, run.stderr
    report = check(empty_dsn)
    assert report.ok
    assert report.installed is not None
    assert not report.installed.roles_installed


def test_the_script_is_for_a_fresh_install(dsn: str) -> None:
    script = install_script()
    assert "for a database that has none yet" in script.splitlines()[0]
    before = catalog_of(dsn)
    run = run_psql(dsn, script, *ALL_OR_NOTHING)
    assert run.returncode != 0
    assert "hwqueue is installed in this database already" in run.stderr
    assert "hwqueue db upgrade" in run.stderr
    assert catalog_of(dsn) == before


def test_the_script_is_all_or_nothing(empty_dsn: str) -> None:
    run = run_psql(empty_dsn, install_script() + "\nselect 1 / 0;", *ALL_OR_NOTHING)
    assert "division by zero" in run.stderr
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("select to_regnamespace('hwqueue')").fetchone() == (None,)


def test_the_snapshot_is_current(dsn: str) -> None:
    """If not: run `make snapshot` and commit what changed."""
    with psycopg.connect(dsn) as connection:
        major = connection.info.server_version // 10000
    if major != int(MAJOR):
        # Not an error in strict mode: each major version dumps in its own words.
        pytest.skip(f"the snapshot is dumped from Postgres {MAJOR}, this server is {major}")
    assert snapshot_of(dsn) == Path(SQL_DIR / SNAPSHOT).read_text(encoding="utf-8")


def test_every_body_passes_the_check_that_an_upgrade_leaves_out(dsn: str) -> None:
    """Modules are applied with check_function_bodies off, so that their order does not matter."""
    with psycopg.connect(dsn) as connection, connection.transaction(force_rollback=True):
        connection.execute("set local check_function_bodies = on")
        for text in load_bundle().files.values():
            connection.execute(text.encode())
        with pytest.raises(psycopg.errors.UndefinedFunction):
            connection.execute("create function hwqueue.f() returns int language sql as 'select hwqueue.g()'")


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


def shared_with(dsn: str) -> list[str]:
    """The databases that an upgrade of this one tells of; those of other tests may be there."""
    with psycopg.connect(dsn) as connection:
        return databases_sharing(connection, ROLES)


def test_another_database_with_the_schema_is_told(dsn: str, another_dsn: str) -> None:
    [warning] = upgrade(another_dsn).warnings
    assert "roles belong to the whole server" in warning
    assert "revoke connect on database" in warning


def test_one_that_is_closed_to_others_is_not(dsn: str, empty_dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = connection.info.dbname
        assert name not in shared_with(dsn)
        assert name in shared_with(empty_dsn)
        connection.execute(f"revoke connect on database {name} from public".encode())
    assert name not in shared_with(empty_dsn)
