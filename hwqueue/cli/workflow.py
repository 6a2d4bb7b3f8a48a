"""hwqueue workflow: define workflows, submit runs of them, look at runs and change them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Concatenate
from uuid import UUID

import psycopg
import typer
from typer import Argument, Option

from hwqueue.cli import submitting, workflow_placement
from hwqueue.cli.completion import workflow_names
from hwqueue.cli.connect import P, ask, connection_string, open_client
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import identifier, json_object, json_value, moment_before, pairs, span
from hwqueue.cli.lease_view import error_line
from hwqueue.cli.options import options_of
from hwqueue.cli.output import (
    ExitCode,
    fields_of,
    plain_text,
    say,
    say_more,
    show_item,
    show_items,
    show_one,
    show_rows,
)
from hwqueue.cli.run_view import follow, look_at, names_of, shown_steps
from hwqueue.cli.spawning import A_LABEL
from hwqueue.cli.tables import row_of
from hwqueue.cli.worker import load_named
from hwqueue.client import Client
from hwqueue.connections import in_utf8
from hwqueue.errors import ConfigError
from hwqueue.meanings import meaning
from hwqueue.text import duration, plural
from hwqueue.types import (
    DefinedWorkflow,
    RetryMode,
    RunSignal,
    RunSignalSent,
    RunState,
    RunSummary,
    StepResult,
    StepState,
    SubmittedRun,
    WorkflowDefinition,
    WorkflowStep,
    WorkflowSummary,
    WorkflowVersion,
)
from hwqueue.workflow import Workflow

app = Commands("Define workflows, submit runs, look at them and change them.")

_LONGEST = 60  # of what a step returned

Name = Annotated[str, Argument(help="Name of the workflow.", autocompletion=workflow_names)]
RunId = Annotated[str, Argument(help="Id of the run.")]
Watch = Annotated[bool, Option("--watch", "-w", help="Follow it until it has ended.")]
AtMost = Annotated[str | None, Option("--timeout", help="With --watch: how long at most, such as 10m.")]


@dataclass(frozen=True, kw_only=True)
class Care:
    """Whether a command shows what would change, asks or just does it."""

    dry_run: Annotated[bool, Option("--dry-run", help="Only show which steps would change.")] = False
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False


@app.command("hwqueue workflow define training.json")
def define(
    ctx: typer.Context, spec: submitting.SpecFile = None, *, app_name: submitting.AppName = None
) -> None:
    """Define a workflow; one that means the same as its newest version changes nothing.

    Another one is the next version, for new runs: runs that exist keep theirs.
    """
    if (spec is None) is (app_name is None):
        raise ConfigError("give a FILE, or --app module:name of a hwqueue.Workflow")
    with open_client(ctx) as client:
        if app_name is not None:
            made = client.define_workflow(load_named(app_name, Workflow))
        else:
            made = client.define_workflow(json_object(spec or "", "FILE"))
    show_item(ctx, made, row_of(DefinedWorkflow, "workflow version"))
    if not made.created:
        say(ctx, "nothing has changed since that version")


app.command(workflow_placement.EXAMPLE)(workflow_placement.check)


@app.command("hwqueue workflow list --json")
def list_(
    ctx: typer.Context,
    *,
    limit: Annotated[int, Option(min=1, max=10_000, help="At most this many.")] = 100,
    after: Annotated[str | None, Option(help="The last name of a page, to get the next one.")] = None,
) -> None:
    """List the workflows by name, each with its newest version."""
    found = ask(ctx, Client.list_workflows, after=after, limit=limit)
    show_items(ctx, found, _workflow_row, empty="no workflows; define one: hwqueue workflow define FILE")


@app.command("hwqueue workflow show training --version 2")
def show(
    ctx: typer.Context,
    name: Name,
    *,
    version: Annotated[int | None, Option(min=1, help="The newest unless given.")] = None,
) -> None:
    """Show a definition: what all steps have in common, then its steps in their order.

    With --json the whole specification, in normal form.
    """
    found = ask(ctx, Client.get_workflow, name, version=version)
    if options_of(ctx).json:
        show_one(ctx, fields_of(found))
        return
    common = {key: value for key, value in found.spec.items() if key not in ("name", "steps")}
    show_one(ctx, _definition_facts(found) | common)
    typer.echo()
    show_rows(ctx, [_definition_row(step) for step in found.spec["steps"]])


@app.command("hwqueue workflow versions training")
def versions(
    ctx: typer.Context,
    names: Annotated[
        list[str], Argument(help="Names of workflows, 100 at most.", autocompletion=workflow_names)
    ],
) -> None:
    """List the newest 20 versions of workflows, and how many runs of each are in each state.

    Of the newest 1,000 runs of each name; a row without a version counts runs of specifications.
    """
    found = ask(ctx, Client.list_workflow_versions, names)
    show_items(ctx, found, _version_row, empty="no workflow has such a name")


@app.command(
    """hwqueue workflow run training --input '{"dataset": "s3://in"}' """
    "--tags gpu=true --key 2030-01-31"
)
def run(
    ctx: typer.Context,
    name: Name,
    *,
    input_: Annotated[str, Option("--input", help="What its steps bind with $input: JSON or a file.")] = "{}",
    flags: submitting.Flags,
    watch: Watch = False,
    timeout: AtMost = None,
) -> None:
    """Submit a run of a workflow, and print its id and state.

    With --watch it follows the run, and exits, as `hwqueue workflow status --watch` does.
    """
    given, at_most = json_value(input_, "--input"), _at_most(timeout, watch=watch)
    with open_client(ctx) as client:
        submitted = client.submit_workflow(name, given, **flags.options())
        if watch:
            say(ctx, f"run {submitted.run_id}")
            _watch(ctx, client, submitted.run_id, at_most)
            return
    show_item(ctx, submitted, _submitted_facts)
    status = f"hwqueue workflow status {submitted.run_id}"
    if submitted.state in ("completed", "failed", "cancelled"):
        say(ctx, f"it has ended; how: {status}")
    else:
        say(ctx, f"follow it: {status} --watch")


@app.command("hwqueue workflow runs --workflow training --state failed --since 2d")
def runs(
    ctx: typer.Context,
    *,
    workflow: Annotated[
        str | None, Option("--workflow", help=meaning("runs.workflow"), autocompletion=workflow_names)
    ] = None,
    state: Annotated[RunState | None, Option(help=meaning("runs.state"))] = None,
    label: Annotated[list[str] | None, Option("--label", help=meaning("runs.labels", A_LABEL))] = None,
    tenant: Annotated[str | None, Option(help=meaning("runs.tenant"))] = None,
    parent: Annotated[str | None, Option(help=meaning("runs.parent_run_id"))] = None,
    root: Annotated[str | None, Option(help=meaning("runs.root_run_id"))] = None,
    nested: Annotated[bool | None, Option("--nested/--no-nested", help=meaning("runs.is_nested"))] = None,
    since: Annotated[
        str | None, Option(help=meaning("runs.submitted_from", "As a time, or a span ago such as 3d."))
    ] = None,
    limit: Annotated[int, Option(min=1, max=10_000, help="At most this many.")] = 50,
    before: Annotated[str | None, Option(help="Older than this run: the last id of the page before.")] = None,
) -> None:
    """List runs, newest first."""
    found = ask(
        ctx,
        Client.list_workflow_runs,
        workflow=workflow,
        state=state,
        labels=pairs(label, "--label") if label else None,
        tenant=tenant,
        parent_run_id=identifier(parent, "--parent") if parent else None,
        root_run_id=identifier(root, "--root") if root else None,
        is_nested=nested,
        submitted_from=moment_before(since, "--since"),
        limit=limit,
        before=identifier(before, "--before") if before else None,
    )
    show_items(ctx, found, _run_row, empty="no such runs")
    say_more(ctx, found, limit, "--before {0.run_id}")


@app.command("hwqueue workflow status 01890a5d-ac96-774b-bcce-b302099a8057 --watch")
def status(ctx: typer.Context, run_id: RunId, *, watch: Watch = False, timeout: AtMost = None) -> None:
    """Show a run and its steps, a line for each: where it ran, or what it waits for.

    With --watch it exits with 0 if the run has completed, with 1 if it has failed, with 6 if it
    was cancelled, with 7 if it has not ended in time. Ctrl-C ends this command alone.
    """
    wanted, at_most = identifier(run_id, "RUN_ID"), _at_most(timeout, watch=watch)
    with open_client(ctx) as client:
        if watch:
            _watch(ctx, client, wanted, at_most)
            return
        look = look_at(client, wanted, explains=True)
        if options_of(ctx).json:
            show_one(ctx, {**fields_of(look.run), "steps": look.steps})
        else:
            shown_steps(ctx, look, names_of(client, look))


@app.command("hwqueue workflow results 01890a5d-ac96-774b-bcce-b302099a8057 score --state failed --limit 20")
def results(
    ctx: typer.Context,
    run_id: RunId,
    step: Annotated[str, Argument(help="Name of the step.")],
    *,
    state: Annotated[StepState | None, Option(help="Only in this state.")] = None,
    limit: Annotated[int, Option(min=1, max=10_000, help="At most this many.")] = 100,
    after: Annotated[int, Option(min=-2, help="Behind this item: the last of the page before.")] = -1,
) -> None:
    """Show what a step returned: one row, or one for each item of a map that is spawned.

    Results and errors are shortened; with --json they are whole. With --after -2 a step with items
    tells of itself, as item -1.
    """
    wanted = identifier(run_id, "RUN_ID")
    found = ask(ctx, Client.step_results, wanted, step, after=after, limit=limit, state=state)
    show_items(ctx, found, _result_row, empty="no such items")
    if len(found) == limit and found[-1].item > 0:
        say(ctx, f"there may be more: --after {found[-1].item}")


@app.command("hwqueue workflow cancel 01890a5d-ac96-774b-bcce-b302099a8057 --dry-run")
def cancel(
    ctx: typer.Context,
    run_id: RunId,
    *,
    reason: Annotated[str | None, Option(help="Kept with the run.")] = None,
    care: Care,
) -> None:
    """Cancel a run: what waits ends, what runs is asked to stop, nothing more is released."""
    _change(ctx, run_id, "cancel", care, Client.cancel_workflow_run, reason=reason)


@app.command("hwqueue workflow pause 01890a5d-ac96-774b-bcce-b302099a8057")
def pause(ctx: typer.Context, run_id: RunId) -> None:
    """Hold the steps of a run that become due; those that run go on."""
    wanted = identifier(run_id, "RUN_ID")
    _show_state(ctx, wanted, ask(ctx, Client.pause_workflow_run, wanted))


@app.command("hwqueue workflow resume 01890a5d-ac96-774b-bcce-b302099a8057")
def resume(ctx: typer.Context, run_id: RunId) -> None:
    """Let a paused run go on."""
    wanted = identifier(run_id, "RUN_ID")
    _show_state(ctx, wanted, ask(ctx, Client.resume_workflow_run, wanted))


@app.command("hwqueue workflow retry 01890a5d-ac96-774b-bcce-b302099a8057 --step train")
def retry(
    ctx: typer.Context,
    run_id: RunId,
    *,
    mode: Annotated[
        RetryMode | None,
        Option(
            help="failed: steps that have not completed, and what comes after them, but for joins "
            '"any" that have completed. failed_and_downstream: these, too. all: every step.',
            show_default="failed",
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        Option(help="Instead of a mode: this step, what has not completed, and all after these; repeatable."),
    ] = None,
    input_: Annotated[
        str | None, Option("--input", help="With --mode all: another input; JSON or a file.")
    ] = None,
    care: Care,
) -> None:
    """Run steps of a run that has ended again, under the same lease ids; other results stay."""
    given = None if input_ is None else json_value(input_, "--input")
    _change(ctx, run_id, "retry", care, Client.retry_workflow_run, mode=mode, steps=step, input=given)


app.command(workflow_placement.UPDATE_EXAMPLE)(workflow_placement.update)


@app.command(
    "hwqueue workflow skip 01890a5d-ac96-774b-bcce-b302099a8057 train "
    """--result '{"model": "s3://old"}' --reason 'as last week'"""
)
def skip(
    ctx: typer.Context,
    run_id: RunId,
    step: Annotated[str, Argument(help="Name of the step.")],
    *,
    result: Annotated[str | None, Option(help="What steps that bind its result get: JSON or a file.")] = None,
    reason: Annotated[str | None, Option(help="Kept with the event.")] = None,
    care: Care,
) -> None:
    """Declare a step completed that nobody has claimed; what comes after it is released."""
    given = None if result is None else json_value(result, "--result")
    verb = f"skip step {step} of"
    _change(ctx, run_id, verb, care, Client.skip_step, step, result=given, reason=reason)


@app.command(
    "hwqueue workflow signal 01890a5d-ac96-774b-bcce-b302099a8057 approved "
    '--payload \'{"by": "ann"}\' --key click-7'
)
def signal(
    ctx: typer.Context,
    run_id: RunId,
    name: Annotated[str, Argument(help="What a step waits for.")],
    *,
    payload: Annotated[str, Option(help="JSON; the result of that step.")] = "null",
    key: Annotated[str | None, Option(help="The same name and key reach the run once.")] = None,
) -> None:
    """Send a run a signal; the step that waits for it has completed, now or when it is released."""
    sent = json_value(payload, "--payload")
    answer = ask(ctx, Client.signal_workflow_run, identifier(run_id, "RUN_ID"), name, sent, key=key)
    show_item(ctx, answer, row_of(RunSignalSent, "created state"))


@app.command("hwqueue workflow signals 01890a5d-ac96-774b-bcce-b302099a8057")
def signals(ctx: typer.Context, run_id: RunId) -> None:
    """List the signals that a run was sent, oldest first, and which step took each."""
    found = ask(ctx, Client.list_run_signals, identifier(run_id, "RUN_ID"))
    show_items(ctx, found, _signal_row, empty="it was sent no signal")


def _at_most(timeout: str | None, *, watch: bool) -> timedelta | None:
    """How long a run is followed. Raises: ConfigError."""
    if timeout is not None and not watch:
        raise ConfigError("--timeout goes with --watch")
    return span(timeout, "--timeout")


def _watch(ctx: typer.Context, client: Client, run_id: UUID, at_most: timedelta | None) -> None:
    """Follow a run until it has ended. Raises: WaitTimeout, and Exit unless it has completed."""
    look = follow(ctx, client, run_id, at_most)
    if options_of(ctx).json:
        show_one(ctx, {**fields_of(look.run), "steps": look.steps})
    if code := ExitCode.of(look.run.state):
        raise typer.Exit(code)


def _change(
    ctx: typer.Context,
    run: str,
    verb: str,
    care: Care,
    change: Callable[Concatenate[Client, UUID, P], RunState],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Show which steps change, ask, and change them; what was asked about may change meanwhile.

    The preview is the change itself, in a transaction that is rolled back.
    """
    run_id = identifier(run, "RUN_ID")
    if care.dry_run or not care.yes:
        with psycopg.connect(in_utf8(connection_string(ctx))) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            trial = Client.on(connection)
            workflow = trial.get_workflow_run(run_id).workflow
            before = trial.list_workflow_steps(run_id)
            change(trial, run_id, *args, **kwargs)
            rows = _changes(before, trial.list_workflow_steps(run_id))
            connection.rollback()
        if care.dry_run:
            show_rows(ctx, rows, empty="no step would change")
            return
        what = f"run {run_id} of workflow {workflow}"
        typer.confirm(f"{verb} {what}? {plural(len(rows), 'step')} change", abort=True, err=True)
    _show_state(ctx, run_id, ask(ctx, change, run_id, *args, **kwargs))


