"""Installing and upgrading: the same from every start, all or nothing, and safe to repeat."""

import gzip
import importlib
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import alembic.command
import psycopg
import pytest
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg.conninfo import make_conninfo

from hwqueue.errors import ConfigError, SchemaError, SchemaTooNew, SchemaTooOld
from hwqueue.schema import check, require_compatible, upgrade
from hwqueue.schema.drift import compare
from hwqueue.schema.drop import drop
from hwqueue.schema.files import SHIPPED, Sources
from hwqueue.schema.install import alembic_config
from hwqueue.schema.state import head_revision, unknown_revision
from tests.migrations.conftest import catalog_of
from tests.migrations.make_release import fill, fill_placed
from tests.migrations.programs import dump, run_psql

SCHEMA_PAGE = Path(__file__).parents[2] / "docs" / "run" / "upgrades.md"
# Dumps with a queue named `kept`, which make_release.py writes when a release is made.
RELEASES = sorted(Path(__file__).parent.glob("releases/*.sql.gz"))
THIS_VERSION = Path("this version")


def test_revisions_are_numbered_in_their_order() -> None:
    """The newest file is the head that Alembic upgrades to."""
    scripts = ScriptDirectory.from_config(alembic_config())
    walked = [script.revision for script in scripts.walk_revisions()]
    assert walked == sorted(walked, reverse=True)
    assert walked[0] == head_revision()


def test_this_version_upgraded_equals_the_next_fresh(
    dsn: str, conn: psycopg.Connection, another_dsn: str, next_release: Sources
) -> None:
    conn.execute("select hwqueue.create_queue(p_queue => 'kept')")
    # as a version did that let producers do more
    conn.execute("grant execute on function hwqueue.reap to hwqueue_producer")
    upgrade(dsn, sources=next_release)
    upgrade(another_dsn, sources=next_release)

    fresh = catalog_of(another_dsn)
    assert compare(fresh, catalog_of(dsn)) == ()
    assert "next_answer(integer)" in fresh["function"]
    kept = conn.execute("select name, next_note from hwqueue.queue").fetchall()
    assert kept == [("kept", "none")]


@pytest.mark.parametrize("release", [THIS_VERSION, *RELEASES], ids=lambda path: path.name)
def test_a_restored_dump_upgraded_equals_a_fresh_install(empty_dsn: str, dsn: str, release: Path) -> None:
    """Of every release, and of this version as the next release will find it."""
    if release is THIS_VERSION:
        with psycopg.connect(dsn, autocommit=True) as connection:
            fill(connection)
            fill_placed(connection)
        script = dump(dsn, "--schema=hwqueue")
    else:
        script = gzip.decompress(release.read_bytes()).decode()
    # Not stopped by errors: a newer pg_dump sets settings that an older server does not know.
    run_psql(empty_dsn, script)
    assert upgrade(empty_dsn).changed == (release is not THIS_VERSION)
    assert compare(catalog_of(dsn), catalog_of(empty_dsn)) == ()
    with psycopg.connect(empty_dsn) as connection:
        assert ("kept",) in connection.execute("select name from hwqueue.queue").fetchall()
        assert connection.execute("select * from hwqueue.verify_invariants()").fetchall() == []


def test_second_upgrade_is_a_no_op(dsn: str) -> None:
    before = _row_versions(dsn)
    result = upgrade(dsn)
    assert not result.changed
    assert result.roles_installed
    assert result.note is None
    assert _row_versions(dsn) == before


def test_a_changed_function_file_is_applied(
    dsn: str, conn: psycopg.Connection, next_release: Sources
) -> None:
    upgrade(dsn, sources=next_release)
    file = next_release.sql / "api" / "next.sql"
    file.write_text(file.read_text().replace("6 * p_factor", "60 * p_factor"))
    assert upgrade(dsn, sources=next_release).changed
    assert conn.execute("select hwqueue.next_answer()").fetchone() == (420,)


