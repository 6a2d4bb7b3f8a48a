"""Workflows and their runs: what is defined, submitted, changed, and told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from hwqueue import types
from hwqueue.server.models.base import Answer, Id, Object, Request, Whole, example
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.models.leases import OF_TOKEN, SPAWN_KINDS, TAGS, Reason
from hwqueue.server.models.options import options_of

_PATTERN = r"^[a-z0-9_-]{1,100}$"
_SPEC: dict[str, Any] = {
    "name": "training",
    "steps": [
        {"name": "prepare", "task": "prepare_data", "params": {"dataset": {"$input": ["dataset"]}}},
        {"name": "train", "task": "train", "params": {"data": {"$result": "prepare"}}},
    ],
}

WorkflowName = Annotated[str, Field(pattern=_PATTERN)]
StepName = Annotated[str, Field(pattern=_PATTERN)]
Version = Annotated[Whole, Field(ge=1, le=2**31 - 1)]
Input = Annotated[Any, Field(description="JSON that steps bind with `$input`; null: an empty object.")]


class WorkflowSpec(Request):
    """A specification: a name, steps, and what they have in common.

    Its one reader is in the database, which names the step and the path of what it refuses.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_SPEC]})

    name: WorkflowName
    steps: Annotated[list[Object], Field(min_length=1)]


@options_of(
    types.RunOptions,
    "submit",
    common=SPAWN_KINDS,
    kinds={
        "version": Version,
        "affinity": Literal["and", "override", "replace"],
        "unique": Object,
        "steps": dict[str, Object],
    },
    notes={"tenant": OF_TOKEN, "idempotency_key": "As the header `Idempotency-Key`."},
    examples={"affinity_tags": TAGS},
)
class RunOptions(Request):
    """Options of a submission; null counts as not given."""


@options_of(
    types.StepChanges,
    "update",
    common=SPAWN_KINDS,
    kinds={"affinity": Literal["and", "override", "replace"]},
    notes={"app_version": "null: none."},
    examples={"affinity_tags": {"region": "us-west"}},
)
class StepChanges(Request):
    """What may change of steps that were not released; what is left out stays as it is.

    The first four take the place of those of a former update, whichever of them is given.
    """


class SubmitRequest(Request):
    """A run of a defined workflow."""

    model_config = example(
        input={"dataset": "s3://in"}, options={"affinity_tags": {"gpu": True}, "priority": 5}
    )

    input: Input = None
    options: RunOptions = RunOptions()


class SubmitSpecRequest(SubmitRequest):
    """A run of a specification that is not defined under its name."""

    model_config = example(spec=_SPEC, input={"dataset": "s3://in"})

    spec: WorkflowSpec


class CheckRequest(Request):
    """A submission to try: a specification, or the name of a defined workflow."""

    model_config = example(spec=_SPEC, options={"affinity_tags": {"gpu": True}})

    spec: WorkflowSpec | WorkflowName
    options: RunOptions = RunOptions()


class CancelRunRequest(Request):
    """Why a run is cancelled."""

    model_config = example(reason="wrong dataset")

    reason: Reason | None = Field(default=None, description="Kept with the run.")


class RetryRequest(Request):
    """Which steps run again; without any, those of mode `failed`."""

    model_config = example(steps=["train"])

    mode: types.RetryMode | None = None
    steps: Annotated[list[StepName], Field(min_length=1, max_length=5000)] | None = Field(
        default=None,
        description="Instead of a mode: these, those that have not completed, and all after them.",
    )
    input: Annotated[Any, Field(description="With mode `all`: another input; null: as it was.")] = None


class UpdateStepsRequest(Request):
    """Where steps of a run may run that were not released."""

    model_config = example(changes={"app_version": "2.5.0"}, steps=["train", "publish"])

    changes: StepChanges
    steps: Annotated[list[StepName], Field(min_length=1, max_length=5000)] | None = Field(
        default=None, description="null: all that were not released."
    )


class SkipRequest(Request):
    """What a step is said to have returned."""

    model_config = example(result={"model": "s3://old"}, reason="as last week")

    result: Annotated[Any, Field(description="What other steps that bind its result get.")] = None
    reason: Reason | None = Field(default=None, description="Kept with the event.")


class RunNow(Answer):
    """A run's state after a change."""

    run_id: Id
    state: types.RunState


Defined = answer_of(types.DefinedWorkflow)
Definition = answer_of(types.WorkflowDefinition)
Workflows = list_of(
    types.WorkflowSummary, pages=True, name="Workflows", doc="The workflows by name, a page of them."
)
Versions = list_of(
    types.WorkflowVersion,
    name="WorkflowVersions",
    doc="The newest 20 versions of a workflow, newest first, then the runs of specifications.",
)
Submitted = answer_of(types.SubmittedRun)
RunOut = answer_of(types.WorkflowRun)
RunPage = list_of(types.RunSummary, pages=True, name="RunPage", doc="Runs, newest first.")
RunSteps = list_of(
    types.WorkflowStep, name="RunSteps", doc="The steps of a run, parents before their children."
)
RetriedSteps = list_of(
    types.RetriedStep, name="RetriedSteps", doc="The steps that a retry runs again, in order."
)
UpdatedSteps = list_of(
    types.UpdatedStep, name="UpdatedSteps", doc="The steps that were not released, in order."
)
PreviewedSteps = list_of(
    types.PreviewedStep, name="PreviewedSteps", doc="Where the steps could run after an update, in order."
)
CheckedSteps = list_of(
    types.CheckedStep, name="CheckedSteps", doc="Where each step could run, parents before children."
)
StepResults = list_of(
    types.StepResult,
    pages=True,
    name="StepResults",
    doc="What a step returned, by item; `next` is the cursor of the page after, null at the end.",
)
RunSignals = list_of(types.RunSignal, name="RunSignals", doc="What a run was sent, oldest first.")
