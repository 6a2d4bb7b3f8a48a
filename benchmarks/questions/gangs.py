"""What do gangs cost: reserving and releasing room, fetching a member, claims of all others?"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, TypeAlias
from uuid import UUID

import psycopg
import typer
from psycopg.types.json import Jsonb

from benchmarks.core.claiming import claiming
from benchmarks.core.fill import QUEUE, TASK, kind, spawn, top_up
from benchmarks.core.load import RanDryError
from benchmarks.core.node import LIVES_LONG, Node, register_on
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.queue import create_queue
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.server import calm_down, database, machine, outlive
from benchmarks.core.sessions import CLAIM, COMPLETE
from benchmarks.core.spread import Spread
from benchmarks.core.sweep import Case, needed, sweep

WAITING_AIM = at_most(1.05)
FETCH_AIM = at_most(1)
GPUS = 8  # of a node

_GANGS = "gangs"  # a queue of their own: who claims beside them does not fetch their members
_SESSIONS = 2
_MOST_TRIES = 1000
_MANY = 50  # gangs spawned in a call
_CREATE = "select hwqueue.create_queue(p_queue => %s, p_policy => %s)"
_SPAWN = "select gang_id from hwqueue.spawn_gang(p_queue => %s, p_members => %s) limit 1"
_SPAWN_MANY = """
    select count(*) from generate_series(1, %s) n
    cross join lateral hwqueue.spawn_gang(p_queue => %s, p_members => %s)
"""
_TICK = """
    select hwqueue.reap_teams('{gang change,gang earmark,gang}', 20, '1 minute', m, hwqueue.clock())
    from hwqueue.reap_cursor m order by m.version desc limit 1
