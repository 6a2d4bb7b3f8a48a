"""hwqueue planner: what room on GPUs is worth, and where gangs go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask, connection_string
from hwqueue.cli.inputs import span
from hwqueue.cli.needed import required
from hwqueue.cli.output import say, show_item, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import AsyncClient, Client
from hwqueue.errors import ConfigError
from hwqueue.stopping import calling, until_told
from hwqueue.types import PlannerStatus

if TYPE_CHECKING:
    from hwqueue.planner import Round, Settings

EXAMPLE = "hwqueue planner --queue training"


@until_told()
def planner(
    ctx: typer.Context,
    *,
    queues: Annotated[
        list[str] | None,
        Option(
            "--queue", help="Plan for this queue; repeatable. Left out: for all.", autocompletion=queue_names
        ),
    ] = None,
    interval: Annotated[str, Option(help="From one round to the next.")] = "1s",
    ttl: Annotated[str, Option(help="How long prices hold after the last round, 1s to 1h.")] = "10s",
    lease_hold: Annotated[
        str,
        Option(
            help="How long a node has to fetch a lease that is reserved there, 0s to 1m; 0s: leases"
            " of short queues are not assigned to nodes."
        ),
    ] = "3s",
    once: Annotated[bool, Option("--once", help="Do one round, print what it found, then end.")] = False,
    status: Annotated[
        bool, Option("--status", help="Print which one leads and what it found, then end.")
    ] = False,
) -> None:
    """Compute what room on GPUs is worth, and where gangs go, until SIGTERM or Ctrl-C.

    That depends on all that waits. It is set as prices, which claims score with; gangs are reserved
    where most of those that wait find room, leases of short queues on nodes that suit them best.
    Needs a login with hwqueue_planner. Any number may run: one of them leads. When none does, the
    prices run out, and upkeep places gangs alone.
    """
    if status:
        if (found := ask(ctx, Client.planner_status)) is None:
            say(ctx, "no planner leads, and no prices are valid")
        else:
            show_item(ctx, found, _status_facts)
        return
    with required("planner"):
        from hwqueue.planner import Settings  # noqa: PLC0415
    settings = Settings(
        interval=_between(interval, "--interval", timedelta(milliseconds=100)),
        ttl=_between(ttl, "--ttl", timedelta(seconds=1)),
        lease_hold=_hold(lease_hold),
        queues=tuple(queues or ()),
    )
    logging.getLogger("hwqueue.planner").setLevel(logging.INFO)
    done = asyncio.run(_run(connection_string(ctx), settings, once=once))
    if done is not None:
        show_one(ctx, _shown(done))
    elif once:
        say(ctx, "another process leads; nothing is done")


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in figures.items())


def _between(text: str, option: str, least: timedelta) -> timedelta:
    found = span(text, option)
    if not least <= found <= timedelta(hours=1):
        raise ConfigError(f"{option} must be from {least.total_seconds():g}s to 1h, got {text}")
    return found


def _hold(text: str) -> timedelta:
    found = span(text, "--lease-hold")
    if found and not timedelta(milliseconds=100) <= found <= timedelta(minutes=1):
        raise ConfigError(f"--lease-hold must be 0s, or from 100ms to 1m, got {text}")
    return found


async def _run(dsn: str, settings: Settings, *, once: bool) -> Round | None:
    """Plan until told to stop, or once; None: another one leads."""
    from hwqueue.planner import Planner  # noqa: PLC0415

    async with AsyncClient(dsn, pool_size=1) as client:
        planner = Planner(client, settings)
        if once:
            try:
                return await planner.run_once()
            finally:
                await planner.resign()
        with calling(planner.stop):
            await planner.run()
    return None


_status_facts = row_of(
    PlannerStatus,
    "holder epoch leads_until gpus allocated bound prices leases seconds resting",
    prices=lambda status: ", ".join(f"{each['queue']} until {each['worth_until']}" for each in status.prices),
    leases=lambda status: _listed(status.leases),
    seconds=lambda status: _listed(status.seconds or {}),
)


def _shown(done: Round) -> Mapping[str, Any]:
    return {
        "epoch": done.epoch,
        "leases": done.leases,
        "read_seconds": round(done.read_seconds, 3),
        "solve_seconds": round(done.solve_seconds, 3),
        "gpus": done.devices,
        "allocated": round(done.allocated, 3),
        "bound": round(done.bound, 3),
        "gap": round(done.gap, 3),
        "gangs": {verdict: count for verdict, count in done.gangs.items() if count},
        "singles": {verdict: count for verdict, count in done.singles.items() if count},
        "resting": done.resting,
        "prices": dict(done.written),
    }
