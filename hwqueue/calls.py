"""Every SQL function the client calls, one row each; a test compares them with the database.

What is here and what `hwqueue.statements` makes of it is all the SQL text of the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from hwqueue import types

__all__ = [
    "ACT_AS",
    "BACKEND_PID",
    "CALLS",
    "DEFAULT_ISOLATION",
    "LIMIT_TIME",
    "LISTEN_ENDED",
    "SET_ACTOR",
    "Call",
]

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

DEFAULT_ISOLATION = "select pg_catalog.current_setting('default_transaction_isolation')"
"""How transactions begin that do not say it, as the database, the role or the server has it."""

BACKEND_PID = "select pg_catalog.pg_backend_pid()"
"""The process id of the server's session, which a pooler's clients are not told."""

LISTEN_ENDED = "listen hwqueue_ended"
"""Hears the payloads that `await_leases` returns, when the claims of those leases end."""

_NONE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Call:
    """A SQL function: its name, its arguments (name to SQL type), and its result.

    `row` is what a row becomes, and its fields are the columns. Without columns the function
    returns one value, or nothing.

    `returns`: the SQL type of that one value, where drivers read it differently.
    """

    name: str
    required: Mapping[str, str] = field(hash=False)
    optional: Mapping[str, str] = field(default_factory=dict, hash=False)
    row: type | None = None
    columns: tuple[str, ...] = ()
    returns: str = ""

    @property
    def arguments(self) -> Mapping[str, str]:
        """All arguments, in the function's order."""
        return {**self.required, **self.optional}


def _columns(row: type) -> tuple[str, ...]:
    return tuple(column.name for column in fields(row))


def _call(
    name: str,
    required: Mapping[str, str] = _NONE,
    optional: Mapping[str, str] = _NONE,
    row: type | None = None,
    *,
    returns: str = "",
) -> Call:
    """A row of the table."""
    columns = () if row is None else _columns(row)
    return Call(name, required, optional, row, columns, returns)


_QUEUE = {"p_queue": "text"}
_LEASE = {"p_lease": "uuid"}
_NODE = {"p_node": "uuid"}
_EPOCH = {"p_node": "uuid", "p_epoch": "bigint"}
_CLAIM = {"p_lease": "uuid", "p_token": "bigint"}
_QUEUES = {"p_queues": "text[]"}
_HOW_MUCH = {"p_qty": "integer", "p_tasks": "text[]", "p_claim_timeout": "interval"}
_LIMIT = {"p_limit": "integer"}
_PAGE = {**_LIMIT, "p_cursor": "jsonb"}
_UNLESS_WITHIN = {"p_unless_within": "interval"}
_TRUST = {"p_node": "uuid", "p_domain": "text"}
_SERVICE = {"p_service": "uuid"}

# queues
CREATE_QUEUE = _call("create_queue", _QUEUE, {"p_policy": "jsonb"})
SET_QUEUE_POLICY = _call("set_queue_policy", {**_QUEUE, "p_policy": "jsonb"}, returns="jsonb")
DROP_QUEUE = _call("drop_queue", _QUEUE, {"p_force": "boolean"})
PAUSE_QUEUE = _call("pause_queue", _QUEUE)
RESUME_QUEUE = _call("resume_queue", _QUEUE)
LIST_QUEUES = _call("list_queues", row=types.Queue)
WAKE_PAYLOADS = _call("wake_payloads", _QUEUES, row=types.WakePayload)

# tasks
SET_TASK = _call("set_task", {"p_task": "text"}, {"p_defaults": "jsonb"}, returns="jsonb")
LIST_TASKS = _call("list_tasks", row=types.KnownTask)
COMPARE_TASKS = _call("compare_tasks", {"p_defaults": "jsonb"}, row=types.TaskDifference)
SYNC_TASKS = _call(
    "sync_tasks",
    {"p_defaults": "jsonb"},
    {"p_version": "text", "p_forces": "boolean"},
    types.SyncedTask,
)
DROP_TASK = _call("drop_task", {"p_task": "text"})

