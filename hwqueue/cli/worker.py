"""hwqueue worker: run a node that claims and runs leases."""

import asyncio
import importlib
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeVar, cast

import typer
from typer import Option

from hwqueue import logs
from hwqueue.app import App
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import checked_dsn, connection_string, named_database
from hwqueue.cli.gpus import gpus_of
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import identifier, json_object, labels, span
from hwqueue.cli.needed import required
from hwqueue.cli.options import PROCESS_DSN, options_of
from hwqueue.cli.spawning import A_TAG
from hwqueue.errors import ConfigError
from hwqueue.logs import LogFormat, LogLevel
from hwqueue.meanings import attributes
from hwqueue.stopping import importing, until_told
from hwqueue.types.base import given
from hwqueue.worker import WorkerSettings
from hwqueue.worker import run as run_worker
from hwqueue.worker.settings import MOST_PROCESSES, name_of_template
from hwqueue.worker.shell import app as shell_app
from hwqueue.worker.supervise import Supervisor

app = Commands("Run a node that claims and runs leases.")

T = TypeVar("T")

NO_APP_HINT = """\
write the tasks, for example in tasks.py:
    import hwqueue
    app = hwqueue.App()
    @app.task("hello")
    def hello(name: str) -> str: return f"hello {name}"
then: hwqueue worker run --app tasks:app
or run commands of hwqueue run alone: hwqueue worker run --shell"""

AppName = Annotated[str | None, Option("--app", help="module:name of the hwqueue.App.")]

_TOLD_BY = {"--dsn": PROCESS_DSN, "--listen": "HWQUEUE_LISTEN"}
# What texts about settings name, and what people type.
_TYPED = {'"': "`", "`dsn`": "`--dsn`", "`name`": "`--name`", "`detect`": "detection"}


def _setting(name: str, *more: str, none: str = "Left out") -> str:
    """What a setting means, then more sentences; none: how people type None."""
    # python -OO drops docstrings; an empty tuple is nothing that people could type
    text = attributes(WorkerSettings).get(name, "").partition(" `()`:")[0]
    for setting, typed in {**_TYPED, "None:": f"{none}:"}.items():
        text = text.replace(setting, typed)
    return " ".join([text, *more])


