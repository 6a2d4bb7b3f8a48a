"""Every metric: name, kind, unit, labels, meaning. docs/reference/metrics.md is made of it.

The values come from the SQL function `metrics` under the same names; the last three are about the
scrape itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "OF_THE_SCRAPE", "Metric"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. A histogram's samples have `_bucket`, `_sum` and `_count` after its name."""

    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"


_QUEUE = ("queue",)
_UNMET = ("queue", "class", "reason")
_STATE = ("state",)
_ENDED_RUNS = ("workflow", "outcome")

METRICS = (
    Metric(
        "hwqueue_leases",
        "leases",
        "Leases that are not finished: pending, scheduled, claimed.",
        ("queue", "state"),
    ),
    Metric(
        "hwqueue_oldest_pending_seconds",
        "seconds",
        "How long the oldest pending lease has been claimable; 0: none is.",
        _QUEUE,
    ),
    Metric("hwqueue_queue_paused", "0 or 1", "Whether the queue is paused.", _QUEUE),
    Metric(
        "hwqueue_leases_finished_total",
        "leases",
        "Leases that ended: completed, failed (dead), cancelled.",
        ("queue", "outcome"),
        kind="counter",
    ),
    Metric(
        "hwqueue_claims_ended_total",
        "claims",
        "Claims that ended: completed, failed, expired (nobody heartbeat), superseded (the node "
        "started again or left), released, cancelled.",
        ("queue", "outcome"),
        kind="counter",
    ),
    Metric(
        "hwqueue_retries_total",
        "claims",
        "Claims that failed, expired or were superseded and whose lease went back to its queue.",
        _QUEUE,
        kind="counter",
    ),
    Metric(
        "hwqueue_wait_seconds",
        "seconds",
        "Of completed leases: from the moment they were claimable to their last claim.",
        _QUEUE,
        kind="histogram",
    ),
    Metric(
        "hwqueue_run_seconds",
        "seconds",
        "Of completed leases: from their last claim to completion.",
        _QUEUE,
        kind="histogram",
    ),
    Metric(
        "highway_tasks_pending_no_affinity_match",
        "leases",
        "Pending leases that no live node matches.",
        _QUEUE,
    ),
    Metric(
        "hwqueue_unmet_leases",
        "leases",
        "Pending leases of a placement class that no live node matches (no_match) or that none of "
        "those has room for (contended).",
        _UNMET,
    ),
    Metric(
        "hwqueue_unmet_oldest_seconds", "seconds", "How long the oldest of them has been claimable.", _UNMET
    ),
    Metric("hwqueue_unmet_cpu_cores", "cores", "CPU that they ask for, together.", _UNMET),
    Metric("hwqueue_unmet_memory_bytes", "bytes", "Memory that they ask for, together.", _UNMET),
    Metric("hwqueue_unmet_gpus", "GPUs", "GPUs that they ask for, together; shares count as parts.", _UNMET),
    Metric(
        "hwqueue_unmet_class_info",
        "1",
        "What the placement classes above ask of a node, in words of at most 200 characters.",
        ("class", "queue", "task", "placement"),
    ),
    Metric(
        "hwqueue_unmet_unjudged_leases",
        "leases",
        "Pending leases that the unmet figures leave out: a scrape judges the 200 placement "
        "classes with most leases and the 200 that have waited longest.",
    ),
    Metric(
        "hwqueue_nodes",
        "nodes",
        "Registered nodes. A node counts once: silent (no sign of life within its timeout) before "
        "draining before cordoned before live.",
        _STATE,
    ),
    Metric("hwqueue_node_cpu_cores", "cores", "CPU that nodes declare.", _STATE),
    Metric("hwqueue_node_cpu_cores_used", "cores", "CPU set aside for claims.", _STATE),
    Metric("hwqueue_node_memory_bytes", "bytes", "Memory that nodes declare.", _STATE),
    Metric("hwqueue_node_memory_bytes_used", "bytes", "Memory set aside for claims.", _STATE),
    Metric("hwqueue_node_gpus", "GPUs", "Whole GPUs that nodes declare.", _STATE),
    Metric("hwqueue_node_gpus_used", "GPUs", "GPUs set aside for claims; shares count as parts.", _STATE),
    Metric(
        "hwqueue_node_oldest_heartbeat_seconds",
        "seconds",
        "Since the last sign of life of the node that has been silent longest.",
    ),
    Metric(
        "hwqueue_claims_overdue",
        "claims",
        "Claims that have expired and that nobody has reaped yet; counted up to 10,000.",
    ),
    Metric(
        "hwqueue_reap_lag_seconds", "seconds", "Since the last reap. Each worker calls it every 5 seconds."
    ),
    Metric(
        "hwqueue_prune_lag_seconds", "seconds", "Since the last prune. Each worker calls it every minute."
    ),
    Metric(
        "hwqueue_terms_unpublished",
        "terms",
        "Affinity terms that wait for older transactions to end, so that no lease with one of them "
        "is claimed yet; counted up to 10,000.",
    ),
    Metric(
        "hwqueue_statistics_lag_seconds",
        "seconds",
        "How far counters and histograms are behind. Transactions that settle leases and stay open "
        "hold them back.",
    ),
    Metric(
        "hwqueue_limit_used",
        "leases",
        "What a limit has let through and has not ended; of a rate or a fair one what stands in line. "
        "Of the 50 limits for which most waits.",
        ("limit",),
    ),
    Metric("hwqueue_limit_parked", "leases", "What waits for a limit, counted to 10,001.", ("limit",)),
    Metric("hwqueue_limit_closed", "0 or 1", "Whether a lane of the limit is closed.", ("limit",)),
    Metric(
        "hwqueue_tier_leases",
        "leases",
        "What waits and what is claimed by tier, as the leases' tenants have it now. Only where a tenant "
        "has a row.",
        ("tier", "state"),
    ),
    Metric(
        "hwqueue_preempted_claims",
        "claims",
        "Claims that were asked to stop for leases of earlier tiers and go on: asked, within their time; "
        "overdue, beyond it: upkeep ends them a claim timeout later.",
        _STATE,
    ),
    Metric("hwqueue_schedules", "schedules", "Schedules, paused ones among them."),
    Metric(
        "hwqueue_schedules_dry",
        "schedules",
        "Schedules that are not paused and whose next time nobody has planned: no worker runs "
        "upkeep, or the cron expression has no times.",
    ),
    Metric(
        "hwqueue_schedules_failed",
        "schedules",
        "Schedules that are not paused and whose last time spawned nothing.",
    ),
    Metric(
        "hwqueue_schedule_oldest_due_seconds",
        "seconds",
        "Since the oldest time was due that has not fired; 0: none is late.",
    ),
    Metric(
        "hwqueue_webhook_deliveries_total",
        "requests",
        "Requests to a webhook's receiver: delivered; failed, of which some were tried again; "
        "dead, those of the failed after which nothing is tried any more.",
        ("webhook", "outcome"),
        kind="counter",
    ),
    Metric(
        "hwqueue_webhook_oldest_seconds",
        "seconds",
        "Since the oldest thing happened that the webhook was not told of; 0: there is none, or "
        "the webhook is paused.",
        ("webhook",),
    ),
    Metric(
        "hwqueue_webhook_paused",
        "0 or 1",
        "Whether the webhook is paused, by an operator or because its receiver answered 410.",
        ("webhook",),
    ),
    Metric(
        "hwqueue_workflow_runs",
        "runs",
        "Runs of workflows that have not ended: running, paused, failing, cancelling. The 50 "
        "workflows with most runs are named, the others are (other).",
        ("workflow", "state"),
    ),
    Metric(
        "hwqueue_workflow_runs_finished_total",
        "runs",
        "Runs of workflows that ended: completed, failed, cancelled. The first 100 workflows are "
        "named, 50 if they are not defined; the others are (other). A name goes 30 days after the "
        "last of its runs has ended.",
        _ENDED_RUNS,
        kind="counter",
    ),
    Metric(
        "hwqueue_workflow_run_seconds",
        "seconds",
        "Of runs of workflows that ended: from submission to their end. A run that was retried "
        "counts at each of its ends.",
        _ENDED_RUNS,
        kind="histogram",
    ),
    Metric(
        "hwqueue_workflow_arrivals",
        "arrivals",
        "What settlements of steps have left to be done, because another session held a row; "
        "counted up to 10,000.",
    ),
    Metric(
        "hwqueue_workflow_oldest_arrival_seconds",
        "seconds",
        "How long the oldest of them has been left. Workers and reap do it within seconds.",
    ),
    Metric(
        "hwqueue_gangs",
        "gangs",
        "Gangs that have not ended: waiting, earmarked, reserved, running, stopping, cancelling.",
        _STATE,
    ),
    Metric(
        "hwqueue_gang_oldest_waiting_seconds",
        "seconds",
        "How long ago the oldest gang that waits for room was spawned; of paused queues none.",
    ),
    Metric(
        "hwqueue_gang_reserved_members",
        "leases",
        "Members of gangs that have a reservation which their node has not fetched yet; counted up "
        "to 10,000.",
    ),
    Metric(
        "hwqueue_everywhere_nodes",
        "nodes",
        "Nodes that are to have a lease of an everywhere task that was not stopped, as upkeep has "
        "found it: waiting (for room or a retry), unavailable (the node is silent or cordoned, or "
        "the queue is paused), reserved, running; or how the last one has ended: completed, "
        "failed, cancelled. The 50 pairs of queue and task with most nodes are named, the others "
        "are (other); counted up to 100,000.",
        ("queue", "task", "state"),
    ),
    Metric(
        "hwqueue_everywhere_failing_nodes",
        "nodes",
        "Of these nodes those where the last lease has failed for good; or two in a row, and the "
        "next one has not run for ten minutes.",
        ("queue", "task"),
    ),
    Metric(
        "hwqueue_planner_gpus",
        "GPUs",
        "As the planner counts them: all of live nodes, allocated, and bound: how many could be in "
        "use at most, if what waits was placed at best beside what runs. Only while one leads.",
        _STATE,
    ),
    Metric(
        "hwqueue_planner_gpu_worth",
        "GPUs",
        "How much of one more idle GPU what waits would use, 0 to 1. Only while the prices of the "
        "queue hold.",
        _QUEUE,
    ),
    Metric(
        "hwqueue_planner_round_seconds",
        "seconds",
        "How long the planner's last round took: gangs and leases (to read, plan and reserve "
        "them), read and solve (of the prices). Only while one leads.",
        ("part",),
    ),
    Metric(
        "hwqueue_planner_leases_total",
        "leases",
        "Single leases that planners have assigned to nodes: proposed; of these too_many (left out "
        "by the bound of a round), reserved, or refused (no_room, does_not_suit, blocked, taken, "
        "busy, deposed, old_round); of those reserved fetched, expired (back in line) or gone "
        "(cancelled, changed, or taken elsewhere).",
        ("verdict",),
        kind="counter",
    ),
    Metric(
        "hwqueue_planner_resting_nodes",
        "nodes",
        "Nodes that the planner reserves no leases on for a while, because they have not fetched "
        "one in time. Only while one leads.",
    ),
    Metric(
        "hwqueue_schema_info",
        "1",
        "What is installed: the last revision, and the package that installed it.",
        ("revision", "version"),
    ),
    Metric("hwqueue_up", "0 or 1", "Whether the database answered this scrape."),
    Metric(
        "hwqueue_scrape_errors_total",
        "scrapes",
        "Scrapes since the exporter started that the database did not answer.",
        kind="counter",
    ),
    Metric("hwqueue_scrape_duration_seconds", "seconds", "How long the database took for this scrape."),
)
"""All of them, in the order of the page."""

OF_THE_SCRAPE = frozenset({"hwqueue_up", "hwqueue_scrape_errors_total", "hwqueue_scrape_duration_seconds"})
"""Those that the database does not know."""