# workflows
_RUN = {"p_run": "uuid"}
_RUN_OPTIONS = {"p_input": "jsonb", "p_options": "jsonb"}
DEFINE_WORKFLOW = _call("define_workflow", {"p_spec": "jsonb"}, row=types.DefinedWorkflow)
GET_WORKFLOW = _call(
    "get_workflow", {"p_workflow": "text"}, {"p_version": "integer"}, types.WorkflowDefinition
)
LIST_WORKFLOWS = _call(
    "list_workflows", optional={"p_after": "text", "p_limit": "integer"}, row=types.WorkflowSummary
)
SUBMIT_WORKFLOW = _call("submit_workflow", {"p_workflow": "text"}, _RUN_OPTIONS, types.SubmittedRun)
SUBMIT_WORKFLOWS = _call(
    "submit_workflows", {"p_workflow": "text", "p_runs": "jsonb"}, row=types.SubmittedRun
)
SUBMIT_SPEC = _call("submit_spec", {"p_spec": "jsonb"}, _RUN_OPTIONS, types.SubmittedRun)
CHECK_WORKFLOW = _call("check_workflow", {"p_spec": "jsonb"}, {"p_options": "jsonb"}, types.CheckedStep)
GET_WORKFLOW_RUN = _call("get_workflow_run", _RUN, row=types.WorkflowRun)
LIST_WORKFLOW_STEPS = _call("list_workflow_steps", _RUN, row=types.WorkflowStep)
STEP_RESULTS = _call(
    "step_results",
    {**_RUN, "p_step": "text"},
    {"p_after": "integer", "p_limit": "integer", "p_lease": "uuid", "p_state": "text"},
    types.StepResult,
)
RUN_INPUT = _call("run_input", _RUN, {"p_lease": "uuid"}, returns="jsonb")
LIST_WORKFLOW_RUNS = _call(
    "list_workflow_runs",
    optional={"p_filter": "jsonb", "p_limit": "integer", "p_before": "uuid"},
    row=types.RunSummary,
)
GET_RUN_WORKFLOW = _call("get_run_workflow", _RUN, row=types.WorkflowDefinition)
LIST_STEP_DETAILS = _call("list_step_details", _RUN, row=types.StepDetail)
LIST_RUN_SIGNALS = _call("list_run_signals", _RUN, {"p_limit": "integer"}, row=types.RunSignal)
SUMMARISE_RUNS = _call("summarise_runs", {"p_run_ids": "uuid[]"}, row=types.RunProgress)
PREVIEW_RETRY = _call("preview_retry", _RUN, {"p_options": "jsonb"}, types.RetriedStep)
PREVIEW_UPDATE = _call(
    "preview_update", {**_RUN, "p_changes": "jsonb"}, {"p_steps": "text[]"}, types.PreviewedStep
)
LIST_WORKFLOW_VERSIONS = _call("list_workflow_versions", {"p_workflows": "text[]"}, row=types.WorkflowVersion)
CANCEL_WORKFLOW_RUN = _call("cancel_workflow_run", _RUN, {"p_reason": "text"})
PAUSE_WORKFLOW_RUN = _call("pause_workflow_run", _RUN)
RESUME_WORKFLOW_RUN = _call("resume_workflow_run", _RUN)
RETRY_WORKFLOW_RUN = _call("retry_workflow_run", _RUN, {"p_options": "jsonb"})
UPDATE_STEPS = _call("update_steps", {**_RUN, "p_changes": "jsonb"}, {"p_steps": "text[]"}, types.UpdatedStep)
SKIP_STEP = _call("skip_step", {**_RUN, "p_step": "text"}, {"p_result": "jsonb", "p_reason": "text"})
SIGNAL_WORKFLOW_RUN = _call(
    "signal_workflow_run",
    {**_RUN, "p_name": "text"},
    {"p_payload": "jsonb", "p_key": "text"},
    types.RunSignalSent,
)
ADVANCE_WORKFLOWS = _call("advance_workflows", optional={"p_limit": "integer"}, row=types.AdvanceResult)
TAKE_ENDED_RUNS = _call("take_ended_runs", optional={"p_limit": "integer"}, row=types.EndedRun)