def _changes(before: list[WorkflowStep], after: list[WorkflowStep]) -> list[dict[str, object]]:
    """The steps that a change is about, as they are and as they will be."""
    return [
        {"step": now.step, "now": now.state, "then": then.state}
        for now, then in zip(before, after, strict=True)
        if (now.state, now.lease_state) != (then.state, then.lease_state)
    ]


def _show_state(ctx: typer.Context, run_id: UUID, state: RunState) -> None:
    show_one(ctx, {"run_id": run_id, "state": state})


def _returned(item: StepResult) -> str | None:
    """What it returned, or why it did not, cut off."""
    returned = item.result if item.error is None else error_line(item.error)
    if returned is None:
        return None
    text = plain_text(returned)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_workflow_row = row_of(WorkflowSummary, "workflow version steps=step_count created_at")
_version_row = row_of(
    WorkflowVersion,
    "workflow version steps=step_count created_at runs",
    runs=lambda found: ", ".join(f"{n} {state}" for state, n in sorted(found.run_counts.items())) or None,
)
_signal_row = row_of(RunSignal, "signal=name key sent_at taken_by bytes")
_submitted_facts = row_of(SubmittedRun, "run_id created state")
_run_row = row_of(
    RunSummary,
    "run_id workflow version state reason attempt submitted_at lasted",
    lasted=lambda run: duration(run.finished_at - run.submitted_at) if run.finished_at else None,
)
_result_row = row_of(
    StepResult,
    "item name state node attempt lasted returned lease_id",
    state=lambda item: item.lease_state if item.lease_state in ("pending", "scheduled") else item.state,
    node=lambda item: item.node_name or item.node_id,
    lasted=lambda item: (
        duration(item.finished_at - item.claimed_at) if item.finished_at and item.claimed_at else None
    ),
    returned=_returned,
)
_definition_facts = row_of(WorkflowDefinition, "workflow version steps=step_count created_at")


def _definition_row(step: dict[str, Any]) -> dict[str, Any]:
    after = step.get("after", {}).items()
    where = {key: step[key] for key in ("affinity", "affinity_tags", "placement") if key in step}
    return {
        "step": step["name"],
        "task": _does(step),
        "after": ", ".join(each if on == "completed" else f"{each} {on}" for each, on in after) or None,
        "asks": where or None,
    }


def _does(step: dict[str, Any]) -> str:
    """Its task, and how often that runs; of a step that has none what it does, in parentheses."""
    match step.get("kind", "task"):
        case "gang":
            return f"{step['task']} (a gang of {step['size']})"
        case "map":
            return f"{step['task']} (for each item)"
        case "wait":
            return f"(waits for signal {step['signal']})"
        case "workflow":
            version = f" version {step['version']}" if "version" in step else ""
            return f"(a run of workflow {step['workflow']}{version})"
        case "sleep":
            return "(sleeps)"
    return str(step["task"])