"""
_STATE = "select g.state, g.reason from hwqueue.gang g where g.gang_id = %s"
_IS_OPEN = "select g.finished_at is null from hwqueue.gang g where g.gang_id = %s"
_CANCEL = "select hwqueue.cancel_gang(p_gang => %s)"

Members: TypeAlias = list[int]


@dataclass(frozen=True)
class _Size:
    """A gang, and the nodes of the fleet that it is placed in."""

    members: int
    gpus: int
    nodes: int

    def __str__(self) -> str:
        each = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        return f"{self.members} members of {each} on {self.nodes} nodes"

    @property
    def needs(self) -> dict[str, Any]:
        """What each member asks for, as an option."""
        return {"placement": {"resources": {"gpu": self.gpus}}}


@dataclass
class _Took:
    """What gangs of one size took, round by round, in milliseconds."""

    spawned: list[float] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    released: list[float] = field(default_factory=list)
    tries: list[float] = field(default_factory=list)


@dataclass
class _Fleet:
    """Nodes of 8 GPUs, and a session that assembles."""

    dsn: str
    connection: psycopg.Connection
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    @contextmanager
    def of(cls, dsn: str) -> Iterator["_Fleet"]:
        """Without a node."""
        create_queue(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_CREATE, [_GANGS, Jsonb({"claim_timeout": 86_400})])
            yield cls(dsn, connection)

    def grow(self, count: int) -> None:
        """Register nodes until there are so many."""
        for number in range(len(self.nodes), count):
            ids = [UUID(int=1 + GPUS * number + each) for each in range(GPUS)]
            spec = {"gpus": [{"resource_id": str(one)} for one in ids], **LIVES_LONG}
            self.nodes.append(register_on(self.connection, number, spec))

    def shrink(self, count: int) -> None:
        """Cordon the others, so that no gang is placed there."""
        call = "select hwqueue.{}_node(p_node => %s)"
        for number, node in enumerate(self.nodes):
            name = "uncordon" if number < count else "cordon"
            self.connection.execute(call.format(name).encode(), [node.node_id])

    def cycle(self, size: _Size, took: _Took) -> None:
        """Spawn a gang, reserve room for it, release that again."""
        begun = time.perf_counter()
        gang = self.spawn(size)
        took.spawned.append(_since(begun))
        begun = time.perf_counter()
        took.tries.append(self.reserve(gang))
        took.reserved.append(_since(begun))
        self.connection.execute(_CANCEL, [gang])
        begun = time.perf_counter()
        self.connection.execute(_TICK, prepare=True)
        took.released.append(_since(begun))
        self.end(gang)

    def spawn(self, size: _Size) -> UUID:
        """Spawn a gang; its id."""
        members = [{"task": TASK, "count": size.members, "options": size.needs}]
        row = self.connection.execute(_SPAWN, [_GANGS, Jsonb(members)], prepare=True).fetchone()
        assert row is not None
        gang: UUID = row[0]
        return gang

    def reserve(self, gang: UUID) -> int:
        """Try until there is room; how often.

        Raises: RanDryError when there is none.
        """
        for tries in range(1, _MOST_TRIES):
            self.connection.execute(_TICK, prepare=True)
            [(state, reason)] = self.connection.execute(_STATE, [gang], prepare=True).fetchall()
            if state == "reserved":
                return tries
            if reason == "insufficient_capacity":
                break
        raise RanDryError(f"no room for a gang: {reason}")

    def end(self, gang: UUID) -> None:
        """Tick until the gang is over."""
        while self.connection.execute(_IS_OPEN, [gang]).fetchone() == (True,):
            self.connection.execute(_TICK, prepare=True)

    def fetch(self, size: _Size) -> float:
        """Milliseconds of the fetch of a member, the median of all nodes."""
        gang = self.spawn(size)
        self.reserve(gang)
        taken = self.take_each(size)
        self.end(gang)
        return taken

    def claim_alike(self, size: _Size) -> float:
        """The same of single leases of the members' class."""
        spawn(self.connection, [kind(**size.needs)] * size.members, _GANGS)
        return self.take_each(size)

    def take_each(self, size: _Size) -> float:
        """Milliseconds of a claim by each node, the median; all of them are completed then."""
        took, held = [], []
        for node in self.nodes[: size.members]:
            begun = time.perf_counter()
            found = self.connection.execute(
                CLAIM, [_GANGS, node.node_id, node.epoch, 1], prepare=True
            ).fetchall()
            took.append(_since(begun))
            held += found
        if len(held) < size.members:
            raise RanDryError(f"{len(held)} of {size.members} leases were claimed")
        for lease, token, _ in held:
            self.connection.execute(COMPLETE, [lease, token], prepare=True)
        return median(took)


