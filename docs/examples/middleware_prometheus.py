"""Measure handlers by task, for Prometheus.

Run: HWQUEUE_DSN=$(hwqueue db url) python middleware_prometheus.py
"""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import example_worker
from prometheus_client import REGISTRY, Histogram, start_http_server

import hwqueue

app = hwqueue.App()
runs = Histogram("task_run_seconds", "How long handlers ran.", ["task", "raised"])


servers: list[Any] = []


@app.on_start
def serve() -> None:
    server, _ = start_http_server(int(os.environ.get("METRICS_PORT", "9718")), addr="127.0.0.1")
    servers.append(server)


@app.on_stop
def close() -> None:
    server = servers.pop()
    server.shutdown()
    server.server_close()


@contextmanager
def measured(task: str) -> Generator[None, None, None]:
    began, raised = time.monotonic(), ""
    try:
        yield
    except BaseException as error:
        raised = type(error).__name__
        raise
    finally:
        runs.labels(task, raised).observe(time.monotonic() - began)


@app.middleware
def measure(call_next: Any, context: hwqueue.LeaseContext) -> Any:
    with measured(context.task_name):
        return call_next(context)


@app.middleware
async def measure_async(call_next: Any, context: hwqueue.AsyncLeaseContext) -> Any:
    with measured(context.task_name):
        return await call_next(context)


@app.task("draw", queue="drawings")
def draw(params: Any) -> None: ...


@app.task("fetch", queue="drawings", max_attempts=1)
async def fetch(params: Any) -> None:
    raise ConnectionError("no answer")


if __name__ == "__main__":
    example_worker.run(app, draw, 7)
    example_worker.run(app, fetch, 8)
    for task, raised in (("draw", ""), ("fetch", "ConnectionError")):
        labels = {"task": task, "raised": raised}
        print(task, raised, REGISTRY.get_sample_value("task_run_seconds_count", labels))
