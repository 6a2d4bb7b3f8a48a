"""Does a claim pay for new classes while some transaction on the server stays open?"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import psycopg
import typer
from psycopg.conninfo import make_conninfo

from benchmarks.core.fill import Lease, kind, spawn
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.report import Answer, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.sweep import Case, needed, sweep

AIM = at_most(1.5)
OTHER_QUEUE = "other"
OTHER_DATABASE = "template1"


def horizon(
    ctx: typer.Context,
    *,
    classes: Annotated[list[int], typer.Option(help="New classes, in another queue", min=1)] = [
        1,
        100,
        1_000,
        10_000,
    ],
    claims: Claims = 300,
    rounds: Rounds = 5,
) -> Answer:
    """Claim p50 with new classes, beside an idle writer in another database, over p50 with none."""
    scene = Scene(needed(claims, rounds))
    cases = [Case("no new class", scene)]
    cases += [Case(f"{number:,} new classes", scene, AIM) for number in classes]

    @contextmanager
    def beside(dsns: Sequence[str]) -> Iterator[None]:
        """New classes after the writer's id, so that it is older than they are."""
        with psycopg.connect(make_conninfo(dsns[0], dbname=OTHER_DATABASE)) as writer:
            writer.execute("select pg_current_xact_id()")
            for dsn, number in zip(dsns, [0, *classes], strict=True):
                _spawn_classes(dsn, number)
            yield

    figures, machine = sweep(Run.of(ctx), cases, claims, rounds, beside)
    return Answer("horizon", "claim p50 / with no new class", figures, ctx.params, machine)


def _spawn_classes(dsn: str, number: int) -> None:
    leases: list[Lease] = [kind(labels={"new": str(each)}) for each in range(number)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select hwqueue.create_queue(p_queue => %s)", [OTHER_QUEUE])
        spawn(connection, leases, OTHER_QUEUE)
