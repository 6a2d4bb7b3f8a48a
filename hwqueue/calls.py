"""Every SQL function the client calls, one row each; a test compares them with the database.

`hwqueue.statements` writes a call of one. SQL text besides: in `schema`, `doctor`, `worker.listen`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

from hwqueue import types

SET_ACTOR = "select pg_catalog.set_config('hwqueue.actor', %(actor)s, true)"
"""Says, until the transaction ends, who does what it does: the `actor` of its events."""

ACT_AS = (
    "select pg_catalog.set_config('hwqueue.actor', %(actor)s, true),"
    " pg_catalog.set_config('statement_timeout', %(timeout)s, true),"
    " pg_catalog.set_config('hwqueue.tenant', %(tenant)s, true),"
    " pg_catalog.set_config('TimeZone', 'UTC', true)"
)
"""Says who acts, for which tenant alone ("": for all), and how many milliseconds a statement may
take, until the transaction ends.

Times come in UTC: in the zone of a session the last hours of the year 9999 may be in a year that
Python does not have.
"""

ENTER = f"{ACT_AS}, hwqueue.enter_node(%(token)s, %(node)s, %(secret)s)"
"""The same for a worker over HTTP, whose node it opens."""

ENTERED_EPOCH = "pg_catalog.current_setting('hwqueue.node_epoch')::pg_catalog.int8"
"""The epoch of the node that is open."""

BEGIN = "begin isolation level read committed"
"""Begins a transaction as calls need it, however the database begins them."""

DEFAULT_ISOLATION = "select pg_catalog.current_setting('default_transaction_isolation')"
"""How transactions begin that do not say it, as the database, the role or the server has it."""

BACKEND_PID = "select pg_catalog.pg_backend_pid()"
"""The process id of the server's session, which a pooler's clients are not told."""

LISTEN_ENDED = "listen hwqueue_ended"
"""Hears the payloads that `await_leases` returns, when the claims of those leases end."""

LIMIT_TIME = "select pg_catalog.set_config('statement_timeout', %(milliseconds)s, true)"
"""Ends every later statement of the transaction that takes longer."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call:
    """A SQL function: its name, its arguments (name to SQL type), and its result.

    `kind` is what a row becomes, and its fields are the columns. Without columns the function
    returns one value of that kind, or nothing.
    """

    name: str
    required: Mapping[str, str] = field(hash=False)
    optional: Mapping[str, str] = field(hash=False)
    kind: type[Any] | None = None
    columns: tuple[str, ...] = ()

    @property
    def arguments(self) -> Mapping[str, str]:
        """All arguments, in the function's order."""
        return {**self.required, **self.optional}

    @property
    def returns(self) -> str:
        """The SQL type of the one value, where drivers read it differently."""
        return "" if self.columns else SQL_TYPES.get(self.kind, "")


class CallOf(Call, Generic[T_co]):
    """A call of which a type checker knows what a row, or the value, becomes."""

    __slots__ = ()


SQL_TYPES: Mapping[Any, str] = {
    UUID: "uuid",
    bytes: "bytea",
    tuple[UUID, ...]: "uuid[]",
    datetime: "timestamp with time zone",
    timedelta: "interval",
    float: "double precision",
    dict: "jsonb",
    list: "jsonb",
}
"""The SQL types of what drivers read differently."""

