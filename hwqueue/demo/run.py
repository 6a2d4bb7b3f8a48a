"""One run from an empty queue to a checked report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.demo import check, report
from hwqueue.demo.fleet import Fleet
from hwqueue.demo.model import Job, Plan, Trace
from hwqueue.demo.reasons import pending_reasons
from hwqueue.demo.timed import TimedRun

LIST_PAGE = 1000

Facts = tuple[Mapping[str, check.NodeFacts], Mapping[str, check.JobFacts]]
Watch = Callable[[str, Fleet], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What the driver of a run has to tell. arrival: of a job, in seconds of a timed run."""

    mode: str
    spawn_seconds: float = 0.0
    arrival: Callable[[Job], float] | None = None


Drive = Callable[[Fleet, Trace, Watch], Awaitable[Driven]]
"""Spawns the jobs of a trace and lets the fleet claim until nothing more happens."""


def timed(plan: Plan) -> Drive:
    """Jobs arrive and end as the trace has it."""

    async def drive(fleet: Fleet, trace: Trace, watch: Watch) -> Driven:
        watch("running", fleet)
        run = TimedRun(fleet, trace, speedup=plan.speedup, seed=plan.seed)
        await run.run()
        return Driven(mode="timed", arrival=run.arrival)

    return drive


async def run(
    dsn: str, trace: Trace, facts: Facts, plan: Plan, watch: Watch, *, drive: Drive | None = None
) -> report.Report:
    """Register, spawn, claim until nothing more happens, then explain and check.

    `facts` is the input as the checker reads it; `watch` is told each stage as it begins; without
    `drive` it is a timed run. Raises: what the first connection to fail raised.
    """
    try:
        return await _run(dsn, trace, facts, plan, watch, drive=drive or timed(plan))
    except ExceptionGroup as group:
        raise _first_error(group) from group


def _first_error(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(
    dsn: str, trace: Trace, facts: Facts, plan: Plan, watch: Watch, *, drive: Drive
) -> report.Report:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(dsn, pool_size=1, prepare=True))
            for _ in range(plan.connections)
        ]
        fleet = Fleet(clients, plan.queue, scope=plan.scope, prefix=plan.node_prefix)
        watch("registering nodes", fleet)
        await clients[0].create_queue(plan.queue)
        await fleet.register(trace.machines)
        driven = await drive(fleet, trace, watch)
        seconds = fleet.now
        watch("asking why leases are pending", fleet)
        pending = await pending_reasons(clients[0], fleet.ledger)
        watch("checking every claim", fleet)
        checked = await _check(clients[0], fleet, facts)
        return report.build(
            trace,
            fleet.ledger,
            mode=driven.mode,
            plan=plan,
            seconds=seconds,
            spawn_seconds=driven.spawn_seconds,
            pending=pending,
            checked=checked,
            arrival=driven.arrival,
        )


async def _check(client: AsyncClient, fleet: Fleet, facts: Facts) -> report.Check:
    names = {node.node_id: node.machine.name for node in fleet.nodes}
    moves = [
        check.Move(
            node=entry.grant.machine,
            lease=str(entry.grant.lease_id),
            job=entry.grant.job,
            starts=entry.outcome is None,
            assignment=asdict(entry.grant.assignment) if entry.grant.assignment else None,
        )
        for entry in fleet.ledger.entries
    ]
    recorded = check.Recorded(
        running=await _running(client, fleet.queue, names),
        gpu_milli={
            names[node.node_id]: [gpu.milli_used for gpu in node.gpus]
            for node in await client.list_nodes()
            if node.node_id in names
        },
    )
    found = check.violations(*facts, moves, recorded)
    counted = check.gpu_milli_in_use(facts[1], moves)
    if counted != fleet.ledger.gpu_milli_used:
        found.append(f"the report counts {fleet.ledger.gpu_milli_used} GPU milli, not {counted}")
    return report.Check(sum(move.starts for move in moves), tuple(found))


async def _running(client: AsyncClient, queue: str, names: Mapping[UUID, str]) -> dict[str, str]:
    """Read which lease runs where from the database, page by page."""
    running: dict[str, str] = {}
    before: UUID | None = None
    while True:
        page = await client.list_leases(queue=queue, state="claimed", limit=LIST_PAGE, before=before)
        for lease in page:
            assert lease.node_id is not None
            running[str(lease.lease_id)] = names.get(lease.node_id, str(lease.node_id))
        if len(page) < LIST_PAGE:
            return running
        before = page[-1].lease_id


def facts_of(trace: Trace) -> Facts:
    """Return the checker's view of a generated trace, which has no files to read again."""
    machines = {
        machine.name: check.NodeFacts(machine.cpu_milli, machine.memory_mib, machine.gpus, machine.labels)
        for machine in trace.machines
    }
    jobs = {
        job.name: check.JobFacts(
            job.cpu_milli, job.memory_mib, job.num_gpu, job.gpu_milli, frozenset(job.gpu_models), job.tags
        )
        for job in trace.jobs
    }
    return machines, jobs
