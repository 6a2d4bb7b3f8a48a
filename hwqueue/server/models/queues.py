"""Queues and their policies."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hwqueue import types
from hwqueue.server.models.base import (
    Answer,
    Moment,
    Name,
    Number,
    Request,
    Seconds,
    Task,
    Whole,
    example,
)
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.models.leases import Retry
from hwqueue.server.models.options import options_of, told

Weight = Annotated[Number, Field(ge=0, le=1000)]
Bytes = Annotated[Whole, Field(ge=1, le=104_857_600)]


@told("tuning")
class Tuning(Request):
    """What experts may set; what is left out or null stays, or is at its default."""

    window_size: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    probe_size: Annotated[Whole, Field(ge=0, le=100_000)] | None = None
    weight_affinity: Weight | None = None
    weight_fit: Weight | None = None
    weight_spread: Weight | None = None
    notify: bool | None = None
    earmark_time: Annotated[Seconds, Field(ge=1)] | None = None


@told("preempt")
class Preempt(Request):
    """How leases of a queue preempt those of later tiers; what is left out is at its default."""

    enabled: bool | None = None
    after: Annotated[Seconds, Field(le=86_400)] | None = None
    grace: Annotated[Seconds, Field(le=86_400)] | None = None
    hold: Annotated[Seconds, Field(ge=1, le=3600)] | None = None
    most: Annotated[Whole, Field(ge=1, le=50)] | None = None


@told("preemptible")
class Preemptible(Request):
    """When leases of a queue may be preempted; what is left out is at its default."""

    min_run: Annotated[Seconds, Field(le=2_592_000)] | None = None
    max_times: Annotated[Whole, Field(ge=0, le=100)] | None = None


@options_of(
    types.QueuePolicy,
    "policy",
    kinds={
        "claim_timeout": Annotated[Seconds, Field(ge=1)],
        "max_attempts": Annotated[Whole, Field(ge=1, le=1000)],
        "retry": Retry,
        "max_params_bytes": Bytes,
        "max_result_bytes": Bytes,
        "earmarks": Annotated[Whole, Field(ge=0, le=1000)],
        "limits": Annotated[list[Name], Field(max_length=2)],
        "everywhere_tenants": list[Annotated[str, Field(max_length=100)]],
        "everywhere_limit": Annotated[Whole, Field(ge=0, le=1000)],
        "preempt": Preempt,
        "preemptible": Preemptible,
        "tuning": Tuning,
    },
    notes={"failure_domain": "`node`, `rack` or `label:KEY`."},
    examples={"failure_domain": "rack"},
)
class QueuePolicy(Request):
    """How a queue treats its leases; what is left out or null stays, or is at its default."""

    model_config = example(claim_timeout=300, retry={"kind": "fixed", "base": 30})


class CreateQueue(Request):
    """A queue to make."""

    model_config = example(queue="renders", policy={"claim_timeout": 300, "max_attempts": 3})

    queue: Name = Field(examples=["renders"])
    policy: QueuePolicy = QueuePolicy()


class QueueNow(Answer):
    """A queue after a change."""

    queue: str
    paused: bool | None = Field(default=None, description="Where it was paused or resumed.")


QueueOut = answer_of(types.Queue)
Queues = list_of(types.Queue, name="Queues", doc="All queues, by name.")


class RequeueFailed(Request):
    """Which failed leases of a queue run again, oldest first."""

    model_config = example(task="draw", since="2030-01-31T12:00:00Z", limit=100)

    task: Task | None = None
    since: Moment | None = Field(default=None, description="Failed then or later.")
    until: Moment | None = Field(default=None, description="Failed then or before.")
    limit: Annotated[Whole, Field(ge=1, le=10_000)] = 1000


class Requeued(Answer):
    """How many leases were requeued."""

    requeued: int
