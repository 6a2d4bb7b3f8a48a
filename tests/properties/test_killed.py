"""Processes that are killed with SIGKILL at any moment, and started again: no rule is ever broken.

HWQUEUE_KILLED_SEED: the seed. HWQUEUE_KILLED: how many processes the slow run kills (300).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock, install_clock
from tests.direct import Direct
from tests.e2e.worker_support import wait_until
from tests.properties.killed_work import NODES, NOTES, POLICY, QUEUE, register, run
from tests.properties.storm_watch import snapshot

SEED = int(os.environ.get("HWQUEUE_KILLED_SEED", "0"))
ACTORS = [
    *(("node", number) for number in range(len(NODES))),
    *(("upkeep", 0), ("upkeep", 1), ("producer", 0), ("planner", 0), ("planner", 1)),
]
Conn = psycopg.Connection[Any]
# A handler whose claim holds, of a gang that nobody stops, while another member is not there.
_HALF = """
  select h.gang_id, h.lease_id, m.lease_id as other
  from storm.handler h
  join hwqueue.claim c on c.lease_id = h.lease_id and c.claim_token = h.claim_token
  join hwqueue.gang g on g.gang_id = h.gang_id and g.state not in ('stopping', 'cancelling')
  join hwqueue.lease m on m.team_id = h.gang_id
  left join hwqueue.claim o on o.lease_id = m.lease_id
  where c.stop_requested_at is null and c.expires_at > hwqueue.clock()
    and (o.is_reserved or exists (select from hwqueue.scheduled s where s.lease_id = m.lease_id))
    and not exists (select from hwqueue.team_change x where x.team_id = h.gang_id)
"""
_OTHERS = """
  select count(*) from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""
_OVERDUE = """
  select c.lease_id, c.expires_at from hwqueue.claim c where c.expires_at < hwqueue.clock()
"""
_LEFT = """
  select lease_id from hwqueue.claim union all select lease_id from hwqueue.ready
  union all select lease_id from hwqueue.scheduled
"""


@pytest.mark.parametrize(
    "kills", [30, pytest.param(int(os.environ.get("HWQUEUE_KILLED", "300")), marks=pytest.mark.slow)]
)
def test_killed_processes(dsn: str, conn: Conn, kills: int) -> None:
    """Nodes, upkeep, a producer and two planners; in the end what is left can be worked off."""
    clock = install_clock(conn)
    conn.execute(NOTES)
    direct, choose = Direct(conn), Random(SEED)
    direct.create_queue(QUEUE, POLICY)
    with processes(dsn) as kill:
        for number in range(kills):
            kill(choose, number)
            assert broken(conn) == [], f"seed {SEED}, kill {number}"
    wait_until(lambda: conn.execute(_OTHERS).fetchone() == (0,))
    assert broken(conn) == [], f"seed {SEED}"
    assert conn.execute("select count(*) > 0 from storm.handler").fetchone() == (True,)
    calm(direct, clock)
    assert broken(conn) == [], f"seed {SEED}"


@contextmanager
def processes(dsn: str) -> Iterator[Any]:
    """Start all actors; a call kills one of them, at any moment, and starts it again."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.properties.killed_work"])

    def start(actor: tuple[str, int], life: int) -> Any:
        role, number = actor
        seed = f"{SEED}-{role}-{number}-{life}"
        process = context.Process(target=run, args=(dsn, role, number, seed), daemon=True)
        process.start()
        return process

    running = {actor: start(actor, -1) for actor in ACTORS}

    def kill(choose: Random, life: int) -> None:
        actor = choose.choice(ACTORS)
        running[actor].join(choose.uniform(0, 0.2))
        assert running[actor].exitcode is None, f"{actor} has ended"
        running[actor].kill()
        running[actor].join()
        running[actor] = start(actor, life)

    try:
        yield kill
    finally:
        for process in running.values():
            process.kill()
            process.join()


def broken(conn: Conn) -> list[Any]:
    """What is wrong at this instant."""
    with snapshot(conn):
        return [
            *conn.execute("select what from storm.wrong").fetchall(),
            *conn.execute("select rule, subject, detail from hwqueue.verify_invariants()"),
            *conn.execute(_HALF).fetchall(),
        ]


def calm(direct: Direct, clock: Clock) -> None:
    """Nobody keeps anything alive: all that was booked expires; then what is left is worked off."""
    for row in direct.rows("list_everywhere", limit=1000):
        if row["state"] != "stopped":
            direct.rows("stop_everywhere", everywhere=row["everywhere_id"], running="stop")
    for _ in range(20):
        clock.advance(timedelta(seconds=60))
        direct.reap()
    conn = direct.conn
    assert conn.execute(_OVERDUE).fetchall() == [], f"seed {SEED}"
    epochs = [register(direct, number, str(uuid4())) for number in range(len(NODES))]
    idle = 0
    while idle < 5:
        clock.advance(timedelta(seconds=20))
        direct.reap()
        claims = []
        for node, epoch in zip(NODES, epochs, strict=True):
            direct.heartbeat(node, epoch, [])
            claims += direct.claim(QUEUE, node, epoch, 10)
        for claim in claims:
            direct.complete(claim["lease_id"], claim["claim_token"])
        idle = 0 if claims else idle + 1
    assert conn.execute(_LEFT).fetchall() == [], f"seed {SEED}"
    gangs = direct.rows("list_gangs", limit=1000)
    assert [gang for gang in gangs if gang["finished_at"] is None] == [], f"seed {SEED}"
