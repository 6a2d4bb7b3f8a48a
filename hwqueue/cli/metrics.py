"""hwqueue metrics: what Prometheus reads."""

from __future__ import annotations

import hmac
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hwqueue.cli.connect import connection_string, named_database
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import secret_of, span
from hwqueue.cli.needed import check_address, required
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, say, to_json
from hwqueue.stopping import SIGNALS, until_told

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from hwqueue.metrics import HwqueueCollector

app = Commands("Metrics for Prometheus.")
Timeout = Annotated[str, Option("--timeout", help="How long the database may take.")]


@app.command("hwqueue metrics serve --port 9717")
@until_told()
def serve(
    ctx: typer.Context,
    port: Annotated[int, Option(min=1, max=65535, help="TCP port.")] = 9717,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    *,
    timeout: Timeout = "5s",
    token_file: Annotated[
        Path | None,
        Option(
            help="File with a token, which Prometheus must send as `Authorization: Bearer`; left "
            "out: everybody who reaches the address may read."
        ),
    ] = None,
) -> None:
    """Answer Prometheus at http://HOST:PORT/metrics until SIGTERM or Ctrl-C.

    The first signal waits for the database to answer a scrape under way, a second one stops now.
    """
    token = secret_of(token_file, "--token-file")
    collector = _collector(ctx, timeout)
    import prometheus_client as prometheus  # noqa: PLC0415

    from hwqueue.metrics import registry_for  # noqa: PLC0415

    check_address(host, port)
    with _told_to_stop() as wait:
        # empty until it asks who is there
        empty = prometheus.CollectorRegistry()
        server, _thread = prometheus.start_http_server(port, addr=host, registry=empty)
        server.set_app(_guarded(prometheus.make_wsgi_app(registry_for(collector)), token))
        say(ctx, f"metrics at http://{host}:{port}/metrics")
        wait()
    server.shutdown()
    server.server_close()
    collector.close()


def _guarded(app: WSGIApplication, token: str | None) -> WSGIApplication:
    """The application, for those who send the token."""
    wanted = f"Bearer {token}".encode()

    def guard(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
        if token is None or hmac.compare_digest(given, wanted):
            return app(environ, start_response)
        headers = [("Content-Type", "text/plain"), ("WWW-Authenticate", 'Bearer realm="hwqueue"')]
        start_response("401 Unauthorized", headers)
        return [b"send the token of --token-file: Authorization: Bearer TOKEN\n"]

    return guard


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


@app.command("hwqueue metrics print > /var/lib/node_exporter/hwqueue.prom")
def print_(ctx: typer.Context, timeout: Timeout = "5s") -> None:
    """Print the metrics once, for node_exporter's textfile collector.

    Exits with 1 when the database does not answer; `hwqueue_up` says so, too.
    """
    collector = _collector(ctx, timeout)
    from prometheus_client import generate_latest  # noqa: PLC0415

    from hwqueue.metrics import registry_for  # noqa: PLC0415

    registry = registry_for(collector)
    text = generate_latest(registry).decode()
    collector.close()
    typer.echo(to_json({"metrics": text}) if options_of(ctx).json else text, nl=False)
    if "\nhwqueue_up 1.0\n" not in text:
        raise typer.Exit(ExitCode.FAILED)


def _collector(ctx: typer.Context, timeout: str) -> HwqueueCollector:
    """The collector of the database that is meant; a named one may be away."""
    with required("metrics"):
        from hwqueue.metrics import HwqueueCollector  # noqa: PLC0415
    named = named_database(ctx)
    dsn = named.dsn if named else connection_string(ctx)
    return HwqueueCollector(dsn, timeout=span(timeout, "--timeout"))
