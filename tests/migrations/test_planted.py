"""What others left in a schema of the search_path is not run by whoever installs or upgrades."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from importlib import import_module

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from hwqueue import Client
from hwqueue.doctor import examine
from hwqueue.errors import ConfigError
from hwqueue.metrics.collector import HwqueueCollector
from hwqueue.schema import check, install_script, read_version, upgrade
from hwqueue.schema.bundle import OWNER
from hwqueue.schema.files import Sources
from hwqueue.schema.session import Standing, read_standing
from hwqueue.testing import install_clock
from tests.fix_db import fresh_database
from tests.migrations.planted import Plants, come_first, plant, times_run
from tests.migrations.programs import run_psql
from tests.migrations.test_owner import login

pytestmark = pytest.mark.every_variant

ALL_OR_NOTHING = ("-1", "-v", "ON_ERROR_STOP=1")


@pytest.fixture(scope="module")
def grown(server_dsn: str) -> Iterator[tuple[str, Plants]]:
    """The name of a database that is empty but for what somebody left in it, and what that is."""
    with fresh_database(server_dsn) as made:
        found = plant(made)
        yield str(conninfo_to_dict(made)["dbname"]), found


@pytest.fixture
def planted(server_dsn: str, grown: tuple[str, Plants]) -> Iterator[str]:
    with fresh_database(server_dsn, grown[0]) as made:
        come_first(made)
        yield made


@pytest.mark.parametrize(
    "statement",
    [
        "select hashtextextended('hwqueue upgrade', 0)",
        "select cardinality(array['a']::text[])",
        "select array['a'] = array['b']",
        "select 'a'::name || 'b'::text",
        "select set_config('a.b', 'c', true)",
    ],
)
def test_what_is_planted_runs_when_nothing_is_pinned(
    grown: tuple[str, Plants], planted: str, statement: str
) -> None:
    assert grown[1].functions > 2000
    assert grown[1].operators > 1000
    with psycopg.connect(planted) as connection, pytest.raises(psycopg.Error, match="planted"):
        connection.execute(statement.encode())
    assert times_run(planted) == 1


def test_a_fresh_install_runs_nothing_planted(planted: str) -> None:
    assert upgrade(planted).changed
    assert not upgrade(planted).changed
    assert check(planted).ok
    assert times_run(planted) == 0


def test_an_upgrade_runs_nothing_planted(empty_dsn: str, next_release: Sources) -> None:
    upgrade(empty_dsn)
    plant(empty_dsn)
    assert check(empty_dsn).ok
    assert upgrade(empty_dsn, sources=next_release).changed
    assert check(empty_dsn, sources=next_release).current
    assert times_run(empty_dsn) == 0


def test_the_script_runs_nothing_planted(planted: str) -> None:
    run = run_psql(planted, install_script(), *ALL_OR_NOTHING)
    assert run.returncode == 0, run.stderr
    assert check(planted).ok
    assert times_run(planted) == 0


def test_a_check_of_an_empty_database_runs_nothing_planted(planted: str) -> None:
    assert check(planted).installed is None
    assert times_run(planted) == 0


def test_clients_run_nothing_planted(dsn: str) -> None:
    """Whatever Python sends besides calls of our functions: actors, timeouts, versions."""
    plant(dsn)
    with Client(dsn, actor="ann") as client:
        client.check_schema()
        client.create_queue("q")
        client.spawn_lease("q", "t")
        assert [event.actor for event in client.list_events(limit=1)] == ["ann"]
    collector = HwqueueCollector(dsn, timeout=timedelta(seconds=50))
    assert "hwqueue_up" in {family.name for family in collector.collect()}
    collector.close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert read_version(connection) is not None
        clock = install_clock(connection)
        clock.freeze()
        before = clock.now()
        clock.advance(timedelta(days=1))
        assert clock.now() == before + timedelta(days=1)
    assert times_run(dsn) == 0


def test_the_doctor_runs_nothing_planted(dsn: str) -> None:
    """Superusers run it, in databases where others may create functions."""
    plant(dsn)
    assert {finding.check for finding in examine(dsn, deep=True)} >= {"tables", "invariants"}
    assert times_run(dsn) == 0


_IN_THE_SCHEMA = """
create schema hwqueue;
create sequence hwqueue.ran minvalue 0 start 0;
select nextval('hwqueue.ran');
create function hwqueue.note_event(text, text, jsonb) returns void language plpgsql as
  'begin perform nextval(''hwqueue.ran''); reset role; alter role {} superuser; end';