def test_twenty_upgrades_at_once(empty_dsn: str) -> None:
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(upgrade, [empty_dsn] * 20))
    assert [result.changed for result in results].count(True) == 1
    assert check(empty_dsn).ok


def test_a_failing_upgrade_changes_nothing(dsn: str, next_release: Sources) -> None:
    (next_release.sql / "api" / "next.sql").write_text("create or replace function hwqueue.broken(")
    before = catalog_of(dsn)
    with pytest.raises(psycopg.errors.SyntaxError):
        upgrade(dsn, sources=next_release)
    assert catalog_of(dsn) == before
    assert check(dsn).ok


def test_a_view_on_top_of_ours_stops_the_upgrade(
    dsn: str, conn: psycopg.Connection, next_release: Sources
) -> None:
    upgrade(dsn, sources=next_release)
    conn.execute("create view public.mine as select * from hwqueue.next_view")
    file = next_release.sql / "api" / "next.sql"
    file.write_text(file.read_text() + "-- changed")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="next_view"):
        upgrade(dsn, sources=next_release)
    assert conn.execute("select to_regclass('public.mine')::text").fetchone() == ("mine",)


@pytest.mark.slow
def test_a_long_transaction_makes_the_upgrade_give_up(dsn: str, next_release: Sources) -> None:
    with psycopg.connect(dsn) as reader:
        reader.execute("select from hwqueue.queue")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            upgrade(dsn, sources=next_release)
    assert upgrade(dsn, sources=next_release).changed


def test_only_the_newest_revision_is_a_target(empty_dsn: str, next_release: Sources) -> None:
    config = alembic_config(next_release)
    config.attributes.update(sources=next_release, roles=True)
    older = head_revision(SHIPPED)
    with pytest.raises(CommandError, match="only be upgraded to its newest revision, 9999_next"):
        alembic.command.upgrade(config, older, sql=True)


def test_nobody_goes_back(dsn: str, conn: psycopg.Connection, next_release: Sources) -> None:
    upgrade(dsn, sources=next_release)
    conn.execute("update hwqueue.schema_info set package_version = '99.1.0'")
    before = catalog_of(dsn)
    with pytest.raises(SchemaTooNew, match=r"installed by hwqueue 99\.1\.0"):
        upgrade(dsn)
    assert catalog_of(dsn) == before


def test_who_may_work_with_which_schema(empty_dsn: str, conn: psycopg.Connection[tuple[object, ...]]) -> None:
    conn.execute("set role hwqueue_producer")
    require_compatible(conn)
    conn.execute("reset role")
    with psycopg.connect(empty_dsn) as empty, pytest.raises(SchemaTooOld, match="no hwqueue"):
        require_compatible(empty)

    conn.execute("update hwqueue.schema_info set bundle_sha256 = 'of another release'")
    with pytest.raises(SchemaTooOld, match="upgrade is due"):
        require_compatible(conn)
    conn.execute("update hwqueue.schema_info set package_version = '0.999.0'")
    require_compatible(conn)
    conn.execute("update hwqueue.schema_info set package_version = '99.0.0'")
    with pytest.raises(SchemaTooNew):
        require_compatible(conn)


def test_without_roles(empty_dsn: str) -> None:
    result = upgrade(empty_dsn, roles=False)
    assert result.changed
    assert not result.roles_installed
    assert result.note is None
    assert check(empty_dsn).ok
    assert not upgrade(empty_dsn, roles=False).changed
    assert _open_to_everybody(empty_dsn) == []

    later = upgrade(empty_dsn)
    assert later.changed
    assert later.roles_installed
    assert check(empty_dsn).ok


