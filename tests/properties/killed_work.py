"""What the processes of a storm do until they are killed: nodes, upkeep, producers, planners.

Each begins with nothing but the database, as after a crash: what it held before is lost.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from threading import Event
from typing import Any
from uuid import UUID, uuid5

import psycopg
from psycopg.types.json import Jsonb

from tests.calls import TASK, Row
from tests.direct import Direct
from tests.properties.strategies import IDS

QUEUE = "killed"
POLICY = {"claim_timeout": 30, "max_attempts": 100, "retry": {"kind": "fixed", "base": 1, "jitter": 0}}
GPUS = 2
NODES = tuple(uuid5(IDS, f"killed-node-{number}") for number in range(4))
GPU: Row = {"placement": {"resources": {"gpu": 1}}}
SOON: Row = {"max_run": 20}
MOST_OPEN = 30
# The claim is lost, cancelled, finished, held by another session; the lease is gone, claimed; the
# node is gone, superseded; the gang, the everywhere task is gone.
DOCUMENTED = {*("QHL01", "QHL02", "QHL03", "QHL04", "QHL07", "QHL09"), *("QHN01", "QHN03", "QHG01", "QHE01")}
NOTES = """
create schema storm;
create table storm.handler (
  lease_id uuid primary key, claim_token bigint not null, gang_id uuid not null
);
create table storm.wrong (what text not null);
"""
_BEGIN = """
  insert into storm.handler (lease_id, claim_token, gang_id) values (%s, %s, %s)
  on conflict (lease_id) do update set claim_token = excluded.claim_token
"""


@dataclass
class Process:
    """One process: its connection, chance, and what it believes it holds."""

    conn: psycopg.Connection[Any]
    number: int
    name: str
    choose: Random
    epoch: int = 0
    round: int = 0
    held: dict[UUID, Row] = field(default_factory=dict)
    started: set[UUID] = field(default_factory=set)  # members of gangs whose handler runs

    def __post_init__(self) -> None:
        self.direct = Direct(self.conn)

    def go_on(self, step: Callable[["Process"], None]) -> None:
        """Make one call after another; some transactions stay open for a moment."""
        pause = Event()
        while True:
            holds = self.choose.random() < 0.3
            try:
                with self.conn.transaction() if holds else nullcontext():
                    step(self)
                    if holds:
                        pause.wait(self.choose.uniform(0, 0.02))
            except psycopg.DatabaseError as error:
                if error.sqlstate not in DOCUMENTED:
                    said = f"{step.__name__}: {error.sqlstate} {error}"
                    self.conn.execute("insert into storm.wrong (what) values (%s)", [said])
                if error.sqlstate in ("QHN01", "QHN03"):
                    self.register()

    def register(self) -> None:
        """Another instance of the node's worker, which holds nothing."""
        self.held.clear()
        self.started.clear()
        self.epoch = register(self.direct, self.number, self.name)


