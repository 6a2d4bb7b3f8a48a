"""The other two ways to see a schema: the script of `hwqueue db sql`, and the snapshot."""

from pathlib import Path

import psycopg
import pytest

from hwqueue.embedded.binaries import MAJOR
from hwqueue.schema import check, install_script
from hwqueue.schema.bundle import load_bundle
from hwqueue.schema.drift import compare
from hwqueue.schema.files import SQL_DIR
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
