"""A storm: everything at once on a few nodes, and no rule is ever broken.

HWQUEUE_STORM_SECONDS: how long the slow run takes (60). HWQUEUE_STORM_SEED: the first seed of both.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from time import monotonic
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from hwqueue.schema import upgrade
from hwqueue.testing import install_clock
from tests.calls import Row
from tests.direct import Direct
from tests.fix_db import fresh_database
from tests.oracle.cluster import Cluster, Lease
from tests.oracle.isolation import IsolatingNode
from tests.oracle.isolation import may_run as has_room
from tests.oracle.occupancy import may_run
from tests.oracle.tables import cluster_of
from tests.own_server import OwnServer, own_server
from tests.properties.storm_sessions import Session, Storm, stop_everywhere
from tests.properties.storm_watch import faults, install_notes, look, stamp
from tests.properties.storm_work import (
    KNOWN_SERVICES,
    LIMITS,
    NODES,
    POLICY,
    QUEUE,
    SERVICE_POLICIES,
    Options,
)
from tests.races.terms import publish

SESSIONS = 6
SEED = int(os.environ.get("HWQUEUE_STORM_SEED", "0"))
_WAITING = """
  select l.lease_id, p.placement, p.labels, p.tenant, p.task_name, p.service_id
  from hwqueue.ready l
  join hwqueue.placement_class p on p.class_id = l.class_id