# leases
SPAWN_LEASE = _call(
    "spawn_lease",
    {**_QUEUE, "p_task": "text"},
    {"p_params": "jsonb", "p_options": "jsonb"},
    types.SpawnResult,
)
SPAWN_LEASES = replace(
    _call("spawn_leases", {**_QUEUE, "p_leases": "jsonb"}, row=types.SpawnResult),
    columns=tuple(name for name in SPAWN_LEASE.columns if name != "warnings"),
)
SPAWN_WARNINGS = _call("spawn_warnings", {"p_id": "uuid"}, returns="jsonb")
GET_LEASE = _call("get_lease", _LEASE, row=types.Lease)
LEASE_LOGS = _call(
    "lease_logs",
    _LEASE,
    {"p_after": "text", **_LIMIT, "p_attempt": "integer", "p_last": "boolean"},
    types.LogLine,
)
SIGNAL_LEASE = _call(
    "signal_lease",
    {**_LEASE, "p_name": "text"},
    {"p_payload": "jsonb", "p_key": "text"},
    types.SignalSent,
)
LEASE_CHECKPOINTS = _call("lease_checkpoints", _LEASE, _LIMIT, types.SavedCheckpoint)
AWAIT_LEASES = _call("await_leases", {"p_lease_ids": "uuid[]"}, {"p_notify": "boolean"}, types.AwaitedLease)
LIST_LEASES = _call(
    "list_leases",
    optional={"p_filter": "jsonb", **_LIMIT, "p_before": "uuid"},
    row=types.LeaseSummary,
)
UPDATE_LEASE = _call("update_lease", {**_LEASE, "p_changes": "jsonb"})
CANCEL_LEASE = _call("cancel_lease", _LEASE, {"p_reason": "text"})
REQUEUE_LEASE = _call("requeue_lease", _LEASE)
COUNT_LEASES = _call(
    "count_leases",
    {"p_filter": "jsonb"},
    {"p_states": "text[]", **_PAGE},
    types.LeaseCount,
)
CANCEL_LEASES = _call("cancel_leases", {"p_filter": "jsonb"}, {"p_reason": "text", **_PAGE}, types.BulkPage)
REQUEUE_LEASES = _call("requeue_leases", {"p_filter": "jsonb"}, _PAGE, types.BulkPage)
UPDATE_LEASES = _call("update_leases", {"p_filter": "jsonb", "p_changes": "jsonb"}, _PAGE, types.BulkPage)
DELETE_LEASES = _call("delete_leases", {"p_filter": "jsonb"}, _PAGE, types.BulkPage)
REQUEUE_FAILED = _call("requeue_failed", _QUEUE, {"p_filter": "jsonb"})

# gangs
_GANG = {"p_gang": "uuid"}
SPAWN_GANG = _call(
    "spawn_gang", {**_QUEUE, "p_members": "jsonb"}, {"p_options": "jsonb"}, types.SpawnedMember
)
GET_GANG = _call("get_gang", _GANG, row=types.Gang)
LIST_GANGS = _call(
    "list_gangs",
    optional={
        "p_state": "text",
        **_LIMIT,
        "p_before": "timestamp with time zone",
        "p_before_gang": "uuid",
    },
    row=types.GangSummary,
)
EXPLAIN_GANG = _call("explain_gang", _GANG, row=types.GangExplanation)
WHAT_IF_GANG = _call(
    "what_if_gang", {**_QUEUE, "p_members": "jsonb"}, {"p_options": "jsonb"}, types.GangForecast
)
CANCEL_GANG = _call("cancel_gang", _GANG, {"p_reason": "text"})
GANG_STATUS = _call("gang_status", _CLAIM, row=types.GangStatus)

