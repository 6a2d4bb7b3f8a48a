"""`python -m lab.replay`: run a recorded cluster's work through the queue, and report."""

import asyncio
import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from psycopg.conninfo import conninfo_to_dict

from benchmarks.core.scratch import scratch_database
from hwqueue.cli.connect import locate
from hwqueue.cli.main import errors_told
from hwqueue.cli.options import Options, options_of
from hwqueue.cli.output import ExitCode, say, show_one, show_rows, to_json
from hwqueue.demo.model import Trace
from hwqueue.demo.report import (
    ModelShare,
    PendingReason,
    Report,
    TimedFigures,
    Timing,
)
from hwqueue.demo.run import Facts
from hwqueue.errors import ConfigError
from lab.replay.database import empty_database, with_database
from lab.replay.demand import backlog_jobs
from lab.replay.facts import facts_from_files
from lab.replay.progress import stage_line
from lab.replay.run import Mode, Plan, run
from lab.replay.summary import summary
from lab.replay.trace import read_trace

EXAMPLE = "python -m lab.replay --nodes nodes.csv --leases pods.csv --demand 130 --chart run.png"
SHOWN_VIOLATIONS = 20
CHART_FORMATS = (".png", ".html")

NodesFile = Annotated[Path, typer.Option("--nodes", help="CSV of the nodes.", show_default=False)]
LeasesFile = Annotated[Path, typer.Option("--leases", help="CSV of the pods.", show_default=False)]
ModeName = Annotated[
    Mode, typer.Option("--mode", help="backlog: all at once, nothing ends; timed: as recorded.")
]
Demand = Annotated[
    float,
    typer.Option("--demand", min=1, max=1000, help="Backlog: GPUs asked for, in % of those there."),
]
Speedup = Annotated[
    float, typer.Option("--speedup", min=1, help="Timed: seconds of the trace that pass in one.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of the order of leases and of polls.")]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", help="Several runs, such as 1,2,3; adds median and range."),
]
NoSpec = Annotated[bool, typer.Option("--ignore-gpu-spec", help="Drop the constraints on GPU models.")]
Connections = Annotated[
    int, typer.Option("--connections", min=1, max=64, help="Connections the nodes poll through.")
]
Qty = Annotated[int, typer.Option("--qty", min=1, max=100, help="Leases asked for in one poll.")]
QueueName = Annotated[str, typer.Option("--queue", help="Name of the queue.")]
DatabaseName = Annotated[
    str | None, typer.Option("--database", help="Database to make, or with --in-place to use.")
]
InPlace = Annotated[bool, typer.Option("--in-place", help="Use the database itself; it must hold no queue.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the database for a look.")]
WithBound = Annotated[
    bool,
    typer.Option("--bound", help="Backlog: say what no assignment could exceed; needs OR-tools."),
]
WithPlanner = Annotated[
    bool,
    typer.Option("--planner", help="Let hwqueue planner set prices meanwhile; needs OR-tools."),
]
ChartFile = Annotated[Path | None, typer.Option("--chart", help="Write a chart to this .png or .html file.")]

