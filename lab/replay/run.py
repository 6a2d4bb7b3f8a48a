"""One replay of a recorded cluster, as a backlog or timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hwqueue.demo import model
from hwqueue.demo import run as demo
from hwqueue.demo.model import Trace
from hwqueue.demo.report import Report
from lab.replay.backlog import backlog
from lab.replay.planning import LivePlanner, live_planner

Mode = Literal["backlog", "timed"]


@dataclass(frozen=True, slots=True)
class Plan(model.Plan):
    """How one replay runs; `demand_percent` and `qty` count for backlog mode.

    planner: Whether a live planner sets prices meanwhile.
    """

    queue: str = "replay"
    scope: str = "replay"
    mode: Mode = "backlog"
    demand_percent: float = 100.0
    qty: int = 1
    planner: bool = False


async def run(dsn: str, trace: Trace, facts: demo.Facts, plan: Plan, watch: demo.Watch) -> Report:
    """Replay a trace; see `hwqueue.demo.run.run`."""
    if not plan.planner:
        return await demo.run(dsn, trace, facts, plan, watch, drive=_drive(plan, None))
    with live_planner(dsn, plan.queue) as planner:
        report = await demo.run(dsn, trace, facts, plan, watch, drive=_drive(plan, planner))
    return replace(report, planner=planner.summary())


def _drive(plan: Plan, planner: LivePlanner | None) -> demo.Drive | None:
    if plan.mode != "backlog":
        return None
    return backlog(
        demand_percent=plan.demand_percent,
        seed=plan.seed,
        qty=plan.qty,
        ready=None if planner is None else planner.wait_for_prices,
    )