# What an argument of this name is, where the table says nothing else.
_TYPES: Mapping[str, str] = {
    name: sql_type
    for sql_type, names in {
        "text": "queue task version workflow after step state reason name key running signal near effect "
        "domain instance_id login role tenant url kind order label holder part place origin problem",
        "text[]": "queues steps workflows states tasks rights tenants",
        "jsonb": "policy defaults spec input options runs filter changes result payload params leases "
        "cursor members claims settle error reports items logs placement taint nodes prices "
        "places room schedules",
        "uuid": "run lease before id gang before_gang everywhere node service delivery",
        "uuid[]": "run_ids lease_ids completed gangs",
        "integer": "limit attempt qty skip days most minutes",
        "bigint": "token epoch class round revision",
        "bigint[]": "completed_tokens tokens",
        "boolean": "force forces last notify retry any_instance dry_run are_all stop",
        "interval": "extend claim_timeout delay deadline expires_after keep timeout unless_within ttl hold "
        "retry_after",
        "timestamp with time zone": "retry_at until expires_at",
        "timestamp with time zone[]": "times",
        "bytea": "secret_sha256 token_sha256",
    }.items()
    for name in names.split()
}
_SIGNATURE = re.compile(r"(\w+)\((.*?)(?:(?:, )?\[(.*)\])?\)")


@overload
def _call(signature: str) -> CallOf[Any]: ...
@overload
def _call(signature: str, kind: type[T]) -> CallOf[T]: ...
def _call(signature: str, kind: type[Any] | None = None) -> CallOf[Any]:
    """A row of the table; arguments in brackets have a default. `p_` before their names is left out."""
    found = _SIGNATURE.fullmatch(signature)
    assert found, signature
    name, required, optional = found.groups("")
    columns = tuple(each.name for each in fields(kind)) if kind and is_dataclass(kind) else ()
    return CallOf(name, _arguments(required), _arguments(optional), kind, columns)


def _arguments(text: str) -> Mapping[str, str]:
    given = (each.partition(" ") for each in text.split(", ") if each)
    return {f"p_{name}": sql_type or _TYPES[name] for name, _, sql_type in given}


# queues
CREATE_QUEUE = _call("create_queue(queue, [policy])")
SET_QUEUE_POLICY = _call("set_queue_policy(queue, policy)", dict)
DROP_QUEUE = _call("drop_queue(queue, [force])")
PAUSE_QUEUE = _call("pause_queue(queue)")
RESUME_QUEUE = _call("resume_queue(queue)")
LIST_QUEUES = _call("list_queues()", types.Queue)
WAKE_PAYLOADS = _call("wake_payloads(queues)", types.WakePayload)

# tasks
SET_TASK = _call("set_task(task, [defaults])", dict)
LIST_TASKS = _call("list_tasks()", types.KnownTask)
COMPARE_TASKS = _call("compare_tasks(defaults)", types.TaskDifference)
SYNC_TASKS = _call("sync_tasks(defaults, [version, forces])", types.SyncedTask)
DROP_TASK = _call("drop_task(task)", bool)

