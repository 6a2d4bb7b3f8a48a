"""One replay from an empty queue to a checked report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Literal
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.replay import backlog, check, report
from hwqueue.replay.demand import backlog_jobs
from hwqueue.replay.fleet import Fleet
from hwqueue.replay.model import Trace
from hwqueue.replay.reasons import pending_reasons
from hwqueue.replay.timed import TimedRun

LIST_PAGE = 1000

Mode = Literal["backlog", "timed"]
Facts = tuple[Mapping[str, check.NodeFacts], Mapping[str, check.JobFacts]]
Watch = Callable[[str, Fleet], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one replay runs.

    `demand_percent` counts for backlog mode, `speedup` for timed mode; `scope` and `node_prefix`
    keep its nodes apart from others in the same database.
    """

    mode: Mode = "backlog"
    seed: int = 1
    demand_percent: float = 100.0
    speedup: float = 10_000.0
    connections: int = 2
    qty: int = 1
    queue: str = "replay"
    scope: str = "replay"
    node_prefix: str = ""


async def run(dsn: str, trace: Trace, facts: Facts, plan: Plan, watch: Watch) -> report.Report:
    """Register, spawn, claim until nothing more happens, then explain and check.

    `facts` is the input as the checker reads it; `watch` is told each stage as it begins.
    Raises: what the first connection to fail raised.
    """
    try:
        return await _run(dsn, trace, facts, plan, watch)
    except ExceptionGroup as group:
        raise _first_error(group) from group


def _first_error(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(dsn: str, trace: Trace, facts: Facts, plan: Plan, watch: Watch) -> report.Report:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(dsn, pool_size=1, prepare=True))
            for _ in range(plan.connections)
        ]
        fleet = Fleet(clients, plan.queue, scope=plan.scope, prefix=plan.node_prefix)
        watch("registering nodes", fleet)
        await clients[0].create_queue(plan.queue)
        await fleet.register(trace.machines)
        timed = None
        spawn_seconds = 0.0
        if plan.mode == "timed":
            watch("running", fleet)
            timed = TimedRun(fleet, trace, speedup=plan.speedup, seed=plan.seed)
            await timed.run()
        else:
            spawn_seconds = await _run_backlog(fleet, trace, plan, watch)
        seconds = fleet.now
        watch("asking why leases are pending", fleet)
        pending = await pending_reasons(clients[0], fleet.ledger, plan.queue)
        watch("checking every claim", fleet)
        checked = await _check(clients[0], fleet, facts)
        return report.build(
            trace,
            fleet.ledger,
            plan_figures=report.PlanFigures(plan.mode, plan.seed, plan.connections, plan.speedup),
            seconds=seconds,
            spawn_seconds=spawn_seconds,
            pending=pending,
            checked=checked,
            arrival=timed.arrival if timed else None,
        )


async def _run_backlog(fleet: Fleet, trace: Trace, plan: Plan, watch: Watch) -> float:
    watch("spawning leases", fleet)
    begun = time.perf_counter()
    jobs = backlog_jobs(trace, demand_percent=plan.demand_percent, seed=plan.seed)
    await fleet.spawn(jobs)
    spawned = time.perf_counter() - begun
    await backlog.catch_up(fleet)
    watch("claiming", fleet)
    fleet.start_clock()
    await backlog.drain(fleet, seed=plan.seed, qty=plan.qty)
    return spawned


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
        page = await client.list_leases(
            queue=queue, state="claimed", limit=LIST_PAGE, before=before
        )
        for lease in page:
            assert lease.node_id is not None
            running[str(lease.lease_id)] = names.get(lease.node_id, str(lease.node_id))
        if len(page) < LIST_PAGE:
            return running
        before = page[-1].lease_id


def facts_of(trace: Trace) -> Facts:
    """Return the checker's view of a generated trace, which has no files to read again."""
    machines = {
        machine.name: check.NodeFacts(
            machine.cpu_milli, machine.memory_mib, machine.gpus, machine.labels
        )
        for machine in trace.machines
    }
    jobs = {
        job.name: check.JobFacts(
            job.cpu_milli,
            job.memory_mib,
            job.num_gpu,
            job.gpu_milli,
            frozenset(job.gpu_models),
            job.tags,
        )
        for job in trace.jobs
    }
    return machines, jobs
