"""What makes each event happen, and what it then says: a case for each code."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step, sweeps
from tests.sql.api import Api, Node, token
from tests.sql.test_installation import become_another_server

MINUTE = timedelta(minutes=1)
TURN = timedelta(seconds=11)  # after it reap looks at nodes and classes again
MOST_TURNS = 20
_WATCHED_ALL = "select watched_class = 0 from hwqueue.reap_cursor order by version desc limit 1"
FIND_OUT = """
  select hwqueue.cache_class_fleets(array_agg(c.class_id), hwqueue.clock())
  from hwqueue.placement_class c
"""
WATCH_THE_LAST = """
  select hwqueue.watch_classes(9223372036854775807, 1, d, t.now)
  from hwqueue.clock() t(now), hwqueue.scan_nodes(t.now) d
"""
NO_EXECUTE = {"key": "k", "effect": "no_execute"}
NOWHERE = {"require": [{"label": "nowhere", "op": "in", "values": [1]}]}


@dataclass
class Stage:
    """What a case works on."""

    api: Api
    clock: Clock

    def reap(self) -> None:
        """Reap, with a look at nodes and all classes: it takes turns where time is short."""
        for _ in range(MOST_TURNS):
            self.clock.advance(TURN)
            self.api.rows("reap", limit=100_000)
            if self.api.conn.execute(_WATCHED_ALL).fetchone() == (True,):
                return
        raise AssertionError(f"reap has not looked at all classes in {MOST_TURNS} turns")

    def running(self, node: Node | None = None, **options: Any) -> tuple[str, Node, Row]:
        """A queue, a node, and a lease that runs on it."""
        queue, node = self.api.queue(claim_timeout=60), node or self.api.node()
        return queue, node, self.api.running(queue, node, **options)

    def silent(self) -> Node:
        """A node that reap has found silent."""
        node = self.api.node()
        self.clock.advance(MINUTE)
        self.reap()
        return node

    def unmatched(self) -> tuple[str, UUID, int]:
        """A queue, and a lease and its class that reap has found no node for."""
        queue = self.api.queue()
        lease = self.api.spawn(queue, placement=NOWHERE)
        self.reap()
        class_id = self.api.one("select class_id from hwqueue.lease where lease_id = %s", lease)
        return queue, lease, class_id


Call = tuple[str, Row]
Case = Callable[[Stage], Row]
"""Makes an event happen, and returns some of the event's columns."""


@dataclass
class Subject:
    """What calls are about: arguments that name it, columns of its events, and among them details."""

    named: Row
    told: Row = field(default_factory=dict)
    detail: Row = field(default_factory=dict)


def once(function: str, /, **arguments: Any) -> tuple[Call]:
    return ((function, arguments),)


def twice(function: str, /, **arguments: Any) -> tuple[Call, Call]:
    """A call and the same again, which is no news."""
    return (function, arguments), (function, arguments)


def after(
    subject: Callable[[Stage], Subject],
    *calls: Call,
    message: str | None = None,
    detail: Row | None = None,
    **told: Any,
) -> Case:
    """A case of calls about something new, and what its event says beside that."""

    def case(stage: Stage) -> Row:
        it = subject(stage)
        for function, arguments in calls:
            stage.api.rows(function, **it.named, **arguments)
        expected = it.told | told
        if message is not None:
            expected["message"] = message.format(*it.named.values())
        if it.detail or detail is not None:
            expected["detail"] = it.detail | (detail or {})
        return expected

    return case


def of_node(node: Node, **more: Any) -> Row:
    """Columns of an event about a node."""
    return {"node_id": node.node_id, "lease_id": None, "queue": None} | more


def nothing(_stage: Stage) -> Subject:
    """Nothing: calls about the installation."""
    return Subject({}, {"queue": None})


def a_node(stage: Stage) -> Subject:
    node = stage.api.node()
    return Subject({"node": node.node_id}, of_node(node))


def a_node_at_work(stage: Stage) -> Subject:
    _, node, _ = stage.running()
    return Subject({"node": node.node_id}, of_node(node))


