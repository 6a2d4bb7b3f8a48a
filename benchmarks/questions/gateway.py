"""What does it cost to work over HTTP (`hwqueue serve`) instead of with a login of the database?

A call is `settle_and_claim` of one lease, as a worker makes it: by its client, on one connection that
is kept.
"""

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.core.fill import QUEUE, filled
from benchmarks.core.load import Load, drive, take_turns
from benchmarks.core.looks import served
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate_against
from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import database, machine
from benchmarks.core.spread import Spread
from benchmarks.questions.worker import WorkerOpener, node_name
from hwqueue import Client
from hwqueue.types import NodeSpec, Settlement
from hwqueue.types.nodes import id_of_node
from hwqueue.worker.gateway import Gateway, GatewayClient
from hwqueue.worker.session import NodeClient


@dataclass(frozen=True)
class CallOpener:
    """Opens a worker's client of a node, which settles a lease and claims the next."""

    way: Mapping[str, Any]

    def __call__(self, number: int) -> "CallSession":
        return CallSession(self.way, node_name(self.way, number))


class CallSession:
    """A client that makes one call after the other, in an event loop of its own."""

    def __init__(self, way: Mapping[str, Any], name: str) -> None:
        self._runner = asyncio.Runner()
        self._held: list[Settlement] = []
        self._node_id = id_of_node(name)
        self._client = self._runner.run(self._open(way))
        spec = NodeSpec(name=name, instance_id="1")
        self._epoch = self._runner.run(self._client.register_node(self._node_id, spec))

    def step(self) -> int:
        """Settle the lease that is held, and claim the next."""
        return self._runner.run(self._step())

    def close(self) -> None:
        """Close the connection."""
        self._runner.run(self._client.close())
        self._runner.close()

    async def _open(self, way: Mapping[str, Any]) -> NodeClient:
        if "dsn" in way:
            client = NodeClient(way["dsn"])
            await client.open()
            return client
        return GatewayClient(Gateway(way["url"], way["token_file"], self._node_id))

    async def _step(self) -> int:
        answer = await self._client.settle_and_claim(self._node_id, self._epoch, self._held, [QUEUE])
        self._held = [Settlement.complete(one.lease_id, one.claim_token) for one in answer.claimed]
        return len(self._held)


def gateway(
    ctx: typer.Context,
    *,
    workers: Annotated[list[int], typer.Option(help="Worker processes", min=1)] = [1, 4, 8],
    concurrency: Annotated[int, typer.Option(help="Handlers of each at once", min=1)] = 10,
    seconds: Seconds = 10,
    rounds: Rounds = 3,
    backlog: Annotated[int, typer.Option(help="Waiting at the start of each turn")] = 100_000,
) -> Answer:
    """Milliseconds of a call, and leases/s of worker processes, over HTTP / with a login."""
    run = Run.of(ctx)
    with database(run.dsn) as dsn, serving(dsn) as over_http:
        create_queue(dsn)
        ways: dict[str, Mapping[str, Any]] = {"SQL": {"dsn": dsn}, "HTTP": over_http}

        def loads(measure: Callable[[Mapping[str, Any]], Load]) -> list[list[Load]]:
            turns = {name: filled(run, dsn, backlog, partial(measure, way)) for name, way in ways.items()}
            return list(take_turns(turns, rounds, run.tell).values())

        figures = [_milliseconds(*loads(lambda way: drive(CallOpener(way), 1, seconds)))]
        for count in workers:
            in_sql, over = loads(partial(_work, count, concurrency, seconds))
            case = f"workers: {count}, of {concurrency} handlers at once"
            figures.append(rate_against(case, over, in_sql, timed=False))
        compared = "over HTTP / with a login of the database"
        return Answer("gateway", compared, tuple(figures), ctx.params, machine(dsn))


def _work(count: int, concurrency: int, seconds: float, way: Mapping[str, Any]) -> Load:
    return drive(WorkerOpener(way, concurrency), count, seconds)


def _milliseconds(in_sql: list[Load], over_http: list[Load]) -> Figure:
    bases, values = ([load.p50_ms for load in loads] for loads in (in_sql, over_http))
    more = [value - base for value, base in zip(values, bases, strict=True)]
    return Figure.against(
        "settle_and_claim", "ms p50", values=values, bases=bases, more={"ms more": Spread.of(more)}
    )


@contextmanager
def serving(dsn: str) -> Iterator[Mapping[str, Any]]:
    """A server, and what a worker needs to call it."""
    token = secrets.token_urlsafe(32)
    with Client(dsn, pool_size=1) as client:
        client.create_token("bench", sha256(token.encode()).digest(), "worker", nodes=["http-*"])
    with (
        tempfile.TemporaryDirectory() as folder,
        served(dsn, "--auth", "tokens", "--rate-limit", "none") as url,
    ):
        token_file = Path(folder) / "token"
        token_file.write_text(token, encoding="utf-8")
        yield {"url": url, "token_file": token_file}
