"""Workflows, their runs, and the steps of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

from hwqueue.types.base import AsJson
from hwqueue.types.explain import SoleBlocker
from hwqueue.types.leases import Attempt, Unique

RunState = Literal["running", "paused", "failing", "cancelling", "completed", "failed", "cancelled"]
"""The state of a run; the last three are ends."""

StepState = Literal["waiting", "running", "completed", "failed", "cancelled", "skipped"]
"""The state of a step as people see it; `running` means that its lease waits or runs.

SQL has one more, `held`: due in a run that is paused. It is shown as `waiting`, with the reason
`run_paused`. `skipped`: its run goes past it, for the reason in its row. A step that an operator
ended by `skip_step` is `completed`, with the reason `operator`.
"""

RetryMode = Literal["failed", "failed_and_downstream", "all"]
"""Which steps a retry runs again.

`failed_and_downstream`: those that have not completed, and all that come after them, completed or
not. `failed`: the same, but a join `any` that has completed stays. `all`: every step.
"""


class RunOptions(TypedDict, total=False):
    """Options of a submission; all of them optional, None is the default.

    Attributes:
        version: Of the workflow; the newest unless given. Not for a specification.
        affinity_tags, placement, wire: What every step asks of its node, besides what the workflow
            and the step ask. A contradiction raises `PlacementContradictory`.
        affinity: `and` (both must hold), `override` (these tags replace the workflow's key by key)
            or `replace` (the workflow's are not looked at).
        tenant, priority, labels, headers: Of the leases of all steps.
        deadline: When the run fails unless it has ended; with a time zone, or a timedelta from now
            by the database's clock.
        available_at, delay: When its first steps may begin, with a time zone, or how long from now;
            one of them. A deadline and keys hold from now on.
        idempotency_key: The same key with the same content is the same run.
        unique: At most one run of the workflow and tenant has the key until it ends; no `hold`.
            While one has it a submission returns that one (`keep`), raises `UniqueConflict`
            (`raise`), or cancels it and takes the key (`replace`).
        run_id: An id of your own.
        app_version: Of the code that runs the steps: their nodes have this label, as workers with
            `--app-version`. Required where `pin_version` of the workflow is True.
        steps: By the name of a step: `affinity_tags`, `placement`, `wire`, `options`.
    """

    version: int | None
    affinity_tags: Mapping[str, Any] | None
    placement: Mapping[str, Any] | None
    wire: str | None
    affinity: Literal["and", "override", "replace"] | None
    tenant: str | None
    priority: int | None
    labels: Mapping[str, str] | None
    headers: Mapping[str, Any] | None
    deadline: datetime | timedelta | None
    available_at: datetime | timedelta | None
    delay: timedelta | None
    idempotency_key: str | None
    unique: Unique | Mapping[str, Any] | None
    run_id: UUID | str | None
    app_version: str | None
    steps: Mapping[str, Mapping[str, Any]] | None


class StepChanges(TypedDict, total=False):
    """What `update_steps` may change; what is left out stays as it is.

    Attributes:
        affinity_tags, placement, wire: What the steps ask besides all that they asked at
            submission. They take the place of those of a former update, whichever of them is
            given.
        affinity: What these do to what the steps asked: `and` (both must hold, the default),
            `override` (these tags replace theirs key by key) or `replace` (theirs is not looked
            at).
        app_version: The version of the code that the steps are pinned to; None: none.
    """

    affinity_tags: Mapping[str, Any] | None
    placement: AsJson | Mapping[str, Any] | None
    wire: bytes | str | None
    affinity: Literal["and", "override", "replace"] | None
    app_version: str | None


class RunSpec(TypedDict, total=False):
    """A run of a list of them: its input, and the options of its submission."""

    input: Any
    options: RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedWorkflow:
    """What `define_workflow` did; created: this call wrote the version."""

    workflow: str
    version: int
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDefinition:
    """A definition; spec: in normal form, its steps in topological order."""

    workflow: str
    version: int
    spec: Mapping[str, Any]
    step_count: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSummary:
    """A workflow and its newest version."""

    workflow: str
    version: int
    step_count: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRun:
    """A run that was submitted; created: False if its idempotency key had a run already."""

    run_id: UUID
    created: bool
    state: RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list.

    Attributes:
        version: None for the run of a specification.
        parent_run_id: The run whose step this is; None for one that was submitted.
        root_run_id: The submitted run above it, or itself.
    """

    run_id: UUID
    workflow: str
    version: int | None
    state: RunState
    reason: str | None
    tenant: str
    labels: Mapping[str, str]
    attempt: int
    submitted_at: datetime
    finished_at: datetime | None
    parent_run_id: UUID | None
    root_run_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRun:
    """A run.

    Attributes:
        version: None for the run of a specification.
        reason, detail: Why it does not run, or did not complete.
        result: What its definition says, once it has completed.
        attempt: From 1; each retry adds one.
        step_counts: How many steps are in each state.
        parent_run_id: The run whose step this is; None for one that was submitted.
        root_run_id: The submitted run above it, or itself.
        idempotency_key: That of its submission, or its unique key while it has not ended.
    """

    run_id: UUID
    workflow: str
    version: int | None
    state: RunState
    reason: str | None
    detail: Mapping[str, Any] | None
    tenant: str
    labels: Mapping[str, str]
    headers: Mapping[str, Any]
    priority: int | None
    input: Any
    result: Any
    attempt: int
    deadline: datetime | None
    submitted_at: datetime
    finished_at: datetime | None
    step_counts: Mapping[str, int]
    parent_run_id: UUID | None
    root_run_id: UUID
    idempotency_key: str | None = None

    @property
    def duration(self) -> timedelta | None:
        """From its submission to its end; None while it has not ended."""
        return self.finished_at - self.submitted_at if self.finished_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStep:
    """A step of a run.

    Attributes:
        step_no: Its place in topological order, from 1.
        reason: Why it was skipped, failed without a lease, or is held.
        placement: What its lease asks of a node, the run's part included.
        lease_id: None until it is released; the same over all attempts of the run.
        lease_state, node_id, attempt: Of its lease.
        result: Of its lease, or what `skip_step` gave.
        waits_for: Its parents that have not ended.
        came_from: As in `CheckedStep`.
        kind: What it is: `task`, `map`, `gang`, `sleep`, `wait` or `workflow`. Only a task has a
            lease of its own.
        due_at: While it is open: when a sleep ends, or a wait times out.
        headline: What it waits for, in words, where it is no task.
        items: The length of a map's list, or the size of a gang; None: neither, or not released.
        items_done, items_failed: How many of them have ended, and how many of these failed.
        nested_run_id: The run that a step of kind `workflow` is; None before it is submitted, and
            when it is pruned.
        gang_id: The gang that a step of kind `gang` is, None before it is spawned; `explain_gang`
            says why it waits.
    """

    step_no: int
    step: str
    state: StepState
    reason: str | None
    task_name: str | None
    queue: str | None
    placement: Mapping[str, Any] | None
    lease_id: UUID | None
    lease_state: str | None
    node_id: UUID | None
    attempt: int | None
    result: Any
    error: Mapping[str, Any] | None
    ended_at: datetime | None
    waits_for: tuple[str, ...]
    came_from: Mapping[str, Any] | None
    kind: str
    due_at: datetime | None
    headline: str | None
    items: int | None
    items_done: int | None
    items_failed: int | None
    nested_run_id: UUID | None
    gang_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step returned, an item of a map, or a member of a gang.

    Attributes:
        item: The place of the item in the list of a map, or among those that a step has added,
            from 0; the rank in a gang; 0 for a step with one lease; -1 for a step with items
            itself.
        result, error: Of its lease, or what `skip_step` gave; None while it has not ended.
        name: Of an item that was added.
        lease_id, lease_state: Its lease, and where that is; None while there is none.
        node_id, node_name, attempt, claimed_at: Of the last claim of its lease; the name is None
            when the node is gone.
        finished_at: When it ended.
    """

    item: int
    state: StepState
    result: Any
    error: Mapping[str, Any] | None
    name: str | None = None
    lease_id: UUID | None = None
    lease_state: str | None = None
    node_id: UUID | None = None
    node_name: str | None = None
    attempt: int | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedItem:
    """An item that a step has added to itself.

    Attributes:
        item: Its number: as in `StepResult`.
        created: False if the step had an item of this name already.
    """

    name: str
    item: int
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """Where a step of a workflow could run, if it were submitted now.

    Attributes:
        step_no: Its place in topological order, from 1.
        placement: What its lease would ask of a node, the run's part included.
        came_from: For each part of `placement` the levels that ask for it: `workflow`,
            `submission`, `step`, `task` or `version` (the run is pinned to a version of the code);
            of a run also `update` (`update_steps`), and of a step that was released which step it
            is near and where that ran, `near train -> rack 7`. The same keys: a list of levels for
            each entry of a list, or for each key of `resources` and `isolation`.
        headline: One sentence.
        code: A reason code; `ready` if a node could take it now; `nested_refused` for a nested run
            that could not be submitted.
        permanent: Whether that lasts until nodes or the step change.
        nodes_matching, nodes_free: Nodes that could ever run it, and that could now.
        reasons: What alone keeps nodes from it, as `sole_blockers` of `explain_lease`.
        kind: `task`, also of a map or gang, or `workflow`: a nested run, which has no lease, so
            that `queue`, `task_name`, `placement`, `came_from` and the nodes are None.
        workflow, version: What a nested run would run now; version also None if it would be
            refused.
    """

    step_no: int
    step: str
    queue: str | None
    task_name: str | None
    placement: Mapping[str, Any] | None
    came_from: Mapping[str, Any] | None
    headline: str
    code: str
    permanent: bool | None
    nodes_matching: int | None
    nodes_free: int | None
    reasons: tuple[SoleBlocker, ...]
    kind: Literal["task", "workflow"]
    workflow: str | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDetail:
    """When a step of a run was released and claimed, and what its lease asks.

    Attributes:
        class_id, words: What it asks of a node; None without a lease, words also after the first
            500 classes of a run.
        released_at: When its lease was spawned, or when a step of another kind than task began;
            None before.
        available_at: Since when its lease can be claimed, or could the last time.
        claimed_at: Of the last claim, which runs or has ended the lease.
        attempts: The last 20 claims that ended without completing, oldest first.
    """

    step_no: int
    step: str
    class_id: int | None
    words: str | None
    released_at: datetime | None
    available_at: datetime | None
    claimed_at: datetime | None
    ended_at: datetime | None
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """How far a run is, for a list.

    Attributes:
        step_counts: How many steps are in each state.
        failed_steps: The first three steps that failed.
        affinity_tags, placement: What the workflow and the submission ask of every step's node.
    """

    run_id: UUID
    step_counts: Mapping[str, int]
    failed_steps: tuple[str, ...]
    affinity_tags: Mapping[str, Any]
    placement: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedStep:
    """A step that a retry would run again; state: as it is now."""

    step_no: int
    step: str
    state: StepState


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedStep:
    """A step of a run that was not released, after an update.

    Attributes:
        changed: Whether this call changed what it asks.
        placement, came_from: As in `WorkflowStep`; None of a nested run.
    """

    step_no: int
    step: str
    kind: str
    state: StepState
    changed: bool
    placement: Mapping[str, Any] | None
    came_from: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedStep(UpdatedStep):
    """A step of a run as an update would make it; as `UpdatedStep` and `CheckedStep`."""

    headline: str
    code: str
    permanent: bool | None
    nodes_matching: int | None
    nodes_free: int | None
    reasons: tuple[SoleBlocker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowVersion:
    """A version of a workflow, and how its runs went.

    Attributes:
        version, step_count, created_at: None for the runs of specifications of that name.
        run_counts: How many runs are in each state, of the newest 1,000 of that name.
    """

    workflow: str
    version: int | None
    step_count: int | None
    created_at: datetime | None
    run_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSignalSent:
    """What became of a signal that a run was sent.

    Attributes:
        created: False: the run was sent a signal of this name and key before, nothing changed.
        state: Of the run.
    """

    created: bool
    state: RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSignal:
    """A signal that a run was sent.

    Attributes:
        key: The sender's; the same name and key reach the run once.
        taken_by: The step whose result its payload is; None: no step has taken it yet.
        bytes: Of its payload as stored; None once it was taken.
    """

    signal_id: int
    name: str
    key: str | None
    sent_at: datetime
    taken_by: str | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """The end of a run whose submission was traced.

    Attributes:
        attempt: A run that was retried ends more than once.
        state: `completed`, `failed` or `cancelled`.
        reason: Why it did not complete.
        traceparent: W3C trace context of the submission.
    """

    run_id: UUID
    workflow: str
    attempt: int
    state: RunState
    reason: str | None
    traceparent: str
    submitted_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceResult:
    """What one `advance_workflows` did.

    Attributes:
        folded: Joins, steps and runs it has looked at, and sleeps and waits that were over.
        released: Steps, and items of maps.
        more: It reached its limit; call it again.
    """

    folded: int
    released: int
    more: bool
