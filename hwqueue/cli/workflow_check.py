"""hwqueue workflow check: where each step of a workflow could run, before it is submitted."""

from typing import Annotated, Any

import typer
from typer import Option

from hwqueue.asked import asked
from hwqueue.cli import submitting
from hwqueue.cli.completion import workflow_names
from hwqueue.cli.connect import ask
from hwqueue.cli.inputs import json_object, json_value
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, plain_text, show_items
from hwqueue.cli.tables import row_of
from hwqueue.cli.worker import load_named
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.text import plural
from hwqueue.types import CheckedStep, PreviewedStep, UpdatedStep
from hwqueue.workflow import Workflow

EXAMPLE = "hwqueue workflow check training.json --tags region=us-east"


def check(
    ctx: typer.Context,
    spec: submitting.SpecFile = None,
    *,
    app_name: submitting.AppName = None,
    workflow: Annotated[
        str | None,
        Option(
            "--workflow", help="Name of a workflow that is defined, instead.", autocompletion=workflow_names
        ),
    ] = None,
    input_: Annotated[
        str, Option("--input", help="As for workflow run; where a step may run does not depend on it.")
    ] = "{}",
    flags: submitting.Flags,
) -> None:
    """Show where each step could run if it were submitted now; nothing is changed.

    For each step: how many nodes match and how many of them are free, what it asks and which level
    asks for it, why it would wait. Exits with 1 when no node matches a step now, or a nested run
    would be refused: a busy fleet is no reason. With --json all there is.
    """
    wanted = _wanted(spec, app_name, workflow)
    json_value(input_, "--input")
    found = ask(ctx, Client.check_workflow, wanted, **flags.options())
    show_items(ctx, found, _row, empty="no step of it needs a node")
    if not options_of(ctx).json:
        for each in found:
            tell(each)
    if any(each.nodes_matching == 0 or each.code == "nested_refused" for each in found):
        raise typer.Exit(ExitCode.FAILED)


def _wanted(spec: str | None, app_name: str | None, workflow: str | None) -> str | Workflow | dict[str, Any]:
    if sum(each is not None for each in (spec, app_name, workflow)) != 1:
        raise ConfigError("give a FILE, --app module:name of a hwqueue.Workflow, or --workflow NAME")
    if app_name is not None:
        return load_named(app_name, Workflow)
    return workflow if workflow is not None else json_object(spec or "", "FILE")


_row = row_of(CheckedStep, "step task=task_name queue matching=nodes_matching free=nodes_free code")


def tell(step: CheckedStep | PreviewedStep) -> None:
    """What it asks and who asks it, what keeps it, and what alone keeps nodes from it."""
    _tell_parts(
        step.step,
        *_asked(step),
        step.headline,
        *(f"but for {each.words}: {plural(each.nodes, 'node')}" for each in step.reasons),
    )


def tell_asked(step: UpdatedStep) -> None:
    """What it asks and who asks it; of a nested run, that its steps say so."""
    if step.placement is None:
        _tell_parts(step.step, "what the steps of its run ask")
    else:
        _tell_parts(step.step, *(_asked(step) or ("any node",)))


def _asked(step: CheckedStep | PreviewedStep | UpdatedStep) -> list[str]:
    """A line for each level that asks something."""
    return [f"{who}: {', '.join(words)}" for who, words in asked(step.placement, step.came_from)]


def _tell_parts(step: str, *parts: str) -> None:
    typer.echo()
    typer.echo(plain_text(step))
    for part in parts:
        typer.echo(f"  {plain_text(part)}")
