"""Names that the shell offers to complete, where the database says them at once."""

from collections.abc import Callable, Iterable

import psycopg
import typer

from hwqueue.cli.connect import embedded_server, named_database
from hwqueue.client import Client
from hwqueue.connections import with_timeouts
from hwqueue.errors import HwqueueError
from hwqueue.types import EVENT_CODES, WEBHOOK_CODES

_MOST_SECONDS = 2


def webhook_codes(incomplete: str) -> list[str]:
    """What webhooks may ask for that begins like this."""
    return [code for code in WEBHOOK_CODES if code.startswith(incomplete)]


def event_codes(incomplete: str) -> list[str]:
    """The codes of events that begin like this."""
    return [code for code in EVENT_CODES if code.startswith(incomplete)]


def _dsn(ctx: typer.Context) -> str | None:
    """The database that the line means; None: the embedded one, and it does not run."""
    on_the_line = ctx.find_root().params.get("dsn")
    if isinstance(on_the_line, str):
        return on_the_line
    if named := named_database(ctx):
        return named.dsn
    server = embedded_server()
    return server.url() if server.status().running else None


def _names(read: Callable[[Client], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """What offers names from the database, or none where it cannot be asked: nobody sees an error here."""

    def begun(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            dsn = _dsn(ctx)
            if dsn is None:
                return []
            with Client(with_timeouts(dsn, seconds=_MOST_SECONDS), pool_size=1) as client:
                return [name for name in read(client) if name.startswith(incomplete)]
        except (HwqueueError, psycopg.Error, OSError):
            return []

    return begun


queue_names = _names(lambda client: [each.queue for each in client.list_queues()])
task_names = _names(lambda client: [each.task for each in client.list_tasks()])
node_names = _names(lambda client: [each.name for each in client.list_nodes()])
webhook_names = _names(lambda client: [each.name for each in client.list_webhooks()])
schedule_names = _names(lambda client: [each.name for each in client.list_schedules(limit=1000)])
limit_names = _names(lambda client: [each.name for each in client.list_limits()])
workflow_names = _names(lambda client: [each.workflow for each in client.list_workflows()])