def register(direct: Direct, number: int, instance: str) -> int:
    """Register a node; its epoch."""
    gpus = [{"resource_id": str(uuid5(IDS, f"killed-{number}-{n}"))} for n in range(GPUS)]
    spec = {"name": f"killed-{number}", "instance_id": instance, "rack": number // 2, "gpus": gpus}
    return direct.register(NODES[number], spec)


def run(dsn: str, role: str, number: int, seed: str) -> None:
    """Do what the role does, for ever."""
    with psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=15s") as conn:
        process = Process(conn, number, seed, Random(seed))
        if role == "node":
            process.register()
        process.go_on(ROLES[role])


def _work(process: Process) -> None:
    """A node claims, begins what may begin, sends a heartbeat, settles."""
    direct, node = process.direct, NODES[process.number]
    match process.choose.randrange(5):
        case 0 | 1:
            rows = direct.claim(QUEUE, node, process.epoch, process.choose.randint(1, 3))
            process.held.update((row["lease_id"], row) for row in rows)
        case 2:
            _begin(process)
        case 3:
            _beat(process)
        case _:
            free = [r for r in process.held.values() if not _waits(process, r)]
            if free:
                claim = process.choose.choice(free)
                process.held.pop(claim["lease_id"])
                end = process.choose.choice([direct.complete, direct.complete, direct.fail])
                end(claim["lease_id"], claim["claim_token"])


def _waits(process: Process, claim: Row) -> bool:
    """Whether it is a member of a gang whose handler has not begun."""
    return _gang(claim) is not None and claim["lease_id"] not in process.started


def _gang(claim: Row) -> str | None:
    found: str | None = (claim["headers"] or {}).get("gang_id")
    return found


def _begin(process: Process) -> None:
    """Handlers begin whose gangs are complete."""
    for claim in [claim for claim in process.held.values() if _waits(process, claim)]:
        lease, token = claim["lease_id"], claim["claim_token"]
        with process.conn.transaction():
            if process.direct.row("gang_status", lease=lease, token=token)["ready"]:
                process.conn.execute(_BEGIN, [lease, token, _gang(claim)])
                process.started.add(lease)


def _beat(process: Process) -> None:
    """A node lives, and releases what it is asked to stop."""
    held = list(process.held.values())
    for row in process.direct.heartbeat(NODES[process.number], process.epoch, held):
        if row["verdict"] != "ok":
            claim = process.held.pop(row["lease_id"])
            if row["verdict"] in ("cancelled", "preempted"):
                process.direct.release(claim["lease_id"], claim["claim_token"])


def _upkeep(process: Process) -> None:
    """Sweeps; now and then time passes."""
    process.direct.reap()
    if process.choose.random() < 0.3:
        seconds = timedelta(seconds=process.choose.uniform(1, 6))
        process.conn.execute("update hwqueue.test_clock set offset_by = offset_by + %s", [seconds])


def _produce(process: Process) -> None:
    """Leases of every kind, and cancels."""
    direct, choose = process.direct, process.choose
    leases = direct.rows("list_leases", filter={"queue": QUEUE}, limit=MOST_OPEN)
    waiting = [row["lease_id"] for row in leases if row["state"] in ("pending", "scheduled")]
    kinds = ["cancel", "cancel_gang"]
    if len(waiting) < MOST_OPEN / 2:
        kinds += ["plain", "plain", "soon", "soon", "gang", "gang", "gang"]
        kinds += ["everywhere", "replace", "choice"]
    match choose.choice(kinds):
        case "cancel" if leases:
            direct.cancel(choose.choice(leases)["lease_id"])
        case "cancel_gang":
            if gangs := direct.rows("list_gangs", state="waiting"):
                direct.rows("cancel_gang", gang=choose.choice(gangs)["gang_id"])
        case "plain":
            direct.spawn(QUEUE, GPU)
        case "soon":
            direct.spawn_many(QUEUE, [GPU | SOON] * choose.randint(1, 3))
        case "gang":
            where = choose.choice([{}, {"together": "rack"}])
            direct.spawn_gang(QUEUE, [GPU] * choose.randint(2, 3), **where)
        case "everywhere":
            _everywhere(direct, choose)
        case "replace" if leases:
            _replace(direct, choose, choose.choice(leases)["lease_id"])
        case "choice":
            one_of = str(UUID(int=choose.getrandbits(128), version=4))
            direct.spawn(QUEUE, GPU | {"one_of": one_of})
            direct.spawn_gang(QUEUE, [GPU] * 2, one_of=one_of)


def _replace(direct: Direct, choose: Random, old: UUID) -> None:
    """A lease takes the place of another one, unless that may not be replaced, as a member."""
    replaces = {"lease": str(old)} | choose.choice([{}, {"then": "requeue"}])
    try:
        with direct.conn.transaction():
            direct.spawn(QUEUE, GPU | {"replaces": replaces})
    except psycopg.DatabaseError as error:
        if error.sqlstate != "QHA01":
            raise


def _everywhere(direct: Direct, choose: Random) -> None:
    """One at a time: the one that runs is stopped."""
    for row in direct.rows("list_everywhere", state="active"):
        direct.rows("stop_everywhere", everywhere=row["everywhere_id"], running="stop")
    mode = choose.choice(["once", "always"])
    direct.rows("spawn_everywhere", queue=QUEUE, task=TASK, options=GPU | {"mode": mode})


def _plan(process: Process) -> None:
    """A planner leads, proposes any places for gangs and single leases, and sets prices."""
    direct, choose = process.direct, process.choose
    epoch = direct.value("lead_planner", holder=process.name, ttl=timedelta(seconds=10))
    if epoch is None:
        return
    process.round += 1
    fence = {"round": process.round, "epoch": epoch}
    for row in direct.rows("planner_view", part="gangs"):
        if row["item"] is not None:
            place = choose.choice(["rack 0", "rack 1", "rack 9"])
            direct.value("reserve_gang", gang=UUID(row["item"]["gang_id"]), place=place, **fence)
    leases = direct.rows("list_leases", filter={"queue": QUEUE, "state": "pending"}, limit=3)
    places = [{"lease": str(r["lease_id"]), "node": str(choose.choice(NODES))} for r in leases]
    if places:
        direct.rows("reserve_leases", places=places, hold=timedelta(seconds=3), **fence)
    prices = Jsonb({"device_worth": [choose.random()] * 101})
    direct.value("set_prices", queue=QUEUE, prices=prices, ttl=timedelta(seconds=10), **fence)


ROLES: dict[str, Callable[[Process], None]] = {
    "node": _work,
    "upkeep": _upkeep,
    "producer": _produce,
    "planner": _plan,
}
