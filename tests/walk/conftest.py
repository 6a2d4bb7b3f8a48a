"""A world in a database of its own: its clock stands still, its marks move at every claim."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.patience import NO_BUDGET
from tests.walk.world import World

Build = Callable[[World], None]


@pytest.fixture
def build(conn: psycopg.Connection, clock: Clock, eager_marks: None) -> Build:
    """Make a world in the test's database."""

    def made(world: World) -> None:
        clock.freeze()
        conn.execute(Path(__file__).with_name("closing.sql").read_bytes())
        # what a tick leaves for the next one when the machine is busy, no walk could tell
        conn.execute(NO_BUDGET)
        world.build(Direct(conn))

    return made