# everywhere tasks
_EVERYWHERE = {"p_everywhere": "uuid"}
SPAWN_EVERYWHERE = _call(
    "spawn_everywhere",
    {**_QUEUE, "p_task": "text"},
    {"p_params": "jsonb", "p_options": "jsonb"},
    types.SpawnedEverywhere,
)
GET_EVERYWHERE = _call("get_everywhere", _EVERYWHERE, {**_LIMIT, "p_after": "uuid"}, types.EverywhereTask)
LIST_EVERYWHERE = _call(
    "list_everywhere",
    optional={"p_state": "text", **_LIMIT, "p_before": "timestamp with time zone"},
    row=types.EverywhereSummary,
)
STOP_EVERYWHERE = _call("stop_everywhere", _EVERYWHERE, {"p_running": "text"})

# claims
HEARTBEAT_NODE = _call(
    "heartbeat_node", _EPOCH, {"p_claims": "jsonb", "p_extend": "interval"}, types.Heartbeat
)
CLAIM_TASK = _call("claim_task", {**_QUEUES, **_EPOCH}, _HOW_MUCH, types.Claim)
# its rows are of two kinds: Settled and Claim
SETTLE_AND_CLAIM = Call(
    "settle_and_claim",
    {**_EPOCH, "p_settle": "jsonb", **_QUEUES},
    {**_HOW_MUCH, "p_completed": "uuid[]", "p_completed_tokens": "bigint[]"},
    columns=("kind", "ordinal", "verdict", "state", *_columns(types.Claim)),
)
COMPLETE_LEASE = _call("complete_lease", _CLAIM, {"p_result": "jsonb"})
COMPLETE_LEASES = _call(
    "complete_leases", {"p_lease_ids": "uuid[]", "p_tokens": "bigint[]"}, row=types.Settled
)
FAIL_LEASE = _call(
    "fail_lease",
    {**_CLAIM, "p_error": "jsonb"},
    {"p_retry": "boolean", "p_retry_at": "timestamp with time zone"},
)
RELEASE_LEASE = _call("release_lease", _CLAIM, {"p_delay": "interval"})
EXTEND_CLAIM = _call("extend_claim", {**_CLAIM, "p_extend": "interval"}, returns="timestamp with time zone")
REPORT_PROGRESS = _call("report_progress", {"p_reports": "jsonb"})
SAVE_CHECKPOINT = _call(
    "save_checkpoint",
    {**_CLAIM, "p_name": "text"},
    {"p_state": "jsonb", "p_extend": "interval"},
    returns="timestamp with time zone",
)
CHECKPOINTS = _call("checkpoints", _CLAIM, row=types.Checkpoint)
ADD_STEPS = _call("add_steps", {**_CLAIM, "p_spec": "jsonb"}, row=types.SubmittedRun)
ADD_ITEMS = _call("add_items", {**_CLAIM, "p_items": "jsonb"}, row=types.AddedItem)
TAKE_SIGNAL = _call("take_signal", {**_CLAIM, "p_signal": "text"}, {"p_name": "text"}, types.SignalTaken)
SUSPEND_LEASE = _call(
    "suspend_lease",
    _CLAIM,
    {
        "p_until": "timestamp with time zone",
        "p_signal": "text",
        "p_name": "text",
        "p_near": "text",
    },
)
APPEND_LOGS = _call("append_logs", {"p_logs": "jsonb"})
CLAIM_HINT = _call("claim_hint", {**_QUEUES, **_NODE}, row=types.ClaimHint)
LEASE_OUTLOOK = _call("lease_outlook", {**_NODE, "p_lease_ids": "uuid[]"}, row=types.LeaseOutlook)
TAKE_DEATHS = _call("take_deaths", _EPOCH, _LIMIT, types.Death)
ADOPT_LEASE = _call(
    "adopt_lease",
    {**_QUEUE, **_NODE, "p_task": "text"},
    {"p_params": "jsonb", "p_options": "jsonb"},
    types.Adopted,
)

