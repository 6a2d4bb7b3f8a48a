"""Which workflow, and the options of the submission of a run, as people type them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal

import typer

from hwqueue.cli import spawning
from hwqueue.cli.inputs import identifier, json_object, labels, moment_after, pairs
from hwqueue.errors import ConfigError
from hwqueue.types import RunOptions, Unique

Mode = Literal["and", "override", "replace"]

SpecFile = Annotated[
    str | None, typer.Argument(metavar="FILE", help="The specification: a file, JSON, or - for stdin.")
]
AppName = Annotated[str | None, typer.Option("--app", help="module:name of a hwqueue.Workflow, instead.")]
Version = Annotated[int | None, typer.Option("--version", min=1, help="The newest unless given.")]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tags",
        "--node-label",
        help="Label that the node of every step must have, key=value, or several as JSON.",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option("--placement", help="What every step asks of its node: JSON or a file."),
]
Affinity = Annotated[
    Mode | None,
    typer.Option(
        "--affinity",
        help="What --tags and --placement do to those of the workflow: both must hold (and), "
        "these replace them key by key, or altogether.",
        show_default="and",
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", help="Label of the run and its leases, key=value; repeatable."),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", help="Fails if it has not ended by this time, or within this span: 2h."),
]
AvailableAt = Annotated[
    str | None,
    typer.Option(
        "--available-at",
        "--delay",
        help="No step begins before this time, or this span from now: 2h.",
    ),
]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key submits only once.")]
UniqueKey = Annotated[
    str | None, typer.Option("--unique", help="At most one open run of the workflow has this key.")
]
ConflictChoice = Annotated[
    spawning.OnConflict,
    typer.Option("--on-conflict", help="With --unique: what to do with the run that has the key."),
]
AppVersion = Annotated[
    str | None,
    typer.Option(
        "--app-version",
        help="Version of the code that runs the steps: of workers with this one.",
    ),
]
OwnId = Annotated[str | None, typer.Option("--run-id", help="An id of your own for the run.")]
StepOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--step",
        help="What one step asks, NAME=JSON: affinity_tags, placement, options; repeatable.",
    ),
]


def run_options(
    *,
    version: Version = None,
    tags: Tags = None,
    placement: Placement = None,
    affinity: Affinity = None,
    step: StepOptions = None,
    priority: spawning.Priority = None,
    label: Label = None,
    deadline: Deadline = None,
    available_at: AvailableAt = None,
    key: Key = None,
    unique: UniqueKey = None,
    on_conflict: ConflictChoice = "keep",
    run_id: OwnId = None,
    tenant: spawning.Tenant = None,
    app_version: AppVersion = None,
) -> RunOptions:
    """The options of a submission, as a client takes them. Raises: ConfigError."""
    return {
        "version": version,
        "affinity_tags": labels(tags, "--tags") or None,
        "placement": json_object(placement, "--placement") if placement else None,
        "affinity": affinity,
        "labels": pairs(label, "--label") if label else None,
        "steps": steps_of(step),
        "tenant": tenant,
        "app_version": app_version,
        "priority": priority,
        "deadline": moment_after(deadline, "--deadline"),
        "available_at": moment_after(available_at, "--available-at"),
        "idempotency_key": key,
        "unique": Unique(key=unique, on_conflict=on_conflict) if unique else None,
        "run_id": identifier(run_id, "--run-id") if run_id else None,
    }


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command have the flags of `run_options`, whose result is its argument `options`."""
    shared = inspect.signature(run_options, eval_str=True).parameters

    @wraps(command)
    def call(**given: Any) -> None:
        options = run_options(**{name: given.pop(name) for name in shared})
        command(**given, options=options)

    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command, eval_str=True).parameters.values():
        parameters += shared.values() if each.name == "options" else [each]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def steps_of(given: list[str] | None) -> dict[str, dict[str, Any]] | None:
    """Options of single steps, `NAME={...}`. Raises: ConfigError."""
    found: dict[str, dict[str, Any]] = {}
    for each in given or ():
        name, sign, value = each.partition("=")
        if not sign:
            raise ConfigError(
                f"--step: {each[:80]!r} is not NAME=JSON",
                hint="""such as --step 'train={"options": {"max_attempts": 5}}'""",
            )
        if name in found:
            raise ConfigError(f"--step: {name[:80]} is given twice", hint="give its parts in one")
        found[name] = json_object(value, f"--step {name}")
    return found or None