"""


def test_a_schema_that_somebody_else_made_is_refused(empty_dsn: str) -> None:
    """Its functions fit better than ours, whatever the search_path is."""
    with login(empty_dsn) as (name, as_stranger):
        with psycopg.connect(as_stranger) as connection:
            connection.execute(_IN_THE_SCHEMA.format(name).encode())
        with pytest.raises(ConfigError, match=f"the schema belongs to {name}"):
            upgrade(empty_dsn)
        with pytest.raises(psycopg.errors.DuplicateSchema, match="is not hwqueue"):
            upgrade(empty_dsn, from_owner=name)
        run = run_psql(empty_dsn, install_script(), *ALL_OR_NOTHING)
        assert "what is in it is not hwqueue" in run.stderr
        with psycopg.connect(empty_dsn) as connection:
            ran = connection.execute("select last_value from hwqueue.ran").fetchone()
            power = connection.execute("select rolsuper from pg_roles where rolname = %s", [name])
            assert (ran, power.fetchone()) == ((0,), (False,))


def test_the_script_refuses_an_empty_schema_of_somebody_else(empty_dsn: str) -> None:
    """Whoever owns the schema becomes a member of the owner's role."""
    with login(empty_dsn) as (name, as_stranger):
        with psycopg.connect(as_stranger) as connection:
            connection.execute("create schema hwqueue")
        run = run_psql(empty_dsn, install_script(), *ALL_OR_NOTHING)
        assert f"schema hwqueue belongs to {name}" in run.stderr
        with psycopg.connect(empty_dsn) as connection:
            member = connection.execute(
                "select pg_has_role(%s, oid, 'member') from pg_roles where rolname = %s", [name, OWNER]
            ).fetchone()
        assert member in (None, (False,))


_AS_INSTALLED = """
create schema hwqueue;
create sequence hwqueue.ran minvalue 0 start 0;
select nextval('hwqueue.ran');
create function hwqueue.run() returns text language plpgsql as
  'begin perform nextval(''hwqueue.ran''); return ''0001_labels''; end';
create view hwqueue.schema_info as
  select hwqueue.run() as revision, 'x' as bundle_sha256, '1.0' as package_version,
    true as roles_installed, now() as applied_at;
"""


def test_a_check_runs_nothing_of_somebody_elses(empty_dsn: str) -> None:
    with login(empty_dsn) as (name, as_stranger):
        with psycopg.connect(as_stranger) as connection:
            connection.execute(_AS_INSTALLED.encode())
        with pytest.raises(ConfigError, match=f"would run what {name} has put"):
            check(empty_dsn)
        with psycopg.connect(empty_dsn) as connection:
            assert connection.execute("select last_value from hwqueue.ran").fetchone() == (0,)
        assert not check(empty_dsn, from_owner=name).ok


@pytest.mark.parametrize("module", ["drift", "install"])
def test_a_schema_made_after_it_was_looked_for_is_refused(
    empty_dsn: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade that waits for its lock tells everybody when it goes on."""
    with login(empty_dsn) as (name, as_stranger):

        def look_too_soon(connection: psycopg.Connection, roles: Sequence[str]) -> Standing:
            standing = read_standing(connection, roles)
            with psycopg.connect(as_stranger) as stranger:
                stranger.execute(_AS_INSTALLED.encode())
            return standing

        patched = import_module(f"hwqueue.schema.{module}")
        monkeypatch.setattr(patched, "read_standing", look_too_soon)
        if module == "drift":
            assert check(empty_dsn).installed is None
        else:
            with pytest.raises(psycopg.errors.DuplicateSchema, match=f"belongs to {name}"):
                upgrade(empty_dsn)
        with psycopg.connect(empty_dsn) as connection:
            assert connection.execute("select last_value from hwqueue.ran").fetchone() == (0,)