@app.command("hwqueue worker run --app tasks:app --queue renders --label gpu=true --label region=us-east")
@until_told()
def run(
    ctx: typer.Context,
    *,
    app_name: AppName = None,
    shell: Annotated[
        bool,
        Option(
            "--shell",
            help="Also run commands of hwqueue run, as this user: those who may spawn into its queues "
            "decide which.",
        ),
    ] = False,
    queue: Annotated[
        list[str] | None, Option(help=_setting("queues", "Repeatable."), autocompletion=queue_names)
    ] = None,
    label: Annotated[list[str] | None, Option("--label", "--tags", help=_setting("labels", A_TAG))] = None,
    app_version: Annotated[
        str | None, Option(envvar="HWQUEUE_APP_VERSION", show_envvar=True, help=_setting("app_version"))
    ] = None,
    name: Annotated[
        str | None,
        Option(
            help=_setting(
                "name",
                "%h is the host's, %i the index of the process. %h if left out, %h-%i with --processes.",
            )
        ),
    ] = None,
    processes: Annotated[
        int,
        Option(
            min=1,
            max=MOST_PROCESSES,
            help="Run this many workers, each a node with its share of the machine.",
        ),
    ] = 1,
    process_index: Annotated[int | None, Option(hidden=True)] = None,
    watch: Annotated[
        bool, Option("--watch", help="Start again when a .py file here changes: for development.")
    ] = False,
    watch_dir: Annotated[
        list[Path] | None, Option(help="Watch this folder or file instead of here; repeatable.")
    ] = None,
    capacity: Annotated[str | None, Option(help=_setting("capacity", "As JSON, or a file."))] = None,
    gpu: Annotated[
        list[str] | None,
        Option(help=_setting("gpus", "As MODEL[:MEMORY][xN], such as A100:80GiBx4; repeatable.")),
    ] = None,
    rack: Annotated[int | None, Option(min=0, help=_setting("rack"))] = None,
    no_detect: Annotated[
        bool, Option("--no-detect", help="Read no labels, capacity, cores and GPUs from the machine.")
    ] = False,
    cpu_isolation: Annotated[list[str] | None, Option(help=_setting("cpu_isolation", "Repeatable."))] = None,
    gpu_exclusivity: Annotated[
        list[str] | None, Option(help=_setting("gpu_exclusivity", "Repeatable."))
    ] = None,
    default_cpu_isolation: Annotated[str | None, Option(help=_setting("default_cpu_isolation"))] = None,
    gpu_share_mode: Annotated[str | None, Option(help=_setting("gpu_share_mode"))] = None,
    concurrency: Annotated[int, Option(min=1, max=10_000, help=_setting("concurrency"))] = 10,
    claim_ahead: Annotated[str, Option(help=_setting("claim_ahead"))] = "auto",
    claim_timeout: Annotated[str | None, Option(help=_setting("claim_timeout"))] = None,
    shutdown_timeout: Annotated[str, Option(help=_setting("shutdown_timeout"))] = "30s",
    cancel_grace: Annotated[str, Option(help=_setting("cancel_grace"))] = "5s",
    poll_interval: Annotated[str, Option(help=_setting("poll_interval"))] = "1s",
    reap_interval: Annotated[str, Option(help=_setting("reap_interval", none="With never"))] = "5s",
    prune_interval: Annotated[str, Option(help=_setting("prune_interval", none="With never"))] = "1m",
    node_id: Annotated[str | None, Option(help=_setting("node_id"))] = None,
    url: Annotated[str | None, Option(envvar="HWQUEUE_URL", show_envvar=True, help=_setting("url"))] = None,
    token_file: Annotated[
        Path | None,
        Option(envvar="HWQUEUE_TOKEN_FILE", show_envvar=True, help=_setting("token_file")),
    ] = None,
    listen: Annotated[
        str, Option(envvar="HWQUEUE_LISTEN", show_envvar=True, help=_setting("listen"))
    ] = "auto",
    sync_dsn: Annotated[
        str | None, Option(envvar="HWQUEUE_SYNC_DSN", show_envvar=True, help=_setting("sync_dsn"))
    ] = None,
    deregister_on_stop: Annotated[bool, Option(help=_setting("deregister_on_stop"))] = True,
    pass_env: Annotated[list[str] | None, Option(help=_setting("pass_environment", "Repeatable."))] = None,
    log_format: Annotated[
        LogFormat, Option(help="text; json: one object in a line, with all fields.")
    ] = "text",
    log_level: Annotated[
        LogLevel, Option(help="Lowest level of the log; handlers' own records included.")
    ] = "info",
) -> None:
    """Register this machine as a node and run its leases until SIGTERM or Ctrl-C.

    The first signal lets what runs finish, a second one stops now; what is left goes back to its
    queue.
    """
    logs.set_up(logs.LogSettings(log_format, log_level))  # before the app logs anything
    node_name = _name(name, process_index or 0, processes)
    settings = WorkerSettings(
        dsn=_dsn(ctx, url),
        url=url,
        token_file=token_file,
        listen=listen if listen in ("auto", "off") else checked_dsn(listen, "--listen"),
        sync_dsn=None if sync_dsn is None else checked_dsn(sync_dsn, "--sync-dsn"),
        queues=tuple(queue or ()),
        pass_environment=tuple(pass_env or ()),
        labels=labels(label, "--label"),
        app_version=app_version,
        rack=rack,
        detect=not no_detect,
        cpu_isolation=tuple(cpu_isolation or ()),
        gpu_exclusivity=tuple(gpu_exclusivity or ()),
        default_cpu_isolation=default_cpu_isolation,
        gpu_share_mode=gpu_share_mode,
        concurrency=concurrency,
        claim_ahead=int(claim_ahead) if claim_ahead.isdecimal() else cast(Literal["auto"], claim_ahead),
        deregister_on_stop=deregister_on_stop,
        reap_interval=_span_or_never(reap_interval, "--reap-interval"),
        prune_interval=_span_or_never(prune_interval, "--prune-interval"),
        share=(process_index or 0, processes),
        **given(
            name=node_name,
            gpus=gpus_of(gpu, node_name) if gpu else None,
            capacity=json_object(capacity, "--capacity") if capacity else None,
            node_id=identifier(node_id, "--node-id") if node_id is not None else None,
            claim_timeout=span(claim_timeout, "--claim-timeout"),
            shutdown_timeout=span(shutdown_timeout, "--shutdown-timeout"),
            cancel_grace=span(cancel_grace, "--cancel-grace"),
            poll_interval=span(poll_interval, "--poll-interval"),
        ),
    )
    watched = watch_dir or ([Path.cwd()] if watch else [])
    if process_index is None and (processes > 1 or watched):
        raise typer.Exit(_supervise(ctx, processes, watched))
    tasks = _tasks(ctx, app_name, shell=shell)
    raise typer.Exit(run_worker(tasks, settings, supervised=process_index is not None))