# nodes
REGISTER_NODE = _call("register_node", {**_NODE, "p_spec": "jsonb"})
LIST_NODES = _call(
    "list_nodes", optional={"p_name": "text", **_NODE, "p_after": "text", **_LIMIT}, row=types.Node
)
MATCH_NODES = _call(
    "match_nodes", optional={"p_placement": "jsonb", "p_options": "jsonb"}, row=types.NodeMatch
)
MATCH_PAGE = _call(
    "match_page",
    optional={"p_placement": "jsonb", "p_options": "jsonb", **_LIMIT, "p_skip": "integer"},
    row=types.MatchPage,
)
MATCH_GROUPS = _call(
    "match_groups", optional={"p_placement": "jsonb", "p_options": "jsonb"}, row=types.NodeGroup
)
NODE_CLAIMS = _call("node_claims", _NODE, _LIMIT, types.NodeClaim)
CORDON_NODE = _call("cordon_node", _NODE)
UNCORDON_NODE = _call("uncordon_node", _NODE)
DRAIN_NODE = _call("drain_node", _NODE, {"p_deadline": "interval"})
DEREGISTER_NODE = _call("deregister_node", _NODE)
DEREGISTER_OWN_NODE = _call("deregister_own_node", {**_NODE, "p_epoch": "bigint"})
SET_NODE_EXPIRY = _call("set_node_expiry", {"p_after": "interval"}, returns="interval")
NODE_WAKE_PAYLOAD = _call("node_wake_payload", _NODE)
TAINT_NODE = _call("taint_node", {**_NODE, "p_taint": "jsonb"})
UNTAINT_NODE = _call("untaint_node", {**_NODE, "p_key": "text"}, {"p_effect": "text"})
ATTEST_NODE = _call(
    "attest_node",
    _TRUST,
    {
        "p_expires_at": "timestamp with time zone",
        "p_any_instance": "boolean",
        "p_expires_after": "interval",
    },
)
REVOKE_ATTESTATION = _call("revoke_attestation", _TRUST)
CONFIRM_NODE = _call("confirm_node", _NODE, {"p_instance_id": "text"})
HAND_OVER_NODE = _call("hand_over_node", {**_NODE, "p_login": "text"})

# explanations
EXPLAIN_LEASE = _call("explain_lease", _LEASE, row=types.LeaseExplanation)
EXPLAIN_CLASS = _call("explain_class", {"p_class": "bigint"}, row=types.ClassExplanation)
WHAT_IF = _call("what_if", {"p_nodes": "jsonb"}, row=types.ServedClass)

# services
SET_SERVICE_POLICY = _call("set_service_policy", {**_SERVICE, "p_policy": "jsonb"}, returns="jsonb")
SERVICE_POLICY = _call("service_policy", _SERVICE, returns="jsonb")

# events
LIST_EVENTS = _call(
    "list_events",
    optional={"p_after": "bigint", "p_filter": "jsonb", **_LIMIT},
    row=types.Event,
)

SET_EVENT_RETENTION = _call("set_event_retention", {"p_days": "integer"})

# tokens of the HTTP API
CREATE_TOKEN = _call(
    "create_token",
    {"p_name": "text", "p_secret_sha256": "bytea", "p_role": "text"},
    {
        "p_tenant": "text",
        "p_expires_at": "timestamp with time zone",
        "p_expires_after": "interval",
    },
)
CHECK_TOKEN = _call("check_token", {"p_secret_sha256": "bytea"}, row=types.TokenGrant)
LIST_TOKENS = _call("list_tokens", row=types.ApiToken)
REVOKE_TOKEN = _call("revoke_token", {"p_name": "text"})

# webhooks
_WEBHOOK = {"p_name": "text"}
SET_WEBHOOK = _call("set_webhook", {**_WEBHOOK, "p_url": "text"}, {"p_options": "jsonb"})
LIST_WEBHOOKS = _call("list_webhooks", row=types.Webhook)
DROP_WEBHOOK = _call("drop_webhook", _WEBHOOK)
PAUSE_WEBHOOK = _call("pause_webhook", _WEBHOOK)
RESUME_WEBHOOK = _call("resume_webhook", _WEBHOOK)
ROTATE_WEBHOOK = _call("rotate_webhook", _WEBHOOK, {"p_keep": "interval"})
TEST_WEBHOOK = _call("test_webhook", _WEBHOOK, returns="uuid")
LIST_DELIVERIES = _call(
    "list_deliveries", _WEBHOOK, {"p_state": "text", **_LIMIT, "p_before": "uuid"}, types.Delivery
)
REDELIVER = _call("redeliver", _WEBHOOK, {"p_delivery": "uuid", **_LIMIT})
CLAIM_DELIVERIES = _call(
    "claim_deliveries", optional={**_LIMIT, "p_timeout": "interval"}, row=types.ClaimedDelivery
)
SETTLE_DELIVERY = _call(
    "settle_delivery", {"p_delivery": "uuid", "p_attempt": "integer", "p_result": "jsonb"}
)