def a_claim(stage: Stage) -> Subject:
    queue, node, claim = stage.running()
    told = {"lease_id": claim["lease_id"], "node_id": node.node_id, "queue": queue}
    return Subject({"node": node.node_id}, told)


def a_lease(stage: Stage) -> Subject:
    lease = stage.api.spawn(queue := stage.api.queue())
    return Subject({"lease": lease}, {"lease_id": lease, "queue": queue})


def a_queue(stage: Stage) -> Subject:
    queue = stage.api.queue()
    return Subject({"queue": queue}, {"queue": queue})


def a_queue_at_work(stage: Stage) -> Subject:
    queue, _, _ = stage.running()
    return Subject({"queue": queue}, {"queue": queue})


def a_task(stage: Stage) -> Subject:
    task = f"task-{uuid4()}"
    return Subject({"task": task}, {"lease_id": None}, {"task": task})


def named(key: str, *calls: Call) -> Callable[[Stage], Subject]:
    """Something with a name, by the key that events tell it under; made by these calls."""

    def make(stage: Stage) -> Subject:
        name = f"told-{uuid4()}"
        for function, arguments in calls:
            stage.api.rows(function, name=name, **arguments)
        return Subject({"name": name}, {}, {key: name})

    return make


def a_run(*steps: Row, failed: bool = False) -> Callable[[Stage], Subject]:
    """A run of these steps, or of one."""

    def make(stage: Stage) -> Subject:
        flow = Flow(stage.api, [*steps] or [step("a")])
        if failed:
            flow.fail("a")
        return Subject({"run": flow.run}, {}, {"run_id": str(flow.run), "workflow": flow.queue})

    return make


TAINT = once("taint_node", taint=NO_EXECUTE)
ATTEST = once("attest_node", domain="d")
SET_TASK = {"defaults": {"priority": 3}}
SERVICE = {"service": uuid4(), "policy": {"failure_domain": "node"}}
HOOK = {"url": "https://h.example/", "options": {"tenant": "a"}}
a_token = named("token", *once("create_token", secret_sha256=b"a" * 32, role="viewer"))
a_webhook = named("webhook", *once("set_webhook", url="https://hooks.example/"))


def _a_schedule(stage: Stage) -> Subject:
    """Every ten minutes, and no other one."""
    for row in stage.api.rows("list_schedules"):
        stage.api.rows("drop_schedule", name=row["name"])
    name, spec = f"told-{uuid4()}", {"every": 600, "queue": stage.api.queue(), "task": "t"}
    stage.api.rows("create_schedule", name=name, spec=spec)
    return Subject({"name": name}, {"message": f"schedule {name}"})


NAMED = once("register_node", spec={"name": "told", "instance_id": "first"})
ANOTHER = once("register_node", spec={"name": "told", "instance_id": "second"})

