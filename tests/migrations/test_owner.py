"""Whose everything in the schema is: a role that can do nothing else, however it got there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hwqueue import Client
from hwqueue.doctor import Level, examine
from hwqueue.errors import ConfigError
from hwqueue.metrics import HwqueueCollector
from hwqueue.schema import check, install_script, upgrade
from hwqueue.schema.bundle import OWNER, ROLES
from hwqueue.schema.files import SQL_DIR, Sources
from hwqueue.testing import install_clock
from hwqueue.types import LeaseState, NodeSpec, SpawnOptions
from tests.migrations.programs import dump, run_psql

_OWNERS = """
  select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'hwqueue'
  union select pg_get_userbyid(c.relowner) from pg_class c
  where c.relnamespace = 'hwqueue'::regnamespace
  union select pg_get_userbyid(p.proowner) from pg_proc p
  where p.pronamespace = 'hwqueue'::regnamespace
  union select pg_get_userbyid(t.typowner) from pg_type t
  where t.typnamespace = 'hwqueue'::regnamespace
"""


def owners(dsn: str) -> set[str]:
    """Whose anything in the schema is."""
    with psycopg.connect(dsn) as connection:
        return {name for (name,) in connection.execute(_OWNERS)}


@contextmanager
def login(dsn: str, attributes: LiteralString = "") -> Iterator[tuple[str, str]]:
    """A role that may create schemas in the database, and a connection string as that role."""
    name = f"hwqueue_test_{uuid4().hex[:12]}"
    role = sql.Identifier(name)
    with psycopg.connect(dsn, autocommit=True) as admin:
        database = sql.Identifier(admin.info.dbname)
        create = sql.SQL("create role {} login password {} " + attributes)
        admin.execute(create.format(role, name))
        admin.execute(sql.SQL("grant create on database {} to {}").format(database, role))
        try:
            yield name, make_conninfo(dsn, user=name, password=name)
        finally:
            admin.execute(sql.SQL("drop owned by {} cascade").format(role))
            admin.execute(sql.SQL("drop role {}").format(role))


def test_a_superuser_installs_for_the_owner(empty_dsn: str) -> None:
    result = upgrade(empty_dsn)
    assert result.owner == OWNER
    assert owners(empty_dsn) == {OWNER}
    with psycopg.connect(empty_dsn) as connection:
        attributes = connection.execute(
            "select rolcanlogin, rolsuper, rolcreatedb, rolcreaterole, rolbypassrls, rolreplication"
            " from pg_roles where rolname = %s",
            [OWNER],
        ).fetchone()
    assert attributes == (False,) * 6


def test_the_script_installs_for_the_owner(empty_dsn: str) -> None:
    run = run_psql(empty_dsn, install_script(), "-1", "-v", "ON_ERROR_STOP=1")
    assert run.returncode == 0, run.stderr
    assert owners(empty_dsn) == {OWNER}


def test_the_script_outside_a_transaction_is_refused(empty_dsn: str) -> None:
    """There nobody would become the owner, and each statement would commit."""
    run = run_psql(empty_dsn, install_script(), "-v", "ON_ERROR_STOP=1")
    assert "this script must run in one transaction" in run.stderr
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("select to_regnamespace('hwqueue')").fetchone() == (None,)


def test_an_upgrade_hands_all_over(empty_dsn: str, dsn: str, next_release: Sources) -> None:
    """What was there, and what the revision makes."""
    run_psql(empty_dsn, dump(dsn, "--no-owner", "--schema=hwqueue"))
    assert OWNER not in owners(empty_dsn)
    upgrade(empty_dsn, sources=next_release)
    assert owners(empty_dsn) == {OWNER}


def test_a_dump_without_owners_is_handed_over_again(empty_dsn: str, dsn: str) -> None:
    run_psql(empty_dsn, dump(dsn, "--no-owner", "--schema=hwqueue"))
    assert owners(empty_dsn) != {OWNER}
    assert upgrade(empty_dsn).changed
    assert owners(empty_dsn) == {OWNER}
    assert check(empty_dsn).ok


def test_what_belongs_to_another_is_drift(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("alter table hwqueue.lease owner to current_user")
    conn.execute("alter function hwqueue.reap(int, interval) owner to current_user")
    drifts = {str(drift).partition(";")[0] for drift in check(dsn).drifts}
    assert drifts == {"table lease: differs", "function reap(integer, interval): differs"}


def test_functions_run_as_the_owner(dsn: str) -> None:
    """And find what they need: who the server is, locks, activity, events, the clock of tests."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        clock = install_clock(connection)
        clock.freeze()
        connection.execute(
            "create function hwqueue.whoami() returns text language sql security definer"
            " as 'select current_user'"
        )
        connection.execute(f"alter function hwqueue.whoami() owner to {OWNER}".encode())
        assert connection.execute("select hwqueue.whoami()").fetchone() == (OWNER,)
    assert owners(dsn) == {OWNER}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set session authorization hwqueue_admin")
        with Client.on(connection) as client:
            client.create_queue("q")
            lease = client.spawn_lease("q", "t").lease_id
            assert client.explain_lease(lease)
            assert client.metrics()
            assert not client.verify_invariants()
            client.reap()
            client.prune()


