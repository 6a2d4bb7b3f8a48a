"""The `hwqueue` program: its sub-commands, its global options, and how errors end it."""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any, cast

import psycopg
import typer
from typer import Option

from hwqueue.cli import (
    db,
    demo,
    doctor,
    events,
    everywhere,
    gang,
    lease,
    limit,
    match,
    metrics,
    node,
    pending,
    placement_class,
    planner,
    queue,
    run,
    schedule,
    serve,
    service,
    task,
    tenant,
    token,
    webhook,
    wire,
    worker,
    workflow,
)
from hwqueue.cli.groups import Commands, Group, add_command
from hwqueue.cli.options import PROCESS_DSN, Host, Options, asks_for_json, in_front, options_of
from hwqueue.cli.output import report_error, report_usage_error
from hwqueue.cli.top import command as top
from hwqueue.driver_errors import translate
from hwqueue.errors import HwqueueError

# Adding a group of commands is adding a line here.
GROUPS: Sequence[tuple[str, Commands]] = (
    ("db", db.app),
    ("queue", queue.app),
    ("task", task.app),
    ("lease", lease.app),
    ("node", node.app),
    ("class", placement_class.app),
    ("service", service.app),
    ("worker", worker.app),
    ("workflow", workflow.app),
    ("gang", gang.app),
    ("everywhere", everywhere.app),
    ("metrics", metrics.app),
    ("events", events.app),
    ("wire", wire.app),
    ("token", token.app),
    ("webhook", webhook.app),
    ("schedule", schedule.app),
    ("limit", limit.app),
    ("tenant", tenant.app),
)
# Commands without a noun: function, example.
COMMANDS: Sequence[tuple[Callable[..., None], str]] = (
    (pending.pending, pending.EXAMPLE),
    (match.match, match.EXAMPLE),
    (top.top, top.EXAMPLE),
    (demo.demo, demo.EXAMPLE),
    (serve.serve, serve.EXAMPLE),
    (doctor.doctor, doctor.EXAMPLE),
    (planner.planner, planner.EXAMPLE),
)


# Of what is wrong with a line. Where the class lives depends on the version of Typer.
_UsageError = cast(type[Exception], typer.BadParameter.__base__)


@contextmanager
def errors_told(options: Callable[[], Options]) -> Iterator[None]:
    """Turn errors into messages and exit codes; `options` is asked when there is one."""
    try:
        with translate():
            yield
    except _UsageError as error:
        if not options().json:
            raise
        raise typer.Exit(report_usage_error(error)) from error
    except (HwqueueError, psycopg.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of our output has enough of it; Typer ends quietly then
        raise typer.Exit(report_error(error, options())) from error


class _Root(Group):
    """Takes global options anywhere on the line, and tells errors.

    `ctx` is Any: where its class lives depends on the version of Typer.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = Options(json=asks_for_json(args))
        with errors_told(lambda: options):
            return super().parse_args(ctx, in_front(args))

    def invoke(self, ctx: Any) -> Any:
        with errors_told(lambda: ctx.find_object(Options) or Options(json=ctx.params["json"])):
            return super().invoke(ctx)


app = typer.Typer(
    name="hwqueue",
    rich_markup_mode="markdown",
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A task queue inside Postgres that knows which machine may run what.",
    epilog="Without --dsn, HWQUEUE_DSN or PG* variables an embedded Postgres is used. "
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 schema, 5 node taken over (`worker run`), "
    "6 cancelled, 7 not in time (`lease wait`, `workflow status --watch`); `run` has those of its "
    "command.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("hwqueue"))
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    dsn: Annotated[
        str | None,
        Option(
            envvar=PROCESS_DSN,
            show_envvar=False,
            help="Database to use. Goes before HWQUEUE_DSN and PG*. Everybody here can see it "
            "(ps): with a password use HWQUEUE_DSN or PGPASSFILE.",
        ),
    ] = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Log more, and show where an error came from.")
    ] = False,
    _version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the global options for the sub-command."""
    host = ctx.obj if isinstance(ctx.obj, Host) else None
    ctx.obj = Options(dsn=dsn, json=json, verbose=verbose, host=host)
    logging.basicConfig(
        level=logging.INFO if options_of(ctx).verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


for _name, _group in GROUPS:
    app.add_typer(_group.typer, name=_name)
# What follows the command that is to run is its own, whatever it looks like.
add_command(app, run.run, run.EXAMPLE, context_settings={"allow_interspersed_args": False})
for _command, _example in COMMANDS:
    add_command(app, _command, _example)
