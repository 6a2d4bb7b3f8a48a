"""Leases: what is spawned, changed, and told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hwqueue.server.models.base import (
    Answer,
    Id,
    Labels,
    Name,
    Number,
    Placement,
    Request,
    Seconds,
    Task,
    Tenant,
    Whole,
    example,
)
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.models.options import request_of
from hwqueue.types import Lease, LeaseState, LeaseSummary, SpawnResult
from hwqueue.types import leases as options

MAX_BATCH = 5000

Priority = Annotated[Whole, Field(ge=-32768, le=32767, description="Higher runs first.")]
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


# What the types of `hwqueue.types.SpawnOptions` do not say. An option without bounds needs no line.
_spawn_options = request_of(
    options.SpawnOptions,
    doc="Options of a spawn; null counts as not given.",
    kinds={
        "placement": Placement,
        "wire": Wire,
        "priority": Priority,
        "tenant": Tenant,
        "labels": Labels,
        "max_attempts": Annotated[Whole, Field(ge=1, le=1000)],
        "retry": Retry,
        "claim_timeout": Annotated[Seconds, Field(ge=1)],
        "idempotency_key": Annotated[str, Field(min_length=1, max_length=255)],
        "unique": Unique,
    },
    fields={
        "lease_id": Field(default=None, description="Yours; one that exists is an error."),
        "affinity_tags": Field(
            default=None,
            description="Node labels must contain them; ANDed with the placement.",
            examples=[{"gpu": True, "region": "us-east"}],
        ),
        "affinity_with": Field(default=None, description="Prefer this node."),
        "anti_affinity_with": Field(default=None, description="Prefer any other node."),
        "tenant": Field(default=None, description="A token of one tenant sets it."),
        "labels": Field(default=None, description="Of the lease, not of its node."),
        "available_at": Field(default=None, description="Not claimable before."),
        "delay": Field(default=None, description="The same from now, in seconds."),
        "claim_timeout": Field(
            default=None, description="Seconds from a claim's last heartbeat to its end."
        ),
        "deadline": Field(default=None, description="Not claimed by then, it fails."),
        "patience": Field(
            default=None, description="How long it waits for a better node, at most."
        ),
        "idempotency_key": Field(
            default=None,
            description="The same key with the same content returns the first lease. As the header "
            "`Idempotency-Key`.",
        ),
        "unique": Field(default=None, description="While a lease holds the key, no other has it."),
        "headers": Field(default=None, description="Carried along, not interpreted."),
        "notify": Field(default=None, description="false: found at the next poll."),
    },
)


class _Changes(Request):
    model_config = example(priority=9, deadline=None)


_lease_changes = request_of(
    options.LeaseChanges,
    doc="""What may change of a lease that is not claimed; what is left out stays, null takes away.

    placement and wire are ANDed, and together replace what the lease asked of a node, whichever of
    them is given.
    """,
    kinds={
        "placement": Placement,
        "wire": Wire,
        "labels": Labels,
        "priority": Priority,
        "queue": Name,
    },
    fields={
        "priority": Field(default=None, description="null: as it is."),
        "available_at": Field(default=None, description="null: as it is."),
        "queue": Field(default=None, description="It moves there; null: as it is."),
    },
    base=_Changes,
)


if TYPE_CHECKING:  # a type checker knows only the base of models that are made on import
    SpawnOptions = Request
    LeaseChanges = Request
else:
    SpawnOptions, LeaseChanges = _spawn_options, _lease_changes


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

    reason: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="Kept with the lease.", examples=["wrong frame"]
    )


class LeaseNow(Answer):
    """A lease's state after a change; `claimed`: the claim that runs was asked to stop."""

    lease_id: Id
    state: LeaseState


LeaseOut = answer_of(Lease)
LeasePage = list_of(
    LeaseSummary,
    pages=True,
    name="LeasePage",
    doc="Leases, newest first; `next` is the cursor of the page after, null at the end.",
)
Spawned = answer_of(SpawnResult)
SpawnedBatch = list_of(
    SpawnResult, name="SpawnedBatch", doc="The leases of a batch, in the order given."
)