def gangs(
    ctx: typer.Context,
    *,
    members: Annotated[
        Members, typer.Option(help="Members of 8 GPUs, one a node; may be repeated", min=2)
    ] = [2, 8, 32, 128, 512],
    small: Annotated[Members, typer.Option(help="Members of 1 GPU, 8 a node; may be repeated", min=2)] = [
        64,
        512,
    ],
    busy: Annotated[Members, typer.Option(help="Members of 8 GPUs of the largest of these fleets", min=2)] = [
        8,
        32,
        64,
    ],
    fetched: Annotated[int, typer.Option(help="Members that are fetched in a round", min=2)] = 32,
    waiting: Annotated[int, typer.Option(help="Gangs of 8 that wait", min=1)] = 1000,
    backlog: Annotated[int, typer.Option(help="Plain leases for claims beside", min=1)] = 30_000,
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Milliseconds until a gang is reserved, and released; a fetch over a claim of that class.

    Reserving includes the search for a place. The same beside two sessions that claim without pause
    on the nodes of the fleet, over the same alone; `tries`: how often a node was busy, plus one. In
    the end, claim p50 of plain leases with gangs that wait over p50 with none.
    """
    run = Run.of(ctx)
    sizes = [
        *(_Size(count, GPUS, count) for count in sorted(members)),
        *(_Size(count, 1, -(-count // GPUS)) for count in sorted(small)),
        _Size(min(members), GPUS, max(members)),
    ]
    with database(run.dsn) as dsn, _Fleet.of(dsn) as fleet:
        fleet.grow(max(size.nodes for size in (*sizes, _Size(max(busy), GPUS, max(busy)))))
        figures = [_reserved(run, fleet, size, rounds) for size in sizes]
        figures += _beside(run, fleet, sorted(busy), backlog, rounds)
        fleet.grow(fetched)
        figures.append(_fetched(run, fleet, _Size(fetched, GPUS, fetched), rounds))
        facts = machine(dsn)
    figures += _with_waiting(run, waiting, claims, rounds)
    compared = "ms until reserved; beside claims / alone; fetch / claim; claim with gangs / without"
    return Answer("gangs", compared, tuple(figures), ctx.params, facts)


def _reserved(run: Run, fleet: _Fleet, size: _Size, rounds: int) -> Figure:
    run.tell(f"reserving: {size}")
    fleet.shrink(size.nodes)
    fleet.cycle(size, _Took())  # plans are made, classes are judged
    calm_down(fleet.dsn)
    took = _Took()
    for _ in range(rounds):
        fleet.cycle(size, took)
    more = {
        "release ms": Spread.of(took.released),
        "spawn ms": Spread.of(took.spawned),
        "us a member": Spread.of([1000 * one / size.members for one in took.reserved]),
    }
    return Figure(f"{size}: reserve", "ms", Spread.of(took.reserved), more=more)


def _beside(run: Run, fleet: _Fleet, members: Sequence[int], backlog: int, rounds: int) -> list[Figure]:
    nodes = max(members)
    fleet.shrink(nodes)
    found = []
    for size in (_Size(count, GPUS, nodes) for count in members):
        run.tell(f"beside claims: {size}")
        alone, beside = _Took(), _Took()
        fleet.cycle(size, _Took())
        for _ in range(rounds):
            fleet.cycle(size, alone)
        top_up(run, fleet.dsn, kind(), backlog)
        calm_down(fleet.dsn)
        with ExitStack() as stack:
            for _ in range(_SESSIONS):
                stack.enter_context(claiming(fleet.dsn, *fleet.nodes[:nodes]))
            for _ in range(rounds):
                fleet.cycle(size, beside)
        found.append(
            Figure.against(
                f"{size}: reserve beside claims / alone",
                "ms",
                values=beside.reserved,
                bases=alone.reserved,
                more={
                    "release ms": Spread.of(beside.released),
                    "tries": Spread.of(beside.tries),
                },
            )
        )
    return found


def _fetched(run: Run, fleet: _Fleet, size: _Size, rounds: int) -> Figure:
    run.tell(f"fetching: {size}")
    fleet.shrink(size.nodes)
    values, bases = [], []
    for number in range(rounds + 1):
        calm_down(fleet.dsn)
        fetched, claimed = fleet.fetch(size), fleet.claim_alike(size)
        if number:  # the first one makes plans
            values.append(fetched)
            bases.append(claimed)
    name = "fetch of a member / claim of its class"
    return Figure.against(name, "p50 ms", values=values, bases=bases, aim=FETCH_AIM)


def _with_waiting(run: Run, count: int, claims: int, rounds: int) -> Sequence[Figure]:
    """Claims of plain leases; the gangs are of the same queue and class, and nobody assembles."""
    scene = Scene(needed(claims, rounds))
    cases = [Case("no gang", scene), Case(f"{count:,} waiting gangs of 8", scene, WAITING_AIM)]

    @contextmanager
    def beside(dsns: Sequence[str]) -> Iterator[None]:
        with psycopg.connect(dsns[1], autocommit=True) as connection:
            members = Jsonb([{"task": TASK, "count": GPUS}])
            for start in range(0, count, _MANY):
                many = min(_MANY, count - start)
                connection.execute(_SPAWN_MANY, [many, QUEUE, members])
        calm_down(dsns[1])
        outlive(dsns[1])
        yield

    return sweep(run, cases, claims, rounds, beside)[0]


def _since(begun: float) -> float:
    """Milliseconds since then."""
    return 1000 * (time.perf_counter() - begun)
