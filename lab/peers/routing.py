"""What does a claim cost when nearly everything that waits is for other workers?

The jobs that the worker may run are few and the newest. Each queue routes by what it has; see the
notes for those that route by something less than tags.
"""

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated

import typer

from benchmarks.core.load import Load, RanDryError, take_turns
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, databases, machine
from lab.peers.hwqueue import Hwqueue
from lab.peers.peer import UNWANTED, WANTED, Effort, Jobs, Peer, SqlPeer
from lab.peers.registry import PeerNames, PeerSql, at_hand


@dataclass(frozen=True)
class _Side:
    """A queue and the database that it has to itself."""

    peer: Peer
    dsn: str


def routing(
    ctx: typer.Context,
    *,
    backlog: Annotated[int, typer.Option(help="Jobs for other workers", min=1)] = 999_000,
    wanted: Annotated[int, typer.Option(help="Jobs for this one, newer", min=100)] = 1000,
    claims: Annotated[int, typer.Option(help="Claims in a round", min=1)] = 20,
    seconds: Seconds = 1,
    rounds: Rounds = 3,
    peer: PeerNames = [],
    peer_sql: PeerSql = [],
) -> Answer:
    """Claim p50 of hwqueue over that of other queues, with work for others in front."""
    run = Run.of(ctx)
    found = at_hand(peer, peer_sql)
    everyone: list[Peer] = [Hwqueue(), *found.peers]
    with ExitStack() as stack:
        dsns = stack.enter_context(databases(run.dsn, len(everyone)))
        sides = [_Side(one, dsn) for one, dsn in zip(everyone, dsns, strict=True)]
        for side in sides:
            run.tell(f"preparing: {side.peer.name}")
            side.peer.install(side.dsn)
            side.peer.fill(side.dsn, backlog, UNWANTED)
            side.peer.fill(side.dsn, wanted, WANTED)
            calm_down(side.dsn)
        figures = _claims(run, sides, claims, rounds) + _steps(run, sides, wanted, seconds, rounds)
        compared = f"hwqueue / peer, {backlog:,} jobs for others ahead of {wanted:,}"
        return Answer("routing", compared, figures, ctx.params, machine(dsns[0]), found.notes)


def _claims(run: Run, sides: list[_Side], claims: int, rounds: int) -> tuple[Figure, ...]:
    """Claim latency of all that are driven by SQL; they claim in turn, one by one."""
    with ExitStack() as stack:
        jobs = {
            side.peer.name: stack.enter_context(closing(side.peer.connect(side.dsn, 0, WANTED)))
            for side in sides
            if isinstance(side.peer, SqlPeer)
        }
        _round(jobs, claims)  # warms caches and plans
        by_round = [_round(jobs, claims) for _ in run.track(range(rounds), "rounds of claims")]
    own = [of_all[Hwqueue.name] for of_all in by_round]
    return tuple(
        Figure.against(
            f"{side.peer.name}: {side.peer.routes_by}",
            "claim p50 ms",
            values=own,
            bases=[of_all[side.peer.name] for of_all in by_round],
        )
        for side in sides[1:]
        if side.peer.name in jobs
    )


def _round(jobs: dict[str, Jobs], claims: int) -> dict[str, float]:
    times = [{name: _timed_claim(each) for name, each in jobs.items()} for _ in range(claims)]
    return {name: median(of_all[name] for of_all in times) for name in jobs}


def _timed_claim(jobs: Jobs) -> float:
    """The milliseconds of a claim, its commit included; the job is completed outside of them."""
    started = time.perf_counter()
    claimed = jobs.claim(1)
    elapsed = time.perf_counter() - started
    if not claimed:
        raise RanDryError("the claims ran out of jobs: these sizes do not fit together")
    jobs.complete(claimed)
    return 1000 * elapsed


def _steps(run: Run, sides: list[_Side], wanted: int, seconds: float, rounds: int) -> tuple[Figure, ...]:
    """Claim and completion together of those that are driven by their own client."""
    clients = [side for side in sides if not isinstance(side.peer, SqlPeer)]
    if not clients:
        return ()
    turns = {
        side.peer.name: partial(_refill_and_drive, side, wanted, seconds) for side in (sides[0], *clients)
    }
    loads = take_turns(turns, rounds, run.tell)
    own = [load.p50_ms for load in loads[Hwqueue.name]]
    return tuple(
        Figure.against(
            f"{side.peer.name}: {side.peer.routes_by}",
            "claim and complete p50 ms",
            values=own,
            bases=[load.p50_ms for load in loads[side.peer.name]],
        )
        for side in clients
    )


def _refill_and_drive(side: _Side, wanted: int, seconds: float) -> Load:
    side.peer.fill(side.dsn, wanted, WANTED)
    return side.peer.drive(side.dsn, Effort(1, 1, seconds), WANTED)