def _dsn(ctx: typer.Context, url: str | None) -> str | None:
    """The database; None: the worker calls an HTTP server, unless the line names both."""
    if url is not None:
        return options_of(ctx).dsn
    named = named_database(ctx)
    # the worker checks one that was named, and waits while it is away
    return connection_string(ctx) if named is None else named.dsn


def _tasks(ctx: typer.Context, name: str | None, *, shell: bool) -> App:
    """The app to run, with --shell also its task; without any other app that alone.

    Raises: as `load_app`.
    """
    if not shell:
        return app_of(ctx, name)
    is_alone = name is None and options_of(ctx).host is None
    found = App() if is_alone else app_of(ctx, name)
    found.include(shell_app)
    return found


def _supervise(ctx: typer.Context, processes: int, watched: Sequence[Path]) -> int:
    """Run this command line again, once for each process."""
    missing = [str(path) for path in watched if not path.exists()]
    if missing:
        raise ConfigError(f"--watch-dir: {missing[0]} does not exist")

    host = options_of(ctx).host
    typed = host.line if host else (sys.executable, "-m", "hwqueue", *sys.argv[1:])
    line, told = without_connection_strings(typed)
    os.environ |= told

    def command(index: int) -> list[str]:
        return [*line, f"--process-index={index}"]

    with required("watch"):
        return asyncio.run(Supervisor(command, processes, watched).run())


def without_connection_strings(line: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A line to run again: everybody sees it (`ps`), so variables say what may hold a password."""
    kept, told, words = [], {}, iter(line)
    for word in words:
        option, equals, value = word.partition("=")
        if option in _TOLD_BY:
            told[_TOLD_BY[option]] = value if equals else next(words, "")
        else:
            kept.append(word)
    return kept, told


def _name(template: str | None, index: int, processes: int) -> str:
    """The node's name. Raises: ConfigError: Several processes would have the same."""
    template = template or ("%h" if processes == 1 else "%h-%i")
    if processes > 1 and "%i" not in template:
        raise ConfigError(f"--name: {template!r} names every process the same", hint="such as --name '%h-%i'")
    return name_of_template(template, index)


def _span_or_never(text: str, name: str) -> timedelta | None:
    return None if text == "never" else span(text, name)


def app_of(ctx: typer.Context, name: str | None) -> App:
    """The app that the line names, else the host's. Raises: as `load_app`."""
    host = options_of(ctx).host
    if host is None or name is not None:
        return load_app(name)
    with importing("the app of the settings"):
        return host.app()


def load_app(name: str | None) -> App:
    """Import `module:attribute`, looking in the current folder first.

    Raises: ConfigError, with what is wrong; errors inside the module are raised as they are.
    """
    if name is None:
        raise ConfigError("--app is missing: a worker needs tasks to run", hint=NO_APP_HINT)
    return load_named(name, App)


def load_named(name: str, kind: type[T]) -> T:
    """Import what `module:attribute` names, which must be of this class of `hwqueue`.

    Raises: As `load_app`.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"--app: {name!r} is not module:name", hint="such as --app tasks:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with importing(f"--app {name}"):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigError(
            f"--app: no module {module_name!r} here or in the Python path",
            hint=f"run this in the folder that holds {module_name.split('.')[0]}.py",
        ) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, kind):
        problem = "does not exist" if found is None else f"is a {type(found).__name__}"
        raise ConfigError(f"--app: {name} {problem}; an hwqueue.{kind.__name__} is needed")
    return found
