"""Tasks, and the options that their leases have by default."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hwqueue.server.models.base import (
    Answer,
    Labels,
    Object,
    Placement,
    Request,
    Seconds,
    Whole,
    example,
)
from hwqueue.server.models.derived import list_of
from hwqueue.server.models.leases import Priority, Retry
from hwqueue.types import KnownTask


class TaskDefaults(Request):
    """Options of the task's later spawns, all of them; what is left out or null has no default."""

    model_config = example(placement={"resources": {"gpu": 1}}, max_attempts=1)

    placement: Placement | None = None
    affinity_tags: Object | None = Field(
        default=None, description="Node labels must contain them; ANDed with the placement."
    )
    labels: Labels | None = Field(default=None, description="Of the leases, not of their nodes.")
    patience: Seconds | None = Field(
        default=None, description="How long a lease waits for a better node, at most."
    )
    priority: Priority | None = None
    max_attempts: Annotated[Whole, Field(ge=1, le=1000)] | None = None
    retry: Retry | None = None
    claim_timeout: Annotated[Seconds, Field(ge=1)] | None = Field(
        default=None, description="Seconds from a claim's last heartbeat to its end."
    )
    max_run: Annotated[Seconds, Field(ge=1)] | None = Field(
        default=None, description="How long a lease may run; then its attempt fails."
    )


class TaskNow(Answer):
    """A task after a change."""

    task: str
    defaults: Object = Field(description="Without those that are null.")


class TaskDropped(Answer):
    """Whether a task was set."""

    task: str
    dropped: bool = Field(description="false: it was not set.")


Tasks = list_of(
    KnownTask,
    name="Tasks",
    doc="The tasks that have been set, or for which live workers declare defaults, by name.",
)