# what operators look at
PENDING_REASONS = _call(
    "pending_reasons",
    optional={**_QUEUE, "p_kind": "text", "p_class": "bigint", "p_order": "text", **_LIMIT},
    row=types.PendingReason,
)
QUEUE_DEPTH = _call("queue_depth", optional=_QUEUE, row=types.QueueDepth)
RUNNING_LEASES = _call("running_leases", optional=_LIMIT, row=types.RunningLease)
NODE_USAGE = _call(
    "node_usage", optional={"p_state": "text", **_LIMIT, "p_after": "text"}, row=types.NodeUsage
)
TAG_DISTRIBUTION = _call("tag_distribution", optional={"p_label": "text", **_LIMIT}, row=types.TagCount)
LEASE_HISTORY = _call("lease_history", _LEASE, row=types.LeaseEvent)
PLACEMENT_CLASS_STATS = _call(
    "placement_class_stats",
    optional={**_QUEUE, "p_after": "bigint", **_LIMIT},
    row=types.ClassStats,
)

# maintenance
REAP = _call("reap", optional={**_LIMIT, **_UNLESS_WITHIN}, row=types.ReapResult)
PRUNE = _call(
    "prune",
    optional={**_LIMIT, **_UNLESS_WITHIN},
    row=types.PruneResult,
)
VERIFY_INVARIANTS = _call("verify_invariants", row=types.BrokenInvariant)

# planners
LEAD_PLANNER = _call("lead_planner", {"p_holder": "text"}, {"p_ttl": "interval"})
PLANNER_VIEW = _call(
    "planner_view",
    {"p_part": "text"},
    {**_QUEUE, "p_after": "text", **_LIMIT, "p_most": "integer"},
    types.PlannerRow,
)
SET_PRICES = _call(
    "set_prices",
    {
        **_QUEUE,
        "p_prices": "jsonb",
        "p_ttl": "interval",
        "p_round": "bigint",
        "p_epoch": "bigint",
    },
)
PLANNER_ROOMS = _call("planner_rooms", {"p_gangs": "uuid[]"}, row=types.PlaceRoom)
RESERVE_GANG = _call(
    "reserve_gang",
    {"p_gang": "uuid", "p_place": "text", "p_round": "bigint", "p_epoch": "bigint"},
)
RESERVE_LEASES = _call(
    "reserve_leases",
    {"p_places": "jsonb", "p_hold": "interval", "p_round": "bigint", "p_epoch": "bigint"},
    row=types.LeasePlace,
)
ASSIGNED_LEASES = _call("assigned_leases", {"p_places": "jsonb"}, row=types.LeasePlace)
NOTE_ROOM = _call(
    "note_room",
    {
        "p_room": "jsonb",
        "p_ttl": "interval",
        "p_round": "bigint",
        "p_epoch": "bigint",
    },
)
PLANNER_STATUS = _call("planner_status", row=types.PlannerStatus)

# statistics
METRICS = _call("metrics", row=types.Sample)
THROUGHPUT = _call("throughput", optional={**_QUEUE, "p_minutes": "integer"}, row=types.Minute)

# about the whole database
SCHEMA_VERSION = Call("schema_version", _NONE, row=types.SchemaVersion, columns=_columns(types.SchemaVersion))

LIMIT_TIME = "select pg_catalog.set_config('statement_timeout', %(milliseconds)s, true)"
"""Ends every later statement of the transaction that takes longer."""

CALLS: tuple[Call, ...] = tuple(row for row in globals().values() if isinstance(row, Call))
"""All of the above."""
