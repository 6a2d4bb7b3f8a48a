"""`hwqueue db check` finds every change made by hand, and nothing else."""

import psycopg
import pytest

from hwqueue.schema import check, upgrade
from hwqueue.schema.catalog import load_manifest
from hwqueue.schema.drift import MANIFEST, compare
from hwqueue.schema.files import SQL_DIR, Sources
from tests.migrations.conftest import catalog_of

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
