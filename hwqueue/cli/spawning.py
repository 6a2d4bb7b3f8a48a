"""The options of a spawn, as people type them."""

import logging
from collections.abc import Iterable
from typing import Annotated, Literal
from uuid import UUID

import psycopg
import typer

from hwqueue.cli.inputs import identifier, json_object, labels, moment_after, pairs, span
from hwqueue.cli.output import say
from hwqueue.client import Client
from hwqueue.errors import HwqueueError
from hwqueue.types import Replaces, SpawnOptions, SpawnResult, Unique

_client_log = logging.getLogger("hwqueue.spawn")

OnConflict = Literal["keep", "replace", "raise"]
_SERVICE = "service:"

Placement = Annotated[str | None, typer.Option("--placement", help="What it asks of a node: JSON or a file.")]
NodeLabel = Annotated[
    list[str] | None,
    typer.Option(
        "--node-label",
        "--tags",
        help="Label that the node must have, key=value, or several as JSON; goes with --placement.",
    ),
]
Priority = Annotated[int | None, typer.Option("--priority", help="Higher runs first.")]
Label = Annotated[
    list[str] | None, typer.Option("--label", help="Label of the lease, key=value; repeatable.")
]
Delay = Annotated[str | None, typer.Option("--delay", help="Not before this span, such as 10m.")]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        help="Fails if nobody has claimed it by this time, or within this span: 2h.",
    ),
]
MaxRun = Annotated[
    str | None,
    typer.Option("--max-run", help="An attempt that runs longer than this span is stopped: 2h."),
]
Patience = Annotated[
    str | None,
    typer.Option("--patience", help="How long it waits for a node that it prefers: 30s."),
]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", help="Attempts before it is dead.")]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key spawns only once.")]
UniqueKey = Annotated[str | None, typer.Option("--unique", help="At most one open lease has this key.")]
UniqueFor = Annotated[
    str | None,
    typer.Option("--unique-for", help="With --unique: not while it is open, but this span."),
]
ConflictChoice = Annotated[
    OnConflict,
    typer.Option("--on-conflict", help="With --unique: what to do with the lease that has the key."),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Whose work it is.")]
OneOf = Annotated[
    str | None,
    typer.Option("--one-of", help="Id that alternatives share: the first with room runs."),
]

Replaced = Annotated[
    str | None,
    typer.Option("--replaces", help="Id of the lease whose place it takes, or service:ID."),
]
Then = Annotated[
    Literal["cancel", "requeue"],
    typer.Option(
        "--then",
        help="With --replaces: the replaced lease is cancelled, or runs again elsewhere.",
    ),
]
Overlap = Annotated[
    bool,
    typer.Option("--overlap", help="With --replaces: stop it once this one runs, if both fit."),
]


def replaces(old: str | None, then: Literal["cancel", "requeue"], overlap: bool) -> Replaces | None:
    """Whose place a lease takes, as a client takes it. Raises: ConfigError."""
    if old is None:
        return None
    found = identifier(old.removeprefix(_SERVICE), "--replaces")
    if old.startswith(_SERVICE):
        return Replaces(service=found, then=then, overlap=overlap)
    return Replaces(lease=found, then=then, overlap=overlap)


def spawn_options(
    *,
    placement: str | None,
    node_label: list[str] | None,
    priority: int | None,
    label: list[str] | None,
    delay: str | None,
    deadline: str | None,
    max_run: str | None,
    patience: str | None,
    max_attempts: int | None,
    key: str | None,
    unique: str | None,
    unique_for: str | None,
    on_conflict: OnConflict,
    tenant: str | None,
    one_of: str | None,
) -> SpawnOptions:
    """What was typed, as a client takes it. Raises: ConfigError."""
    return {
        "placement": json_object(placement, "--placement") if placement else None,
        "affinity_tags": labels(node_label, "--node-label") or None,
        "priority": priority,
        "labels": pairs(label, "--label") if label else None,
        "delay": span(delay, "--delay"),
        "deadline": moment_after(deadline, "--deadline"),
        "max_run": span(max_run, "--max-run"),
        "patience": span(patience, "--patience"),
        "max_attempts": max_attempts,
        "idempotency_key": key,
        "unique": Unique(key=unique, hold=span(unique_for, "--unique-for"), on_conflict=on_conflict)
        if unique
        else None,
        "tenant": tenant,
        "one_of": None if one_of is None else identifier(one_of, "--one-of"),
    }


def spawn_lease(client: Client, queue: str, task: str, params: object, options: SpawnOptions) -> SpawnResult:
    """Spawn without the client's log of what the lease lacks: `warn` says it."""

    def is_kept(_record: logging.LogRecord) -> bool:
        return False

    _client_log.addFilter(is_kept)
    try:
        return client.spawn_lease(queue, task, params, **options)
    finally:
        _client_log.removeFilter(is_kept)


def warn(
    ctx: typer.Context, client: Client, spawned_id: UUID, known: Iterable[str] | None = None
) -> list[str]:
    """Say on stderr what keeps every live node from what was spawned; the sentences.

    A person waits for the answer anyway, so it looks even where the spawn's answer knows something.

    Args:
        known: What that says; for a database that cannot be asked any more.
    """
    try:
        found = client.spawn_warnings(spawned_id)
    except (HwqueueError, psycopg.Error):  # it is spawned all the same
        found = list(known or ())
    for each in found:
        say(ctx, f"warning: {each}")
    return found