# workflows
DEFINE_WORKFLOW = _call("define_workflow(spec)", types.DefinedWorkflow)
GET_WORKFLOW = _call("get_workflow(workflow, [version integer])", types.WorkflowDefinition)
LIST_WORKFLOWS = _call("list_workflows([after, limit])", types.WorkflowSummary)
SUBMIT_WORKFLOW = _call("submit_workflow(workflow, [input, options])", types.SubmittedRun)
SUBMIT_WORKFLOWS = _call("submit_workflows(workflow, runs)", types.SubmittedRun)
SUBMIT_SPEC = _call("submit_spec(spec, [input, options])", types.SubmittedRun)
CHECK_WORKFLOW = _call("check_workflow(spec, [options])", types.CheckedStep)
GET_WORKFLOW_RUN = _call("get_workflow_run(run)", types.WorkflowRun)
LIST_WORKFLOW_STEPS = _call("list_workflow_steps(run)", types.WorkflowStep)
STEP_RESULTS = _call("step_results(run, step, [after integer, limit, lease, state])", types.StepResult)
RUN_INPUT: CallOf[types.Json] = _call("run_input(run, [lease])", dict)
LIST_WORKFLOW_RUNS = _call("list_workflow_runs([filter, limit, before])", types.RunSummary)
GET_RUN_WORKFLOW = _call("get_run_workflow(run)", types.WorkflowDefinition)
LIST_STEP_DETAILS = _call("list_step_details(run)", types.StepDetail)
LIST_RUN_SIGNALS = _call("list_run_signals(run, [limit])", types.RunSignal)
SUMMARISE_RUNS = _call("summarise_runs(run_ids)", types.RunProgress)
PREVIEW_RETRY = _call("preview_retry(run, [options])", types.RetriedStep)
PREVIEW_UPDATE = _call("preview_update(run, changes, [steps])", types.PreviewedStep)
LIST_WORKFLOW_VERSIONS = _call("list_workflow_versions(workflows)", types.WorkflowVersion)
CANCEL_WORKFLOW_RUN: CallOf[types.RunState] = _call("cancel_workflow_run(run, [reason])")
PAUSE_WORKFLOW_RUN: CallOf[types.RunState] = _call("pause_workflow_run(run)")
RESUME_WORKFLOW_RUN: CallOf[types.RunState] = _call("resume_workflow_run(run)")
RETRY_WORKFLOW_RUN: CallOf[types.RunState] = _call("retry_workflow_run(run, [options])")
UPDATE_STEPS = _call("update_steps(run, changes, [steps])", types.UpdatedStep)
SKIP_STEP: CallOf[types.RunState] = _call("skip_step(run, step, [result, reason])")
SIGNAL_WORKFLOW_RUN = _call("signal_workflow_run(run, name, [payload, key])", types.RunSignalSent)
ADVANCE_WORKFLOWS = _call("advance_workflows([limit])", types.AdvanceResult)
TAKE_ENDED_RUNS = _call("take_ended_runs([limit])", types.EndedRun)

# leases
SPAWN_LEASE = _call("spawn_lease(queue, task, [params, options])", types.SpawnResult)
SPAWN_LEASES = replace(
    _call("spawn_leases(queue, leases)", types.SpawnResult),
    columns=tuple(name for name in SPAWN_LEASE.columns if name != "warnings"),
)
SPAWN_WARNINGS = _call("spawn_warnings(id)", list)
GET_LEASE = _call("get_lease(lease)", types.Lease)
LEASE_LOGS = _call("lease_logs(lease, [after, limit, attempt, last])", types.LogLine)
SIGNAL_LEASE = _call("signal_lease(lease, name, [payload, key])", types.SignalSent)
LEASE_CHECKPOINTS = _call("lease_checkpoints(lease, [limit])", types.SavedCheckpoint)
AWAIT_LEASES = _call("await_leases(lease_ids, [notify])", types.AwaitedLease)
LIST_LEASES = _call("list_leases([filter, limit, before])", types.LeaseSummary)
UPDATE_LEASE = _call("update_lease(lease, changes)", types.LeaseState)
CANCEL_LEASE = _call("cancel_lease(lease, [reason])", types.LeaseState)
REQUEUE_LEASE = _call("requeue_lease(lease)", types.LeaseState)
COUNT_LEASES = _call("count_leases(filter, [states, limit, cursor])", types.LeaseCount)
CANCEL_LEASES = _call("cancel_leases(filter, [reason, limit, cursor])", types.BulkPage)
REQUEUE_LEASES = _call("requeue_leases(filter, [limit, cursor])", types.BulkPage)
UPDATE_LEASES = _call("update_leases(filter, changes, [limit, cursor])", types.BulkPage)
DELETE_LEASES = _call("delete_leases(filter, [limit, cursor])", types.BulkPage)
REQUEUE_FAILED = _call("requeue_failed(queue, [filter])", int)

# gangs
SPAWN_GANG = _call("spawn_gang(queue, members, [options])", types.SpawnedMember)
GET_GANG = _call("get_gang(gang)", types.Gang)
LIST_GANGS = _call(
    "list_gangs([state, limit, before timestamp with time zone, before_gang])", types.GangSummary
)
EXPLAIN_GANG = _call("explain_gang(gang)", types.GangExplanation)
WHAT_IF_GANG = _call("what_if_gang(queue, members, [options])", types.GangForecast)
CANCEL_GANG: CallOf[types.GangState] = _call("cancel_gang(gang, [reason])")
GANG_STATUS = _call("gang_status(lease, token)", types.GangStatus)

