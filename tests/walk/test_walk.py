"""Walks over every world: near its beginning in every run, all of it in the slow one.

`make walk` prints what each walk has seen. HWQUEUE_WALK_STATES: where the slow walks stop (2,000).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.walk.canonical import key_of
from tests.walk.conftest import Build
from tests.walk.explore import Report, Walk
from tests.walk.ground import Commits, Ground, Savepoints
from tests.walk.operators import Leave
from tests.walk.world import World
from tests.walk.worlds import WORLDS

MOST = int(os.environ.get("HWQUEUE_WALK_STATES", "2000"))
worlds = pytest.mark.parametrize(
    "world",
    [
        pytest.param(world, id=name, marks=[pytest.mark.slow] if world.is_slow else [])
        for name, world in WORLDS.items()
    ],
)
grounds = pytest.mark.parametrize("ground", [Savepoints, Commits])
# in a transaction that has an id upkeep leaves gangs alone, and all else that it reserves for
walks = [
    pytest.param(world, ground, id=f"{name}-{ground.__name__}")
    for name, world in WORLDS.items()
    for ground in (Savepoints, Commits)
    if ground is Commits or not (world.gangs or world.is_upkeeps)
]


@worlds
def test_each_call_near_the_beginning(dsn: str, build: Build, world: World) -> None:
    """Every order of a few calls, each of them a transaction."""
    build(world)
    report = walk(dsn, Commits, world, depth=world.near)
    assert report.states > 20


@pytest.mark.parametrize("name", ["plain", "expiry"])
def test_each_call_in_one_transaction(dsn: str, build: Build, name: str) -> None:
    """The same in one transaction: a caller may do so, with savepoints."""
    build(WORLDS[name])
    report = walk(dsn, Savepoints, WORLDS[name], depth=WORLDS[name].near)
    assert report.states > 20


@pytest.mark.slow
@pytest.mark.parametrize(("world", "ground"), walks)
def test_all_states(dsn: str, build: Build, world: World, ground: type[Ground]) -> None:
    """Every state that can be reached, by every call."""
    build(world)
    report = walk(dsn, ground, world, depth=None, most=MOST)
    assert report.is_exhausted or report.states >= MOST


@grounds
def test_the_way_back(dsn: str, build: Build, ground: type[Ground]) -> None:
    """After a walk every row is as it was."""
    world = WORLDS["drain"]
    build(world)
    with standing(dsn, ground) as here:
        before = here.look().rows
        report = Walk(here, world.steps, most=MOST, depth=3, memory=world.memory).run()
        assert report.calls > report.states > 1
        assert here.look().rows == before


def test_due_now_and_long_past_are_one_state(dsn: str, build: Build, clock: Clock) -> None:
    """What is over may be so since any time; so may a node that has left."""
    nodes = {"n": {}, "m": {"heartbeat_timeout": 60}}
    build(World("late", nodes, {"a": {"deadline_in": 5}}, steps=[], first=[Leave("m")]))
    with standing(dsn, Commits) as here:
        keys = [key_of(here.look(), 0)]
        for seconds in (5, 1):
            clock.advance(timedelta(seconds=seconds))
            keys.append(key_of(here.look(), 0))
    assert keys[0] != keys[1] == keys[2]


def walk(dsn: str, ground: type[Ground], world: World, *, depth: int | None, most: int = MOST) -> Report:
    """Walk, and say what has been seen."""
    with standing(dsn, ground) as here:
        report = Walk(
            here, world.steps, most=most, depth=depth, memory=world.memory, promises=world.promises
        ).run()
    print(f"{world.name} by {ground.__name__.lower()}: {report}")
    return report


@contextmanager
def standing(dsn: str, ground: type[Ground]) -> Iterator[Ground]:
    """A ground in the test's database; nothing of the walk is left."""
    with psycopg.connect(dsn, autocommit=ground is Commits) as conn:
        yield ground(conn)
        conn.rollback()
