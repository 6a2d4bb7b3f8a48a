"""What the tests of upgrades share: the next release, made up, and ways to look at a database."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from hwqueue.schema.catalog import Catalog, read_catalog
from hwqueue.schema.files import MIGRATIONS_DIR, SHIPPED, SQL_DIR, Sources
from hwqueue.schema.state import head_revision
from tests.fix_db import fresh_database

# One of everything that an upgrade can meet: a table changes, a function's body changes, its
# signature changes, it goes, it comes, and so for views.
NEXT_TABLES = """
create table hwqueue.next_thing (thing_id int, primary key (thing_id));
alter table hwqueue.queue add column next_note text not null default 'none';
create index queue_next_note on hwqueue.queue (next_note);
"""
NEXT_REVISION = '''
"""Made up by the tests."""

from alembic import op
from hwqueue.schema.files import run_revision_sql

revision = "9999_next"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_revision_sql(op, __file__)
'''
NEXT_FUNCTIONS = """
create or replace function hwqueue.next_answer(p_factor int default 7) returns int
language sql immutable as $$ select 6 * p_factor $$;
create view hwqueue.next_view as select q.next_note from hwqueue.queue q;
"""


@pytest.fixture
def next_release(tmp_path: Path) -> Sources:
    """This package's sources with one more revision and one more function file."""
    sources = Sources(sql=tmp_path / "sql", migrations=tmp_path / "migrations")
    shutil.copytree(SQL_DIR, sources.sql)
    shutil.copytree(MIGRATIONS_DIR, sources.migrations)
    revision = sources.migrations / "versions" / "9999_next.py"
    revision.write_text(NEXT_REVISION.format(head=head_revision(SHIPPED)))
    revision.with_suffix(".sql").write_text(NEXT_TABLES)
    (sources.sql / "api" / "next.sql").write_text(NEXT_FUNCTIONS)
    return sources


def catalog_of(dsn: str) -> Catalog:
    """Everything in the schema of a database."""
    with psycopg.connect(dsn) as connection:
        return read_catalog(connection)


@pytest.fixture
def another_dsn(server_dsn: str) -> Iterator[str]:
    """A second empty database, to compare with."""
    with fresh_database(server_dsn) as dsn:
        yield dsn
