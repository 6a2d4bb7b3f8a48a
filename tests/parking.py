"""A tick that stops in the middle of assembling a gang, and goes on when the test says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

_PARK = """
create function public.park() returns trigger language plpgsql as $$
begin
  if exists (select from hwqueue.claim c where c.team_id = new.team_id) then
    perform pg_advisory_xact_lock(1);
  end if;
  return new;
end $$;
create trigger park before insert on hwqueue.claim
for each row when (new.is_reserved) execute function public.park();
"""
_WAITS = """
  select exists (select from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'advisory')
"""


@contextmanager
def parking(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Whoever reserves the second member of a gang waits until the block ends."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(_PARK)
        conn.execute("select pg_advisory_lock(1)")
        yield conn


def is_parked(conn: psycopg.Connection[Any]) -> bool:
    """Whether somebody waits there."""
    return conn.execute(_WAITS).fetchone() == (True,)
