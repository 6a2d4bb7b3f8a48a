"""What do runs of workflows cost: those that wait, that are submitted, that are cancelled?"""

import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from statistics import mean, median
from typing import Annotated, Any
from uuid import UUID, uuid4

import psycopg
import typer

from benchmarks.core import flows
from benchmarks.core.claiming import Claimed, claiming
from benchmarks.core.fill import kind, top_up
from benchmarks.core.load import RanDryError
from benchmarks.core.node import Node, register
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.queue import create_queue
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.server import calm_down, database, machine, outlive
from benchmarks.core.spread import Spread
from benchmarks.core.sweep import Case, needed, sweep
from benchmarks.core.usage import usage_of

WAITING_AIM = at_most(1.05)
SUBMISSION_MS = {10: 1, 1000: 25}  # of a run of so many steps of one class
CANCEL_MS = 20
SLOWDOWN = at_most(1.05)  # of claims beside a cancellation

_DAY = 86_400
_BARE = "create table bare (like hwqueue.step including indexes)"
_INSERT = """
    insert into bare (run_id, step_no, state, lease_id, class_id, queue_id)
    select %s, n, 'waiting', %s, 1, 1 from generate_series(1, %s) n
"""
_CANCEL = "select hwqueue.cancel_workflow_run(p_run => %s)"
_SWEEP = "select hwqueue.advance_workflows()"
_STATES = "select state, step_counts from hwqueue.get_workflow_run(p_run => %s)"
_PAUSE = 0.05  # between the sweeps of a worker that settles steps

StepsOfRun = Annotated[int, typer.Option(help="Steps of a run", min=2, max=5000)]


class Shape(StrEnum):
    """What waits in a run, and for what: steps for a worker or a step, items for a worker."""

    WORKER = "worker"
    STEP = "step"
    ITEM = "item"


