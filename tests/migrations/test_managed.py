"""Everything runs on a managed Postgres: no superuser, no extension, with and without roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hwqueue import Client
from hwqueue.doctor import Level, examine
from hwqueue.metrics import HwqueueCollector
from hwqueue.schema import check, upgrade
from hwqueue.schema.bundle import OWNER, ROLES
from hwqueue.types import LeaseState, NodeSpec, SpawnOptions

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