CASES: dict[str, Case] = {
    "node_registered": after(a_node, *NAMED),
    "node_superseded": after(
        a_node_at_work, *ANOTHER, detail={"node_epoch": 2, "instance_id": "second", "claims_ended": 1}
    ),
    "node_trust_suspended": after(
        a_node,
        *ATTEST,
        *ANOTHER,
        *once("register_node", spec={"name": "told", "instance_id": "third"}),
        detail={"domains": ["d"], "instance_id": "second"},
    ),
    "node_confirmed": after(
        a_node, *ATTEST, *ANOTHER, *twice("confirm_node"), detail={"domains": ["d"], "instance_id": "second"}
    ),
    "node_deregistered": after(a_node_at_work, *once("deregister_node"), detail={"claims_ended": 1}),
    "node_cordoned": after(a_node, *NAMED, *twice("cordon_node"), message="node told is cordoned"),
    "node_uncordoned": after(a_node, *once("drain_node"), *twice("uncordon_node")),
    "node_drained": after(a_node, *once("drain_node"), detail={"drain_by": None}),
    "node_tainted": after(a_node, *TAINT, *TAINT),
    "node_untainted": after(
        a_node, *TAINT, *twice("untaint_node", key="k"), detail={"key": "k", "effect": None}
    ),
    "node_reserved": after(a_node, *twice("set_node_tenants", tenants=["film"])),
    "node_attested": after(a_node, *ATTEST, detail={"domain": "d", "expires_at": None}),
    "node_attestation_revoked": after(a_node, *ATTEST, *twice("revoke_attestation", domain="d")),
    "lease_cancelled": after(
        a_lease, *twice("cancel_lease", reason="not needed"), message="cancelled while it waited: not needed"
    ),
    "lease_requeued": after(
        a_lease, *once("cancel_lease"), *once("requeue_lease"), detail={"from": "cancelled"}
    ),
    "lease_updated": after(
        a_lease,
        *once("update_lease", changes={"priority": 3, "labels": {}}),
        message="changed: labels, priority",
    ),
    "task_set": after(a_task, *twice("set_task", **SET_TASK), detail={"from": None, "to": {"priority": 3}}),
    "task_dropped": after(
        a_task, *once("set_task", **SET_TASK), *once("drop_task"), detail={"from": {"priority": 3}}
    ),
    "claim_stop_requested": after(a_claim, *twice("drain_node", deadline=MINUTE)),
    "queue_dropped": after(a_queue_at_work, *once("drop_queue", force=True), detail={"claims": 1}),
    "queue_policy_set": after(
        a_queue,
        *twice("set_queue_policy", policy={"patience": 5, "max_attempts": 5}),
        detail={"from": {"patience": 2}, "to": {"patience": 5}},
    ),
    "queue_paused": after(a_queue, *twice("pause_queue")),
    "queue_resumed": after(a_queue, *once("pause_queue"), *twice("resume_queue")),
    "service_policy_set": after(
        nothing,
        *twice("set_service_policy", **SERVICE),
        message=f"service {SERVICE['service']}: failure_domain changed",
        detail={"from": {"failure_domain": None}, "to": {"failure_domain": "node"}},
    ),
    "node_expiry_set": after(
        nothing,
        *twice("set_node_expiry", after=timedelta(days=30)),
        detail={"from": "168:00:00", "to": "720:00:00"},
    ),
    "token_created": after(
        named("token"),
        *once("create_token", secret_sha256=b"b" * 32, role="viewer"),
        message="token {} for role viewer",
        detail={"role": "viewer", "tenant": None, "expires_at": None, "nodes": None},
    ),
    "token_revoked": after(a_token, *twice("revoke_token"), message="token {}"),
    "webhook_set": after(
        named("webhook"), *twice("set_webhook", **HOOK), message="webhook {} is new", detail={"tenant": "a"}
    ),
    "webhook_dropped": after(a_webhook, *twice("drop_webhook")),
    "webhook_paused": after(a_webhook, *twice("pause_webhook"), detail={"reason": "asked"}),
    "webhook_resumed": after(a_webhook, *once("pause_webhook"), *twice("resume_webhook")),
    "schedule_dropped": after(_a_schedule, *twice("drop_schedule")),
    "schedule_paused": after(_a_schedule, *twice("pause_schedule", reason="no")),
    "schedule_resumed": after(_a_schedule, *once("pause_schedule"), *twice("resume_schedule")),
    "workflow_run_failed": after(
        a_run(failed=True), detail={"reason": "step_failed", "detail": {"step": "a"}}
    ),
    "workflow_run_cancelled": after(
        a_run(),
        *twice("cancel_workflow_run", reason="no"),
        detail={"detail": {"by": "postgres", "reason": "no"}},
    ),
    "workflow_run_paused": after(a_run(), *twice("pause_workflow_run")),
    "workflow_run_resumed": after(a_run(), *once("pause_workflow_run"), *twice("resume_workflow_run")),
    "workflow_run_retried": after(
        a_run(failed=True), *once("retry_workflow_run"), detail={"from": "failed", "steps": 1}
    ),
    "workflow_run_updated": after(
        a_run(step("a"), step("b", "a")),
        *twice("update_steps", changes={"app_version": "2.0"}),
        detail={"steps": 1, "changes": ["app_version"]},
    ),
    "workflow_step_skipped": after(a_run(), *once("skip_step", step="a"), detail={"step": "a"}),
}


def tells(code: str) -> Callable[[Case], Case]:
    """Register a case that is more than calls about one thing."""

    def register(case: Case) -> Case:
        CASES[code] = case
        return case

    return register