def waiting(
    ctx: typer.Context,
    *,
    steps: Annotated[int, typer.Option(help="Steps that wait, in all", min=1)] = 1_000_000,
    runs: Annotated[int, typer.Option(help="Runs that they are spread over", min=1)] = 10_000,
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 of plain leases with many steps that wait over p50 with none.

    The first step of each run starts tomorrow, the others wait for it. They would run where the
    plain leases run: same queue, same class.
    """
    scene = Scene(needed(claims, rounds))
    name = f"{steps:,} waiting steps in {runs:,} runs"
    cases = [Case("none", scene), Case(name, scene, WAITING_AIM)]

    @contextmanager
    def beside(dsns: Sequence[str]) -> Iterator[None]:
        """Runs behind the plain leases."""
        dsn = dsns[1]
        delayed = flows.behind_one(1 + steps // runs, options={"delay": _DAY})
        flows.define(dsn, "waiting", delayed)
        flows.submit_many(dsn, "waiting", runs)
        calm_down(dsn)
        outlive(dsn)
        yield

    figures, facts = sweep(Run.of(ctx), cases, claims, rounds, beside)
    return Answer("waiting", "claim p50 / with no waiting step", figures, ctx.params, facts)


@dataclass(frozen=True)
class _Took:
    """What one call took; `cpu_ms` of the server's process, None where it cannot be seen."""

    milliseconds: float
    cpu_ms: float | None


@dataclass
class _Submission:
    """Submissions of one kind, with what they took."""

    name: str
    steps: flows.Steps
    is_new: bool = False  # each asks placements that no other one asks
    taken: list[list[_Took]] = field(default_factory=list)  # by round

    @property
    def workflow(self) -> str:
        """Its definition; names hold no spaces."""
        return self.name.replace(" ", "-")

    def submit(self, connection: psycopg.Connection) -> None:
        """Submit a run against the clock."""
        tags = {"affinity_tags": {"run": str(uuid4())}} if self.is_new else {}
        took = _timed(connection, lambda: flows.submit(connection, self.workflow, tags))
        self.taken[-1].append(took)


def submissions(
    ctx: typer.Context,
    *,
    sizes: Annotated[list[int], typer.Option(help="Steps of a run; may be repeated", min=2, max=5000)] = [
        10,
        1000,
    ],
    calls: Annotated[int, typer.Option(help="Submissions of each kind in a round", min=1)] = 10,
    rounds: Rounds = 5,
) -> Answer:
    """Milliseconds of submit_workflow over an insert of as many rows into a bare table.

    Of runs whose steps wait for the first one, whose steps may all run at once, and whose steps
    ask a placement each: placements that are known, and new ones (once a round).
    """
    run = Run.of(ctx)
    with database(run.dsn) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        create_queue(dsn)
        connection.execute(_BARE)
        kinds = {size: _kinds(size) for size in sizes}
        for submission in (one for of_size in kinds.values() for one in of_size):
            flows.define(dsn, submission.workflow, submission.steps)
            submission.taken.append([])
            submission.submit(connection)  # finds or makes the classes
            submission.taken.clear()
        floors: dict[int, list[list[_Took]]] = {size: [] for size in sizes}
        for _ in run.track(range(rounds), "rounds of submissions"):
            calm_down(dsn)
            for size, of_size in kinds.items():
                floors[size].append([])
                for submission in of_size:
                    submission.taken.append([])
                for call in range(calls):
                    insert = partial(_insert, connection, size)
                    floors[size][-1].append(_timed(connection, insert))
                    for submission in of_size:
                        if call == 0 or not submission.is_new:
                            submission.submit(connection)
        figures = [
            figure
            for size, of_size in kinds.items()
            for submission in of_size
            for figure in _submission_figures(size, submission, floors[size])
        ]
        compared = "ms of submit_workflow / the aim, / an insert of as many rows into a bare table"
        return Answer("submissions", compared, tuple(figures), ctx.params, machine(dsn))


def _kinds(size: int) -> list[_Submission]:
    placed = [flows.step(f"s{n}", *(["s0"] if n else []), affinity_tags={"n": n}) for n in range(size)]
    return [
        _Submission(f"{size} steps behind one", flows.behind_one(size)),
        _Submission(f"{size} first steps", flows.abreast(size)),
        _Submission(f"{size} placements", placed),
        _Submission(f"{size} new placements", placed, is_new=True),
    ]


def _insert(connection: psycopg.Connection, count: int) -> None:
    connection.execute(_INSERT, [uuid4(), uuid4(), count], prepare=True)


def _submission_figures(
    size: int, submission: _Submission, floor: Sequence[Sequence[_Took]]
) -> Iterator[Figure]:
    values = _medians(submission.taken)
    each = {"us a step": Spread.of([1000 * value / size for value in values])}
    each |= _processor(submission.taken)
    most = None if "placements" in submission.name else SUBMISSION_MS.get(size)
    if most is not None:
        name = f"{submission.name} / {most} ms"
        bases = [float(most)] * len(values)
        yield Figure.against(name, "ms", values=values, bases=bases, aim=at_most(1), more=each)
    bases = _medians(floor)
    name = f"{submission.name} / bare rows"
    yield Figure.against(name, "ms", values=values, bases=bases, more=each)


_ITEMS_A_STEP = 20
_MAKERS: Mapping[Shape, Callable[[int], flows.Steps]] = {
    Shape.WORKER: flows.abreast,
    Shape.STEP: flows.behind_one,
    Shape.ITEM: flows.items,
}
_WAITING: Mapping[Shape, str] = {
    Shape.WORKER: "wait for a worker",
    Shape.STEP: "wait for a step",
    Shape.ITEM: "items wait for a worker",
}


@dataclass
class _Cancelled:
    """What the cancellation of one run took.

    Attributes:
        call: cancel_workflow_run.
        milliseconds: Until the run is shown as cancelled, with all its steps.
    """

    call: _Took
    milliseconds: float


def cancels(
    ctx: typer.Context,
    *,
    shapes: Annotated[
        list[Shape],
        typer.Option(
            help="worker: all steps wait for a worker; step: all but one for that one; item: all"
            " items of a map, of 20 times as many as --steps, for a worker"
        ),
    ] = list(Shape),
    steps: StepsOfRun = 5000,
    runs: Annotated[int, typer.Option(help="Runs that are cancelled in a round", min=1)] = 2,
    backlog: Annotated[int, typer.Option(help="Plain leases at the start of a turn", min=1)] = (90_000),
    rounds: Rounds = 5,
) -> Answer:
    """Milliseconds of cancel_workflow_run; claims of plain leases beside it over claims alone.

    After the call another session sweeps (advance_workflows) every 50 ms, as a worker does that has
    settled steps, until the run and all its steps are cancelled. A node claims plain leases of the
    same queue meanwhile, which are older than those of the run.
    """
    run = Run.of(ctx)
    figures: list[Figure] = []
    facts: dict[str, str] = {}
    for shape in shapes:
        with database(run.dsn) as dsn:
            create_queue(dsn)
            count = _ITEMS_A_STEP * steps if shape == Shape.ITEM else steps
            flows.define(dsn, "cancelled", _MAKERS[shape](count))
            turn = _Turn(run, dsn, register(dsn), backlog)
            cancelled, beside, alone = [], [], []
            for number in range(rounds):
                run.tell(f"round {number + 1}/{rounds}: {shape}")
                ended, claimed = turn.cancelling(runs)
                cancelled.append(ended)
                beside.append(claimed)
                alone.append(turn.alone(claimed.seconds))
            facts = machine(dsn)
        name = f"{count:,} {_WAITING[shape]}"
        figures += [_cancel_figure(name, cancelled), *_beside(name, beside, alone)]
    compared = f"cancel_workflow_run / {CANCEL_MS} ms; claims beside it / alone"
    return Answer("cancels", compared, tuple(figures), ctx.params, facts)


@dataclass
class _Turn:
    """Claims of plain leases, beside cancellations and alone."""

    run: Run
    dsn: str
    node: Node
    backlog: int

    def cancelling(self, runs: int) -> tuple[list[_Cancelled], Claimed]:
        """Cancel so many runs, one after the other, while the node claims.

        Raises: RanDryError when the claims came to the steps of the runs.
        """
        top_up(self.run, self.dsn, kind(), self.backlog)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            first, *submitted = (flows.submit(connection, "cancelled") for _ in range(runs + 1))
            flows.release(connection)
            _cancel(connection, first)  # plans are made in it
            calm_down(self.dsn)
            with claiming(self.dsn, self.node) as claimed:
                cancelled = [_cancel(connection, one) for one in submitted]
        return cancelled, claimed

    def alone(self, seconds: float) -> Claimed:
        """Claim for so long."""
        top_up(self.run, self.dsn, kind(), self.backlog)
        calm_down(self.dsn)
        with claiming(self.dsn, self.node) as claimed:
            time.sleep(seconds)
        return claimed


def _cancel(connection: psycopg.Connection, run_id: UUID) -> _Cancelled:
    """Cancel a run, and sweep until nothing of it is left."""
    started = time.perf_counter()
    call = _timed(connection, lambda: connection.execute(_CANCEL, [run_id], prepare=True))
    while True:
        [(state, counts)] = connection.execute(_STATES, [run_id], prepare=True).fetchall()
        if state == "cancelled":
            break
        time.sleep(_PAUSE)
        connection.execute(_SWEEP, prepare=True)
    took = 1000 * (time.perf_counter() - started)
    _check_ends(counts)
    return _Cancelled(call, took)


def _check_ends(counts: Mapping[str, int]) -> None:
    """Raises: RanDryError when a step was claimed."""
    if not counts.keys() <= {"cancelled", "skipped"}:
        raise RanDryError(f"the claims came to the steps of a run: {counts}; raise --backlog")


def _cancel_figure(name: str, rounds: Sequence[Sequence[_Cancelled]]) -> Figure:
    calls = [[one.call for one in of_round] for of_round in rounds]
    values = _medians(calls)
    whole = [mean(one.milliseconds for one in of_round) for of_round in rounds]
    return Figure.against(
        f"{name}: call / {CANCEL_MS} ms",
        "ms",
        values=values,
        bases=[float(CANCEL_MS)] * len(values),
        aim=at_most(1),
        more=_processor(calls) | {"all ms": Spread.of(whole)},
    )


def _beside(name: str, beside: Sequence[Claimed], alone: Sequence[Claimed]) -> Iterator[Figure]:
    """Claims while runs are cancelled over claims alone: p50, then p99."""
    sides: Mapping[str, Callable[[Claimed], float]] = {
        "p50": lambda claimed: claimed.p50,
        "p99": lambda claimed: claimed.p99,
    }
    for what, of in sides.items():
        yield Figure.against(
            f"{name}: claims, {what}",
            "ms",
            values=[of(claimed) for claimed in beside],
            bases=[of(claimed) for claimed in alone],
            aim=SLOWDOWN,
        )


def _timed(connection: psycopg.Connection, call: Callable[[], Any]) -> _Took:
    """What a call takes."""
    times = array("d")

    def timed() -> None:
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))

    usage = usage_of(connection, timed, 1)
    return _Took(times[0], usage.cpu_ms)


def _medians(rounds: Sequence[Sequence[_Took]]) -> list[float]:
    """Milliseconds of a call in each round."""
    return [median(one.milliseconds for one in of_round) for of_round in rounds]


def _processor(rounds: Sequence[Sequence[_Took]]) -> dict[str, Spread]:
    """Processor time of a call, on average: known in hundredths of a second for each alone."""
    known = [[one.cpu_ms for one in of_round if one.cpu_ms is not None] for of_round in rounds]
    return {"cpu ms": Spread.of([mean(of_round) for of_round in known])} if all(known) else {}
