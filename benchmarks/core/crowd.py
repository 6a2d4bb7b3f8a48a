"""Nodes that each run something, and a backlog of all that can be the matter with a lease."""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.fill import TASK, Lease, fill, kind
from benchmarks.core.node import node_id, register_on
from benchmarks.core.queue import create_queue
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down

OTHERS = "others"  # a queue whose leases no node asks for
RUN = "00000000-0000-7000-8000-000000000001"  # of the workflow of that name
GANG = "00000000-0000-7000-8000-000000000002"
EVERYWHERE = "00000000-0000-7000-8000-000000000003"
MODELS = ("A100", "H100", "L40", "T4", "none")
NOBODY = "nobody has this"


def prepare(run: Run, dsn: str, *, nodes: int, profiles: int, classes: int, pending: int) -> None:
    """Fill a database; `profiles` is how many kinds of nodes there are."""
    create_queue(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select hwqueue.create_queue(%s, %s)", [OTHERS, Jsonb({"claim_timeout": 86400})])
        connection.execute("select hwqueue.set_webhook(%s, 'https://hooks.example/')", [OTHERS])
        schedule = Jsonb({"every": 3600, "queue": OTHERS, "task": "hourly"})
        connection.execute("select hwqueue.create_schedule(%s, %s)", [OTHERS, schedule])
        connection.execute("select hwqueue.create_limit(%s, %s)", [OTHERS, Jsonb({"slots": 8, "by": "key"})])
        steps = [{"name": OTHERS, "task": TASK}]
        connection.execute(
            "select hwqueue.define_workflow(%s)",
            [Jsonb({"name": OTHERS, "queue": OTHERS, "steps": steps})],
        )
        connection.execute("select hwqueue.submit_workflow(%s, '{}', %s)", [OTHERS, Jsonb({"run_id": RUN})])
        members = [{"task": TASK, "count": 2}]
        connection.execute(
            "select hwqueue.spawn_gang(%s, %s, %s)",
            [OTHERS, Jsonb(members), Jsonb({"gang_id": GANG})],
        )
        connection.execute(
            "select hwqueue.spawn_everywhere(%s, %s, '{}', %s)",
            [OTHERS, TASK, Jsonb({"everywhere_id": EVERYWHERE})],
        )
        connection.execute("select hwqueue.stop_everywhere(%s)", [EVERYWHERE])
        for number in run.track(range(1, nodes + 1), "nodes"):
            register_on(connection, number, _node(number, profiles))
            connection.execute(
                "select hwqueue.adopt_lease(%s, %s, %s, '{}', %s)",
                [OTHERS, node_id(number), TASK, Jsonb({"placement": {"resources": _use(number)}})],
                prepare=True,
            )
    fill(run, dsn, [_lease(number, nodes) for number in range(classes)], pending, OTHERS)
    _let_upkeep_look(dsn)
    calm_down(dsn)


def _let_upkeep_look(dsn: str) -> None:
    """Until it has looked at every class, as it has wherever workers run."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute("select reaches from hwqueue.reap()").fetchone() != (0,):
            pass


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
        "gpus": [{"resource_id": str(node_id(1000 * number + n))} for n in range(8 * (number % 5 < 2))],
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