# everywhere tasks
SPAWN_EVERYWHERE = _call("spawn_everywhere(queue, task, [params, options])", types.SpawnedEverywhere)
GET_EVERYWHERE = _call("get_everywhere(everywhere, [limit, after uuid])", types.EverywhereTask)
LIST_EVERYWHERE = _call(
    "list_everywhere([state, limit, before timestamp with time zone])", types.EverywhereSummary
)
STOP_EVERYWHERE: CallOf[types.EverywhereState] = _call("stop_everywhere(everywhere, [running])")

# claims
HEARTBEAT_NODE = _call("heartbeat_node(node, epoch, [claims, extend])", types.Heartbeat)
CLAIM_TASK = _call("claim_task(queues, node, epoch, [qty, tasks, claim_timeout])", types.Claim)

# its rows are of two kinds: Settled and Claim
# its rows are of two kinds: Settled and Claim
SETTLE_AND_CLAIM: CallOf[Any] = replace(
    _call(
        "settle_and_claim(node, epoch, settle, queues,"
        " [qty, tasks, claim_timeout, completed, completed_tokens])"
    ),
    columns=("kind", "ordinal", "verdict", "state", *CLAIM_TASK.columns),
)
COMPLETE_LEASE = _call("complete_lease(lease, token, [result])", types.LeaseState)
COMPLETE_LEASES = _call("complete_leases(lease_ids, tokens)", types.Settled)
FAIL_LEASE = _call("fail_lease(lease, token, error, [retry, retry_at])", types.LeaseState)
RELEASE_LEASE = _call("release_lease(lease, token, [delay])", types.LeaseState)
EXTEND_CLAIM = _call("extend_claim(lease, token, extend)", datetime)
REPORT_PROGRESS = _call("report_progress(reports)", int)
SAVE_CHECKPOINT = _call("save_checkpoint(lease, token, name, [state jsonb, extend])", datetime)
CHECKPOINTS = _call("checkpoints(lease, token)", types.Checkpoint)
ADD_STEPS = _call("add_steps(lease, token, spec)", types.SubmittedRun)
ADD_ITEMS = _call("add_items(lease, token, items)", types.AddedItem)
TAKE_SIGNAL = _call("take_signal(lease, token, signal, [name])", types.SignalTaken)
SUSPEND_LEASE = _call("suspend_lease(lease, token, [until, signal, name, near])", types.LeaseState)
APPEND_LOGS = _call("append_logs(logs)", int)
CLAIM_HINT = _call("claim_hint(queues, node)", types.ClaimHint)
LEASE_OUTLOOK = _call("lease_outlook(node, lease_ids)", types.LeaseOutlook)
TAKE_DEATHS = _call("take_deaths(node, epoch, [limit])", types.Death)
ADOPT_LEASE = _call("adopt_lease(queue, node, task, [params, options])", types.Adopted)