@pytest.mark.parametrize("roles", [True, False])
def test_a_function_made_anew_is_closed(empty_dsn: str, roles: bool) -> None:
    """Postgres opens it to everybody; it runs with its owner's rights."""
    upgrade(empty_dsn, roles=roles)
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("drop function hwqueue.prune(int, interval)")
        connection.execute("grant usage on schema hwqueue to public")
        connection.execute("update hwqueue.schema_info set bundle_sha256 = 'of another release'")
    assert upgrade(empty_dsn, roles=roles).changed
    assert _open_to_everybody(empty_dsn) == []
    assert check(empty_dsn).ok


def test_roles_once_installed_are_not_left_out(dsn: str) -> None:
    before = catalog_of(dsn)
    with pytest.raises(ConfigError, match="installed with roles") as caught:
        upgrade(dsn, roles=False)
    assert caught.value.hint == "leave out --no-roles"
    assert catalog_of(dsn) == before
    installed = check(dsn).installed
    assert installed is not None
    assert installed.roles_installed


def test_roles_lost_with_the_server_are_asked_for(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump restored on a server that lacks the roles, by a user who may not create them."""
    monkeypatch.setattr("hwqueue.schema.session.Standing.may_use_roles", False)
    with pytest.raises(ConfigError, match="this server does not have") as caught:
        upgrade(dsn)
    assert "hwqueue_producer" in (caught.value.hint or "")


def test_errors_of_the_driver_come_unwrapped(dsn: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        upgrade(make_conninfo(dsn, dbname="hwqueue_test_no_such_database"))


@pytest.fixture
def before_release(dsn: str) -> str:
    """A database of a version from before the first release, with leases in it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill(connection)
        connection.execute("update hwqueue.alembic_version set version_num = '0018_remembered'")
        connection.execute(
            "update hwqueue.schema_info set revision = '0018_remembered', bundle_sha256 = 'old'"
        )
    return dsn


def test_a_revision_from_before_the_first_release_is_refused(before_release: str) -> None:
    """Such a database can neither be upgraded nor used; nothing in it is changed."""
    before = dump(before_release, "--schema=hwqueue").splitlines()
    with pytest.raises(SchemaTooNew, match="0018_remembered, from before the first") as caught:
        upgrade(before_release)
    report = check(before_release)
    assert (report.known, report.current, report.ok) == (False, False, False)
    with (
        psycopg.connect(before_release) as connection,
        pytest.raises(SchemaTooNew, match="nothing was changed") as at_start,
    ):
        require_compatible(connection)
    after = dump(before_release, "--schema=hwqueue").splitlines()
    assert [line for line in after if "restrict" not in line] == [
        line for line in before if "restrict" not in line
    ]
    assert str(at_start.value) == str(caught.value)
    assert at_start.value.hint == caught.value.hint
    for way in ("alter schema hwqueue rename to hwqueue_before", "db drop", "HWQUEUE_DATA_DIR"):
        assert way in (caught.value.hint or "")


def test_leases_from_before_the_first_release_are_kept_beside_the_new_ones(before_release: str) -> None:
    """As the hint and docs/run/upgrades.md have it."""
    if not SCHEMA_PAGE.exists():
        pytest.skip("no checkout")
    again = re.search(r"```sql\n(select .*?hwqueue_before.*?)```", SCHEMA_PAGE.read_text(), re.S)
    assert again
    with psycopg.connect(before_release, autocommit=True) as connection:
        [open_leases] = connection.execute(
            "select count(*) from hwqueue.lease l where not exists "
            "(select from hwqueue.outcome o where o.lease_id = l.lease_id)"
        ).fetchone() or (0,)
        connection.execute("alter schema hwqueue rename to hwqueue_before")
        assert upgrade(before_release).changed
        assert check(before_release).ok
        for statement in again[1].split(";"):
            connection.execute(statement.encode())
        leases = connection.execute("select count(*) from hwqueue.lease").fetchone()
        assert leases == (open_leases,)
        assert open_leases > 5
        broken = connection.execute("select * from hwqueue.verify_invariants()").fetchall()
        assert broken == []
    assert drop(before_release, patience=timedelta(0))
    with psycopg.connect(before_release) as connection:
        kept = connection.execute("select count(*) > %s from hwqueue_before.lease", [open_leases])
        assert kept.fetchone() == (True,)


def test_a_revision_of_a_later_release_asks_for_that_release(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("update hwqueue.schema_info set revision = '0002_later', package_version = '0.9.0'")
    installed = check(dsn).installed
    assert installed
    told = unknown_revision(installed)
    assert "0002_later, of hwqueue 0.9.0" in str(told)
    assert told.hint == "upgrade the package: pip install 'hwqueue>=0.9.0'"


def test_the_tables_of_a_later_minor_version_can_be_used(
    conn: psycopg.Connection[tuple[object, ...]],
) -> None:
    """Its calls stay callable, whatever its revision is."""
    conn.execute("update hwqueue.schema_info set revision = '0002_later', package_version = '0.999.0'")
    require_compatible(conn)


def test_alembics_version_alone_is_from_elsewhere(
    dsn: str, conn: psycopg.Connection, next_release: Sources
) -> None:
    conn.execute("update hwqueue.alembic_version set version_num = 'from_elsewhere'")
    before = catalog_of(dsn)
    with pytest.raises(SchemaTooNew, match="from_elsewhere") as caught:
        upgrade(dsn, sources=next_release)
    assert "alembic_version" in (caught.value.hint or "")
    assert catalog_of(dsn) == before


def test_a_version_that_is_none(dsn: str, conn: psycopg.Connection[tuple[object, ...]]) -> None:
    conn.execute("update hwqueue.schema_info set package_version = 'the good one'")
    with pytest.raises(SchemaError, match="'the good one'"):
        upgrade(dsn)
    with pytest.raises(SchemaError, match="'the good one'"):
        require_compatible(conn)


def test_an_installer_who_may_not_create_roles(
    server_dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goes on without them, says what to do, and picks them up once they are there."""
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(
            "do $$ begin create role hwqueue_test_installer;"
            " exception when duplicate_object or unique_violation then null; end $$"
        )
    with psycopg.connect(empty_dsn) as admin:
        name = admin.info.dbname
        admin.execute(f'grant create on database "{name}" to hwqueue_test_installer'.encode())
    as_installer = make_conninfo(empty_dsn, options="-c role=hwqueue_test_installer")
    # The roles belong to the whole server and other tests use them: look for other ones.
    module = importlib.import_module("hwqueue.schema.install")
    monkeypatch.setattr(module, "ROLES", ("hwqueue_test_no_such_role",))

    result = upgrade(as_installer)
    assert result.changed
    assert not result.roles_installed
    assert result.note is not None
    assert "hwqueue db upgrade" in result.note
    assert check(as_installer).ok

    monkeypatch.undo()
    later = upgrade(as_installer)
    assert later.roles_installed
    assert later.note is None
    assert check(as_installer).ok


def _open_to_everybody(dsn: str) -> list[tuple[object, ...]]:
    """Functions that PUBLIC may call, and the schema if PUBLIC may use it."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "select proname from pg_proc where pronamespace = 'hwqueue'::regnamespace"
            " and has_function_privilege('public', oid, 'execute')"
            " union all"
            " select 'hwqueue' where has_schema_privilege('public', 'hwqueue', 'usage')"
        ).fetchall()


def _row_versions(dsn: str) -> list[tuple[object, ...]]:
    """Which transaction wrote each catalog row of the schema, and what it installed."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "select oid, xmin::text from pg_proc where pronamespace = 'hwqueue'::regnamespace"
            " union all"
            " select oid, xmin::text from pg_class where relnamespace = 'hwqueue'::regnamespace"
            " union all"
            " select tableoid, xmin::text from hwqueue.schema_info"
            " order by 1, 2"
        ).fetchall()
