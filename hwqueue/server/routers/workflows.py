"""Workflows: define them, look at them, submit runs of them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import workflows as models
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import (
    NO_QUEUE,
    NO_WORKFLOW,
    IdempotencyKey,
    LeaseWriter,
    Operator,
    Reader,
    own_options,
    tell_place,
)

router = APIRouter(route_class=AuthenticatedRoute, prefix="/workflows", tags=["workflows"])

PathName = Annotated[models.WorkflowName, Path(description="Name of the workflow.", examples=["training"])]


@router.post(
    "",
    status_code=201,
    response_model=models.Defined,
    responses={200: {"model": models.Defined, "description": "Its newest version means the same."}},
)
async def define_workflow(
    body: models.WorkflowSpec, caller: Operator, request: Request, response: Response
) -> Any:
    """Define a workflow: its next version, for new runs; runs that exist keep theirs."""
    async with caller.call() as client:
        defined = await client.define_workflow(body.model_dump())
    tell_place(response, f"{request.url.path}/{defined.workflow}", created=defined.created)
    return defined


@router.get("", response_model=models.Workflows)
async def list_workflows(
    *,
    caller: Reader,
    page: Paged,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[
        models.WorkflowName | None, Query(description="Cursor: `next` of the page before.")
    ] = None,
) -> Any:
    """Workflows by name, each with its newest version."""
    async with caller.read() as client:
        found = await client.list_workflows(after=after, limit=limit + 1)
    return page.of(found, limit, lambda row: row.workflow, name="after")


@router.get("/{workflow}", response_model=models.Definition, responses=NO_WORKFLOW)
async def get_workflow(
    workflow: PathName,
    caller: Reader,
    version: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The newest unless given.")] = None,
) -> Any:
    """A definition: the specification in normal form, its steps in topological order."""
    async with caller.call() as client:
        return await client.get_workflow(workflow, version=version)


@router.get("/{workflow}/versions", response_model=models.Versions, responses=NO_WORKFLOW)
async def list_versions(workflow: PathName, caller: Reader) -> Any:
    """The newest 20 versions, newest first, and how the newest 1,000 runs of that name went.

    A last item without a version counts the runs of specifications of that name.
    """
    async with caller.read() as client:
        found = await client.list_workflow_versions([workflow])
        if not found:
            await client.get_workflow(workflow)  # refuses a name nobody has
    return {"items": found}


@router.post("/check", response_model=models.CheckedSteps, responses={**NO_QUEUE, **NO_WORKFLOW})
async def check_workflow(body: models.CheckRequest, caller: LeaseWriter) -> Any:
    """Where each step could run if it were submitted now; refuses what a submission refuses.

    Nothing is changed. A step that no node matches is no error: `nodes_matching` is 0.
    """
    options = await caller.run(lambda: own_options(caller, body.options, "options"))
    spec = body.spec if isinstance(body.spec, str) else body.spec.model_dump()
    async with caller.read() as client:
        return {"items": await client.check_workflow(spec, **options)}


@router.post(
    "/{workflow}/runs",
    status_code=201,
    response_model=models.Submitted,
    responses={
        200: {"model": models.Submitted, "description": "The idempotency key had it already."},
        **NO_QUEUE,
        **NO_WORKFLOW,
    },
)
async def submit_workflow(
    *,
    workflow: PathName,
    body: models.SubmitRequest,
    caller: LeaseWriter,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Submit a run of a workflow, and spawn the leases of its first steps."""
    options = await caller.run(lambda: own_options(caller, body.options, "options", idempotency_key))
    async with caller.call() as client:
        submitted = await client.submit_workflow(workflow, body.input, **options)
    runs = request.url.path.removesuffix(f"/workflows/{workflow}/runs")
    tell_place(response, f"{runs}/runs/{submitted.run_id}", created=submitted.created)
    return submitted
