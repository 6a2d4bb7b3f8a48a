"""Nodes, and what they are to a placement."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from hwqueue.server.models.base import (
    Answer,
    Id,
    Labels,
    Name,
    Placement,
    Request,
    Seconds,
    Task,
    Tenant,
    Whole,
    example,
)
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.types import MatchPage, Node

Effect = Literal["no_schedule", "prefer_no_schedule", "no_execute"]
Key = Annotated[str, Field(min_length=1, max_length=253, examples=["maintenance"])]


NodeOut = answer_of(Node)
NodePage = list_of(
    Node,
    pages=True,
    name="NodePage",
    doc="Nodes by name; `next` is the cursor of the page after, null at the end.",
)
Match = answer_of(MatchPage)


class DrainRequest(Request):
    """How long what runs on the node may go on."""

    model_config = example(deadline=600)

    deadline: Seconds | None = Field(
        default=None, description="From now; null: it may end in its own time.", examples=[600]
    )

    @property
    def span(self) -> timedelta | None:
        """The deadline."""
        return None if self.deadline is None else timedelta(seconds=self.deadline)


class TaintRequest(Request):
    """A taint; another value of the same key and effect replaces it."""

    model_config = example(key="maintenance", value="fan", effect="no_schedule")

    key: Key
    value: Annotated[str, Field(max_length=253)] | None = None
    effect: Effect


class HandOverRequest(Request):
    """The role that may act for the node from now on."""

    model_config = example(login="worker_7")

    login: Annotated[str, Field(min_length=1, max_length=63)]


class UntaintRequest(Request):
    """Which taints of operators go."""

    model_config = example(key="maintenance", effect=None)

    key: Key
    effect: Effect | None = Field(default=None, description="null: of every effect.")


class NodeTenantsRequest(Request):
    """For which tenants a node is, any of them; none: for all."""

    model_config = example(tenants=["film"], stop=False)

    tenants: Annotated[list[Tenant], Field(max_length=100)]
    stop: bool = Field(default=False, description="Ask leases of others that run there to stop.")


class Untainted(Answer):
    """How many taints there were."""

    removed: int


class MatchRequest(Request):
    """What is asked of nodes, and as which lease."""

    model_config = example(
        placement={"require": [{"tags": {"gpu": True}}], "resources": {"gpu": 2}},
        queue="renders",
        limit=20,
    )

    placement: Placement | None = Field(default=None, description="null: what the defaults of the task ask.")
    queue: Name | None = Field(default=None, description="Judge and score as its policy says.")
    task: Task | None = None
    tenant: Tenant | None = None
    service_id: Id | None = None
    labels: Labels | None = None
    limit: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        default=100, description="Most nodes to tell; those that could come first, best first."
    )
    skip: Annotated[Whole, Field(ge=0, le=1_000_000)] = Field(
        default=0, description="Cursor: `next` of the page before."
    )