@tells("node_handed_over")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    before = stage.api.used(node)["login"]
    for _ in range(2):
        stage.api.rows("hand_over_node", node=node.node_id, login="hwqueue_worker")
    return of_node(node, detail={"from": before, "to": "hwqueue_worker"})


@tells("node_silent")
def _(stage: Stage) -> Row:
    node = stage.silent()
    stage.reap()
    return of_node(node)


@tells("node_back")
def _(stage: Stage) -> Row:
    node = stage.silent()
    stage.api.rows("heartbeat_node", **node.who)
    for _ in range(2):
        stage.reap()
    return of_node(node)


@tells("lease_failed")
def _(stage: Stage) -> Row:
    queue, node, claim = stage.running()
    stage.api.rows("fail_lease", **token(claim), error={"message": "no disk"}, retry=False)
    detail = {"attempt": 1, "outcome": "failed", "error": "no disk"}
    return {"lease_id": claim["lease_id"], "node_id": node.node_id, "queue": queue, "detail": detail}


@tells("lease_deadline_exceeded")
def _(stage: Stage) -> Row:
    queue = stage.api.queue()
    lease = stage.api.spawn(queue, deadline=stage.clock.now().isoformat())
    stage.clock.advance(MINUTE)
    stage.api.rows("reap")
    return {"lease_id": lease, "queue": queue}


@tells("lease_deleted")
def _(stage: Stage) -> Row:
    lease = stage.api.spawn(queue := stage.api.queue())
    stage.api.rows("cancel_lease", lease=lease)
    stage.api.rows("delete_leases", filter={"queue": queue})
    return {"lease_id": lease, "queue": queue, "detail": {"from": "cancelled"}}


@tells("lease_adopted")
def _(stage: Stage) -> Row:
    queue, node = stage.api.queue(), stage.api.node()
    row = stage.api.row("adopt_lease", queue=queue, node=node.node_id, task="t")
    detail = {"claim_token": str(row["claim_token"])}
    return {"lease_id": row["lease_id"], "node_id": node.node_id, "detail": detail}


@tells("claim_expired")
def _(stage: Stage) -> Row:
    queue, node, claim = stage.running()
    stage.clock.advance(MINUTE)
    stage.api.rows("reap")
    return {"lease_id": claim["lease_id"], "node_id": node.node_id, "queue": queue}


@tells("queue_created")
def _(stage: Stage) -> Row:
    queue = stage.api.queue(max_attempts=3)
    stage.api.rows("create_queue", queue=queue, policy={"max_attempts": 3})
    return {"queue": queue, "detail": {"max_attempts": 3}}


@tells("class_unmatched")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    queue, _, class_id = stage.unmatched()
    stage.api.rows("heartbeat_node", **node.who)
    stage.reap()
    return {"queue": queue, "class_id": class_id}


@tells("class_unmatched_over")
def _(stage: Stage) -> Row:
    queue, _, class_id = stage.unmatched()
    stage.api.node(labels={"nowhere": 1})
    for _ in range(2):
        stage.reap()
    return {"queue": queue, "class_id": class_id}


@tells("term_published")
def _(stage: Stage) -> Row:
    queue = stage.api.queue()
    selector = {"labels": {"app": "told"}}
    away = {"leases": selector, "domain": "rack", "away": True}
    stage.api.spawn(queue, placement={"require": [away]})
    stage.api.settle_terms()
    return {"queue": None}


@tells("generation_raised")
def _(stage: Stage) -> Row:
    become_another_server(stage.api.conn, "timeline")
    for _ in range(2):
        stage.api.rows("reap")
    return {"queue": None}


@tells("webhook_rotated")
def _(stage: Stage) -> Row:
    hook = a_webhook(stage).named
    stage.api.rows("rotate_webhook", **hook)
    return {"message": f"webhook {hook['name']} has another secret"}


@tells("usage_stale")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    stage.api.rows("set_tenant", name=name, changes={"pending": 9})
    for wait in (0, 11, 1):
        stage.clock.advance(timedelta(seconds=wait))
        stage.api.rows("reap", limit=100_000)
    stage.api.rows("drop_tenant", name=name)
    return {"queue": None}