def test_who_may_create_roles_installs_and_goes_on(empty_dsn: str) -> None:
    """No superuser: the installer becomes a member, and may call what it could as the owner."""
    with login(empty_dsn, "createrole") as (name, dsn):
        with psycopg.connect(empty_dsn) as admin:
            there = admin.execute("select 1 from pg_roles where rolname = %s", [OWNER]).fetchone()
            version = admin.info.server_version
            if there and version >= 160000:  # who made the role may grant it
                admin.execute(f"grant {OWNER} to {name} with admin option".encode())
        result = upgrade(dsn)
        assert result.owner == OWNER
        assert owners(empty_dsn) == {OWNER}
        assert not upgrade(dsn).changed
        assert check(dsn).ok
        with Client(dsn) as client:
            client.create_queue("q")
        with psycopg.connect(empty_dsn, autocommit=True) as admin:
            admin.execute("drop schema hwqueue cascade")


def test_who_owned_it_before_may_go_on(empty_dsn: str) -> None:
    """A superuser's upgrade of what somebody else installed does not lock that one out."""
    with login(empty_dsn) as (name, dsn):
        own = upgrade(dsn)
        assert own.owner == name
        assert [text for text in own.warnings if f"the rights of '{name}'" in text]
        assert owners(empty_dsn) == {name}
        assert check(dsn).ok
        with pytest.raises(ConfigError, match=f"would run what {name} has put") as caught:
            upgrade(empty_dsn)
        assert f"--from-owner {name}" in (caught.value.hint or "")
        assert owners(empty_dsn) == {name}
        later = upgrade(empty_dsn, from_owner=name)
        assert later.changed
        assert later.owner == OWNER
        assert owners(empty_dsn) == {OWNER}
        with Client(dsn) as client:
            client.create_queue("q")
        assert not upgrade(dsn).changed


def test_a_member_upgrades(dsn: str) -> None:
    """Who may not create schemas, nor roles, nor inherits anything."""
    with login(dsn, "noinherit") as (name, as_member):
        with psycopg.connect(dsn) as admin:
            admin.execute(f"revoke create on database {admin.info.dbname} from {name}".encode())
            admin.execute(f"grant {OWNER} to {name}".encode())
            admin.execute("update hwqueue.schema_info set bundle_sha256 = 'of another release'")
        result = upgrade(as_member)
        assert result.changed
        assert result.owner == OWNER
        assert owners(dsn) == {OWNER}
        assert check(as_member).ok


def test_who_is_no_member_is_told(dsn: str) -> None:
    with login(dsn) as (name, as_stranger), pytest.raises(ConfigError) as caught:
        upgrade(as_stranger)
    assert f"{name} is no member" in str(caught.value)
    assert caught.value.hint == f'grant {OWNER} to "{name}"'


