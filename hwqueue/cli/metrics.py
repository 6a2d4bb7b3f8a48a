"""hwqueue metrics: what Prometheus reads."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from hwqueue.cli.connect import connection_string, named_database
from hwqueue.cli.extra import required
from hwqueue.cli.inputs import span
from hwqueue.cli.listening import check_address
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, say, to_json
from hwqueue.stopping import SIGNALS, until_told

if TYPE_CHECKING:
    from hwqueue.metrics import HwqueueCollector

app = typer.Typer(no_args_is_help=True, help="Metrics for Prometheus.")

Shard = Annotated[int, typer.Option("--shard", min=0, help="Whose metrics.")]
Timeout = Annotated[str, typer.Option("--timeout", help="How long the database may take.")]


@app.command(epilog="Example: hwqueue metrics serve --port 9717")
@until_told()
def serve(
    ctx: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port.")] = 9717,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    shard: Shard = 0,
    timeout: Timeout = "5s",
) -> None:
    """Answer Prometheus at http://HOST:PORT/metrics until SIGTERM or Ctrl-C.

    The first signal waits for the database to answer a scrape under way, a second one stops now.
    """
    collector = _collector(ctx, shard, timeout)
    from prometheus_client import start_http_server  # noqa: PLC0415

    from hwqueue.metrics import registry_for  # noqa: PLC0415

    check_address(host, port)
    with _told_to_stop() as wait:
        server, _thread = start_http_server(port, addr=host, registry=registry_for(collector))
        say(ctx, f"metrics at http://{host}:{port}/metrics")
        wait()
    server.shutdown()
    server.server_close()
    collector.close()


@contextmanager
def _told_to_stop() -> Iterator[Callable[[], object]]:
    """A function that returns at the first SIGTERM or SIGINT since the block began.

    The signals are blocked and waited for, not handled: the system may hand one to a thread that
    answers a scrape, and a handler would run only when the main thread next runs Python.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield partial(signal.sigwait, SIGNALS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@app.command("print", epilog="Example: hwqueue metrics print > /var/lib/node_exporter/hwqueue.prom")
def print_(ctx: typer.Context, shard: Shard = 0, timeout: Timeout = "5s") -> None:
    """Print the metrics once, for node_exporter's textfile collector.

    Exits with 1 when the database does not answer; `hwqueue_up` says so, too.
    """
    collector = _collector(ctx, shard, timeout)
    from prometheus_client import generate_latest  # noqa: PLC0415

    from hwqueue.metrics import registry_for  # noqa: PLC0415

    registry = registry_for(collector)
    text = generate_latest(registry).decode()
    collector.close()
    typer.echo(to_json({"metrics": text}) if options_of(ctx).json else text, nl=False)
    if "\nhwqueue_up 1.0\n" not in text:
        raise typer.Exit(ExitCode.FAILED)


def _collector(ctx: typer.Context, shard: int, timeout: str) -> HwqueueCollector:
    """The collector of the database that is meant; a named one may be away."""
    with required("metrics"):
        from hwqueue.metrics import HwqueueCollector  # noqa: PLC0415
    named = named_database(ctx)
    dsn = named.dsn if named else connection_string(ctx)
    return HwqueueCollector(dsn, shard=shard, timeout=span(timeout, "--timeout"))