# nodes
REGISTER_NODE = _call("register_node(node, spec)", int)
LIST_NODES = _call("list_nodes([name, node, after, limit])", types.Node)
MATCH_NODES = _call("match_nodes([placement, options])", types.NodeMatch)
MATCH_PAGE = _call("match_page([placement, options, limit, skip])", types.MatchPage)
MATCH_GROUPS = _call("match_groups([placement, options])", types.NodeGroup)
NODE_CLAIMS = _call("node_claims(node, [limit])", types.NodeClaim)
CORDON_NODE = _call("cordon_node(node)")
UNCORDON_NODE = _call("uncordon_node(node)")
DRAIN_NODE = _call("drain_node(node, [deadline])")
DEREGISTER_NODE = _call("deregister_node(node)")
DEREGISTER_OWN_NODE = _call("deregister_own_node(node, epoch)", bool)
SET_NODE_EXPIRY = _call("set_node_expiry(after interval)", timedelta)
NODE_WAKE_PAYLOAD = _call("node_wake_payload(node)", str)
TAINT_NODE = _call("taint_node(node, taint)")
UNTAINT_NODE = _call("untaint_node(node, key, [effect])", int)
SET_NODE_TENANTS = _call("set_node_tenants(node, tenants, [stop])")
ATTEST_NODE = _call("attest_node(node, domain, [expires_at, any_instance, expires_after])")
REVOKE_ATTESTATION = _call("revoke_attestation(node, domain)", bool)
CONFIRM_NODE = _call("confirm_node(node, [instance_id])", int)
HAND_OVER_NODE = _call("hand_over_node(node, login)")

# explanations
EXPLAIN_LEASE = _call("explain_lease(lease)", types.LeaseExplanation)
EXPLAIN_CLASS = _call("explain_class(class)", types.ClassExplanation)
WHAT_IF = _call("what_if(nodes)", types.ServedClass)
PREVIEW_PREEMPTION = _call("preview_preemption(lease)", types.Preemption)

# services
SET_SERVICE_POLICY = _call("set_service_policy(service, policy)", dict)
SERVICE_POLICY = _call("service_policy(service)", dict)

# events
LIST_EVENTS = _call("list_events([after bigint, filter, limit])", types.Event)
SET_EVENT_RETENTION = _call("set_event_retention(days)", int)

# tokens of the HTTP API
CREATE_TOKEN = _call(
    "create_token(name, secret_sha256, role, [tenant, expires_at, expires_after, nodes text[]])"
)
CHECK_TOKEN = _call("check_token(secret_sha256)", types.TokenGrant)
LIST_TOKENS = _call("list_tokens()", types.ApiToken)
REVOKE_TOKEN = _call("revoke_token(name)", bool)
REGISTER_BOUND_NODE: CallOf[int | None] = _call(
    "register_bound_node(token_sha256, node, spec, secret_sha256)", int
)
ENTER_NODE = _call("enter_node(token_sha256, node, secret_sha256)", int)

# webhooks
SET_WEBHOOK: CallOf[str | None] = _call("set_webhook(name, url, [options])")
LIST_WEBHOOKS = _call("list_webhooks()", types.Webhook)
DROP_WEBHOOK = _call("drop_webhook(name)", bool)
PAUSE_WEBHOOK = _call("pause_webhook(name)", bool)
RESUME_WEBHOOK = _call("resume_webhook(name)", bool)
ROTATE_WEBHOOK = _call("rotate_webhook(name, [keep])", str)
TEST_WEBHOOK = _call("test_webhook(name)", UUID)
LIST_DELIVERIES = _call("list_deliveries(name, [state, limit, before])", types.Delivery)
REDELIVER = _call("redeliver(name, [delivery, limit])", int)
CLAIM_DELIVERIES = _call("claim_deliveries([limit, timeout])", types.ClaimedDelivery)
SETTLE_DELIVERY = _call("settle_delivery(delivery, attempt, result)", str)

# schedules
CREATE_SCHEDULE = _call("create_schedule(name, spec)", bool)
SET_SCHEDULE = _call("set_schedule(name, changes)", dict)
SYNC_SCHEDULES = _call("sync_schedules(origin, schedules)", types.SyncedSchedule)
DROP_SCHEDULE = _call("drop_schedule(name)", bool)
PAUSE_SCHEDULE = _call("pause_schedule(name, [reason])", bool)
RESUME_SCHEDULE = _call("resume_schedule(name)", bool)
TRIGGER_SCHEDULE = _call("trigger_schedule(name, [params])", types.FiredTime)
BACKFILL_SCHEDULE = _call("backfill_schedule(name, times, [dry_run])", types.FiredTime)
LIST_SCHEDULES = _call("list_schedules([after, limit, name])", types.Schedule)
SCHEDULE_HISTORY = _call(
    "schedule_history(name, [limit, before timestamp with time zone])", types.ScheduleFire
)
DUE_PLANS = _call("due_plans([limit])", types.DuePlan)
PLAN_SCHEDULE = _call("plan_schedule(name, revision, times, [problem])", bool)