Dsn = Annotated[str | None, typer.Option(help="Server to use. Goes before HWQUEUE_DSN and PG*.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=f"Example: {EXAMPLE}")
def replay(
    ctx: typer.Context,
    *,
    nodes: NodesFile,
    leases: LeasesFile,
    mode: ModeName = "backlog",
    demand: Demand = 100,
    speedup: Speedup = 10_000,
    seed: Seed = 1,
    seeds: Seeds = None,
    ignore_gpu_spec: NoSpec = False,
    connections: Connections = 2,
    qty: Qty = 1,
    queue: QueueName = "replay",
    database_name: DatabaseName = None,
    in_place: InPlace = False,
    keep: Keep = False,
    bound: WithBound = False,
    planner: WithPlanner = False,
    chart: ChartFile = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Let the nodes of a recorded cluster pull the work recorded on it.

    Every placement decision is claim_task's. The run gets a database of its own on the server,
    dropped at the end. Exits with 1 if the check that follows finds a broken constraint or an
    overrun device.
    """
    ctx.obj = Options(dsn=dsn, json=json)
    plan = Plan(
        seed=seed, speedup=speedup, connections=connections, queue=queue,
        mode=mode, demand_percent=demand, qty=qty, planner=planner,
    )  # fmt: skip
    with errors_told(lambda: options_of(ctx)):
        chosen = _seeds(seeds) if seeds else [seed]
        if keep and (in_place or len(chosen) > 1):
            raise ConfigError("--keep goes with a database of its own and a single seed")
        if bound:
            _require_bound(mode)
        if planner:
            _require_ortools("--planner")
        if chart is not None:
            _require_chart(chart)
        trace = read_trace(nodes, leases, ignore_gpu_spec=ignore_gpu_spec)
        facts = facts_from_files(nodes, leases, ignore_gpu_spec=ignore_gpu_spec)
        server = locate(ctx)
        reports = []
        for number in chosen:
            with _database(server, database_name, queue, in_place=in_place, keep=keep) as made:
                report = _play(ctx, made, trace, facts, replace(plan, seed=number))
            reports.append(_bounded(report, trace, plan, number) if bound else report)
            if keep:
                say(ctx, f"kept: database {conninfo_to_dict(made)['dbname']}")
            if not json:
                show_report(ctx, reports[-1])
        _finish(ctx, reports, chart)


def _play(ctx: typer.Context, dsn: str, trace: Trace, facts: Facts, plan: Plan) -> Report:
    with stage_line(shown=not options_of(ctx).json) as line:
        return asyncio.run(run(dsn, trace, facts, plan, line.watch))


def show_report(ctx: typer.Context, report: Report) -> None:
    """Print a report for a person."""
    _heading(f"{report.mode}, seed {report.seed}")
    timing = report.timing
    facts: dict[str, object] = {
        "nodes": f"{report.machines:,} with {report.gpus:,} GPUs",
        "leases": f"{report.leases:,}, asking for {report.demand_percent:.1f} % of the GPUs",
        "claims": _claims(timing, report.connections),
        "calls that claimed": _calls(timing.claim_calls, timing.claim_p50_ms, timing.claim_p99_ms),
        "calls in vain": _calls(timing.empty_calls, timing.empty_p50_ms, timing.empty_p99_ms),
    }
    if timing.settle_calls:
        facts["calls that settled"] = _calls(timing.settle_calls, timing.settle_p50_ms, timing.settle_p99_ms)
    if report.planner is not None:
        facts["planner"] = report.planner
    if report.timed:
        show_one(ctx, facts | _timed_facts(report.timed))
    else:
        show_one(ctx, facts | _allocated_fact(report))
        _heading("GPUs by model")
        show_rows(ctx, [_model_row(share) for share in report.models])
    _heading("Leases by kind")
    show_rows(ctx, [asdict(kind) for kind in report.kinds])
    _heading("Why leases stay pending")
    show_rows(ctx, [_reason_row(reason) for reason in report.pending], empty="none does")
    _show_check(report.check.grants, report.check.violations)


def _claims(timing: Timing, connections: int) -> str:
    """Leases handed out; without a rate where the recording sets the pace."""
    rate = "" if timing.claims_per_second is None else f" = {timing.claims_per_second:,.0f}/s"
    return f"{timing.claims:,} in {timing.seconds:.1f} s{rate} over {connections} connections"


def _calls(count: int, p50_ms: float, p99_ms: float) -> str:
    return f"{count:,}, p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms"


def _allocated_fact(report: Report) -> dict[str, object]:
    facts: dict[str, object] = {
        "GPUs allocated": f"{report.gpus_allocated:,.1f} of {report.gpus:,}"
        f" = {report.gpus_allocated_percent:.2f} %"
    }
    if report.gpus_bound_percent is not None:
        facts["at most"] = f"{report.gpus_bound_percent:.2f} %, by any assignment"
        gap = report.gpus_bound_percent - report.gpus_allocated_percent
        facts["gap"] = f"{gap:.2f} %"
    return facts


def _model_row(share: ModelShare) -> dict[str, object]:
    return {
        "model": share.model,
        "gpus": share.gpus,
        "allocated": f"{share.allocated:.2f}",
        "percent": f"{share.percent:.2f}",
    }


def _timed_facts(timed: TimedFigures) -> dict[str, object]:
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in timed.outcomes.items())
    return {
        "speed": f"{timed.speedup:,.0f} times",
        "GPUs over time": f"mean {timed.mean_gpu_percent:.1f} %, peak {timed.peak_gpu_percent:.1f} %",
        "wait in trace time": f"p50 {timed.wait_p50_s:,.0f} s, p99 {timed.wait_p99_s:,.0f} s",
        "outcomes": outcomes,
        "never scheduled, ran here": timed.never_scheduled_but_ran,
    }


def _reason_row(reason: PendingReason) -> dict[str, object]:
    return {
        "leases": reason.leases,
        "reason": reason.code,
        "holds": "always" if reason.permanent else "now",
        "example": reason.example,
        "message": reason.message,
    }


def _show_check(grants: int, violations: Sequence[str]) -> None:
    _heading("Independent check")
    if not violations:
        typer.echo(f"{grants:,} grants hold every constraint and every device's capacity")
        return
    typer.echo(f"{len(violations):,} violations in {grants:,} grants:")
    for text in violations[:SHOWN_VIOLATIONS]:
        typer.echo(f"  {text}")


def _heading(text: str) -> None:
    typer.echo(f"\n{text}")


def _finish(ctx: typer.Context, reports: Sequence[Report], chart: Path | None) -> None:
    spreads = summary(reports) if len(reports) > 1 else {}
    if options_of(ctx).json:
        runs = [report.as_json() for report in reports]
        typer.echo(to_json({"runs": runs, "summary": {key: asdict(s) for key, s in spreads.items()}}))
    elif spreads:
        _heading(f"Median [least, greatest] of {len(reports)} seeds")
        show_one(
            ctx,
            {
                name: f"{spread.median:,.2f} [{spread.low:,.2f}, {spread.high:,.2f}]"
                for name, spread in spreads.items()
            },
        )
    if chart is not None:
        # Imported here: matplotlib takes a second, and most runs draw nothing.
        from lab.replay.chart import write_chart  # noqa: PLC0415

        write_chart(reports, chart)
        say(ctx, f"chart: {chart}")
    if any(report.check.violations for report in reports):
        raise typer.Exit(ExitCode.FAILED)


def _database(
    server: str, name: str | None, queue: str, *, in_place: bool, keep: bool
) -> AbstractContextManager[str]:
    if in_place:
        return empty_database(with_database(server, name), queue)
    return scratch_database(server, name, keep=keep)


def _bounded(report: Report, trace: Trace, plan: Plan, seed: int) -> Report:
    """The report with the bound of its leases."""
    # Imported here: OR-tools takes a second, and most runs do without.
    from lab.replay.bound import bound_percent  # noqa: PLC0415

    jobs = backlog_jobs(trace, demand_percent=plan.demand_percent, seed=seed)
    return replace(report, gpus_bound_percent=bound_percent(trace.machines, jobs))


def _require_bound(mode: Mode) -> None:
    """Refuse at once what could not be computed after a long run."""
    if mode != "backlog":
        raise ConfigError(
            "--bound goes with --mode backlog: what ends makes room again, and nothing bounds that"
        )
    _require_ortools("--bound")


def _require_ortools(option: str) -> None:
    if importlib.util.find_spec("ortools") is None:
        raise ConfigError(f"{option} needs OR-tools, which is not installed", hint="make setup installs it")


def _require_chart(path: Path) -> None:
    """Refuse at once what could not be drawn or written after a long run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--chart needs matplotlib, which is not installed", hint="make setup installs it")
    if path.suffix not in CHART_FORMATS:
        raise ConfigError(f"--chart: {path} must end in {' or '.join(CHART_FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--chart: there is no folder {path.parent}; make it first")


def _seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds: {text[:80]!r} is not a list such as 1,2,3") from error
    if len(set(found)) != len(found):
        raise ConfigError(f"--seeds: {text[:80]!r} names a seed twice")
    return found


if __name__ == "__main__":
    app(prog_name="python -m lab.replay")
