"""The script that installs, roles that databases share, and the check that finds changes by hand."""

from pathlib import Path

import psycopg
import pytest

from hwqueue.embedded.binaries import MAJOR
from hwqueue.schema import check, install_script, upgrade
from hwqueue.schema.bundle import ROLES, load_bundle
from hwqueue.schema.catalog import load_manifest
from hwqueue.schema.drift import MANIFEST, compare
from hwqueue.schema.files import SQL_DIR, Sources
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


DRIFTS = [
    ("drop index hwqueue.placement_class_anchors", "index placement_class_anchors: missing"),
    ("create index by_hand on hwqueue.queue (name)", "index by_hand: unexpected"),
    (
        "create or replace function hwqueue.clock() returns timestamptz"
        " language sql volatile parallel safe as 'select now()'",
        "function clock(): differs; body_md5",
    ),
    ("alter function hwqueue.clock() stable", "function clock(): differs; volatility is 's'"),
    (
        "alter function hwqueue.clock() security definer",
        "function clock(): differs; security_definer is True",
    ),
    ("grant execute on function hwqueue.clock() to public", "function clock(): differs; grants"),
    (
        "create function hwqueue.clock(int) returns int language sql as 'select 1';"
        " revoke all on function hwqueue.clock(int) from public",
        "function clock(integer): unexpected",
    ),
    (
        "alter table hwqueue.queue alter column name type varchar(50)",
        "column queue.name: differs; type is 'character varying(50)', not 'text'",
    ),
    (
        "alter table hwqueue.queue alter column name drop not null",
        "column queue.name: differs; not_null is False, not True",
    ),
    ("create table hwqueue.by_hand ()", "table by_hand: unexpected"),
    ("grant select on hwqueue.lease to public", "table lease: differs; grants"),
    ("alter table hwqueue.lease set (fillfactor = 11)", "table lease: differs; options"),
    ("create view hwqueue.by_hand as select 1 as one", "view by_hand: unexpected"),
    ("create type hwqueue.by_hand as enum ('a')", "type by_hand: unexpected"),
]


def test_a_fresh_install_is_clean(dsn: str) -> None:
    report = check(dsn)
    assert report.drifts == ()
    assert report.ok


def test_a_function_and_a_table_may_have_one_oid(dsn: str, conn: psycopg.Connection) -> None:
    """pg_upgrade keeps the oids of tables, and functions get new ones."""
    conn.execute("set allow_system_table_mods = on")
    conn.execute(
        "update pg_proc set oid = 'hwqueue.lease'::regclass where oid = 'hwqueue.list_tokens()'::regprocedure"
    )
    assert check(dsn).drifts == ()


@pytest.mark.parametrize(("change", "expected"), DRIFTS, ids=[change for change, _ in DRIFTS])
def test_a_change_by_hand_is_named(dsn: str, conn: psycopg.Connection, change: str, expected: str) -> None:
    conn.execute(change.encode())
    report = check(dsn)
    assert not report.ok
    assert report.current
    assert any(str(drift).startswith(expected) for drift in report.drifts), report.drifts


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("grant execute on function hwqueue.clock() to public", "function clock(): differs; grants"),
        ("grant usage on schema hwqueue to public", "schema hwqueue: differs; grants"),
        ("grant select on hwqueue.lease to public", "table lease: differs; grants"),
    ],
)
def test_what_is_open_to_everybody_is_named_without_roles(empty_dsn: str, change: str, expected: str) -> None:
    upgrade(empty_dsn, roles=False)
    with psycopg.connect(empty_dsn) as connection:
        connection.execute(change.encode())
    [drift] = check(empty_dsn).drifts
    assert str(drift).startswith(expected)


def test_a_dropped_constraint_is_named(dsn: str, conn: psycopg.Connection) -> None:
    constraint = next(iter(catalog_of(dsn)["constraint"]))
    table, name = constraint.split(".")
    conn.execute(f"alter table hwqueue.{table} drop constraint {name} cascade".encode())
    drifts = [str(drift) for drift in check(dsn).drifts]
    assert f"constraint {constraint}: missing" in drifts


def test_a_function_that_is_in_no_file_any_more_is_found(dsn: str, next_release: Sources) -> None:
    """A signature left behind because its revision forgot to drop it."""
    upgrade(dsn, sources=next_release)
    file = next_release.sql / "api" / "next.sql"
    file.write_text(file.read_text().replace("p_factor int", "p_factor bigint"))
    upgrade(dsn, sources=next_release)
    names = {drift.name for drift in check(dsn).drifts if drift.problem == "unexpected"}
    assert {"next_answer(integer)", "next_answer(bigint)"} <= names


def test_an_empty_database_is_not_current(empty_dsn: str) -> None:
    report = check(empty_dsn)
    assert report.installed is None
    assert not report.ok


def test_the_manifest_is_current(dsn: str, conn: psycopg.Connection) -> None:
    """The committed expectation is what a fresh install gives; else run `make snapshot`."""
    expected, major = load_manifest(SQL_DIR / MANIFEST)
    same_server = conn.info.server_version // 10000 == major
    ignored = set() if same_server else {"view_definition"}
    assert compare(expected, catalog_of(dsn), ignored=ignored) == ()
