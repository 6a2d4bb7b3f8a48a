"""A program of questions: the options that count for all of them, and what comes out, shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.core.chart import write_chart
from benchmarks.core.load import RanDryError
from benchmarks.core.report import Answer, show, write_json
from benchmarks.core.run import Run

Answers = Answer | Iterable[Answer] | None


def program(
    questions: Sequence[Callable[..., Answers]],
    by_default: Sequence[Callable[..., Answer]] = (),
) -> typer.Typer:
    """The command line of these questions; those of `by_default` are asked when none is named."""
    app = typer.Typer(
        result_callback=_report,
        add_completion=False,
        pretty_exceptions_show_locals=False,
        no_args_is_help=not by_default,
    )
    for question in questions:
        app.command()(question)

    about = "Measure hwqueue: ratios within one run."
    if by_default:
        about += " Without a question: all, at their default sizes."

    @app.callback(invoke_without_command=bool(by_default), help=about)
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
        ctx.obj = Run(dsn, Console(stderr=True))
        if ctx.invoked_subcommand is not None:
            return None
        return (_at_default_sizes(ctx, question.__name__) for question in by_default)

    return app


def main(app: typer.Typer, name: str) -> None:
    """Run a program of questions."""
    try:
        app(prog_name=name)
    except RanDryError as error:
        sys.exit(f"error: {error}")


def _report(answers: Answers, json: Path | None, chart: Path | None, **_: object) -> None:
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


def _at_default_sizes(ctx: typer.Context, name: str) -> Answer:
    """The answer that the command gives without options."""
    assert isinstance(ctx.command, typer.core.TyperGroup)
    command = ctx.command.commands[name]
    with command.make_context(name, [], parent=ctx) as asked:
        answer = command.invoke(asked)
    assert isinstance(answer, Answer)
    return answer