# limits
CREATE_LIMIT = _call("create_limit(name, spec)", bool)
SET_LIMIT = _call("set_limit(name, changes)", dict)
DROP_LIMIT = _call("drop_limit(name)", bool)
LIST_LIMITS = _call("list_limits()", types.Limit)
LIMIT_LANES = _call("limit_lanes(name, [order, limit])", types.LimitLane)
THROTTLE_LIMIT = _call("throttle_limit(name, [key, until, retry_after, tenant, lease])", datetime)

# tenants
SET_TENANT = _call("set_tenant(name, changes)", dict)
DROP_TENANT = _call("drop_tenant(name)", bool)
GRANT_TENANT = _call("grant_tenant(login, tenant, [rights])", list)
REVOKE_TENANT = _call("revoke_tenant(login, tenant)", bool)
LIST_TENANTS = _call("list_tenants([after, limit, name])", types.Tenant)
TENANT_USAGE = _call("tenant_usage([name, limit])", types.TenantUsage)
LIST_PREEMPTIONS = _call("list_preemptions([lease, tenant, limit])", types.PreemptedClaim)

# what operators look at
PENDING_REASONS = _call("pending_reasons([queue, kind, class, order, limit])", types.PendingReason)
QUEUE_DEPTH = _call("queue_depth([queue])", types.QueueDepth)
RUNNING_LEASES = _call("running_leases([limit])", types.RunningLease)
NODE_USAGE = _call("node_usage([state, limit, after])", types.NodeUsage)
TAG_DISTRIBUTION = _call("tag_distribution([label, limit])", types.TagCount)
LEASE_HISTORY = _call("lease_history(lease)", types.LeaseEvent)
PLACEMENT_CLASS_STATS = _call("placement_class_stats([queue, after bigint, limit])", types.ClassStats)

# maintenance
REAP = _call("reap([limit, unless_within])", types.ReapResult)
PRUNE = _call("prune([limit, unless_within])", types.PruneResult)
VERIFY_INVARIANTS = _call("verify_invariants()", types.BrokenInvariant)

# planners
LEAD_PLANNER: CallOf[int | None] = _call("lead_planner(holder, [ttl])")
PLANNER_VIEW = _call("planner_view(part, [queue, after, limit, most])", types.PlannerRow)
SET_PRICES = _call("set_prices(queue, prices, ttl, round, epoch)", str)
PLANNER_ROOMS = _call("planner_rooms(gangs)", types.PlaceRoom)
RESERVE_GANG = _call("reserve_gang(gang, place, round, epoch)", str)
RESERVE_LEASES = _call("reserve_leases(places, hold, round, epoch)", types.LeasePlace)
ASSIGNED_LEASES = _call("assigned_leases(places)", types.LeasePlace)
NOTE_ROOM = _call("note_room(room, ttl, round, epoch)", str)
PLANNER_STATUS = _call("planner_status()", types.PlannerStatus)

# statistics
METRICS = _call("metrics()", types.Sample)
FLEET_HISTORY = _call("fleet_history(kind, [minutes])", types.FleetSample)
THROUGHPUT = _call("throughput([queue, minutes])", types.Minute)

# about the whole database
SCHEMA_VERSION = _call("schema_version()", types.SchemaVersion)

CALLS: tuple[Call, ...] = tuple(row for row in globals().values() if isinstance(row, Call))
"""All of the above."""
