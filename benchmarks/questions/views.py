"""How long do the views for operators take, and do claims pay for them?"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from statistics import median
from typing import Annotated, Any

import psycopg
import typer
from psycopg.types.json import Jsonb

from benchmarks.core.claimer import Claimer
from benchmarks.core.fill import TASK, Lease, fill, kind
from benchmarks.core.node import node_id, register, register_on
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.queue import create_queue
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, machine
from benchmarks.core.spread import Spread

VIEWS = (
    "queue_depth",
    "pending_reasons",
    "pending_no_match",
    "pending_contended",
    "node_usage",
    "tag_distribution",
    "placement_class_stats",
)
OTHERS = "others"  # a queue whose leases the claiming node may not run
AIM = at_most(1.05)
A_SECOND = 1000
MODELS = ("A100", "H100", "L40", "T4", "none")
NOBODY = "nobody has this"

Sizes = Annotated[list[int], typer.Option(help="Kinds of nodes (profiles)", min=1)]


def views(
    ctx: typer.Context,
    *,
    profiles: Sizes = [100, 10_000],  # noqa: B006
    nodes: Annotated[int, typer.Option(help="Registered nodes", min=1)] = 10_000,
    classes: Annotated[int, typer.Option(help="Placement classes with leases ready", min=1)] = (
        10_000
    ),
    pending: Annotated[int, typer.Option(help="Leases ready", min=1)] = 1_000_000,
    claims: Claims = 1000,
    rounds: Rounds = 5,
) -> Answer:
    """How long each view takes; claim p50 beside a session that reads them all, over p50 alone."""
    run = Run.of(ctx)
    figures: list[Figure] = []
    facts: dict[str, str] = {}
    for count in profiles:
        with database(run.dsn) as dsn:
            run.tell(f"preparing: {count:,} profiles")
            prepare(run, dsn, nodes=nodes, profiles=count, classes=classes, pending=pending)
            figures += [_read(dsn, view, rounds, f"{count:,} profiles") for view in VIEWS]
            figures.append(_slowdown(run, dsn, claims, rounds, f"{count:,} profiles"))
            facts = machine(dsn)
    compared = f"milliseconds of a read (aim: {A_SECOND:,}); claim p50 while one session reads"
    return Answer("views", compared, tuple(figures), ctx.params, facts)


def prepare(run: Run, dsn: str, *, nodes: int, profiles: int, classes: int, pending: int) -> None:
    """Nodes that each run something, and a backlog of all that can be the matter with a lease."""
    create_queue(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select hwqueue.create_queue(%s)", [OTHERS])
        for number in run.track(range(1, nodes + 1), "nodes"):
            register_on(connection, number, _node(number, profiles))
            connection.execute(
                "select hwqueue.adopt_lease(%s, %s, %s, '{}', %s)",
                [OTHERS, node_id(number), TASK, Jsonb({"placement": {"resources": _use(number)}})],
                prepare=True,
            )
    fill(run, dsn, [_lease(number, nodes) for number in range(classes)], pending, OTHERS)
    calm_down(dsn)


def _node(number: int, profiles: int) -> Mapping[str, Any]:
    labels = {"model": MODELS[number % 5], "zone": f"z{number % profiles % 20}"}
    if profiles > 100:
        labels["hostname"] = f"host-{number % profiles}"
    else:
        labels["group"] = f"{number % profiles}"
    return {
        "labels": labels,
        "heartbeat_timeout": 86_400,
        "capacity": {"cpu_milli": 64_000, "memory_mib": 524_288},
        "gpus": [
            {"resource_id": str(node_id(1000 * number + n))} for n in range(8 * (number % 5 < 2))
        ],
    }


def _use(number: int) -> dict[str, int]:
    gpus = {"gpu": number % 9} if number % 5 < 2 else {}
    return gpus | {"cpu_milli": number * 37 % 64_000, "memory_mib": number * 101 % 524_288}


def _lease(number: int, nodes: int) -> Lease:
    """The classes: most match many nodes, some few, some one, some none."""
    require: list[dict[str, Any]] = [
        {"label": "model", "op": "in", "values": [MODELS[number % 5]]},
        {"label": "zone", "op": "in", "values": [f"z{n % 20}" for n in (number, number // 7)]},
    ]
    if number % 20 == 0:
        require = [{"label": "model", "op": "in", "values": [NOBODY]}]
    elif number % 20 == 1:
        require = [{"label": "hostname", "op": "in", "values": [f"host-{number % nodes}"]}]
    elif number % 20 == 2:
        require = [{"tags": {"zone": f"z{number % 20}"}}, {"label": "model", "op": "exists"}]
    resources = {
        "cpu_milli": 500 * (1 + number % 200),  # more than a node has, above 128
        "memory_mib": 1024 * (1 + number % 97),
    }
    if number % 5 < 2:
        resources["gpu"] = 1 + number % 8
    return kind(placement={"require": require, "resources": resources}, labels={"n": str(number)})


def _read(dsn: str, view: str, rounds: int, case: str) -> Figure:
    """Warm reads of a whole view."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        times = [_timed(connection, view) for _ in range(rounds + 1)]
    return Figure(f"{view}, {case}", "ms", Spread.of(times[1:]))


def _timed(connection: psycopg.Connection, view: str) -> float:
    started = time.perf_counter()
    connection.execute(f"select * from hwqueue.{view}".encode()).fetchall()
    return 1000 * (time.perf_counter() - started)


def _slowdown(run: Run, dsn: str, claims: int, rounds: int, case: str) -> Figure:
    """Claims of a node with work of its own, alone and beside a reader, in turns."""
    fill(run, dsn, [kind()], 4 * claims * (rounds + 1))
    calm_down(dsn)
    with closing(Claimer(dsn, register(dsn, 0))) as claimer:
        _p50(claimer, claims)
        alone, beside = [], []
        for _ in range(rounds):
            alone.append(_p50(claimer, claims))
            with _reader(dsn):
                beside.append(_p50(claimer, claims))
    return Figure.against(
        f"claims beside a reader, {case}", "p50 ms", values=beside, bases=alone, aim=AIM
    )


def _p50(claimer: Claimer, claims: int) -> float:
    return median(claimer.timed_claim() for _ in range(claims))


@contextmanager
def _reader(dsn: str) -> Iterator[None]:
    """Have one session read all views without pause."""
    over = threading.Event()

    def read() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                for view in VIEWS:
                    connection.execute(f"select count(*) from hwqueue.{view}".encode())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
