"""The options of a spawn, as people type them."""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import psycopg
import typer
from typer import Option

from hwqueue.cli.inputs import identifier, json_object, labels, moment_after, pairs, span
from hwqueue.cli.output import say
from hwqueue.client import Client
from hwqueue.errors import HwqueueError
from hwqueue.meanings import meaning
from hwqueue.types import Replaces, SpawnOptions, SpawnResult, Unique
from hwqueue.types.base import given

_client_log = logging.getLogger("hwqueue.spawn")

# How people type what is JSON elsewhere.
A_LABEL = "As key=value; repeatable."
A_TAG = "As key=value, or several as JSON; repeatable."
A_MOMENT = "As a time, or a span from now such as 2h."
AN_OBJECT = "As JSON, or a file."

# Options that texts about others name, by what people type.
_FLAGS = {"idempotency_key": "--key"} | {
    name: f"--{name.replace('_', '-')}"
    for name in ("deadline", "delay", "min_size", "on_conflict", "one_of", "unique")
}

OnConflict = Literal["keep", "replace", "raise"]
_SERVICE = "service:"


def typed(name: str, *more: str) -> str:
    """What an option means, as `meaning` has it; others are called by their flags, if they have one."""
    text = re.sub(r" Excludes `\w+`\.|, `available_at`", "", meaning(name, *more))
    return re.sub(r"`(\w+)`", lambda found: f"`{_FLAGS.get(found[1], found[1])}`", text)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The options of a spawn, or of several leases that share them."""

    placement: Annotated[str | None, Option(help=typed("spawn.placement", AN_OBJECT))] = None
    node_label: Annotated[
        list[str] | None, Option("--node-label", "--tags", help=typed("spawn.affinity_tags", A_TAG))
    ] = None
    priority: Annotated[int | None, Option(help=typed("spawn.priority"))] = None
    label: Annotated[list[str] | None, Option(help=typed("spawn.labels", A_LABEL))] = None
    delay: Annotated[str | None, Option(help=typed("spawn.delay", "Such as 10m."))] = None
    deadline: Annotated[str | None, Option(help=typed("spawn.deadline", A_MOMENT))] = None
    max_run: Annotated[str | None, Option(help=typed("spawn.max_run", "Such as 2h."))] = None
    patience: Annotated[str | None, Option(help=typed("spawn.patience", "Such as 30s."))] = None
    max_attempts: Annotated[int | None, Option(help=typed("spawn.max_attempts"))] = None
    key: Annotated[str | None, Option(help=typed("spawn.idempotency_key"))] = None
    unique: Annotated[str | None, Option(help=typed("spawn.unique"))] = None
    unique_for: Annotated[
        str | None, Option(help=typed("unique.while", "Goes with --unique, such as 1h."))
    ] = None
    on_conflict: Annotated[OnConflict, Option(help=typed("unique.on_conflict", "Goes with --unique."))] = (
        "keep"
    )
    tenant: Annotated[str | None, Option(help=typed("spawn.tenant"))] = None
    one_of: Annotated[str | None, Option(help=typed("spawn.one_of"))] = None
    limit: Annotated[
        list[str] | None, Option(help=typed("spawn.limits", "As NAME, or NAME=KEY; repeatable."))
    ] = None

    def asked_of_nodes(self) -> dict[str, Any]:
        """What it asks of its node, as a client takes it. Raises: ConfigError."""
        return {
            "placement": json_object(self.placement, "--placement") if self.placement else None,
            "affinity_tags": labels(self.node_label, "--node-label") or None,
        }

    def options(self) -> dict[str, Any]:
        """The other options, those that were given, as a client takes them. Raises: ConfigError."""
        hold = span(self.unique_for, "--unique-for") if self.unique else None
        return given(
            priority=self.priority,
            labels=pairs(self.label, "--label") if self.label else None,
            delay=span(self.delay, "--delay"),
            deadline=moment_after(self.deadline, "--deadline"),
            max_run=span(self.max_run, "--max-run"),
            patience=span(self.patience, "--patience"),
            max_attempts=self.max_attempts,
            idempotency_key=self.key,
            unique=Unique(key=self.unique, hold=hold, on_conflict=self.on_conflict) if self.unique else None,
            tenant=self.tenant,
            one_of=None if self.one_of is None else identifier(self.one_of, "--one-of"),
            limits={name: key or None for name, _, key in (each.partition("=") for each in self.limit)}
            if self.limit
            else None,
        )

    def spawn_options(self) -> SpawnOptions:
        """All of them. Raises: ConfigError."""
        return cast("SpawnOptions", self.asked_of_nodes() | self.options())


@dataclass(frozen=True, kw_only=True)
class Replacing:
    """Whose place a lease takes."""

    replaces: Annotated[
        str | None, Option(help=typed("spawn.replaces", "As the id of the lease, or service:ID."))
    ] = None
    then: Annotated[
        Literal["cancel", "requeue"], Option(help=typed("replaces.then", "Goes with --replaces."))
    ] = "cancel"
    overlap: Annotated[bool, Option("--overlap", help=typed("replaces.overlap", "Goes with --replaces."))] = (
        False
    )

    def option(self) -> Replaces | None:
        """The same as a client takes it. Raises: ConfigError."""
        if self.replaces is None:
            return None
        found = identifier(self.replaces.removeprefix(_SERVICE), "--replaces")
        kind = "service" if self.replaces.startswith(_SERVICE) else "lease"
        return Replaces(**{kind: found}, then=self.then, overlap=self.overlap)


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
