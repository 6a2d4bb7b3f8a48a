"""`python -m benchmarks [OPTIONS] [QUESTION]`: the questions, each a command."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.core.chart import write_chart
from benchmarks.core.load import RanDryError
from benchmarks.core.report import Answer, show, write_json
from benchmarks.core.run import Run
from benchmarks.peers.question import peers
from benchmarks.peers.routing import routing
from benchmarks.peers.workers import workers
from benchmarks.questions.backlog import blocked, eligible, ineligible
from benchmarks.questions.classes import active, existing
from benchmarks.questions.cost import cost
from benchmarks.questions.dependents import dependents
from benchmarks.questions.events import events
from benchmarks.questions.fleet import nodes, profiles
from benchmarks.questions.floor import floor
from benchmarks.questions.horizon import horizon
from benchmarks.questions.leases import payloads, priorities
from benchmarks.questions.others import others
from benchmarks.questions.smoke import smoke
from benchmarks.questions.spawn import spawns
from benchmarks.questions.throughput import batches, connections
from benchmarks.questions.views import views
from benchmarks.questions.worker import worker
from benchmarks.soak.question import soak

QUESTIONS = (
    floor,
    ineligible,
    blocked,
    dependents,
    eligible,
    active,
    existing,
    horizon,
    nodes,
    profiles,
    payloads,
    priorities,
    others,
    connections,
    batches,
    spawns,
    worker,
    cost,
    views,
    events,
)


def report(
    answers: Answer | Iterable[Answer] | None, json: Path | None, chart: Path | None, **_: object
) -> None:
    """Show what comes out, one by one, of whatever question; called with the options before it."""
    if answers is None:
        return
    # Wide enough for every figure, also in a file or a pipe.
    console = Console() if Console().is_terminal else Console(width=160)
    done: list[Answer] = []
    for answer in [answers] if isinstance(answers, Answer) else answers:
        show(answer, console)
        done.append(answer)
        if json is not None:
            write_json(done, json)
        if chart is not None:
            write_chart(answer, chart)


app = typer.Typer(result_callback=report, add_completion=False, pretty_exceptions_show_locals=False)
for question in QUESTIONS:
    app.command()(question)
app.command()(smoke)
# Asked one by one: they need other queues, or many minutes. See benchmarks/peers/README.md.
for beside in (peers, routing, workers, soak):
    app.command()(beside)


@app.callback(invoke_without_command=True)
def everything(
    ctx: typer.Context,
    dsn: Annotated[
        str | None,
        typer.Option(
            help="Server to measure on, as a superuser; default: an embedded one, thrown away",
            envvar="HWQUEUE_TEST_DSN",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures into this file")] = None,
    chart: Annotated[Path | None, typer.Option(help="Write charts into this folder")] = None,
) -> Iterable[Answer] | None:
    """Measure hwqueue: ratios within one run. Without a question: all, at their default sizes."""
    ctx.obj = Run(dsn, Console(stderr=True))
    if ctx.invoked_subcommand is not None:
        return None
    return (_at_default_sizes(ctx, question.__name__) for question in QUESTIONS)


def _at_default_sizes(ctx: typer.Context, name: str) -> Answer:
    """The answer that the command gives without options."""
    assert isinstance(ctx.command, typer.core.TyperGroup)
    command = ctx.command.commands[name]
    with command.make_context(name, [], parent=ctx) as asked:
        answer = command.invoke(asked)
    assert isinstance(answer, Answer)
    return answer


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks")
    except RanDryError as error:
        sys.exit(f"error: {error}")
