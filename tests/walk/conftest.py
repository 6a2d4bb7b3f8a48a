"""A world in a database of its own: its clock stands still, its marks move at every claim."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.walk.world import World

Build = Callable[[World], None]
_NO_BUDGET = (
    "create or replace function hwqueue.upkeep_budget() returns interval"
    " language sql stable as $$ select interval '1 hour' $$"
)


@pytest.fixture
def build(conn: psycopg.Connection, clock: Clock, eager_marks: None) -> Build:
    """Make a world in the test's database."""

    def made(world: World) -> None:
        clock.freeze()
        conn.execute(Path(__file__).with_name("closing.sql").read_bytes())
        # what a tick leaves for the next one when the machine is busy, no walk could tell
        conn.execute(_NO_BUDGET)
        world.build(Direct(conn))

    return made
