"""hwqueue workflow update: another placement for the steps of a run that were not released."""

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import typer
from typer import Argument, Option

from hwqueue.cli.connect import open_client
from hwqueue.cli.inputs import identifier, json_object, labels
from hwqueue.cli.options import options_of
from hwqueue.cli.output import say, show_items
from hwqueue.cli.submitting import Mode
from hwqueue.cli.tables import row_of
from hwqueue.cli.workflow_check import tell, tell_asked
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.text import plural
from hwqueue.types import PreviewedStep, StepChanges, UpdatedStep

EXAMPLE = "hwqueue workflow update 01890a5d-ac96-774b-bcce-b302099a8057 --app-version 2.5.0 --dry-run"

_NONE = "every step of it was released, or has ended"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What steps ask of their nodes from now on."""

    tags: Annotated[
        list[str] | None,
        Option(
            "--tags",
            "--node-label",
            help="Label that the nodes must have, key=value, or several as JSON;"
            ' {"key": null} takes one away, with --affinity override.',
        ),
    ] = None
    placement: Annotated[
        str | None, Option(help="What else the steps ask of their nodes: JSON or a file.")
    ] = None
    affinity: Annotated[
        Mode | None,
        Option(
            help="What --tags and --placement do to what the steps asked at submission: both must"
            " hold (and), these replace it key by key, or altogether. Alone it takes those of a"
            " former update away.",
            show_default="and",
        ),
    ] = None
    app_version: Annotated[str | None, Option(help="Version of the code that the steps are pinned to.")] = (
        None
    )
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
    show_items(ctx, updated, _row, empty=_NONE)
    if not options_of(ctx).json:
        for each in updated:
            if each.changed:
                tell_asked(each)
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
            tell(each)


_row = row_of(UpdatedStep, "step kind state changed")
