"""How fast do leases come in: one by one over a bare INSERT, in bulk over COPY?

Both sides start from Python objects and commit each call; the floor's table takes the same payload.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import typer

from benchmarks.core.fill import Lease, kind
from benchmarks.core.floor import create_floor
from benchmarks.core.load import Load, Opener, drive, take_turns
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.payload import payload
from benchmarks.core.producers import BulkCopy, BulkSpawn, SingleInsert, SingleSpawn
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate_against
from benchmarks.core.report import Aim, Answer, Figure, at_least
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, machine

BULK = 1000
CALLS = 8
BULK_AIM = at_least(0.4)
# What the leases of a batch ask for; plain ones bring nothing but their params.
KINDS: dict[str, Sequence[dict[str, Any]]] = {
    "plain": [{}],
    "1 class": [{"affinity_tags": {"pool": "gpu"}}],
    "10 classes": [{"affinity_tags": {"pool": "gpu", "kind": number}} for number in range(10)],
    "own headers": [{"headers": {"order": str(number)}} for number in range(BULK)],
    "own labels": [{"labels": {"order": str(number)}} for number in range(BULK)],
}


def spawns(ctx: typer.Context, *, seconds: Seconds = 5, rounds: Rounds = 3) -> Answer:
    """Leases/s of spawn_lease over INSERT, and of spawn_leases over COPY, one connection."""
    run = Run.of(ctx)
    with database(run.dsn) as dsn:
        create_floor(dsn)
        create_queue(dsn)
        singles: dict[str, Opener] = {"INSERT": SingleInsert(dsn, payload())}
        singles |= {name: SingleSpawn(dsn, tuple(_leases(name, BULK))) for name in KINDS}
        bulks: dict[str, Opener] = {"COPY": BulkCopy(dsn, tuple([payload()] * BULK))}
        bulks |= {name: BulkSpawn(dsn, tuple(_leases(name, BULK))) for name in KINDS}
        many: dict[str, Opener] = {"COPY": BulkCopy(dsn, tuple([payload()] * BULK * CALLS))}
        many |= {name: BulkSpawn(dsn, tuple(_leases(name, BULK)), CALLS) for name in KINDS}
        figures = (
            *_compare(run, dsn, "spawn_lease / INSERT", singles, None, seconds=seconds, rounds=rounds),
            *(
                each
                for what, sides in {"": bulks, f" in {CALLS} calls at once": many}.items()
                for each in _compare(
                    run,
                    dsn,
                    f"spawn_leases of {BULK}{what} / COPY",
                    sides,
                    BULK_AIM,
                    seconds=seconds,
                    rounds=rounds,
                )
            ),
        )
        return Answer("spawns", "spawning / writing into a bare table", figures, ctx.params, machine(dsn))


def _leases(name: str, count: int) -> list[Lease]:
    options = KINDS[name]
    return [kind(payload(), **options[number % len(options)]) for number in range(count)]


def _compare(
    run: Run,
    dsn: str,
    what: str,
    openers: dict[str, Opener],
    aim: Aim | None,
    *,
    seconds: float,
    rounds: int,
) -> list[Figure]:
    """The rate of every side against that of the first one."""
    turns = {name: partial(_turn, dsn, opener, seconds) for name, opener in openers.items()}
    (_, bases), *others = take_turns(turns, rounds, run.tell).items()
    return [rate_against(f"{what}, {name}", loads, bases, aim) for name, loads in others]


def _turn(dsn: str, opener: Opener, seconds: float) -> Load:
    calm_down(dsn)
    return drive(opener, 1, seconds)
