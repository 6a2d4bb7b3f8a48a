"""What do limits cost, how much of a queue's rate do they leave, and do they keep what they promise?

Sides that are compared have a database each, are filled up before each turn, and take turns.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import psycopg
import typer
from psycopg.types.json import Jsonb

from benchmarks.core.claimer import Claimer
from benchmarks.core.fill import QUEUE, Lease, kind, spawn, top_up
from benchmarks.core.load import Load, Opener, RanDryError, drive, take_turns
from benchmarks.core.node import Node, register
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.producers import BulkSpawn, SingleSpawn
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import UNIT, rate_against
from benchmarks.core.report import Answer, Figure, at_least, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, databases, machine, server, with_setting
from benchmarks.core.sessions import CLAIM, ClaimThenSettle, SpawnSettleAndClaim

LIMIT = "limit"
FAIR = {"fair": True, "by": "key"}
SLOT = {"slots": 1, "by": "key"}
MANY = 100  # keys where many sessions, batches and shares are asked about
SPAWNED = 500  # in a call
BATCH = 100
HEAVY = 68  # times the backlog of each other key
FOLD_SECONDS = 10.0

_WORK = 0.01  # seconds of a handler, and between two looks of a worker that has found nothing
_LOOKS = 500
_CREATE = "select hwqueue.create_limit(p_name => %s, p_spec => %s)"
_WAITING = "select sum(pending + scheduled)::int from hwqueue.list_queues()"
_UNFOLDED = "select exists (select from hwqueue.lane_change)"
_STARTS = "select extract(epoch from claimed_at)::float8 from hwqueue.claim order by claimed_at"

Spec = Mapping[str, Any]


def limits(
    ctx: typer.Context,
    *,
    keys: Annotated[int, typer.Option(help="Keys of limits with many", min=MANY)] = 10_000,
    waiting: Annotated[int, typer.Option(help="Leases that wait before each turn", min=1)] = 100_000,
    sessions: Annotated[int, typer.Option(help="Sessions, and workers, at once", min=2)] = 8,
    claims: Annotated[int, typer.Option(help="Claims that keys share", min=MANY)] = 10_000,
    rates: Annotated[list[int], typer.Option(help="Starts a second; may be repeated", min=20)] = [50, 200],
    seconds: Seconds = 5,
    rounds: Rounds = 3,
) -> Answer:
    """Leases/s with limits over plain ones; what one shared limit leaves; shares and rates kept."""
    run = Run.of(ctx)
    with server(run.dsn) as base:
        size = _Size(Run(base, run.console), waiting, seconds, rounds)
        figures = (
            *_alone(size, keys),
            *_together(size, sessions),
            *_shared(size, sessions),
            *_shares(size, claims),
            *(figure for per_second in rates for figure in _rate(size, per_second)),
            _fold(size, keys),
        )
        return Answer("limits", "with limits / without", figures, ctx.params, machine(base))


@dataclass(frozen=True)
class _Side:
    """A database with a limit, or with none; what waits there is of its keys in turn."""

    dsn: str
    nodes: tuple[Node, ...]
    spec: Spec | None
    keys: int

    def leases(self, count: int) -> list[Lease]:
        if self.spec is None:
            return [kind()] * count
        if not self.keys:
            return [kind(limits=[LIMIT])] * count
        of_keys = [kind({"key": n}, limits={LIMIT: f"k{n}"}) for n in range(min(count, self.keys))]
        return [of_keys[n % self.keys] for n in range(count)]

    def claimer(self) -> closing[Claimer]:
        return closing(Claimer(self.dsn, self.nodes[-1]))

    def fill_up(self, run: Run, waiting: int) -> None:
        if self.spec is None:
            top_up(run, self.dsn, kind(), waiting)
        else:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                [left] = connection.execute(_WAITING).fetchone() or [0]
                spawn(connection, self.leases(max(0, waiting - left)))
                _fold_all(connection)
        calm_down(self.dsn)


@dataclass(frozen=True)
class _Size:
    run: Run
    waiting: int
    seconds: float
    rounds: int

    @contextmanager
    def sides(self, nodes: int, **limits: tuple[Spec | None, int]) -> Iterator[dict[str, _Side]]:
        """A side for each of these limits and numbers of keys."""
        with databases(self.run.dsn, len(limits)) as dsns:
            made = {}
            for (name, (spec, keys)), dsn in zip(limits.items(), dsns, strict=True):
                create_queue(dsn)
                if spec is not None:
                    with psycopg.connect(dsn, autocommit=True) as connection:
                        connection.execute(_CREATE, [LIMIT, Jsonb(spec)])
                made[name] = _Side(dsn, tuple(register(dsn, n) for n in range(nodes)), spec, keys)
            yield made

    def loads(
        self, sides: Mapping[str, _Side], make: Callable[[_Side], Opener], sessions: int = 1
    ) -> dict[str, list[Load]]:
        """Let the sides take turns with such sessions."""

        def turn(side: _Side) -> Load:
            side.fill_up(self.run, self.waiting)
            return drive(make(side), sessions, self.seconds)

        turns = {name: partial(turn, side) for name, side in sides.items()}
        return take_turns(turns, self.rounds, self.run.tell)


def _alone(size: _Size, keys: int) -> list[Figure]:
    """One session that claims and settles."""
    specs = {"plain": (None, 0), "few": (FAIR, 10), "fair": (FAIR, keys), "slots": (SLOT, keys)}
    with size.sides(2, **specs, full=(SLOT, keys)) as sides:
        full = sides["full"]
        full.fill_up(size.run, 2 * keys)
        with full.claimer() as claimer:
            for _ in range(0, keys, BATCH):
                claimer.connection.execute(CLAIM, [QUEUE, claimer.node.node_id, claimer.node.epoch, BATCH])
        sides["full"] = _Side(full.dsn, full.nodes, None, 0)
        loads = size.loads(sides, lambda side: ClaimThenSettle(side.dsn, side.nodes))
    compared = (
        (f"fair, {keys:,} keys / 10 keys", "fair", "few", 1.3),
        (f"fair, {keys:,} keys / plain", "fair", "plain", 1.5),
        ("fair, 10 keys / plain", "few", "plain", 1.5),
        (f"one slot a key, {keys:,} keys / plain", "slots", "plain", 1.2),
        (f"plain beside {keys:,} full keys / plain", "full", "plain", 1.5),
    )
    return [
        rate_against(case, loads[one], loads[base], at_least(1 / aim)) for case, one, base, aim in compared
    ]


def _together(size: _Size, sessions: int) -> Iterator[Figure]:
    """Many sessions; calls that spawn; batches. The leases are of many keys that take turns."""
    asked: dict[str, tuple[Callable[[_Side], Opener], int, float]] = {
        f"{sessions} sessions": (lambda side: ClaimThenSettle(side.dsn, side.nodes), sessions, 0.7),
        f"{SPAWNED} spawned, then claimed and settled by {BATCH}": (
            lambda side: SpawnSettleAndClaim(side.dsn, side.nodes, BATCH, tuple(side.leases(SPAWNED))),
            1,
            1 / 2,
        ),
        "spawn_lease": (lambda side: SingleSpawn(side.dsn, tuple(side.leases(SPAWNED))), 1, 1 / 1.3),
        f"spawn_leases of {SPAWNED}": (
            lambda side: BulkSpawn(side.dsn, tuple(side.leases(SPAWNED))),
            1,
            1 / 1.3,
        ),
    }
    with size.sides(sessions, plain=(None, 0), fair=(FAIR, MANY)) as sides:
        for name, (opener, count, aim) in asked.items():
            loads = size.loads(sides, opener, count)
            case = f"{name}, fair, {MANY} keys / plain"
            yield rate_against(case, loads["fair"], loads["plain"], at_least(aim))


@dataclass(frozen=True)
class Working:
    """Opens sessions of workers: they work on each lease, and look again when they find none."""

    dsn: str
    nodes: tuple[Node, ...]

    def __call__(self, number: int) -> "WorkingSession":
        return WorkingSession(self.dsn, self.nodes[number])


class WorkingSession(Claimer):
    """One worker with one lease at a time."""

    def step(self) -> int:
        """Claim a lease, work on it, settle it."""
        for _ in range(_LOOKS):
            with suppress(RanDryError):
                held = self.take()
                time.sleep(_WORK)
                self.settle(*held)
                return 1
            time.sleep(_WORK)
        return 0


def _shared(size: _Size, workers: int) -> Iterator[Figure]:
    """Workers with and without one limit that all leases share."""
    half = workers // 2
    specs = {"none": (None, 0), "all": ({"slots": workers}, 0), "half": ({"slots": half}, 0)}
    with size.sides(workers, **specs) as sides:
        for commits in ("on", "off"):

            def working(side: _Side, commits: str = commits) -> Working:
                return Working(with_setting(side.dsn, "synchronous_commit", commits), side.nodes)

            loads = size.loads(sides, working, workers)
            what = f"{workers} workers of {1000 * _WORK:.0f} ms, {'' if commits == 'on' else 'not '}durable"
            yield rate_against(
                f"{what}: limit of {workers} / none", loads["all"], loads["none"], at_least(0.8)
            )
            yield Figure.against(
                f"{what}: limit of {half} / half of none",
                UNIT,
                values=[load.per_second for load in loads["half"]],
                bases=[load.per_second * half / workers for load in loads["none"]],
                aim=at_least(0.7),
            )


def _shares(size: _Size, claims: int) -> list[Figure]:
    """How many of the claims the key with least gets, and that with most; one has a large backlog."""
    with size.sides(1, fair=(FAIR, MANY)) as sides, sides["fair"].claimer() as claimer:
        backlog = sides["fair"].leases(2 * claims)
        spawn(claimer.connection, [*backlog, *backlog[:1] * (HEAVY * 2 * claims // MANY)])
        _fold_all(claimer.connection)
        counts: Counter[int] = Counter()
        for _ in size.run.track(range(claims), "claims"):
            values = [QUEUE, claimer.node.node_id, claimer.node.epoch, 1]
            [(lease, token, params)] = claimer.connection.execute(CLAIM, values, prepare=True).fetchall()
            claimer.settle(lease, token)
            counts[params["key"]] += 1
    shares = {"least": at_least(0.95), "most": at_most(1.05)}
    return [
        Figure.against(
            f"{name} that one of {MANY} keys gets / its share of {claims:,} claims",
            "leases",
            values=[min(counts[n] for n in range(MANY)) if name == "least" else max(counts.values())],
            bases=[claims / MANY],
            aim=aim,
        )
        for name, aim in shares.items()
    ]


def _rate(size: _Size, per_second: int) -> list[Figure]:
    """How much of a rate is reached, and the most that it was ahead of itself."""
    burst = per_second // 10
    reached, ahead = [], []
    for _ in range(size.rounds):
        spec = {"rate": {"count": per_second, "per": 1, "burst": burst}}
        with size.sides(1, rate=(spec, 0)) as sides, sides["rate"].claimer() as claimer:
            spawn(claimer.connection, sides["rate"].leases(2 * (burst + int(per_second * size.seconds))))
            begun = time.monotonic()
            while time.monotonic() < begun + size.seconds:
                with suppress(RanDryError):
                    claimer.take()
                    continue
                time.sleep(1 / (10 * per_second))
            took = time.monotonic() - begun
            starts = [start for (start,) in claimer.connection.execute(_STARTS)]
        reached.append(len(starts) / (burst + took * per_second))
        most, open_from = 0.0, starts[0]  # a bucket that leaks at that rate, and what was in it at most
        for start in starts:
            open_from = max(open_from, start) + 1 / per_second
            most = max(most, (open_from - start) * per_second)
        ahead.append(most)
    name = f"{per_second} a second, burst {burst}"
    whole, bursts = [1.0] * size.rounds, [float(burst)] * size.rounds
    return [
        Figure.against(f"{name}: reached", "part", values=reached, bases=whole, aim=at_least(0.98)),
        Figure.against(f"{name}: most at once / burst", "leases", values=ahead, bases=bursts, aim=at_most(1)),
    ]


def _fold(size: _Size, keys: int) -> Figure:
    """How long it takes until every one of many new keys has its lane, and its first lease is ready."""
    with size.sides(1, new=(SLOT, keys)) as sides, sides["new"].claimer() as claimer:
        spawn(claimer.connection, sides["new"].leases(keys))
        begun = time.perf_counter()
        _fold_all(claimer.connection)
        took = time.perf_counter() - begun
    name = f"reap folds {keys:,} new keys / the aim"
    return Figure.against(name, "s", values=[took], bases=[FOLD_SECONDS], aim=at_most(1))


def _fold_all(connection: psycopg.Connection[Any]) -> None:
    while connection.execute(_UNFOLDED).fetchone() == (True,):
        connection.execute("select hwqueue.reap()")
