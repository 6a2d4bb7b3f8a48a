"""hwqueue demo: a made-up cluster at work, and what to type next."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from rich.console import Console
from rich.live import Live
from typer import Option

from hwqueue.cli.connect import connection_string
from hwqueue.cli.fleet_view import FleetView, PlainView, View
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, say, show_rows, to_json
from hwqueue.client import Client
from hwqueue.demo import pipeline
from hwqueue.demo.cleanup import clear
from hwqueue.demo.generate import demo_trace
from hwqueue.demo.mapping import node_id
from hwqueue.demo.model import Plan, Trace
from hwqueue.demo.report import Report
from hwqueue.demo.run import facts_of, run
from hwqueue.errors import ConfigError
from hwqueue.text import plural

EXAMPLE = "hwqueue demo --seed 2"
QUEUE = "demo"
NODE_PREFIX = "demo-"
SPEEDUP = 600.0  # half an hour of arrivals in 3 s, runs of 8 to 15 s


def demo(
    ctx: typer.Context,
    seed: Annotated[int, Option(help="Of the made-up cluster and its work.")] = 1,
    *,
    remove: Annotated[bool, Option("--remove", help="Remove what the last demo left, and end.")] = False,
) -> None:
    """Watch a made-up GPU cluster pull the work it may run; takes less than a minute.

    61 nodes in the proportions of a published trace, a few hundred leases with models, zones, GPU
    shares and preferences; four of them nobody can run. Then a run of the workflow `demo-pipeline`,
    one of whose steps waits for a GPU that no node has. All in queue `demo`, kept to look around.
    """
    say(ctx, "starting the database (the first time takes some seconds) ...")
    dsn = connection_string(ctx)
    trace = demo_trace(seed=seed)
    with Client(dsn, pool_size=1) as client:
        _clear_last_run(client, trace)
    if remove:
        say(ctx, f"its nodes and queue {QUEUE!r} are gone")
        return
    plan = Plan(seed=seed, speedup=SPEEDUP, queue=QUEUE, scope=QUEUE, node_prefix=NODE_PREFIX)
    report = _show(ctx, dsn, trace, plan)
    with Client(dsn, pool_size=1) as client:
        newest = client.list_leases(queue=QUEUE, state="pending", limit=1)
        run_id = pipeline.play(client, QUEUE, _nodes_of(trace))
    if options_of(ctx).json:
        typer.echo(to_json(report.as_json()))
    else:
        _explain(ctx, report, newest[0].lease_id if newest else None, run_id)
    if report.check.violations:
        raise typer.Exit(ExitCode.FAILED)


def _clear_last_run(client: Client, trace: Trace) -> None:
    """Remove what an earlier demo left, nothing that somebody else made. Raises: ConfigError."""
    ours = _nodes_of(trace)
    left = [node.node_id for node in client.list_nodes() if node.node_id in ours]
    if not left and any(queue.queue == QUEUE for queue in client.list_queues()):
        raise ConfigError(
            f"queue {QUEUE!r} exists and is not this command's",
            hint=f"use another database, or drop it: hwqueue queue drop {QUEUE} --force",
        )
    pipeline.stop(client)
    clear(client, QUEUE, left)


def _nodes_of(trace: Trace) -> set[UUID]:
    return {node_id(machine, QUEUE) for machine in trace.machines}


def _show(ctx: typer.Context, dsn: str, trace: Trace, plan: Plan) -> Report:
    if options_of(ctx).json:
        return asyncio.run(_play(dsn, trace, plan, View()))
    if not (console := Console()).is_terminal:
        return asyncio.run(_play(dsn, trace, plan, PlainView()))
    view = FleetView()
    with Live(view, console=console, refresh_per_second=4):
        return asyncio.run(_play(dsn, trace, plan, view))


async def _play(dsn: str, trace: Trace, plan: Plan, view: View) -> Report:
    follower = asyncio.ensure_future(view.follow(dsn))
    try:
        return await run(dsn, trace, facts_of(trace), plan, view.watch)
    finally:
        follower.cancel()
        await asyncio.wait({follower})


def _explain(ctx: typer.Context, report: Report, pending: UUID | None, run_id: UUID) -> None:
    timed = report.timed
    assert timed is not None
    typer.echo("\nWhat you just saw")
    typer.echo(
        f"  {report.machines} nodes with {report.gpus} GPUs asked for work, and"
        f" {report.leases} leases waited for them.\n"
        f"  Every node got only what it may run and has room for: {report.timing.claims} claims,"
        f" p50 {report.timing.claim_p50_ms:.1f} ms a call,\n"
        f"  at most {timed.peak_gpu_percent:.0f} % of the GPUs in use at once."
    )
    if failed := timed.outcomes.get("failed"):
        typer.echo(f"  {plural(failed, 'lease')} failed, as the same jobs do in the trace.")
    if report.check.violations:
        typer.echo(f"  The check found violations: {'; '.join(report.check.violations[:5])}")
    else:
        typer.echo("  A check that knows nothing of the queue found every constraint kept.")
    typer.echo("  Nobody can run these, and the queue says why:\n")
    show_rows(
        ctx,
        [
            {"leases": reason.leases, "asks for": reason.example, "reason": reason.code,
             "message": reason.message}
            for reason in report.pending
        ],
        empty="(none)",
    )  # fmt: skip
    typer.echo(
        f"\n  A run of workflow {pipeline.WORKFLOW} waits at a step that no node can run."
        f"\n  `{_program()} serve` draws it: http://127.0.0.1:8080/runs/{run_id}"
    )
    typer.echo("\nWhat to type next")
    for line in _next_commands(pending, run_id):
        typer.echo(f"  {line.replace('hwqueue', _program(), 1)}")


def _program() -> str:
    """How to call this program: by its name, or by its path while that is not on the PATH."""
    called = Path(sys.argv[0])
    if shutil.which("hwqueue") or called.name != "hwqueue":
        return "hwqueue"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


def _next_commands(pending: UUID | None, run_id: UUID) -> list[str]:
    h100 = '{"require": [{"label": "gpu_model", "op": "in", "values": ["H100"]}]}'
    two_t4 = '{"require": [{"tags": {"gpu_model": "T4"}}], "resources": {"gpu": 2}}'
    commands = [
        "hwqueue node list",
        f"hwqueue lease list --queue {QUEUE} --state pending",
        f"hwqueue match '{h100}'",
        f"hwqueue match '{two_t4}'",
        f"hwqueue lease spawn {QUEUE} hello --placement '{two_t4}'",
        f"hwqueue queue show {QUEUE}",
        f"hwqueue workflow status {run_id}",
    ]
    if pending is not None:
        commands.insert(2, f"hwqueue lease show {pending}")
    return [*commands, "hwqueue demo --remove"]
