"""Leases: what is spawned, changed, and told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

from hwqueue import types
from hwqueue.server.models.base import (
    Answer,
    Id,
    Labels,
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
from hwqueue.server.models.options import options_of

MAX_BATCH = 5000

Priority = Annotated[Whole, Field(ge=-32768, le=32767, description="Higher runs first.")]
Key = Annotated[str, Field(min_length=1, max_length=255)]
_IdAsText = Annotated[Id, PlainSerializer(str)]  # in an object that is handed on as JSON
ErrorType = Annotated[str, Field(min_length=1, max_length=200, examples=["TimeoutError"])]
Reason = Annotated[str, Field(max_length=1000, examples=["wrong frame"])]
Wire = Annotated[
    str,
    Field(
        min_length=1,
        description="A params blob, ANDed with the placement: hex after `\\x`, else base64.",
    ),
]


class Retry(Request):
    """When a failed lease runs again."""

    kind: Literal["exponential", "fixed", "none"] = "exponential"
    base: Seconds | None = Field(default=None, description="Wait before attempt 2.")
    factor: Annotated[Number, Field(ge=1, le=100)] | None = Field(
        default=None, description="Growth of the wait from attempt to attempt."
    )
    max: Seconds | None = Field(default=None, description="Longest wait.")
    jitter: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        default=None, description="The part of a wait that is random."
    )


class Unique(Request):
    """At most one lease of a key in a queue of a tenant."""

    key: Annotated[str, Field(min_length=1, max_length=255)]
    while_: Annotated[
        Literal["open"] | Seconds,
        Field(alias="while", description="`open`, or a span in seconds from the spawn on."),
    ] = "open"
    on_conflict: Literal["keep", "replace", "raise"] = "keep"


class Replaces(Request):
    """Whose place a lease takes: that of a lease, or of one of a service."""

    lease: _IdAsText | None = None
    service: _IdAsText | None = Field(
        default=None, description="One of it that is older, the one that has run longest first."
    )
    then: Literal["cancel", "requeue"] = Field(
        default="cancel",
        description="The replaced lease ends (cancel), or runs again elsewhere.",
    )
    overlap: bool = Field(
        default=False, description="It is asked to stop once this one runs, where both have room."
    )


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
}


@options_of(
    types.SpawnOptions,
    kinds=SPAWN_KINDS,
    notes={
        "lease_id": "Yours; one that exists is an error.",
        "affinity_tags": Field(
            default=None,
            description="Node labels must contain them; ANDed with the placement.",
            examples=[{"gpu": True, "region": "us-east"}],
        ),
        "affinity_with": "Prefer this node.",
        "anti_affinity_with": "Prefer any other node.",
        "tenant": "A token of one tenant sets it.",
        "labels": "Of the lease, not of its node.",
        "available_at": "Not claimable before: a time, or seconds from now.",
        "delay": "The same from now, in seconds.",
        "claim_timeout": "Seconds from a claim's last heartbeat to its end.",
        "deadline": "Not claimed by then, it fails: a time, or seconds from now.",
        "patience": "How long it waits for a better node, at most.",
        "max_run": "How long it may run; then it is asked to stop, and its attempt fails.",
        "idempotency_key": "The same key with the same content returns the first lease. As the header "
        "`Idempotency-Key`.",
        "unique": "While a lease holds the key, no other has it.",
        "headers": "Carried along, not interpreted.",
        "notify": "false: found at the next poll.",
        "one_of": "An id that alternatives share: the first that is claimed or reserved "
        "runs, the others are cancelled. Not with `unique`.",
        "replaces": "It takes the place of another lease, on its node and in its room.",
    },
)
class SpawnOptions(Request):
    """Options of a spawn; null counts as not given."""


@options_of(
    types.LeaseChanges,
    common=SPAWN_KINDS,
    kinds={"queue": Name},
    notes={
        "priority": "null: as it is.",
        "available_at": "null: as it is.",
        "queue": "It moves there; null: as it is.",
    },
)
class LeaseChanges(Request):
    """What may change of a lease that is not claimed; what is left out stays, null takes away.

    placement and wire are ANDed, and together replace what the lease asked of a node, whichever of
    them is given.
    """

    model_config = example(priority=9, deadline=None)


@options_of(
    types.LeaseFilter,
    common=SPAWN_KINDS,
    kinds={"state": types.LeaseState, "task": Task, "error_type": ErrorType},
    notes={
        "state": "One that the call can change.",
        "node_id": "Only what runs there now.",
        "labels": "Leases that have all of these.",
        "error_type": "What kind the last error was.",
    },
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
