"""Leases: what is spawned, changed, and told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from hwqueue import types
from hwqueue.server.models.base import (
    Answer,
    Id,
    Labels,
    Moment,
    Name,
    Number,
    Object,
    Placement,
    Request,
    Seconds,
    Task,
    Tenant,
    Whole,
    example,
)
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.models.options import options_of, told

MAX_BATCH = 5000

Priority = Annotated[Whole, Field(ge=-32768, le=32767)]
Key = Annotated[str, Field(min_length=1, max_length=255)]
_IdAsText = Annotated[Id, PlainSerializer(str)]  # in an object that is handed on as JSON
ErrorType = Annotated[str, Field(min_length=1, max_length=200, examples=["TimeoutError"])]
Reason = Annotated[str, Field(max_length=1000, examples=["wrong frame"])]
Wire = Annotated[str, Field(min_length=1, description="Hex after `\\x`, else base64.")]


@told("retry")
class Retry(Request):
    """When a failed lease runs again."""

    kind: Literal["exponential", "fixed", "none"] = "exponential"
    base: Seconds | None = None
    factor: Annotated[Number, Field(ge=1, le=100)] | None = None
    max: Seconds | None = None
    jitter: Annotated[Number, Field(ge=0, le=1)] | None = None


@told("unique")
class Unique(Request):
    """At most one lease of a key in a queue of a tenant."""

    key: Annotated[str, Field(min_length=1, max_length=255)]
    while_: Annotated[Literal["open"] | Seconds, Field(alias="while")] = "open"
    on_conflict: Literal["keep", "replace", "raise"] = "keep"


@told("replaces")
class Replaces(Request):
    """Whose place a lease takes: that of a lease, or of one of a service."""

    lease: _IdAsText | None = None
    service: _IdAsText | None = None
    then: Literal["cancel", "requeue"] = "cancel"
    overlap: bool = False


OF_TOKEN = "A token of one tenant sets it."
TAGS = {"gpu": True, "region": "us-east"}

# What the types of `hwqueue.types.SpawnOptions` do not say. An option without bounds needs no line.
SPAWN_KINDS = {
    "placement": Placement,
    "wire": Wire,
    "priority": Priority,
    "tenant": Tenant,
    "labels": Labels,
    "max_attempts": Annotated[Whole, Field(ge=1, le=1000)],
    "retry": Retry,
    "claim_timeout": Annotated[Seconds, Field(ge=1)],
    "max_run": Annotated[Seconds, Field(ge=1)],
    "idempotency_key": Key,
    "unique": Unique,
    "replaces": Replaces,
    "limits": Annotated[list[Name], Field(max_length=3)] | dict[Name, str | None],
}


@options_of(
    types.SpawnOptions,
    "spawn",
    kinds=SPAWN_KINDS,
    notes={"tenant": OF_TOKEN, "idempotency_key": "As the header `Idempotency-Key`."},
    examples={"affinity_tags": TAGS},
)
class SpawnOptions(Request):
    """Options of a spawn; null counts as not given."""


@options_of(
    types.LeaseChanges,
    "change",
    common=SPAWN_KINDS,
    kinds={"queue": Name},
    notes=dict.fromkeys(("priority", "available_at", "queue"), "null: as it is."),
)
class LeaseChanges(Request):
    """What may change of a lease that is not claimed; what is left out stays, null takes away.

    placement and wire are ANDed, and together replace what the lease asked of a node, whichever of
    them is given.
    """

    model_config = example(priority=9, deadline=None)


@options_of(
    types.LeaseFilter,
    "leases",
    common=SPAWN_KINDS,
    kinds={"state": types.LeaseState, "task": Task, "error_type": ErrorType}
    | dict.fromkeys(("created_from", "created_before", "finished_from", "finished_before"), Moment),
    notes={"state": "One that the call can change."},
)
class LeaseFilter(Request):
    """Which leases of a queue are meant; what is left out or null means any."""

    model_config = example(queue="renders", state="failed", labels={"film": "7"})

    queue: Name = Field(examples=["renders"])


class LeaseSpec(Request):
    """One lease of a batch."""

    task: Task
    params: Any = Field(default=None, description="JSON for the handler; null: an empty object.")
    options: SpawnOptions = SpawnOptions()


class SpawnRequest(LeaseSpec):
    """A lease to spawn."""

    model_config = example(
        queue="renders",
        task="draw",
        params={"frame": 7},
        options={
            "placement": {
                "require": [{"label": "gpu_model", "op": "in", "values": ["A100", "H100"]}],
                "resources": {"gpu": 1},
            },
            "priority": 5,
            "labels": {"app": "render"},
        },
    )

    queue: Name = Field(examples=["renders"])


class SpawnBatch(Request):
    """Leases to spawn in one statement, all or nothing."""

    model_config = example(
        queue="renders",
        leases=[
            {"task": "draw", "params": {"frame": 7}},
            {"task": "draw", "params": {"frame": 8}, "options": {"delay": 60}},
        ],
    )

    queue: Name = Field(examples=["renders"])
    leases: Annotated[list[LeaseSpec], Field(min_length=1, max_length=MAX_BATCH)]


class CancelRequest(Request):
    """Why a lease is cancelled."""

    model_config = example(reason="wrong frame")

    reason: Reason | None = Field(default=None, description="Kept with the lease.")


Cursor = Annotated[
    Object, Field(description="`next_cursor` of the answer before, as it is; null: from the start.")
]


class _Page(Request):
    filter: LeaseFilter
    cursor: Cursor | None = None


class BulkRequest(_Page):
    """One page of the leases that a filter means."""

    model_config = example(filter={"queue": "renders", "labels": {"film": "7"}}, limit=500)

    limit: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        default=500, description="How many rows of the queue it reads: the most that it changes."
    )


class BulkCancel(BulkRequest):
    """One page of leases to cancel."""

    reason: Reason | None = Field(default=None, description="Kept with each lease.")


class BulkUpdate(BulkRequest):
    """One page of waiting leases, and what to change in each."""

    model_config = example(filter={"queue": "renders", "labels": {"film": "7"}}, changes={"priority": 10})

    changes: LeaseChanges


class BulkCount(_Page):
    """One page of leases to count."""

    model_config = example(filter={"queue": "renders", "task": "draw"}, states=["failed"])

    states: Annotated[list[types.LeaseState], Field(min_length=1)] | None = Field(
        default=None, description="Only in one of these states; null: in any."
    )
    limit: Annotated[Whole, Field(ge=1, le=10_000)] = Field(
        default=10_000, description="How many rows of the queue it reads."
    )


class LeaseNow(Answer):
    """A lease's state after a change; `claimed`: the claim that runs was asked to stop."""

    lease_id: Id
    state: types.LeaseState


LeaseOut = answer_of(types.Lease)
BulkChanged = answer_of(types.BulkPage)
BulkCounted = answer_of(types.LeaseCount)
LeasePage = list_of(
    types.LeaseSummary,
    pages=True,
    name="LeasePage",
    doc="Leases, newest first; `next` is the cursor of the page after, null at the end.",
)
LogPage = list_of(
    types.LogLine,
    pages=True,
    name="LogPage",
    doc="Log lines, oldest first; `next` is the cursor of the page after, null at the end. To "
    "follow, go on with the `cursor` of the last line.",
)
Checkpoints = list_of(
    types.SavedCheckpoint,
    name="Checkpoints",
    doc="What a handler has saved, the last first, without the states.",
)
Spawned = answer_of(types.SpawnResult)
SpawnedBatch = list_of(
    types.SpawnResult, name="SpawnedBatch", doc="The leases of a batch, in the order given."
)
