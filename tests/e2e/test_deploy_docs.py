"""What the pages about deployment say is done here: a pooler, Alembic, taking it all away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import MetaData, create_engine
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from benchmarks.core import pooler
from hwqueue import Client
from hwqueue.cli.main import app
from hwqueue.doctor import Level, examine
from hwqueue.schema import upgrade
from tests.fix_db import strict_skip
from tests.shell_lines import part

ROOT = Path(__file__).parents[2]
runner = CliRunner()
PAGES = ROOT / "docs" / "run"
ALEMBIC = "Beside your own Alembic migrations"


def blocks(page: str, heading: str, language: str) -> list[str]:
    """The blocks below a heading of a page in a language."""
    text = part(PAGES / f"{page}.md", heading)
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


@pytest.fixture
def bouncer(dsn: str) -> Iterator[str]:
    """The test's database through PgBouncer, as deploy/pgbouncer/pgbouncer.ini has it."""
    if pooler.installed() is None:
        strict_skip("pgbouncer is not installed: apt-get install pgbouncer")
    port = pooler.free_port()
    text = (ROOT / "deploy" / "pgbouncer" / "pgbouncer.ini").read_text(encoding="utf-8")
    # what is of the place: where it listens, whom it knows, certificates
    database = f"{pooler.server_of(dsn)} dbname={conninfo_to_dict(dsn)['dbname']}"
    text = re.sub(r"^app = .*$", f"app = {database}", text, flags=re.M)
    text = re.sub(r"^listen_port = .*$", f"listen_port = {port}\nunix_socket_dir =", text, flags=re.M)
    text = re.sub(r"^auth_type = .*$", "auth_type = any", text, flags=re.M)
    text = re.sub(r"^(auth_file|server_tls_\w+) = .*\n", "", text, flags=re.M)
    with pooler.running(text, port):
        yield make_conninfo("", host="127.0.0.1", port=port, dbname="app", user="any")


def test_the_pooler_of_deploy_serves_all_but_listen(bouncer: str) -> None:
    with Client(bouncer) as client:
        client.create_queue("renders")
        assert client.spawn_lease("renders", "draw").created
        client.reap()  # this database was made long ago: it is a copy of a template
        client.prune()
    found = {finding.check: finding for finding in examine(bouncer, deep=True)}
    assert found["notifications"].level is Level.WARN
    assert "--listen" in found["notifications"].advice
    for subject in ("schema", "drift", "reap", "prune", "invariants"):
        assert found[subject].level is Level.OK, found[subject]


@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_autogenerate_leaves_our_tables_alone(dsn: str) -> None:
    [env] = [block for block in blocks("upgrades", ALEMBIC, "python") if "def include_name" in block]
    names: dict[str, Any] = {}
    exec(env.partition("\n\n\n")[0], names)
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=NullPool)
    with engine.connect() as connection:
        for options, clean in (({}, False), ({"include_name": names["include_name"]}, True)):
            context = MigrationContext.configure(
                connection, opts={"include_schemas": True, "compare_type": False, **options}
            )
            assert (compare_metadata(context, MetaData()) == []) is clean


def test_a_revision_of_your_own_calls_our_functions(conn: psycopg.Connection) -> None:
    [revision] = [block for block in blocks("upgrades", ALEMBIC, "python") if "op.execute" in block]
    [call] = re.findall(r'op.execute\("(.*)"\)', revision)
    conn.execute(call.replace('\\"', '"').encode())
    row = conn.execute("select policy -> 'max_attempts' from hwqueue.list_queues()").fetchone()
    assert row == (3,)


def test_it_goes_away_and_comes_back(dsn: str, conn: psycopg.Connection) -> None:
    [roles] = blocks("database", "Back up, restore, roll back, uninstall", "sql")
    with Client(dsn) as client:
        client.create_queue("renders")
        client.spawn_lease("renders", "draw")
    dropped = runner.invoke(app, ["--dsn", dsn, "db", "drop", "--yes"])
    assert dropped.exit_code == 0, dropped.stderr
    # the roles are those of the whole server, other tests' databases included
    of_logins, logins, of_roles, taken = re.findall(r"drop (?:owned by|role) (.*);", roles)
    assert (of_logins, of_roles) == (logins, taken)
    made = (ROOT / "deploy" / "logins.sql").read_text(encoding="utf-8")
    assert re.findall(r"^create role (\w+) login", made, re.M) == logins.split(", ")
    with conn.transaction(force_rollback=True):
        mine = re.sub(r"\b(queue_\w+)", rf"\1_{conn.info.dbname[-12:]}", f"{made}\f{logins}")
        script, _, logins = mine.replace(':"app"', f'"{conn.info.dbname}"').partition("\f")
        conn.execute(script.encode())
        conn.execute(f"drop owned by {logins}; drop role {logins}".encode())
        conn.execute(f"drop owned by {of_roles}".encode())
    row = conn.execute("select count(*) from pg_namespace where nspname = 'hwqueue'").fetchone()
    assert row == (0,)
    assert upgrade(dsn).changed
