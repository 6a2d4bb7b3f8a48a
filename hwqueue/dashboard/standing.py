"""What needs somebody, the worst first; and what the tabs count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.pages.pending import kind
from hwqueue.dashboard.reads import MOST_CLASSES, Reads
from hwqueue.text import duration, plural
from hwqueue.types import Minute, NodeUsage, PendingReason, QueueDepth, Webhook

T = TypeVar("T")
Tone = Literal["bad", "none", "warn"]
_FRESH = timedelta(seconds=30)  # for so long it is shown on pages that did not look themselves
_REAP_SECONDS = 120  # as `hwqueue doctor` has it: workers call it every 5 s
_NAMED_TASKS = 3
_WAITING = {"state": "waiting"}


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that needs somebody: what it is, where to look, what to do."""

    tone: Tone
    text: str
    page: str
    query: tuple[tuple[str, str], ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """How many of something a tab has."""

    value: int
    word: str
    tone: Literal["", "bad", "warn"] = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """What every page shows above its own content.

    Attributes:
        alarms: What stops everything or a task; a banner on every page.
        counts: By the path of the tab.
        as_of: When the oldest of it was read.
    """

    alarms: Sequence[Concern] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)
    as_of: datetime | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether a page may show it."""
        return self.as_of is not None and datetime.now(UTC) - self.as_of < _FRESH


async def look(source: Reads) -> Standing:
    """How things stand; what cannot be read is left out. All reads are shared by all viewers."""
    found = await asyncio.gather(
        source.queues(),
        source.pending(order="pending"),
        source.nodes(),
        source.throughput(),
        source.webhooks(),
        source.metrics(),
        return_exceptions=True,
    )
    queues, pending, nodes, minutes, hooks, metrics = found
    samples = {sample.name: sample.value for sample in _value(metrics, [])}
    depths, fleet, reasons = _value(queues, []), _value(nodes, []), _value(pending, [])
    return Standing(
        alarms(depths, reasons, fleet, samples.get("hwqueue_reap_lag_seconds", 0.0)),
        counts(
            depths,
            fleet,
            _value(minutes, []),
            _value(hooks, []),
            sum(s.value for s in _value(metrics, []) if s.labels == _WAITING and s.name == "hwqueue_gangs"),
        ),
        min((each.at for each in found if not isinstance(each, BaseException)), default=None),
    )


def _value(found: Cached[T] | BaseException, otherwise: T) -> T:
    return otherwise if isinstance(found, BaseException) else found.value


def alarms(
    queues: Sequence[QueueDepth],
    pending: Sequence[PendingReason],
    fleet: Sequence[NodeUsage],
    reap_lag: float,
) -> list[Concern]:
    """What stops everything, or all leases of a task."""
    found: list[Concern] = []
    waiting = sum(row.pending for row in pending)
    states = Counter(row.state for row in fleet)
    if queues and reap_lag > _REAP_SECONDS:
        text = f"Upkeep has not run for {duration(reap_lag)}: leases of dead workers do not come back"
        advice = "start a worker, or run select hwqueue.reap() every ten seconds"
        found.append(Concern("bad", text, "system", advice=advice))
    if waiting and not states["live"]:
        away = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
        why = f"no node is live ({away})" if fleet else "no node is registered"
        text = f"{plural(waiting, 'lease waits', 'leases wait')}, and {why}"
        advice = "start their workers again" if fleet else "start a worker: hwqueue worker run --queue QUEUE"
        return [*found, Concern("bad", text, "fleet", advice=advice)]
    unserved: Counter[str] = Counter()
    for row in pending:
        if row.code == "no_handler":
            unserved[row.task_name] += row.pending
    for task, count in unserved.most_common(_NAMED_TASKS):
        text = f"No worker has task {task}: {plural(count, 'lease waits', 'leases wait')} for one"
        query = (("asks", task), ("reason", "no_handler"))
        advice = "start a worker with an app that has it, and with --queue"
        found.append(Concern("bad", text, "pending", query, advice))
    if len(unserved) > _NAMED_TASKS:
        rest = unserved.total() - sum(count for _, count in unserved.most_common(_NAMED_TASKS))
        text = f"No worker has {len(unserved) - _NAMED_TASKS} more tasks: {plural(rest, 'lease')} in all"
        found.append(Concern("bad", text, "pending", (("reason", "no_handler"),)))
    return found


def concerns(
    queues: Sequence[QueueDepth], pending: Sequence[PendingReason], fleet: Sequence[NodeUsage]
) -> list[Concern]:
    """What needs somebody and is no alarm, the worst first."""
    found: list[Concern] = []
    states = Counter(row.state for row in fleet)
    silent = plural(states["silent"], "node is silent", "nodes are silent")
    if states["silent"]:
        held = sum(row.claims for row in fleet if row.state == "silent")
        advice = f"{plural(held, 'lease')} still there" if held else "start their workers again"
        found.append(Concern("bad", silent, "fleet", (("state", "silent"),), advice))
    expired = sum(row.expired for row in queues)
    if expired:
        text = plural(expired, "claim has expired", "claims have expired")
        found.append(Concern("bad", text, "system", advice="upkeep has not ended them yet"))
    stuck = [row for row in pending if kind(row) == "no match" and row.code != "no_handler"]
    if stuck and states["live"]:
        at_least = "at least " if len(pending) >= MOST_CLASSES else ""
        leases = plural(sum(row.pending for row in stuck), "lease", "leases")
        text = f"{at_least}{leases} cannot run anywhere"
        advice = plural(len({row.words or row.class_id for row in stuck}), "kind of ask", "kinds of asks")
        found.append(Concern("none", text, "pending", (("kind", "no match"),), advice))
    paused = [row for row in queues if row.paused_at and row.pending]
    if paused:
        text = plural(len(paused), "queue is paused", "queues are paused")
        advice = f"{plural(sum(row.pending for row in paused), 'lease waits', 'leases wait')} in it"
        found.append(Concern("warn", text, "queues", advice=advice))
    return found


def counts(
    queues: Sequence[QueueDepth],
    fleet: Sequence[NodeUsage],
    minutes: Sequence[Minute],
    hooks: Sequence[Webhook],
    gangs: float,
) -> dict[str, Count]:
    """What the tabs count; a tab without one has nothing to tell."""
    made = {
        "pending": Count(sum(row.pending for row in queues), "pending"),
        "leases": Count(sum(minute.failed for minute in minutes), "failed in the last hour", "bad"),
        "gangs": Count(round(gangs), "waiting"),
        "fleet": Count(sum(row.state == "silent" for row in fleet), "silent", "bad"),
        "queues": Count(sum(row.paused_at is not None for row in queues), "paused", "warn"),
        "webhooks": Count(sum(each.failing_since is not None for each in hooks), "failing", "bad"),
    }
    return {path: each for path, each in made.items() if each.value}
