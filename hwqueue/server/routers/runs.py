"""Runs of workflows: submit one of a specification, look at runs, follow and change them."""

from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from hwqueue.errors import RunNotFound
from hwqueue.meanings import meaning
from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import workflows as models
from hwqueue.server.models.base import Id, Moment, Tenant
from hwqueue.server.models.derived import written
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import (
    NO_QUEUE,
    NO_RUN,
    WRONG_RUN_STATE,
    IdempotencyKey,
    Labelled,
    LeaseOperator,
    LeaseReader,
    LeaseWriter,
    followed,
    labels_of,
    own_options,
    stream_slot,
    tell_place,
)
from hwqueue.types import RunState, StepState

router = APIRouter(route_class=AuthenticatedRoute, prefix="/runs", tags=["runs"])

RunId = Annotated[Id, Path(description="Id of the run.")]
_PLACE = r"^[0-9a-f]{0,32}$"


@router.post(
    "",
    status_code=201,
    response_model=models.Submitted,
    responses={
        200: {"model": models.Submitted, "description": "The idempotency key had it already."},
        **NO_QUEUE,
    },
)
async def submit_spec(
    body: models.SubmitSpecRequest,
    caller: LeaseWriter,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Submit a run of a specification that is not defined under its name."""
    options = await caller.run(lambda: own_options(caller, body.options, "options", idempotency_key))
    async with caller.call() as client:
        submitted = await client.submit_spec(body.spec.model_dump(), body.input, **options)
    tell_place(response, f"{request.url.path}/{submitted.run_id}", created=submitted.created)
    return submitted


@router.get("", response_model=models.RunPage)
async def list_runs(
    *,
    caller: LeaseReader,
    page: Paged,
    workflow: models.WorkflowName | None = None,
    state: RunState | None = None,
    tenant: Tenant | None = None,
    label: Labelled = None,
    submitted_from: Moment | None = None,
    submitted_before: Moment | None = None,
    parent_run_id: Annotated[Id | None, Query(description=meaning("runs.parent_run_id"))] = None,
    root_run_id: Annotated[Id | None, Query(description=meaning("runs.root_run_id"))] = None,
    is_nested: Annotated[bool | None, Query(description=meaning("runs.is_nested", "true: steps."))] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[Id | None, Query(description="Cursor: `next` of the page before.")] = None,
) -> Any:
    """Runs, newest first. A filter that few of many runs meet reads the many."""
    async with caller.read() as client:
        found = await client.list_workflow_runs(
            workflow=workflow,
            state=state,
            tenant=caller.own_tenant(tenant, "tenant"),
            labels=labels_of(label),
            submitted_from=submitted_from,
            submitted_before=submitted_before,
            parent_run_id=parent_run_id,
            root_run_id=root_run_id,
            is_nested=is_nested,
            limit=limit + 1,
            before=before,
        )
    return page.of(found, limit, lambda row: row.run_id)


@router.get("/{run_id:uuid}", response_model=models.RunOut, responses=NO_RUN)
async def get_run(
    run_id: RunId,
    caller: LeaseReader,
    wait: Annotated[
        float, Query(ge=0, le=60, description="Seconds to wait at most, until it has ended.")
    ] = 0,
) -> Any:
    """A run, and how many of its steps are in each state.

    With `wait` the answer comes when the run has ended, at the latest after those seconds: look at
    its state. Such a request counts as an event stream.
    """
    if wait:

        async def has_ended() -> bool:
            async with caller.call() as client:
                run = await client.get_workflow_run(run_id)
            return run.finished_at is not None

        with caller.services.streams.slot(caller.principal.counted_name):
            await caller.services.streams.wait_until(has_ended, wait)
    async with caller.call() as client:
        return await client.get_workflow_run(run_id)


@router.get("/{run_id:uuid}/steps", response_model=models.RunSteps, responses=NO_RUN)
async def list_steps(run_id: RunId, caller: LeaseReader) -> Any:
    """The steps of a run in topological order, all of them."""
    async with caller.read() as client:
        return {"items": await client.list_workflow_steps(run_id)}


@router.get(
    "/{run_id:uuid}/steps/{step}/results",
    response_model=models.StepResults,
    responses=NO_RUN,
)
async def list_results(
    *,
    run_id: RunId,
    step: Annotated[models.StepName, Path(description="Name of the step.", examples=["score"])],
    caller: LeaseReader,
    page: Paged,
    state: Annotated[StepState | None, Query(description="Only those in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[
        int,
        Query(ge=-2, le=2**31 - 1, description="Cursor: `next` of the page before. -2: the step."),
    ] = -1,
) -> Any:
    """What a step returned, and where: one row, or one for each item that is spawned.

    `running` items may still wait for a node: `lease_state` says so. With `after=-2` a step with
    items tells of itself, as item -1.
    """
    async with caller.read() as client:
        found = await client.step_results(run_id, step, after=after, limit=limit + 1, state=state)
    return page.of(found, limit, lambda row: row.item, name="after")


@router.get("/{run_id:uuid}/signals", response_model=models.RunSignals, responses=NO_RUN)
async def list_signals(run_id: RunId, caller: LeaseReader) -> Any:
    """What a run was sent, oldest first, and which step took each; all of it, 1,000 at most."""
    async with caller.read() as client:
        return {"items": await client.list_run_signals(run_id)}


@router.post("/{run_id:uuid}/cancel", responses=NO_RUN | WRONG_RUN_STATE)
async def cancel_run(
    run_id: RunId, caller: LeaseWriter, body: models.CancelRunRequest | None = None
) -> models.RunNow:
    """Cancel a run: what waits ends, what runs is asked to stop; `cancelling` until it has."""
    reason = body.reason if body else None
    async with caller.call() as client:
        state = await client.cancel_workflow_run(run_id, reason=reason)
    return models.RunNow(run_id=run_id, state=state)


@router.post("/{run_id:uuid}/pause", responses=NO_RUN | WRONG_RUN_STATE)
async def pause_run(run_id: RunId, caller: LeaseWriter) -> models.RunNow:
    """Hold the steps of a run that become due; those that run go on."""
    async with caller.call() as client:
        state = await client.pause_workflow_run(run_id)
    return models.RunNow(run_id=run_id, state=state)


@router.post("/{run_id:uuid}/resume", responses=NO_RUN | WRONG_RUN_STATE)
async def resume_run(run_id: RunId, caller: LeaseWriter) -> models.RunNow:
    """Let a paused run go on."""
    async with caller.call() as client:
        state = await client.resume_workflow_run(run_id)
    return models.RunNow(run_id=run_id, state=state)


@router.post("/{run_id:uuid}/retry", responses=NO_RUN | WRONG_RUN_STATE)
async def retry_run(
    run_id: RunId, caller: LeaseWriter, body: models.RetryRequest | None = None
) -> models.RunNow:
    """Run steps of a run that has ended again, under the same lease ids; other results stay."""
    given = body or models.RetryRequest()
    async with caller.call() as client:
        state = await client.retry_workflow_run(run_id, mode=given.mode, steps=given.steps, input=given.input)
    return models.RunNow(run_id=run_id, state=state)


@router.post(
    "/{run_id:uuid}/retry/preview",
    response_model=models.RetriedSteps,
    responses=NO_RUN | WRONG_RUN_STATE,
)
async def preview_retry(run_id: RunId, caller: LeaseWriter, body: models.RetryRequest | None = None) -> Any:
    """The steps that a retry with this body would run again; nothing is changed."""
    given = body or models.RetryRequest()
    async with caller.read() as client:
        return {"items": await client.preview_retry(run_id, mode=given.mode, steps=given.steps)}


@router.post("/{run_id:uuid}/update", response_model=models.UpdatedSteps, responses=NO_RUN | WRONG_RUN_STATE)
async def update_steps(run_id: RunId, body: models.UpdateStepsRequest, caller: LeaseWriter) -> Any:
    """Change where steps of a run may run that were not released: all, or those that are named.

    A step that was released keeps its placement, and so does an item that was spawned.
    """
    changes = await caller.run(lambda: body.changes.model_dump(exclude_unset=True))
    async with caller.call() as client:
        return {"items": await client.update_steps(run_id, steps=body.steps, **changes)}


@router.post(
    "/{run_id:uuid}/update/preview",
    response_model=models.PreviewedSteps,
    responses=NO_RUN | WRONG_RUN_STATE,
)
async def preview_update(run_id: RunId, body: models.UpdateStepsRequest, caller: LeaseWriter) -> Any:
    """Where the steps could run after an update with this body; nothing is changed."""
    changes = await caller.run(lambda: body.changes.model_dump(exclude_unset=True))
    async with caller.read() as client:
        return {"items": await client.preview_update(run_id, steps=body.steps, **changes)}


@router.post("/{run_id:uuid}/steps/{step}/skip", responses=NO_RUN | WRONG_RUN_STATE)
async def skip_step(
    run_id: RunId,
    step: Annotated[models.StepName, Path(description="Name of the step.", examples=["train"])],
    caller: LeaseOperator,
    body: models.SkipRequest | None = None,
) -> models.RunNow:
    """Declare a step completed that nobody has claimed; what comes after it is released."""
    given = body or models.SkipRequest()
    async with caller.call() as client:
        state = await client.skip_step(run_id, step, result=given.result, reason=given.reason)
    return models.RunNow(run_id=run_id, state=state)


async def _run_is_there(run_id: RunId, caller: LeaseReader) -> None:
    """A stream that has begun cannot say that there is no such run."""
    async with caller.call() as client:
        await client.get_workflow_run(run_id)


@router.get(
    "/{run_id:uuid}/stream",
    response_class=EventSourceResponse,
    responses=NO_RUN,
    dependencies=[Depends(_run_is_there), Depends(stream_slot)],
)
async def stream_run(
    *,
    run_id: RunId,
    caller: LeaseReader,
    request: Request,
    last_event_id: Annotated[
        str | None,
        Header(pattern=_PLACE, description="The last one seen: only what differs comes."),
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Follow a run as server-sent events: now, and whenever it or the states of its steps change.

    Of the event `run`, `data` is the run as `GET /runs/{run_id}` has it. A comment comes while
    nothing changes. When the run has ended, so does the stream: its last event is `ended`, with the
    run's state, or `deleted` where it is gone. It also ends after ten minutes, and when the token
    does; browsers come back by themselves.
    """

    async def fetch(seen: str | None) -> tuple[list[ServerSentEvent], str | None]:
        try:
            async with caller.call() as client:
                found = await client.get_workflow_run(run_id)
        except RunNotFound:
            return [], "deleted"
        run = written(found)
        place = blake2b(run.encode(), digest_size=16).hexdigest()
        told = [] if place == seen else [ServerSentEvent(id=place, event="run", raw_data=run)]
        return told, None if found.finished_at is None else found.state

    async for event in followed(caller, request, last_event_id or "", fetch):
        yield event