@tells("tenant_set")
@tells("tenant_granted")
@tells("tenant_revoked")
@tells("tenant_dropped")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    login = {"login": "hwqueue_tenants", "tenant": name}
    for _ in range(2):
        stage.api.rows("grant_tenant", **login)
    for _ in range(2):
        stage.api.rows("revoke_tenant", **login)
    for _ in range(2):
        stage.api.rows("set_tenant", name=name, changes={"tier": "scavenger"})
    for _ in range(2):
        stage.api.rows("drop_tenant", name=name)
    return {"queue": None}


@tells("limit_set")
@tells("limit_throttled")
@tells("limit_dropped")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    for _ in range(2):
        stage.api.rows("create_limit", name=name, spec={"slots": 2})
        stage.api.rows("set_limit", name=name, changes={"slots": 2})  # as it is
    stage.api.rows("throttle_limit", name=name, retry_after=MINUTE)
    for _ in range(2):
        stage.api.rows("drop_limit", name=name)
    return {"queue": None}


@tells("schedule_set")
def _(stage: Stage) -> Row:
    schedule = _a_schedule(stage).named["name"]
    for _ in range(2):
        stage.api.rows("set_schedule", name=schedule, changes={"missed": "latest"})  # as it is
    return {"message": f"schedule {schedule} is created"}


@tells("schedule_missed")
def _(stage: Stage) -> Row:
    schedule = _a_schedule(stage).named["name"]
    stage.clock.advance(30 * MINUTE)
    stage.api.rows("reap")
    return {"message": f"schedule {schedule} missed 2 times"}


@tells("schedule_failed")
def _(stage: Stage) -> Row:
    _a_schedule(stage)
    [row] = stage.api.rows("list_schedules")
    queue = row["spec"]["queue"]
    stage.api.rows("drop_queue", queue=queue)
    stage.clock.advance(10 * MINUTE)
    stage.api.rows("reap")
    return {"queue": queue}


@tells("positions_repaired")
def _(stage: Stage) -> Row:
    conn = stage.api.conn
    conn.execute("update hwqueue.position_horizon set drawn_position = 1000000000")
    for _ in range(2):
        stage.api.rows("reap")
    return {"queue": None}


@tells("event_retention_set")
def _(stage: Stage) -> Row:
    assert [stage.api.value("set_event_retention", days=9) for _ in range(2)] == [14, 9]
    return {"queue": None, "detail": {"from": 14, "to": 9}}


@tells("workflow_defined")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    for _ in range(2):
        stage.api.rows("define_workflow", spec={"name": name, "steps": [step("a")]})
    return {"queue": None, "detail": {"workflow": name, "version": 1}}


@tells("workflow_wait_timed_out")
def _(stage: Stage) -> Row:
    waits = {"name": "w", "kind": "wait", "signal": "go", "timeout": 0, "on_timeout": "skip"}
    flow = Flow(stage.api, [step("a"), waits])
    sweeps(stage.api, 2)
    its = {"run_id": str(flow.run), "workflow": flow.queue, "step": "w", "signal": "go"}
    return {"detail": its}


@tells("upkeep_postponed")
def _(stage: Stage) -> Row:
    for _ in range(2):
        stage.api.conn.execute(
            "select hwqueue.postpone('reap terms', null, '55P03', 'waited', hwqueue.clock())"
        )
    stage.api.conn.execute("delete from hwqueue.postponed")
    return {"queue": None}


def _everywhere(stage: Stage) -> Row:
    """Spawn an everywhere task and stop it, which tells of each once; what the event says."""
    queue = stage.api.queue()
    row = stage.api.row("spawn_everywhere", queue=queue, task="agent")
    stage.api.rows("reap")
    stage.api.value("stop_everywhere", everywhere=row["everywhere_id"])
    stage.api.value("stop_everywhere", everywhere=row["everywhere_id"], running="stop")
    stage.api.reap()
    detail = {"everywhere_id": str(row["everywhere_id"]), "mode": "always"}
    return {"queue": queue, "lease_id": None, "node_id": None, "detail": detail}


CASES |= dict.fromkeys(("everywhere_spawned", "everywhere_stopping", "everywhere_stopped"), _everywhere)
