"""Loads the hypothesis profile before any test is built; blobs read by the database in one call."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from tests.properties.profiles import load_profile

load_profile()

# What becomes of each blob: its parsed form, or the SQLSTATE and the facts of the refusal; an error
# that is not of this project has none.
OUTCOME = """
create function pg_temp.outcome(p_blob bytea) returns jsonb language plpgsql as $$
declare
  v_detail text;
begin
  return jsonb_build_object('ok', hwqueue.parse_wire(p_blob, 'blob'));
exception when others then
  get stacked diagnostics v_detail = pg_exception_detail;
  return jsonb_build_object('error', sqlstate,
    'detail', case when sqlstate like 'QH%' then v_detail::jsonb end);
end
$$
"""
READ = """
select pg_temp.outcome(b.blob) from unnest(%s::bytea[]) with ordinality b(blob, position)
order by b.position
"""

Outcome = dict[str, Any]


@pytest.fixture
def read_all(conn: psycopg.Connection) -> Callable[[Sequence[bytes]], list[Outcome]]:
    """What the database makes of blobs, in their order."""
    conn.execute(OUTCOME)

    def read(blobs: Sequence[bytes]) -> list[Outcome]:
        return [outcome for (outcome,) in conn.execute(READ, [list(blobs)])]

    return read