"""


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.slow)])
def test_storm(dsn: str, seed: int) -> None:
    """A short one."""
    blow(Storm(dsn, seed, steps=150))


def test_storm_of_names_limits_and_gangs(dsn: str) -> None:
    """A short one in which leases that wait get classes of their own, one after the other."""
    blow(Storm(dsn, SEED, steps=100, naming=0.4, gangs=0.2, limits=0.5))


def test_storm_that_goes_on_in_a_copy(server_dsn: str, dsn: str) -> None:
    """A database is copied, as a restore does; nodes and producers go on with the copy."""
    move_and_blow(server_dsn, Storm(dsn, SEED, steps=100))


@pytest.mark.parametrize(
    ("priority", "core", "changed", "wrong"),
    [
        (0, 1, "delete from hwqueue.claim where is_earmark", "leaves the least"),
        (1, 0, "update hwqueue.claim set is_earmark = null", "cores in use"),
    ],
)
def test_a_core_beside_an_earmark(
    dsn: str, priority: int, core: int, changed: LiteralString, wrong: str
) -> None:
    """The storm's verdict: what comes after the earmark gets another core, what comes before its.

    Each would be wrong if the earmark were none.
    """
    storm = Storm(dsn, SEED, steps=0)
    with Session(storm, 0) as session:
        conn, direct, node = session.conn, session.direct, NODES[2]
        prepare(conn, storm)

        def asking(**resources: int) -> Options:
            here = {"require": [{"node": [str(node)]}], "isolation": {"cpu": "best_effort"}}
            return {"placement": here | {"resources": resources}}

        def granted(priority: int, **resources: int) -> Row:
            direct.spawn(QUEUE, {"priority": priority} | asking(**resources))
            [row] = direct.claim(QUEUE, node, storm.epochs[node])
            return row | {"now": row["expires_at"]}

        granted(0, cpu_milli=700, license=1)
        direct.spawn_gang(QUEUE, [asking(cpu_milli=200, license=1), asking()])
        direct.reap()
        row = granted(priority, cpu_milli=200)
        session.check_granted(node, [row])
        assert (row["assignment"]["cores"], storm.wrong) == ([core], [])
        conn.execute(changed)
        session.check_granted(node, [row])
        assert wrong in storm.wrong[0]


@pytest.mark.slow
def test_storm_over_crashes(server_dsn: str) -> None:
    """The server is killed in the middle, and what it had not written is lost."""
    with own_server(server_dsn, synchronous_commit="off") as server:
        crash_and_blow(server, Storm(server.dsn, SEED, steps=80, gangs=0.2, limits=0.5), crashes=2)


@pytest.mark.slow
def test_long_storm(server_dsn: str, template: str) -> None:
    """As many storms as there is time for, each in a database of its own, or going on in a copy."""
    ends = monotonic() + float(os.environ.get("HWQUEUE_STORM_SECONDS", "60"))
    seed = SEED
    while seed == SEED or monotonic() < ends:
        with fresh_database(server_dsn, template) as dsn:
            storm = Storm(dsn, seed, steps=1500, naming=0.2 * (seed % 3 == 0), gangs=0.1 * (seed % 2))
            storm.limits = 0.3 * (seed % 2)
            blow(storm) if seed % 4 else move_and_blow(server_dsn, storm)
        print(f"seed {seed}: {sum(storm.done.values())} calls", dict(storm.done), storm.refused)
        with own_server(server_dsn, synchronous_commit="off") as server:
            storm = Storm(server.dsn, seed, steps=500, naming=0.1, gangs=0.1 * (seed % 3))
            crash_and_blow(server, storm, crashes=3)
        print(f"seed {seed}: {sum(storm.done.values())} calls", dict(storm.done), storm.refused)
        seed += 1


def blow(storm: Storm) -> None:
    """Let all sessions loose; then the wind drops, and whatever may run is run."""
    with psycopg.connect(storm.dsn, autocommit=True) as conn:
        prepare(conn, storm)
        rage(storm)
        calm(conn, storm)


def move_and_blow(server_dsn: str, storm: Storm) -> None:
    """The same, but after one half of the storm its database is copied, and the copy goes on."""
    with psycopg.connect(storm.dsn, autocommit=True) as conn:
        prepare(conn, storm)
    rage(storm)
    with fresh_database(server_dsn, str(conninfo_to_dict(storm.dsn)["dbname"])) as copy:
        storm.move(copy)
        rage(storm)
        with psycopg.connect(copy, autocommit=True) as conn:
            calm(conn, storm)


def crash_and_blow(server: OwnServer, storm: Storm, crashes: int) -> None:
    """The same, but the storm goes on over crashes of its server."""
    upgrade(server.dsn)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        prepare(conn, storm)
    for _ in range(crashes):
        rage(storm, meanwhile=lambda: kill(server, storm))
        if not storm.is_killed:
            server.crash()
        server.start(synchronous_commit="off")
        storm.go_on()
    rage(storm)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        calm(conn, storm)


def kill(server: OwnServer, storm: Storm) -> None:
    """Kill the server when each session is half through."""
    half = storm.done.total() + SESSIONS * storm.steps // 2
    while storm.done.total() < half:
        if storm.is_over.wait(0.05):
            return
    storm.is_killed = True
    server.crash()
    storm.is_over.set()


def rage(storm: Storm, meanwhile: Callable[[], None] = lambda: None) -> None:
    """All sessions act at once, and somebody watches."""
    with ThreadPoolExecutor(SESSIONS + 3) as pool:
        watch = pool.submit(watch_out, storm)
        idling = pool.submit(idle, storm)
        killing = pool.submit(meanwhile)
        acting = [pool.submit(act, storm, number) for number in range(SESSIONS)]
        try:
            for each in acting:
                each.result()
        finally:
            storm.is_over.set()
        watched = watch.result()
        idling.result()
        killing.result()
    assert storm.wrong == [], f"seed {storm.seed}"
    assert watched > 0


def prepare(conn: psycopg.Connection[Any], storm: Storm) -> None:
    install_clock(conn)
    install_notes(conn)
    direct, choose = Direct(conn), Random(storm.seed)
    direct.create_queue(QUEUE, POLICY)
    for name, spec in LIMITS.items():
        direct.rows("create_limit", name=name, spec=spec)
    for service, policy in SERVICE_POLICIES.items():
        conn.execute("select hwqueue.set_service_policy(%s, %s)", [service, Jsonb(policy)])
    for number, node in enumerate(NODES):
        storm.held[node] = {}
        storm.epochs[node] = storm.register(direct, number, choose)
        storm.specs[node] = storm.spec(number)


@contextmanager
def unless_killed(storm: Storm) -> Iterator[None]:
    """Whoever had a connection to the killed server is done."""
    try:
        yield
    except psycopg.OperationalError:
        if not storm.is_killed:
            raise


def act(storm: Storm, number: int) -> None:
    """One session, from its first call to its last."""
    try:
        with unless_killed(storm), Session(storm, number) as session:
            session.run()
    except BaseException as error:
        storm.is_over.set()
        error.add_note(f"seed {storm.seed}")
        raise


def watch_out(storm: Storm) -> int:
    """Look at one instant after another until the storm is over, and once more; gives how many."""
    looks = 0
    with unless_killed(storm), storm.connect() as conn:
        is_last = False
        while not is_last:
            is_last = storm.is_over.is_set()
            storm.report(faults(look(conn), storm.specs))
            looks += 1
    return looks


def idle(storm: Storm) -> None:
    """An application that has written something of its own and keeps its transaction open.

    It waits for nothing and holds nothing of the queue's: all must go on beside it.
    """
    choose = Random(f"{storm.seed}-idle")
    with unless_killed(storm), storm.connect() as conn:
        while not storm.is_over.is_set():
            with conn.transaction():
                conn.execute("select pg_current_xact_id()")
                storm.is_over.wait(choose.uniform(0, 3))
            storm.is_over.wait(choose.uniform(0, 0.5))


def calm(conn: psycopg.Connection[Any], storm: Storm) -> None:
    """All nodes come back empty; each lease that may run somewhere, alone, is claimed."""
    stamp(conn)
    direct, choose = Direct(conn), Random(storm.seed)
    stop_everywhere(direct)
    for number, node in enumerate(NODES):
        storm.epochs[node] = storm.register(direct, number, choose, anew=True)
        conn.execute("select hwqueue.uncordon_node(%s)", [node])
    conn.execute(
        "select hwqueue.untaint_node(n.node_id, t ->> 'key')"
        " from hwqueue.node n, jsonb_array_elements(n.operator_taints) t"
    )
    assert faults(look(conn), storm.specs) == [], f"seed {storm.seed}"
    direct.rows("pause_queue", queue=QUEUE)  # no gang is assembled before all nodes are empty
    publish(direct)
    assert not look(conn).claims
    direct.rows("resume_queue", queue=QUEUE)
    idle = 0
    while idle < 3:
        conn.execute("update hwqueue.test_clock set offset_by = offset_by + interval '20 s'")
        conn.execute("update hwqueue.gang set next_try_at = hwqueue.clock() where state = 'waiting'")
        direct.reap()
        for node in NODES:
            direct.heartbeat(node, storm.epochs[node], [])
        idle = 0 if sum([work_off(conn, storm, node) for node in NODES]) else idle + 1
    cluster = alone(conn)
    left = [
        f"{lease} waits, though {node} may run it"
        for lease in waiting(conn)
        for node in NODES
        if may(lease, node, cluster, storm)
    ]
    assert left == [], f"seed {storm.seed}"
    assert stuck(direct) == [], f"seed {storm.seed}"
    assert faults(look(conn), storm.specs) == [], f"seed {storm.seed}"


def work_off(conn: psycopg.Connection[Any], storm: Storm, node: UUID) -> int:
    """The node claims and completes until it gets nothing; what it gets, it may run."""
    direct, count = Direct(conn), 0
    while True:
        before, leases = alone(conn), {lease.lease_id: lease for lease in waiting(conn)}
        rows = direct.claim(QUEUE, node, storm.epochs[node])
        if not rows:
            return count
        lease = leases.get(rows[0]["lease_id"])
        if lease is not None:  # else it was scheduled when we looked
            assert may(lease, node, before, storm), f"seed {storm.seed}: {lease} on {node}"
        direct.complete(rows[0]["lease_id"], rows[0]["claim_token"])
        count += 1


def stuck(direct: Direct) -> list[Any]:
    """Gangs that neither wait nor are over, though nothing runs any more."""
    gangs = direct.rows("list_gangs", limit=1000)
    return [gang for gang in gangs if gang["state"] != "waiting" and gang["finished_at"] is None]


def alone(conn: psycopg.Connection[Any]) -> Cluster:
    now = conn.execute("select hwqueue.clock()").fetchone()
    assert now is not None
    return cluster_of(conn, now[0], KNOWN_SERVICES)


def waiting(conn: psycopg.Connection[Any]) -> list[Lease]:
    """Leases that could be claimed now."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return [
            Lease(
                row["lease_id"],
                row["placement"],
                row["labels"],
                row["tenant"],
                row["task_name"],
                row["service_id"],
            )
            for row in cursor.execute(_WAITING)
        ]


def may(lease: Lease, node: UUID, cluster: Cluster, storm: Storm) -> bool:
    """Whether an empty node may run the lease by every rule there is."""
    spec, asked = storm.specs[node], lease.placement.get("resources", {})
    return (
        has_room(lease.placement, IsolatingNode.from_spec(spec), [])
        and asked.get("license", 0) <= spec["capacity"].get("license", 0)
        and asked.get("memory_mib", 0) <= spec["capacity"].get("memory_mib", 1 << 40)
        and not may_run(lease, cluster.nodes[node], cluster)
    )
