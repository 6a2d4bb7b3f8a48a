"""One replay of a recorded cluster, as a backlog or timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hwqueue.demo import run as demo
from hwqueue.demo.model import Trace
from hwqueue.demo.report import Report
from lab.replay.backlog import backlog

Mode = Literal["backlog", "timed"]


@dataclass(frozen=True, slots=True)
class Plan(demo.Plan):
    """How one replay runs; `demand_percent` and `qty` count for backlog mode."""

    queue: str = "replay"
    scope: str = "replay"
    mode: Mode = "backlog"
    demand_percent: float = 100.0
    qty: int = 1


async def run(dsn: str, trace: Trace, facts: demo.Facts, plan: Plan, watch: demo.Watch) -> Report:
    """Replay a trace; see `hwqueue.demo.run.run`."""
    drive = None
    if plan.mode == "backlog":
        drive = backlog(demand_percent=plan.demand_percent, seed=plan.seed, qty=plan.qty)
    return await demo.run(dsn, trace, facts, plan, watch, drive=drive)
