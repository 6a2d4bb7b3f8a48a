"""Nodes, and what they are to a placement."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from hwqueue.server.models.base import (
    Answer,
    BigInt,
    Id,
    Labels,
    Moment,
    Name,
    Object,
    Placement,
    Request,
    Seconds,
    Task,
    Tenant,
    Whole,
    example,
)

Effect = Literal["no_schedule", "prefer_no_schedule", "no_execute"]
Key = Annotated[str, Field(min_length=1, max_length=253, examples=["maintenance"])]


class NodeGpu(Answer):
    """A device of a node; `milli_used`: thousandths set aside."""

    resource_id: Id
    model: str | None
    memory_mib: int | None
    milli_used: int


class NodeTaint(Answer):
    """What keeps leases off a node. by: `node` if it registered with it, or `operator`."""

    key: str
    value: str | None
    effect: str
    since: Moment
    by: str


class NodeCore(Answer):
    """A core of a node; `milli_used`: thousandths set aside, null if not counted."""

    core: int
    numa: int
    threads: list[int]
    milli_used: int | None


class NodeIsolation(Answer):
    """Isolation classes that a node honours, and what leases get that ask nothing."""

    cpu: list[str]
    gpu: list[str]
    default_cpu: str
    gpu_share_mode: str


class Attestation(Answer):
    """What an operator vouched for: the node belongs to a trust domain.

    suspended_at: it does not count since then, until an operator confirms the node.
    """

    domain: str
    expires_at: Moment | None
    attested_at: Moment
    attested_by: str
    any_instance: bool
    suspended_at: Moment | None
    suspended_why: str | None


class Node(Answer):
    """A registered node."""

    node_id: Id
    shard_id: int
    name: str
    node_epoch: BigInt
    live: bool = Field(description="Seen within its heartbeat timeout.")
    seen_at: Moment
    cordoned: bool
    draining: bool
    labels: Object
    rack: int | None
    capacity: dict[str, int]
    used: dict[str, int]
    gpus: list[NodeGpu]
    slots: int | None = Field(description="Most claims at a time; null: no limit.")
    claims: int = Field(description="Running now.")
    registered_at: Moment
    taints: list[NodeTaint]
    attestations: list[Attestation]
    cores: list[NodeCore]
    isolation: NodeIsolation | None
    login: str | None = Field(description="The role whose members may act for it.")
    instance_id: str | None


class NodePage(Answer):
    """Nodes by name; `next` is the cursor of the page after, null at the end."""

    items: list[Node]
    next: str | None


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

    placement: Placement
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


class Reason(Answer):
    """Why a node may not run something. predicate: the expression that failed."""

    code: str = Field(examples=["label_mismatch"])
    permanent: bool
    message: str
    predicate: Any


class NodeMatch(Answer):
    """What a node is to a placement; not eligible, `score` is only what if."""

    node_id: Id
    node_name: str
    eligible: bool
    score: float
    reasons: list[Reason]


class Match(Answer):
    """What the nodes are to a placement."""

    nodes: int = Field(description="Registered.")
    eligible: int = Field(description="That could run it now.")
    reasons: dict[str, int] = Field(
        description="Nodes that could not, by reason; one with two counts for both.",
        examples=[{"label_mismatch": 12}],
    )
    items: list[NodeMatch]
    next: int | None = Field(description="`skip` of the page after; null at the end.")