def test_an_owner_that_may_do_more_is_refused(dsn: str) -> None:
    """Somebody has made it a superuser: then nothing is made to run with its rights."""
    with psycopg.connect(dsn) as connection, connection.transaction(force_rollback=True):
        connection.execute(f"alter role {OWNER} superuser".encode())
        with pytest.raises(psycopg.errors.InvalidRoleSpecification, match="more than own"):
            connection.execute((SQL_DIR / "owner.sql").read_bytes())


NODE = "00000000-0000-0000-0000-00000000000a"
STEP = {"name": "a", "task": "draw"}


@contextmanager
def master_user(dsn: str, attributes: str) -> Iterator[str]:
    """The login that comes with a managed database: it owns the database, and is no superuser."""
    name = f"hwqueue_test_{uuid4().hex[:12]}"
    role = sql.Identifier(name)
    with psycopg.connect(dsn, autocommit=True) as admin:
        database = sql.Identifier(admin.info.dbname)
        admin.execute(f"create role \"{name}\" login password '{name}' {attributes}".encode())
        admin.execute(sql.SQL("alter database {} owner to {}").format(database, role))
        try:
            yield make_conninfo(dsn, user=name, password=name)
        finally:
            admin.execute(sql.SQL("reassign owned by {} to current_user").format(role))
            admin.execute(sql.SQL("drop owned by {} cascade").format(role))
            admin.execute(sql.SQL("drop role {}").format(role))


def work(dsn: str) -> None:
    """A day of a queue: spawn, claim, fail, complete, expire, look, explain, count, clean up."""
    options: SpawnOptions = {"affinity_tags": {"gpu": True}, "max_attempts": 2}
    with Client(dsn) as client:
        client.create_queue("renders", policy={"claim_timeout": 60})
        node = client.register_node(NODE, NodeSpec(name="gpu-1", instance_id=NODE, labels={"gpu": True}))
        spawned = [client.spawn_lease("renders", "draw", {"frame": n}, **options) for n in range(2)]
        assert client.explain_lease(spawned[0].lease_id).headline
        first, second = client.claim_task(["renders"], NODE, node, qty=2)
        client.complete_lease(first.lease_id, first.claim_token, result={"drawn": True})
        client.fail_lease(second.lease_id, second.claim_token, error={"type": "Broken"})
        run = client.submit_spec({"name": "one", "queue": "renders", "steps": [STEP]})
        client.reap()
        client.prune()
        assert [found.state for found in client.step_results(run.run_id, "a")] == ["running"]
        client.cancel_workflow_run(run.run_id)
        assert client.get_lease(first.lease_id).state is LeaseState.COMPLETED
        assert client.get_lease(second.lease_id).state is LeaseState.SCHEDULED
        assert client.pending_reasons() == []
        assert client.verify_invariants() == []
    collector = HwqueueCollector(dsn, timeout=timedelta(seconds=50))
    names = {family.name: family for family in collector.collect()}
    collector.close()
    assert names["hwqueue_up"].samples[0].value == 1


@pytest.mark.parametrize("attributes", ["nosuperuser nocreaterole", "nosuperuser createrole"])
def test_a_managed_database(empty_dsn: str, attributes: str) -> None:
    with master_user(empty_dsn, attributes) as dsn:
        if "nocreaterole" in attributes:
            upgrade(dsn, roles=False)
        else:
            name = psycopg.conninfo.conninfo_to_dict(dsn)["user"]
            with psycopg.connect(empty_dsn, autocommit=True) as admin:
                for role in (OWNER, *ROLES):
                    there = admin.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone()
                    if there and admin.info.server_version >= 160000:
                        admin.execute(f'grant {role} to "{name}" with admin option'.encode())
            assert upgrade(dsn).roles_installed
        assert check(dsn).ok
        work(dsn)
        assert not upgrade(dsn, roles="nocreaterole" not in attributes).changed
        found = {finding.check: finding for finding in examine(dsn, deep=True)}
        for subject in ("schema", "drift", "login", "invariants", "workers"):
            assert found[subject].level is Level.OK, found[subject]
        with psycopg.connect(empty_dsn) as connection:
            extensions = connection.execute("select extname from pg_extension").fetchall()
        assert extensions == [("plpgsql",)]
