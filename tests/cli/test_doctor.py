"""`hwqueue doctor` on real databases: each thing that is wrong is found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from hwqueue.cli.main import app
from hwqueue.client import Client
from hwqueue.doctor import Finding, Level, examine
from hwqueue.doctor.facts import read_holders
from hwqueue.testing import install_clock
from hwqueue.types import NodeSpec
from tests.sql.logins import Logins, made_logins

pytestmark = pytest.mark.thorough

runner = CliRunner()


@pytest.fixture
def dsn(dsn: str) -> str:
    """A database with upkeep: the template that it is a copy of can be minutes old."""
    with Client(dsn) as client:
        client.reap()
        client.prune()
    return dsn


@pytest.fixture
def logins(dsn: str, conn: psycopg.Connection) -> Iterator[Logins]:
    with made_logins(dsn, conn) as made:
        yield made


def found(dsn: str, **options: Any) -> dict[str, Finding]:
    """The last thing found by each check."""
    return {finding.check: finding for finding in examine(dsn, **options)}


def login(dsn: str, logins: Logins, *roles: str) -> str:
    """A connection string that acts as a new login with these roles."""
    name = logins.role(*roles, login=True)
    return make_conninfo(dsn, options=f"-c role={name.replace(' ', chr(92) + ' ')}")


def test_a_fresh_installation_has_no_queue_and_no_worker(dsn: str) -> None:
    result = found(dsn, deep=True)
    not_well = {check for check, finding in result.items() if finding.level is not Level.OK}
    of_the_server = {"durability", "idle transactions", "login", "vacuum horizon", "connections"}
    assert not_well - of_the_server == {"queues", "workers"}
    assert result["invariants"].level is Level.OK
    assert "invariants" not in found(dsn)
    # the command prints lines or JSON
    told = runner.invoke(app, ["--dsn", dsn, "doctor"])
    assert "WARN  queues: there are none\n      -> make one: hwqueue queue create NAME\n" in told.stdout
    failed = "FAIL " in told.stdout
    assert told.exit_code == int(failed)
    report = json.loads(runner.invoke(app, ["--dsn", dsn, "--json", "doctor"]).stdout)
    assert report["ok"] is not failed
    assert {"check", "level", "message", "advice"} == set(report["findings"][0])


def test_an_installation_at_work(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("q")
        node = "00000000-0000-0000-0000-00000000000a"
        client.register_node(node, NodeSpec(name="n", instance_id=node, queues=["other"]))
        client.spawn_lease("q", "draw")
    result = found(dsn)
    for check in ("queues", "workers", "silent nodes", "reap", "prune", "affinity terms"):
        assert result[check].level is Level.OK, check
    assert result["pending leases"].level is Level.FAIL
    assert 'no live node polls queue "q"' in result["pending leases"].message


def test_time_that_nobody_used(dsn: str, conn: psycopg.Connection) -> None:
    clock = install_clock(conn)
    with Client(dsn) as client:
        client.create_queue("q")
        node = "00000000-0000-0000-0000-00000000000a"
        client.register_node(node, NodeSpec(name="n", instance_id=node))
        client.pause_queue("q")
    clock.advance(timedelta(days=1))
    result = found(dsn)
    assert "hwqueue queue resume q" in result["queues"].advice
    assert result["workers"].level is Level.FAIL
    assert result["silent nodes"].message == "1 (n) gave no sign of life"
    assert result["reap"].level is Level.FAIL
    assert result["prune"].level is Level.WARN
    assert result["drift"].level is Level.FAIL  # the clock of tests is no part of the schema


def test_a_term_that_waits_for_a_writer(dsn: str, conn: psycopg.Connection) -> None:
    with psycopg.connect(dsn) as writer, Client(dsn) as client:
        client.create_queue("q")
        writer.execute("select pg_current_xact_id()")
        place = {"require": [{"leases": {"labels": {"app": "db"}}, "away": True, "domain": "node"}]}
        client.spawn_lease("q", "draw", labels={"app": "db"}, placement=place)
        client.reap()
        client.reap()
        assert found(dsn)["affinity terms"].level is Level.WARN
        [holder] = [h for h in read_holders(conn, -1) if h.name == str(writer.info.backend_pid)]
        assert holder.writes
        assert "idle in transaction" in holder.who


def test_what_holds_back_vacuum(dsn: str, conn: psycopg.Connection) -> None:
    with psycopg.connect(dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select 1")
        names = {holder.name for holder in read_holders(conn, -1)}
        assert str(reader.info.backend_pid) in names
        assert str(reader.info.backend_pid) not in {h.name for h in read_holders(conn, 3600)}
    # a slot that nobody reads
    slot = f"hwqueue_{conn.info.backend_pid}"
    conn.execute("select pg_create_physical_replication_slot(%s)", [slot])
    try:
        assert (slot, "slot") in {(holder.name, holder.kind) for holder in read_holders(conn)}
    finally:
        conn.execute("select pg_drop_replication_slot(%s)", [slot])


def test_no_schema_and_no_database(empty_dsn: str) -> None:
    result = found(empty_dsn)
    assert result["schema"].advice == "install it: hwqueue db upgrade"
    assert "queues" not in result
    nowhere = make_conninfo(empty_dsn, dbname="no_such_database")
    assert list(found(nowhere)) == ["packages", "connection"]
    assert found(nowhere)["connection"].level is Level.FAIL
    told = runner.invoke(app, ["--dsn", empty_dsn, "doctor"])
    assert told.exit_code == 1
    assert "FAIL  schema: there is none" in told.stdout


def test_a_server_that_only_reads_and_a_schema_that_is_older_or_changed(
    dsn: str, conn: psycopg.Connection
) -> None:
    reads = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    assert list(found(reads)) == ["packages", "connection", "primary"]
    assert found(reads)["primary"].level is Level.FAIL
    conn.execute("drop index hwqueue.placement_class_anchors")
    assert "placement_class_anchors: missing" in found(dsn)["drift"].message
    conn.execute("update hwqueue.schema_info set bundle_sha256 = 'of another release'")
    assert found(dsn)["schema"].advice == "upgrade it: hwqueue db upgrade"


def test_logins_see_what_their_role_lets_them(dsn: str, logins: Logins) -> None:
    nobody = found(login(dsn, logins))
    assert "grant it a role" in nobody["schema"].advice
    worker = found(login(dsn, logins, "hwqueue_worker"))
    assert worker["login"].level is Level.OK
    assert worker["drift"].level is Level.SKIP
    assert worker["vacuum horizon"].level is Level.SKIP
    assert worker["queues and workers"].level is Level.SKIP
    operator = found(login(dsn, logins, "hwqueue_operator"), deep=True)
    assert operator["invariants"].level is Level.OK


def test_a_login_that_may_not_list_nodes_lists_leases(dsn: str, logins: Logins) -> None:
    """A bound login has neither nodes nor explanations."""
    with Client(dsn) as client:
        client.create_queue("renders")
        lease = client.spawn_lease("renders", "draw").lease_id
    for command in (["lease", "list"], ["lease", "show", str(lease)]):
        result = runner.invoke(app, ["--dsn", login(dsn, logins, "hwqueue_tenants"), *command])
        assert result.exit_code == 0, result.output
        assert "draw" in result.output
