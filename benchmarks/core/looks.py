"""What operators look at: the views in SQL; the API, the dashboard and the metrics as served."""

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg

from benchmarks.core.crowd import EVERYWHERE, GANG, RUN

VIEWS = (
    "queue_depth",
    "pending_reasons",
    "pending_no_match",
    "pending_contended",
    "node_usage",
    "tag_distribution",
    "placement_class_stats",
)
_API = (
    "/healthz",
    "/readyz",
    "/api/v1/me",
    "/api/v1/webhooks",
    "/api/v1/webhooks/others/deliveries",
    "/api/v1/schedules",
    "/api/v1/schedules/others/fires",
    "/api/v1/limits",
    "/api/v1/limits/others/lanes",
    "/api/v1/tenants",
    "/api/v1/tenant-usage",
    "/api/v1/preemptions",
    "/api/v1/leases",
    "/api/v1/leases?queue=others&state=pending&limit=500",
    "/api/v1/leases/{lease}",
    "/api/v1/leases/{lease}/history",
    "/api/v1/leases/{lease}/logs",
    "/api/v1/leases/{lease}/checkpoints",
    "/api/v1/leases/{lease}/explanation",
    "/api/v1/leases/{lease}/preemption",
    "/api/v1/nodes?limit=500",
    "/api/v1/nodes/{node}",
    "/api/v1/queues",
    "/api/v1/queues/others",
    "/api/v1/tasks",
    "/api/v1/events",
    "/api/v1/pending",
    "/api/v1/pending?kind=no_match",
    "/api/v1/pending?kind=contended&limit=1000",
    "/api/v1/queue-depth",
    "/api/v1/throughput",
    "/api/v1/fleet-history?kind=gpus",
    "/api/v1/node-usage?limit=1000",
    "/api/v1/planner",
    "/api/v1/labels",
    "/api/v1/classes?limit=1000",
    "/api/v1/classes/{class}/explanation",
    "/api/v1/gangs",
    "/api/v1/gangs/{gang}",
    "/api/v1/everywhere",
    "/api/v1/everywhere/{everywhere}",
    "/api/v1/gangs/{gang}/explanation",
    "/api/v1/workflows",
    "/api/v1/workflows/others",
    "/api/v1/workflows/others/versions",
    "/api/v1/runs",
    "/api/v1/runs/{run}",
    "/api/v1/runs/{run}/signals",
    "/api/v1/runs/{run}/steps",
    "/api/v1/runs/{run}/steps/others/results",
)
_ASKED: dict[str, dict[str, Any]] = {
    "/api/v1/match": {
        "placement": {
            "require": [{"label": "model", "op": "in", "values": ["A100", "H100"]}],
            "resources": {"cpu_milli": 4000, "gpu": 2},
        }
    },
    "/api/v1/gangs/what-if": {
        "queue": "others",
        "members": [{"task": "t", "count": 8, "options": {"placement": {"resources": {"gpu": 1}}}}],
        "options": {"together": ["rack"]},
    },
    "/api/v1/what-if": {
        "nodes": [
            {"labels": {"model": "A100", "zone": "z1"}, "capacity": {"cpu_milli": 64_000}},
            {"labels": {"model": "nobody has this"}, "capacity": {"cpu_milli": 64_000}},
        ]
    },
}
_PAGES = (
    "/",
    "/pending",
    "/pending?kind=no+match&sort=pending",
    "/pending/{class}",
    "/fleet",
    "/fleet/history",
    "/standing",
    "/fleet?view=map",
    "/fleet/map.json",
    "/fleet/fit/{class}",
    "/nodes/{name}",
    "/leases",
    "/leases?queue=others&state=pending",
    "/leases/{lease}",
    "/leases/{lease}/why",
    "/gangs",
    "/gangs/{gang}",
    "/gangs/{gang}/why",
    "/runs",
    "/runs/{run}",
    "/runs/{run}/why",
    "/runs/{run}/steps",
    "/runs/{run}/steps/others",
    "/workflows",
    "/workflows/others",
    "/workflows/others/where",
    "/queues",
    "/queues/others",
    "/classes",
    "/events",
    "/try?for={class}",
    "/try/placement?for={class}",
    "/system",
    "/webhooks",
    "/webhooks/others",
    "/schedules",
    "/schedules/others",
    "/limits",
    "/limits/others",
    "/tenants",
    "/tenants/others",
    "/jump?q={name}",
    "/jump/names?q={name}",
)
METRICS = "/metrics"
PATHS = (*_API, *_ASKED, METRICS, *_PAGES)
ALL = (*VIEWS, *PATHS)


@dataclass(frozen=True)
class Seen:
    """One answer. failed: what the server said instead of one, such as 504."""

    milliseconds: float
    size: int
    failed: int | None = None


class Looker:
    """Somebody who looks, over one connection to the database and one to the server."""

    def __init__(self, dsn: str, url: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._http = httpx.Client(base_url=url, timeout=60)
        self._random = random.Random(1)
        self._classes = self._connection.execute(
            "select class_id, min(lease_id::text) from hwqueue.ready group by class_id"
        ).fetchall()
        self._nodes = self._connection.execute(
            "select node_id, node_name from hwqueue.node_usage(p_limit => 1000)"
        ).fetchall()

    def look(self, what: str) -> Seen:
        """Read a view, or a path about some class, lease or node: another one every time."""
        class_id, lease = self._random.choice(self._classes)
        node, name = self._random.choice(self._nodes)
        path = what.format_map(
            {
                "class": class_id,
                "lease": lease,
                "node": node,
                "name": name,
                "run": RUN,
                "gang": GANG,
                "everywhere": EVERYWHERE,
            }
        )
        started = time.perf_counter()
        size, failed = self._fetch(path)
        return Seen(1000 * (time.perf_counter() - started), size, failed)

    def close(self) -> None:
        """Close both connections."""
        self._connection.close()
        self._http.close()

    def _fetch(self, path: str) -> tuple[int, int | None]:
        if path in VIEWS:
            self._connection.execute(f"select * from hwqueue.{path}".encode()).fetchall()
            return 0, None
        body: Mapping[str, Any] | None = _ASKED.get(path)
        answer = self._http.get(path) if body is None else self._http.post(path, json=body)
        return len(answer.content), answer.status_code if answer.is_error else None


@contextmanager
def served(dsn: str, *options: str) -> Iterator[str]:
    """`hwqueue serve` as operators run it, in a process of its own; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from hwqueue.cli.main import app; app()", "--dsn", dsn]
    with subprocess.Popen(
        [*command, "serve", "--port", str(port), *options], stderr=subprocess.DEVNULL
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url)
            yield url
        finally:
            process.terminate()


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    """Raises: RuntimeError when the server ends instead."""
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError("hwqueue serve has ended by itself: run it by hand to see why")
