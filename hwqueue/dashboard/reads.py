"""What the pages read, through the client's methods; what all viewers share is cached."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

import psycopg
from starlette.requests import Request

from hwqueue import types
from hwqueue.client import AsyncClient
from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.reading import Reading, read, shared
from hwqueue.errors import (
    BadArgument,
    ClassUnknown,
    HwqueueError,
    LeaseNotFound,
    LimitUnknown,
    NodeUnknown,
    QueueUnknown,
    WebhookUnknown,
)

T = TypeVar("T")

FAST, SLOW = 5.0, 10.0  # seconds for which a value is good enough for the next viewer
MOST_CLASSES = 10_000  # that a page looks at; the database has words for the first 500
MOST_TENANTS = 10_000
MOST_RUNS = 200  # whose steps one call counts
_GANG_EVENTS = tuple(code for code in types.EVENT_CODES if code.startswith("gang_"))
_OF_RUNS = ("workflow_run_", "workflow_step_", "workflow_wait_")
_RUN_EVENTS = tuple(code for code in types.EVENT_CODES if code.startswith(_OF_RUNS))


@dataclass(frozen=True, slots=True)
class System:
    """What is installed, and who has tokens; None: the server's user may not list them."""

    schema: types.SchemaVersion
    tokens: Sequence[types.ApiToken] | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run with its definition, its steps and its signals; all of one moment."""

    run: types.WorkflowRun
    definition: types.WorkflowDefinition
    steps: Sequence[types.WorkflowStep]
    details: Sequence[types.StepDetail]
    progress: types.RunProgress
    signals: Sequence[types.RunSignal] = ()


@dataclass(frozen=True, slots=True)
class StepView:
    """A step of a run, and a page of its items."""

    run: types.WorkflowRun
    step: types.WorkflowStep
    items: Sequence[types.StepResult]


def _named(found: Mapping[str, T], name: str, unknown: type[HwqueueError], what: str) -> T:
    """What is listed under a name. Raises: `unknown`."""
    if name not in found:
        raise unknown(f"no {what} is named {name[:100]!r}", hint=f"see the list of {what}s")
    return found[name]


async def _webhook(client: AsyncClient, name: str) -> types.Webhook:
    """One webhook. Raises: WebhookUnknown."""
    return _named({each.name: each for each in await client.list_webhooks()}, name, WebhookUnknown, "webhook")


def span_of(subject: str) -> tuple[datetime, datetime, str]:
    """From when to when, in UTC unless it says otherwise, and of which schedule. Raises: BadArgument."""
    try:
        since, until, name = subject.split(" ", 2)
        span = [datetime.fromisoformat(each) for each in (since, until)]
    except ValueError as error:
        raise BadArgument(
            f"{subject[:60]!r} begins with no times", hint="such as 2026-11-01 or 2026-11-01 00:30"
        ) from error
    first, last = (each if each.tzinfo else each.replace(tzinfo=UTC) for each in span)
    return first, last, name


async def _backfill(client: AsyncClient, subject: str) -> list[types.FiredTime]:
    """Which times of a span a backfill would fire. Raises: ScheduleUnknown, BadArgument."""
    since, until, name = span_of(subject)
    return await client.backfill_schedule(name, since, until)


async def _limit(client: AsyncClient, name: str) -> types.Limit:
    """One limit. Raises: LimitUnknown."""
    return _named({each.name: each for each in await client.list_limits()}, name, LimitUnknown, "limit")


async def _tenants(client: AsyncClient) -> list[types.TenantUsage]:
    """What tenants use, the busiest first; at most `MOST_TENANTS`."""
    return await client.tenant_usage(limit=MOST_TENANTS)


async def _queue(client: AsyncClient, name: str) -> types.Queue:
    """One queue with its policy. Raises: QueueUnknown."""
    return _named({each.queue: each for each in await client.list_queues()}, name, QueueUnknown, "queue")


async def find_node(client: AsyncClient, name: str) -> types.Node:
    """The node of this name. Raises: NodeUnknown."""
    found = await client.list_nodes(name=name)
    if not found:
        raise NodeUnknown(f"no node is named {name[:100]!r}", hint="it may have been deregistered")
    return found[0]


async def _find_class(client: AsyncClient, class_id: int) -> types.ClassStats:
    """The placement class of this id. Raises: ClassUnknown."""
    found = await client.placement_class_stats(after=class_id - 1, limit=1)
    if not found or found[0].class_id != class_id:
        raise ClassUnknown(
            f"no placement class has the id {class_id}", hint="classes go when no lease has them"
        )
    return found[0]


async def _pending(
    client: AsyncClient, queue: str | None = None, order: str = "oldest"
) -> list[types.PendingReason]:
    """Placement classes with something ready, and why it is not running.

    At most `MOST_CLASSES`, those that wait longest (`pending`: have most leases).
    """
    return await client.pending_reasons(queue=queue, order=order, limit=MOST_CLASSES)


async def _throughput(client: AsyncClient, queue: str | None = None) -> list[types.Minute]:
    """What ended in each minute of the last hour."""
    return await client.throughput(queue=queue, minutes=60)


async def _notable(client: AsyncClient, codes: Sequence[str], limit: int) -> list[types.Event]:
    """The newest events of these kinds."""
    return await client.list_events(code=codes, limit=limit)


async def _history(
    client: AsyncClient, kind: Literal["gpus", "waits"], minutes: int = 180
) -> list[types.FleetSample]:
    """Samples of the fleet, or of what waits."""
    return await client.fleet_history(kind, minutes=minutes)


async def _tags(client: AsyncClient, label: str | None) -> list[types.TagCount]:
    """The values of a label (None: of all), and how many nodes have each."""
    return await client.tag_distribution(label=label, limit=200)


async def _system(client: AsyncClient) -> System:
    """What is installed, and the tokens."""
    schema = await client.schema_version()
    try:
        return System(schema, await client.list_tokens())
    except psycopg.errors.InsufficientPrivilege:
        return System(schema, None)


async def _on_node(client: AsyncClient, wanted: types.LeaseFilter, node: str | None) -> types.LeaseFilter:
    """The filter with the node of that name. Raises: NodeUnknown."""
    return wanted | {"node_id": (await find_node(client, node)).node_id} if node else wanted


async def _leases(
    client: AsyncClient,
    queue: str | None,
    wanted: types.LeaseFilter,
    *,
    node: str | None,
    before: UUID | None,
    limit: int,
) -> list[types.LeaseSummary]:
    """A page of leases. Raises: QueueUnknown, NodeUnknown, BadArgument."""
    there = await _on_node(client, wanted, node)
    return await client.list_leases(queue=queue, before=before, limit=limit, **there)


async def _count_leases(
    client: AsyncClient,
    queue: str,
    states: Sequence[str],
    wanted: types.LeaseFilter,
    node: str | None,
    *,
    most_pages: int,
) -> tuple[int, bool]:
    """How many leases a filter means, by `most_pages` at most, and whether these are all.

    Raises: QueueUnknown, NodeUnknown, BadArgument.
    """
    there = await _on_node(client, wanted, node)
    count, cursor = 0, None
    for _ in range(most_pages):
        found = await client.count_page(queue, states=states, cursor=cursor, **there)
        count, cursor = count + found.lease_count, found.next_cursor
        if cursor is None:
            break
    return count, cursor is None


async def _fit(client: AsyncClient, class_id: int) -> list[types.NodeGroup]:
    """All nodes and a placement class: may they take it now, and if not, by which codes.

    Raises: ClassUnknown.
    """
    asked = await _find_class(client, class_id)
    return await client.match_groups(
        asked.placement,
        queue=asked.queue,
        task=asked.task_name,
        tenant=asked.tenant or None,
        service_id=asked.service_id,
        labels=asked.labels,
    )


async def _match(
    client: AsyncClient, /, placement: Mapping[str, Any], nodes: Sequence[str], **lease: Any
) -> list[types.NodeMatch]:
    """These nodes and a placement, in their order; those that are gone are left out.

    Raises: PlacementInvalid, PlacementContradictory, QueueUnknown, BadArgument.
    """
    rows = await client.match_nodes(placement, nodes=nodes, **lease)
    turn = {name: number for number, name in enumerate(nodes)}
    return sorted(rows, key=lambda row: turn[row.node_name])


async def _runs(
    client: AsyncClient, /, *, before: UUID | None, limit: int, **wanted: Any
) -> tuple[list[types.RunSummary], dict[UUID, types.RunProgress]]:
    """A page of runs, newest first, and how far each is. Raises: BadArgument."""
    rows = await client.list_workflow_runs(before=before, limit=limit, **wanted)
    known = await client.summarise_runs([row.run_id for row in rows[:MOST_RUNS]])
    return rows, {each.run_id: each for each in known}


async def _last_runs(client: AsyncClient, workflow: str, limit: int) -> list[types.RunSummary]:
    """The newest runs of a workflow."""
    return await client.list_workflow_runs(workflow=workflow, limit=limit)


async def _failures(client: AsyncClient, queue: str | None, limit: int) -> list[types.LeaseSummary]:
    """The newest leases that failed. Raises: QueueUnknown."""
    return await client.list_leases(queue=queue, state="failed", limit=limit)


async def _run_view(client: AsyncClient, run_id: UUID | str) -> RunView:
    """One run, its definition and its steps. Raises: RunNotFound."""
    steps = await client.list_workflow_steps(run_id)
    takes_signals = any(step.kind == "wait" for step in steps)
    return RunView(
        await client.get_workflow_run(run_id),
        await client.get_run_workflow(run_id),
        steps,
        await client.list_step_details(run_id),
        (await client.summarise_runs([run_id]))[0],
        await client.list_run_signals(run_id) if takes_signals else (),
    )


async def _step_items(
    client: AsyncClient, run_id: UUID, step: str, state: types.StepState | None, *, after: int, limit: int
) -> StepView:
    """A step and a page of its items. Raises: RunNotFound, StepUnknown."""
    items = await client.step_results(run_id, step, state=state, after=after, limit=limit)
    steps = await client.list_workflow_steps(run_id)
    row = next(each for each in steps if each.step == step)
    return StepView(await client.get_workflow_run(run_id), row, items)


async def _workflows(
    client: AsyncClient, after: str | None, limit: int
) -> tuple[list[types.WorkflowSummary], dict[str, list[types.WorkflowVersion]]]:
    """A page of workflows by name, and the versions of each with the states of their runs."""
    rows = await client.list_workflows(after=after, limit=limit)
    versions = defaultdict(list)
    for each in await client.list_workflow_versions([row.workflow for row in rows]):
        versions[each.workflow].append(each)
    return rows, versions


async def _workflow(
    client: AsyncClient, name: str, version: int | None
) -> tuple[types.WorkflowDefinition, list[types.WorkflowVersion]]:
    """A definition, and all versions of its name. Raises: WorkflowUnknown."""
    found = await client.get_workflow(name, version=version)
    return found, await client.list_workflow_versions([name])


async def _checked_steps(client: AsyncClient, name: str, version: int | None) -> list[types.CheckedStep]:
    """Where each step of a definition could run now: looks at the whole fleet.

    Raises: WorkflowUnknown, and what a submission without options raises.
    """
    options: types.RunOptions = {} if version is None else {"version": version}
    return await client.check_workflow(name, **options)


class Reads(Reading):
    """All reads of the dashboard, and the way to act."""

    queues = shared(FAST, AsyncClient.queue_depth)
    tasks = shared(SLOW, AsyncClient.list_tasks)
    limits = shared(FAST, AsyncClient.list_limits)
    limit_lanes = shared(FAST, AsyncClient.limit_lanes)
    tenants = shared(SLOW, _tenants)
    preemption = shared(FAST, AsyncClient.preview_preemption)
    webhooks = shared(FAST, AsyncClient.list_webhooks)
    pending = shared(SLOW, _pending)
    nodes = shared(SLOW, AsyncClient.node_usage)
    planner = shared(SLOW, AsyncClient.planner_status)
    throughput = shared(FAST, _throughput)
    history = shared(SLOW, _history)
    tags = shared(SLOW, _tags)
    notable = shared(FAST, _notable)
    metrics = shared(SLOW, AsyncClient.metrics)
    explain_lease = shared(FAST, AsyncClient.explain_lease)
    explain_class = shared(FAST, AsyncClient.explain_class)
    explain_gang = shared(FAST, AsyncClient.explain_gang)
    system = shared(3 * SLOW, _system)
    fit = shared(SLOW, _fit)
    workflows = shared(FAST, _workflows)
    last_runs = shared(FAST, _last_runs)
    failures = shared(SLOW, _failures)
    checked_steps = shared(SLOW, _checked_steps)

    schedules = read(AsyncClient.list_schedules)
    schedule = read(AsyncClient.get_schedule)
    fires = read(AsyncClient.schedule_history)
    backfill = read(_backfill)
    limit = read(_limit)
    tenant_rows = read(AsyncClient.list_tenants)
    preemptions = read(AsyncClient.list_preemptions)
    webhook = read(_webhook)
    deliveries = read(AsyncClient.list_deliveries)
    lease = read(AsyncClient.get_lease)
    lease_checkpoints = read(AsyncClient.lease_checkpoints)
    lease_logs = read(AsyncClient.lease_logs)
    leases = read(_leases)
    count_leases = read(_count_leases)
    node = read(find_node)
    node_claims = read(AsyncClient.node_claims)
    queue = read(_queue)
    events = read(AsyncClient.list_events)
    classes = read(AsyncClient.placement_class_stats)
    class_asked = read(_find_class)
    what_if = read(AsyncClient.what_if)
    match_groups = read(AsyncClient.match_groups)
    match = read(_match)
    runs = read(_runs)
    run = read(AsyncClient.get_workflow_run)
    run_view = read(_run_view)
    step_items = read(_step_items)
    retried = read(AsyncClient.preview_retry)
    workflow = read(_workflow)
    gangs = read(AsyncClient.list_gangs)
    gang = read(AsyncClient.get_gang)

    def acting(self, actor: str) -> AbstractAsyncContextManager[AsyncClient]:
        """A client in whose transaction something is changed in somebody's name."""
        return self._pools.call(actor)

    async def node_names(self) -> Cached[Mapping[UUID, str]]:
        """The names of nodes by their ids."""
        nodes = await self.nodes()
        return Cached({each.node_id: each.node_name for each in nodes.value}, nodes.at, nodes.stale_since)

    async def states(self, leases: Sequence[UUID]) -> dict[UUID, str]:
        """The states of those leases that there are."""
        found: dict[UUID, str] = {}
        left = deque(leases)

        async def ask(client: AsyncClient) -> None:
            while left:
                lease_id = left.popleft()
                found[lease_id] = (await client.get_lease(lease_id)).state

        while left:  # one that is gone ends the transaction
            with suppress(LeaseNotFound):
                await self._read("get_lease", ask)
        return found

    async def run_events(self, run: types.WorkflowRun) -> list[types.Event]:
        """What was noted about a run: the newest, of the last 1,000 about any run."""
        found = await self.events(limit=1000, code=_RUN_EVENTS, since=run.submitted_at)
        return [each for each in found if (each.detail or {}).get("run_id") == str(run.run_id)]

    async def gang_events(self, gang: types.Gang) -> list[types.Event]:
        """What was noted about a gang: the newest, of the last 1,000 about any gang."""
        found = await self.events(limit=1000, code=_GANG_EVENTS, since=gang.created_at)
        return [each for each in found if (each.detail or {}).get("gang_id") == str(gang.gang_id)]


def reads(request: Request) -> Reads:
    """The reads of the app that answers this request."""
    found: Reads = request.app.state.reads
    return found
