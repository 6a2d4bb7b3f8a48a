"""hwqueue workflow check, update: where steps of a workflow could run, and where they may."""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import typer
from typer import Argument, Option

from hwqueue.asked import asked
from hwqueue.cli import submitting
from hwqueue.cli.completion import workflow_names
from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.inputs import identifier, json_object, json_value, labels
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, plain_text, say, show_items
from hwqueue.cli.spawning import A_TAG, AN_OBJECT
from hwqueue.cli.submitting import Mode
from hwqueue.cli.tables import row_of
from hwqueue.cli.worker import load_named
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.meanings import meaning
from hwqueue.text import plural
from hwqueue.types import CheckedStep, PreviewedStep, StepChanges, UpdatedStep
from hwqueue.workflow import Workflow

EXAMPLE = "hwqueue workflow check training.json --tags region=us-east"
UPDATE_EXAMPLE = "hwqueue workflow update 01890a5d-ac96-774b-bcce-b302099a8057 --app-version 2.5.0 --dry-run"

_NONE = "every step of it was released, or has ended"


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
            _tell(each)
    if any(each.nodes_matching == 0 or each.code == "nested_refused" for each in found):
        raise typer.Exit(ExitCode.FAILED)


def _wanted(spec: str | None, app_name: str | None, workflow: str | None) -> str | Workflow | dict[str, Any]:
    if sum(each is not None for each in (spec, app_name, workflow)) != 1:
        raise ConfigError("give a FILE, --app module:name of a hwqueue.Workflow, or --workflow NAME")
    if app_name is not None:
        return load_named(app_name, Workflow)
    return workflow if workflow is not None else json_object(spec or "", "FILE")


_row = row_of(CheckedStep, "step task=task_name queue matching=nodes_matching free=nodes_free code")


def _tell(step: CheckedStep | PreviewedStep) -> None:
    """What it asks and who asks it, what keeps it, and what alone keeps nodes from it."""
    _tell_parts(
        step.step,
        *_asked(step),
        step.headline,
        *(f"but for {each.words}: {plural(each.nodes, 'node')}" for each in step.reasons),
    )


def _tell_asked(step: UpdatedStep) -> None:
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


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What steps ask of their nodes from now on."""

    tags: Annotated[
        list[str] | None, Option("--tags", "--node-label", help=meaning("update.affinity_tags", A_TAG))
    ] = None
    placement: Annotated[str | None, Option(help=meaning("update.placement", AN_OBJECT))] = None
    affinity: Annotated[Mode | None, Option(help=meaning("update.affinity"), show_default="and")] = None
    app_version: Annotated[str | None, Option(help=meaning("update.app_version"))] = None
    any_version: Annotated[bool, Option("--any-version", help="Pin the steps to no version of the code.")] = (
        False
    )

    def given(self) -> StepChanges:
        """What is given, as a client takes it. Raises: ConfigError."""
        changes: StepChanges = {}
        if self.tags:
            changes["affinity_tags"] = labels(self.tags, "--tags")
        if self.placement is not None:
            changes["placement"] = json_object(self.placement, "--placement")
        if self.affinity is not None:
            changes["affinity"] = self.affinity
        if self.any_version and self.app_version is not None:
            raise ConfigError("--app-version and --any-version exclude each other")
        if self.any_version or self.app_version is not None:
            changes["app_version"] = self.app_version
        if not changes:
            raise ConfigError(
                "nothing to change",
                hint="give --tags, --placement, --affinity, --app-version or --any-version",
            )
        return changes


def update(
    ctx: typer.Context,
    run_id: Annotated[str, Argument(help="Id of the run.")],
    *,
    step: Annotated[
        list[str] | None,
        Option(help="Only this step; repeatable.", show_default="all that were not released"),
    ] = None,
    changes: Changes,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show where each step could run then.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Change where steps of a run may run that were not released.

    A step that was released keeps its placement, and so does an item that was spawned: of a map
    that has begun the items that are left change. What --tags, --placement and --affinity say takes
    the place of what they said in a former update. Prints what each step that has changed asks of
    its node now, and which level asks for it.
    """
    wanted = identifier(run_id, "RUN_ID")
    given = changes.given()
    with open_client(ctx) as client:
        if dry_run:
            _show_preview(ctx, client.preview_update(wanted, steps=step, **given))
            return
        if not yes:
            _ask(client, wanted, step, given)
        updated = client.update_steps(wanted, steps=step, **given)
    show_items(ctx, updated, _updated_row, empty=_NONE)
    if not options_of(ctx).json:
        for each in updated:
            if each.changed:
                _tell_asked(each)
    if updated:
        say(ctx, f"follow it: hwqueue workflow status {wanted} --watch")


def _ask(client: Client, run_id: UUID, steps: list[str] | None, changes: StepChanges) -> None:
    """Say how many steps change, and how many of them no node could run then."""
    found = [each for each in client.preview_update(run_id, steps=steps, **changes) if each.changed]
    nowhere = sum(each.nodes_matching == 0 for each in found)
    told = f"; no node matches {nowhere:,} of them" if nowhere else ""
    typer.confirm(f"update run {run_id}? {plural(len(found), 'step')} change{told}", abort=True, err=True)


def _show_preview(ctx: typer.Context, found: list[PreviewedStep]) -> None:
    """Each step with how many nodes match, then what it asks, who asks it, and what it lacks."""
    row = row_of(PreviewedStep, "step changes=changed matching=nodes_matching free=nodes_free code")
    show_items(ctx, found, row, empty=_NONE)
    if not options_of(ctx).json:
        for each in found:
            _tell(each)


_updated_row = row_of(UpdatedStep, "step kind state changed")
