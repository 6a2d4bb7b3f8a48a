"""Does a queue stay fast while another session holds vacuum back, and shrink afterwards?

As long as a snapshot is held, or a transaction that has written idles, vacuum removes nothing that
was deleted since: whatever a claim scans from its start fills with dead entries. Work is offered at
a fixed rate; see `pace`.
"""

from dataclasses import replace
from typing import Annotated

import typer

from benchmarks.core.holders import Holder, holding
from benchmarks.core.report import Aim, Answer, Figure, at_least, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, machine
from lab.peers.hwqueue import Hwqueue
from lab.peers.peer import SqlPeer
from lab.peers.registry import PeerSql, sql_peer
from lab.soak import bystander
from lab.soak.figures import (
    Minute,
    beside,
    furthest_behind,
    latency_kept,
    minutes,
    rate_kept,
    tables,
)
from lab.soak.pace import SPAWN_BATCH, Pace, Phase, keep_pace
from lab.soak.sizes import Sizes, sizes, total

# The loops keep to a schedule, so a rate that is kept is exact but for the cuts.
RATE_AIM = at_least(0.98)
LATENCY_AIM = at_most(2)
COUNTED_LATENCY_AIM = at_most(3)
LOOKUP_AIM = at_most(1.15)

_NOTES = (
    f"spawns are batches of {SPAWN_BATCH} in the loops that claim and complete one by one",
    "a probe is a claim in a transaction that is rolled back, ten a second",
    "an unrelated lookup reads a row of a table of the application by key, a hundred a second",
    "MiB with indexes; rows completed stay in the table where a queue keeps them",
)


def soak(
    ctx: typer.Context,
    *,
    peer: Annotated[str, typer.Option(help="Which queue; one with SQL")] = "hwqueue",
    seconds: Annotated[float, typer.Option(help="While vacuum is held back", min=1)] = 600,
    after: Annotated[float, typer.Option(help="Seconds after it is not", min=0)] = 180,
    rate: Annotated[float, typer.Option(help="Leases/s offered", min=1)] = 2000,
    connections: Annotated[int, typer.Option(help="They share the rate", min=1)] = 8,
    backlog: Annotated[int, typer.Option(help="Waiting all the time", min=1)] = 1000,
    counted_nodes: Annotated[
        int, typer.Option(help="hwqueue only: claim for so many nodes with counted CPUs", min=0)
    ] = 0,
    stands: Annotated[
        bool,
        typer.Option("--stands", help="hwqueue only: the oldest lease is for no node"),
    ] = False,
    holder: Annotated[Holder, typer.Option(help="Who keeps vacuum back")] = Holder.SNAPSHOT,
    control: Annotated[float, typer.Option(help="Seconds of the same load before, with nobody", min=0)] = 0,
    lookup_rows: Annotated[
        int, typer.Option(help="Of the table that unrelated lookups read", min=1)
    ] = 1_000_000,
    peer_sql: PeerSql = [],
) -> list[Answer]:
    """Rate, claim latency and sizes over minutes while another session holds vacuum back."""
    run = Run.of(ctx)
    queue = _of_hwqueue(sql_peer(peer, peer_sql), counted_nodes, connections, stands=stands)
    held = {
        Holder.SNAPSHOT: "snapshot held",
        Holder.WRITER: "idle writer",
        Holder.BOTH: "snapshot held and idle writer",
        Holder.NOBODY: "nobody else",
    }[holder]
    pace = Pace(rate, connections, seconds)
    with database(run.dsn) as dsn:
        queue.install(dsn)
        queue.fill(dsn, backlog)
        bystander.install(dsn, lookup_rows)
        calm_down(dsn)
        before = sizes(dsn)
        without = _phase(run, queue, dsn, replace(pace, seconds=control), "control")[0] if control else None
        with holding(dsn, holder):
            phase, samples = _phase(run, queue, dsn, pace, held)
        by_minute = minutes(held, phase, samples, _minute(seconds))
        moments = {held: samples[-1]}
        if after:
            later, then = _phase(run, queue, dsn, replace(pace, seconds=after), "released")
            by_minute += minutes("released", later, then, _minute(after))
            moments["released"] = then[-1]
        by_aim = _kept(phase, pace, COUNTED_LATENCY_AIM if counted_nodes else LATENCY_AIM)
        if without:
            by_aim += beside(phase.lookups, without.lookups, LOOKUP_AIM)
        by_table = tables(before, moments)
        facts = machine(dsn)
    offered = f"{queue.name} at {rate:,.0f} leases/s, {held}"
    return [
        Answer("soak", offered, tuple(by_aim), ctx.params, facts),
        Answer("soak-minutes", offered, tuple(by_minute), ctx.params, facts, _NOTES),
        Answer("soak-tables", f"{offered}, against before", tuple(by_table), ctx.params, facts),
    ]


def _of_hwqueue(queue: SqlPeer, counted_nodes: int, connections: int, *, stands: bool) -> SqlPeer:
    """A queue with what is asked of hwqueue alone."""
    if not counted_nodes and not stands:
        return queue
    if not isinstance(queue, Hwqueue):
        raise typer.BadParameter("--counted-nodes and --stands go with hwqueue only")
    if counted_nodes:
        queue = replace(queue, cpu_milli=1000, nodes=counted_nodes, connections=connections)
    return replace(queue, stands=stands)


def _phase(run: Run, queue: SqlPeer, dsn: str, pace: Pace, name: str) -> tuple[Phase, list[Sizes]]:
    def sample() -> Sizes:
        found = sizes(dsn)
        whole = total(found)
        run.tell(f"{name}: {whole.dead:,} dead rows, {whole.mebibytes:,.0f} MiB")
        return found

    return keep_pace(queue, dsn, pace, _minute(pace.seconds), sample)


def _minute(seconds: float) -> float:
    """A minute, or half of what is shorter than two."""
    return seconds / max(2, round(seconds / 60))


def _kept(phase: Phase, pace: Pace, latency_aim: Aim) -> list[Figure]:
    """What was done against what was offered; the last minute's latency against the first's."""
    length = _minute(pace.seconds)
    count = round(pace.seconds / length)
    first, *between, last = (Minute.of(phase.claims, number, length) for number in range(count))
    first_probe, last_probe = (Minute.of(phase.probes, number, length) for number in (0, count - 1))
    return [
        rate_kept([first, *between, last], pace.per_second, RATE_AIM),
        furthest_behind(phase.claims),
        latency_kept("claim", 50, first, last),
        latency_kept("claim", 99, first, last, latency_aim),
        latency_kept("probe", 50, first_probe, last_probe),
        latency_kept("probe", 99, first_probe, last_probe),
    ]
