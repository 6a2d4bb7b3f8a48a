"""What the pages read, through the client's methods; what all viewers share is cached."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from starlette.requests import Request

from hwqueue.client import AsyncClient
from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.reading import Reading
from hwqueue.errors import ClassUnknown, LeaseNotFound, NodeUnknown, QueueUnknown, WebhookUnknown
from hwqueue.types import (
    EVENT_CODES,
    ApiToken,
    CheckedStep,
    ClassExplanation,
    ClassStats,
    Delivery,
    Event,
    Gang,
    GangExplanation,
    GangSummary,
    KnownTask,
    Lease,
    LeaseExplanation,
    LeaseFilter,
    LeaseSummary,
    LogLine,
    Minute,
    Node,
    NodeClaim,
    NodeGroup,
    NodeMatch,
    NodeUsage,
    PendingReason,
    PlannerStatus,
    Queue,
    QueueDepth,
    RetriedStep,
    RunOptions,
    RunProgress,
    RunSignal,
    RunSummary,
    SavedCheckpoint,
    SchemaVersion,
    ServedClass,
    StepDetail,
    StepResult,
    StepState,
    TagCount,
    Webhook,
    WorkflowDefinition,
    WorkflowRun,
    WorkflowStep,
    WorkflowSummary,
    WorkflowVersion,
)

FAST, SLOW = 5.0, 10.0  # seconds for which a value is good enough for the next viewer
MOST_CLASSES = 10_000  # that a page looks at; the database has words for the first 500
MOST_RUNS = 200  # whose steps one call counts
_GANG_EVENTS = tuple(code for code in EVENT_CODES if code.startswith("gang_"))
_RUN_EVENTS = tuple(
    code for code in EVENT_CODES if code.startswith(("workflow_run_", "workflow_step_", "workflow_wait_"))
)


@dataclass(frozen=True, slots=True)
class System:
    """What is installed, and who has tokens; None: the server's user may not list them."""

    schema: SchemaVersion
    tokens: Sequence[ApiToken] | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run with its definition, its steps and its signals; all of one moment."""

    run: WorkflowRun
    definition: WorkflowDefinition
    steps: Sequence[WorkflowStep]
    details: Sequence[StepDetail]
    progress: RunProgress
    signals: Sequence[RunSignal] = ()


@dataclass(frozen=True, slots=True)
class StepView:
    """A step of a run, and a page of its items."""

    run: WorkflowRun
    step: WorkflowStep
    items: Sequence[StepResult]


class Reads(Reading):
    """All reads of the dashboard, and the way to act."""

    def acting(self, actor: str) -> AbstractAsyncContextManager[AsyncClient]:
        """A client in whose transaction something is changed in somebody's name."""
        return self._pools.call(actor)

    async def queues(self) -> Cached[Sequence[QueueDepth]]:
        """Every queue with what is in it."""
        return await self._shared("queue_depth", FAST, lambda client: client.queue_depth())

    async def tasks(self) -> Cached[Sequence[KnownTask]]:
        """The tasks that have defaults, by name."""
        return await self._shared("list_tasks", SLOW, lambda client: client.list_tasks())

    async def webhooks(self) -> Cached[Sequence[Webhook]]:
        """The webhooks, by name."""
        return await self._shared("list_webhooks", FAST, lambda client: client.list_webhooks())

    async def webhook(self, name: str) -> Webhook:
        """One webhook. Raises: WebhookUnknown."""
        for each in await self._read("list_webhooks", lambda client: client.list_webhooks()):
            if each.name == name:
                return each
        raise WebhookUnknown(f"no webhook is named {name[:100]!r}", hint="see the list of webhooks")

    async def deliveries(self, name: str, state: str | None, limit: int) -> list[Delivery]:
        """The newest deliveries of a webhook. Raises: WebhookUnknown."""
        return await self._read(
            "list_deliveries",
            lambda client: client.list_deliveries(name, state=state, limit=limit),
        )

    async def pending(
        self, queue: str | None = None, order: str = "oldest"
    ) -> Cached[Sequence[PendingReason]]:
        """Placement classes with something ready, and why it is not running.

        At most `MOST_CLASSES`, those that wait longest (`pending`: have most leases).
        """
        return await self._shared(
            "pending_reasons",
            SLOW,
            lambda client: client.pending_reasons(queue=queue, order=order, limit=MOST_CLASSES),
            (queue, order),
        )

    async def nodes(self) -> Cached[Sequence[NodeUsage]]:
        """Every node with what it has and what is in use."""
        return await self._shared("node_usage", SLOW, lambda client: client.node_usage())

    async def planner(self) -> Cached[PlannerStatus | None]:
        """What the planner says of room on GPUs."""
        return await self._shared("planner_status", SLOW, lambda client: client.planner_status())

    async def node_names(self) -> Cached[Mapping[UUID, str]]:
        """The names of nodes by their ids."""
        nodes = await self.nodes()
        return Cached({each.node_id: each.node_name for each in nodes.value}, nodes.at, nodes.stale)

    async def throughput(self, queue: str | None = None) -> Cached[Sequence[Minute]]:
        """What ended in each minute of the last hour."""
        return await self._shared(
            "throughput",
            FAST,
            lambda client: client.throughput(queue=queue, minutes=60),
            queue,
        )

    async def tags(self, label: str | None) -> Cached[Sequence[TagCount]]:
        """The values of a label (None: of all), and how many nodes have each."""
        return await self._shared(
            "tag_distribution",
            SLOW,
            lambda client: client.tag_distribution(label=label, limit=200),
            label,
        )

    async def explain_lease(self, lease_id: UUID) -> Cached[LeaseExplanation]:
        """Why a lease is not running. Raises: LeaseNotFound."""
        return await self._shared(
            "explain_lease",
            FAST,
            lambda client: client.explain_lease(lease_id),
            lease_id,
        )

    async def explain_class(self, class_id: int) -> Cached[ClassExplanation]:
        """Why the leases of a placement class are not running. Raises: ClassUnknown."""
        return await self._shared(
            "explain_class",
            FAST,
            lambda client: client.explain_class(class_id),
            class_id,
        )

    async def system(self) -> Cached[System]:
        """What is installed, and the tokens."""

        async def ask(client: AsyncClient) -> System:
            schema = await client.schema_version()
            try:
                return System(schema, await client.list_tokens())
            except psycopg.errors.InsufficientPrivilege:
                return System(schema, None)

        return await self._shared("system", 3 * SLOW, ask)

    async def lease(self, lease_id: UUID) -> Lease:
        """One lease. Raises: LeaseNotFound."""
        return await self._read("get_lease", lambda client: client.get_lease(lease_id))

    async def lease_checkpoints(self, lease_id: UUID, limit: int) -> list[SavedCheckpoint]:
        """What its handler has saved, the last first. Raises: LeaseNotFound."""
        return await self._read(
            "lease_checkpoints",
            lambda client: client.lease_checkpoints(lease_id, limit=limit),
        )

    async def lease_logs(self, lease_id: UUID, limit: int) -> list[LogLine]:
        """The last lines that its handlers logged. Raises: LeaseNotFound."""
        return await self._read(
            "lease_logs",
            lambda client: client.lease_logs(lease_id, last=True, limit=limit),
        )

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

    async def leases(
        self,
        queue: str | None,
        wanted: LeaseFilter,
        *,
        node: str | None,
        before: UUID | None,
        limit: int,
    ) -> list[LeaseSummary]:
        """A page of leases. Raises: QueueUnknown, NodeUnknown, BadArgument."""

        async def ask(client: AsyncClient) -> list[LeaseSummary]:
            return await client.list_leases(
                queue=queue, before=before, limit=limit, **await self._on_node(client, wanted, node)
            )

        return await self._read("list_leases", ask)

    async def count_leases(
        self,
        queue: str,
        states: Sequence[str],
        wanted: LeaseFilter,
        node: str | None,
        most_pages: int,
    ) -> tuple[int, bool]:
        """How many leases a filter means, by `most_pages` at most, and whether these are all.

        Raises: QueueUnknown, NodeUnknown, BadArgument.
        """

        async def ask(client: AsyncClient) -> tuple[int, bool]:
            there = await self._on_node(client, wanted, node)
            count, cursor = 0, None
            for _ in range(most_pages):
                found = await client.count_page(queue, states=states, cursor=cursor, **there)
                count, cursor = count + found.lease_count, found.next_cursor
                if cursor is None:
                    break
            return count, cursor is None

        return await self._read("count_leases", ask)

    async def _on_node(self, client: AsyncClient, wanted: LeaseFilter, node: str | None) -> LeaseFilter:
        """The filter with the node of that name. Raises: NodeUnknown."""
        if not node:
            return wanted
        return wanted | {"node_id": (await find_node(client, node)).node_id}

    async def node(self, name: str) -> Node:
        """One node. Raises: NodeUnknown."""
        return await self._read("list_nodes", lambda client: find_node(client, name))

    async def node_claims(self, node_id: UUID, limit: int) -> list[NodeClaim]:
        """What runs on a node."""
        return await self._read(
            "node_claims",
            lambda client: client.node_claims(node_id, limit=limit),
        )

    async def queue(self, name: str) -> Queue:
        """One queue with its policy. Raises: QueueUnknown."""
        for each in await self._read("list_queues", lambda client: client.list_queues()):
            if each.queue == name:
                return each
        raise QueueUnknown(f"no queue is named {name[:100]!r}", hint="see the list of queues")

    async def events(self, *, limit: int, **filters: Any) -> list[Event]:
        """The newest events that fit, see `AsyncClient.list_events`. Raises: BadArgument."""
        return await self._read(
            "list_events",
            lambda client: client.list_events(limit=limit, **filters),
        )

    async def classes(self, queue: str | None, after: int, limit: int) -> list[ClassStats]:
        """Placement classes by id. Raises: QueueUnknown."""
        return await self._read(
            "placement_class_stats",
            lambda client: client.placement_class_stats(queue=queue, after=after, limit=limit),
        )

    async def fit(self, class_id: int) -> Cached[Sequence[NodeGroup]]:
        """All nodes and a placement class: may they take it now, and if not, by which codes.

        Raises: ClassUnknown.
        """

        async def ask(client: AsyncClient) -> Sequence[NodeGroup]:
            asked = await _find_class(client, class_id)
            return await client.match_groups(
                asked.placement,
                queue=asked.queue,
                task=asked.task_name,
                tenant=asked.tenant or None,
                service_id=asked.service_id,
                labels=asked.labels,
            )

        return await self._shared("match_groups", SLOW, ask, class_id)

    async def what_if(self, spec: Mapping[str, Any]) -> list[ServedClass]:
        """Which pending classes such nodes could run. Raises: BadArgument."""
        return await self._read("what_if", lambda client: client.what_if(spec))

    async def match_groups(self, placement: Mapping[str, Any], **lease: Any) -> list[NodeGroup]:
        """Every node and a placement, without words, see `AsyncClient.match_groups`.

        Raises: PlacementInvalid, PlacementContradictory, QueueUnknown, BadArgument.
        """
        return await self._read(
            "match_groups",
            lambda client: client.match_groups(placement, **lease),
        )

    async def match(
        self, placement: Mapping[str, Any], nodes: Sequence[str], **lease: Any
    ) -> list[NodeMatch]:
        """These nodes and a placement, in their order; those that are gone are left out.

        Raises: as match_groups.
        """
        rows = await self._read(
            "match_nodes",
            lambda client: client.match_nodes(placement, nodes=nodes, **lease),
        )
        turn = {name: number for number, name in enumerate(nodes)}
        return sorted(rows, key=lambda row: turn[row.node_name])

    async def class_asked(self, class_id: int) -> ClassStats:
        """What a placement class asks. Raises: ClassUnknown."""
        return await self._read("placement_class_stats", lambda client: _find_class(client, class_id))

    async def runs(
        self, *, before: UUID | None, limit: int, **wanted: Any
    ) -> tuple[list[RunSummary], dict[UUID, RunProgress]]:
        """A page of runs, newest first, and how far each is. Raises: BadArgument."""

        async def ask(
            client: AsyncClient,
        ) -> tuple[list[RunSummary], dict[UUID, RunProgress]]:
            rows = await client.list_workflow_runs(before=before, limit=limit, **wanted)
            known = await client.summarise_runs([row.run_id for row in rows[:MOST_RUNS]])
            return rows, {each.run_id: each for each in known}

        return await self._read("list_workflow_runs", ask)

    async def run(self, run_id: UUID) -> WorkflowRun:
        """One run. Raises: RunNotFound."""
        return await self._read("get_workflow_run", lambda client: client.get_workflow_run(run_id))

    async def run_view(self, run_id: UUID) -> RunView:
        """One run, its definition and its steps. Raises: RunNotFound."""

        async def ask(client: AsyncClient) -> RunView:
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

        return await self._read("run_view", ask)

    async def step_items(
        self, run_id: UUID, step: str, state: StepState | None, after: int, limit: int
    ) -> StepView:
        """A step and a page of its items. Raises: RunNotFound, StepUnknown."""

        async def ask(client: AsyncClient) -> StepView:
            items = await client.step_results(run_id, step, state=state, after=after, limit=limit)
            steps = await client.list_workflow_steps(run_id)
            return StepView(
                await client.get_workflow_run(run_id),
                next(each for each in steps if each.step == step),
                items,
            )

        return await self._read("step_items", ask)

    async def run_events(self, run: WorkflowRun) -> list[Event]:
        """What was noted about a run: the newest, of the last 1,000 about any run."""
        found = await self.events(limit=1000, code=_RUN_EVENTS, since=run.submitted_at)
        told = str(run.run_id)
        return [each for each in found if (each.detail or {}).get("run_id") == told]

    async def retried(self, run_id: UUID, **how: Any) -> list[RetriedStep]:
        """What a retry would run again. Raises: RunNotFound, WrongRunState, StepUnknown."""
        return await self._read("preview_retry", lambda client: client.preview_retry(run_id, **how))

    async def workflows(
        self, after: str | None, limit: int
    ) -> tuple[list[WorkflowSummary], dict[str, list[WorkflowVersion]]]:
        """A page of workflows by name, and the versions of each with the states of their runs."""

        async def ask(
            client: AsyncClient,
        ) -> tuple[list[WorkflowSummary], dict[str, list[WorkflowVersion]]]:
            rows = await client.list_workflows(after=after, limit=limit)
            versions = defaultdict(list)
            for each in await client.list_workflow_versions([row.workflow for row in rows]):
                versions[each.workflow].append(each)
            return rows, versions

        return (await self._shared("list_workflows", FAST, ask, (after, limit))).value

    async def workflow(
        self, name: str, version: int | None
    ) -> tuple[WorkflowDefinition, list[WorkflowVersion]]:
        """A definition, and all versions of its name. Raises: WorkflowUnknown."""

        async def ask(
            client: AsyncClient,
        ) -> tuple[WorkflowDefinition, list[WorkflowVersion]]:
            found = await client.get_workflow(name, version=version)
            return found, await client.list_workflow_versions([name])

        return await self._read("get_workflow", ask)

    async def checked_steps(self, name: str, version: int | None) -> Cached[Sequence[CheckedStep]]:
        """Where each step of a definition could run now: looks at the whole fleet.

        Raises: WorkflowUnknown, and what a submission without options raises.
        """

        async def ask(client: AsyncClient) -> Sequence[CheckedStep]:
            options: RunOptions = {} if version is None else {"version": version}
            return await client.check_workflow(name, **options)

        return await self._shared("check_workflow", SLOW, ask, (name, version))

    async def gangs(self, **wanted: Any) -> list[GangSummary]:
        """A page of gangs, newest first; see `AsyncClient.list_gangs`."""
        return await self._read("list_gangs", lambda client: client.list_gangs(**wanted))

    async def gang(self, gang_id: UUID) -> Gang:
        """One gang. Raises: GangNotFound."""
        return await self._read("get_gang", lambda client: client.get_gang(gang_id))

    async def explain_gang(self, gang_id: UUID) -> Cached[GangExplanation]:
        """Why a gang is where it is. Raises: GangNotFound."""
        return await self._shared(
            "explain_gang",
            FAST,
            lambda client: client.explain_gang(gang_id),
            gang_id,
        )

    async def gang_events(self, gang: Gang) -> list[Event]:
        """What was noted about a gang: the newest, of the last 1,000 about any gang."""
        found = await self.events(limit=1000, code=_GANG_EVENTS, since=gang.created_at)
        told = str(gang.gang_id)
        return [each for each in found if (each.detail or {}).get("gang_id") == told]


async def find_node(client: AsyncClient, name: str) -> Node:
    """The node of this name. Raises: NodeUnknown."""
    found = await client.list_nodes(name=name)
    if not found:
        raise NodeUnknown(f"no node is named {name[:100]!r}", hint="it may have been deregistered")
    return found[0]


async def _find_class(client: AsyncClient, class_id: int) -> ClassStats:
    """The placement class of this id. Raises: ClassUnknown."""
    found = await client.placement_class_stats(after=class_id - 1, limit=1)
    if not found or found[0].class_id != class_id:
        raise ClassUnknown(
            f"no placement class has the id {class_id}", hint="classes go when no lease has them"
        )
    return found[0]


def reads(request: Request) -> Reads:
    """The reads of the app that answers this request."""
    found: Reads = request.app.state.reads
    return found
