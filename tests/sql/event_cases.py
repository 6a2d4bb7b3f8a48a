"""What makes each event happen, and what it then says: a case for each code."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step
from tests.sql.api import Api, Node, token
from tests.sql.test_current_generation import become_another_server
from tests.sql.test_terms import settle_terms

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
        row = self.api.conn.execute(
            "select class_id from hwqueue.lease where lease_id = %s", [lease]
        ).fetchone()
        assert row is not None
        return queue, lease, row[0]


Case = Callable[[Stage], Row]
CASES: dict[str, Case] = {}


def tells(code: str) -> Callable[[Case], Case]:
    """Register a case: it makes the event happen and gives some of the event's columns."""

    def register(case: Case) -> Case:
        CASES[code] = case
        return case

    return register


def of_node(node: Node, **more: Any) -> Row:
    """Columns of an event about a node."""
    return {"node_id": node.node_id, "lease_id": None, "queue": None} | more


@tells("node_registered")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.node(node.node_id, name=node.name)  # the same instance: no news
    return of_node(node)


@tells("node_superseded")
def _(stage: Stage) -> Row:
    _, node, _ = stage.running()
    stage.api.node(node.node_id, name=node.name, instance_id="second")
    return of_node(node, detail={"node_epoch": 2, "instance_id": "second", "claims_ended": 1})


@tells("node_deregistered")
def _(stage: Stage) -> Row:
    _, node, _ = stage.running()
    stage.api.rows("deregister_node", node=node.node_id)
    return of_node(node, detail={"claims_ended": 1})


@tells("node_cordoned")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    for _ in range(2):
        stage.api.rows("cordon_node", node=node.node_id)
    return of_node(node, message=f"node {node.name} is cordoned")


@tells("node_uncordoned")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.rows("drain_node", node=node.node_id)
    for _ in range(2):
        stage.api.rows("uncordon_node", node=node.node_id)
    return of_node(node)


@tells("node_drained")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.rows("drain_node", node=node.node_id)
    return of_node(node, detail={"drain_by": None})


@tells("node_tainted")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    for _ in range(2):
        stage.api.rows("taint_node", node=node.node_id, taint=NO_EXECUTE)
    return of_node(node)


@tells("node_untainted")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.rows("taint_node", node=node.node_id, taint=NO_EXECUTE)
    for _ in range(2):
        stage.api.rows("untaint_node", node=node.node_id, key="k")
    return of_node(node, detail={"key": "k", "effect": None})


@tells("node_attested")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.rows("attest_node", node=node.node_id, domain="d")
    return of_node(node, detail={"domain": "d", "expires_at": None})


@tells("node_attestation_revoked")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.rows("attest_node", node=node.node_id, domain="d")
    for _ in range(2):
        stage.api.rows("revoke_attestation", node=node.node_id, domain="d")
    return of_node(node)


@tells("node_trust_suspended")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.rows("attest_node", node=node.node_id, domain="d")
    for instance in ("second", "third"):
        stage.api.node(node.node_id, name=node.name, instance_id=instance)
    return of_node(node, detail={"domains": ["d"], "instance_id": "second"})


@tells("node_confirmed")
def _(stage: Stage) -> Row:
    node = stage.api.node()
    stage.api.rows("attest_node", node=node.node_id, domain="d")
    stage.api.node(node.node_id, name=node.name, instance_id="second")
    for _ in range(2):
        stage.api.rows("confirm_node", node=node.node_id)
    return of_node(node, detail={"domains": ["d"], "instance_id": "second"})


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


@tells("lease_cancelled")
def _(stage: Stage) -> Row:
    lease = stage.api.spawn(queue := stage.api.queue())
    for _ in range(2):
        stage.api.rows("cancel_lease", lease=lease, reason="not needed")
    return {
        "lease_id": lease,
        "queue": queue,
        "message": "cancelled while it waited: not needed",
    }


@tells("lease_failed")
def _(stage: Stage) -> Row:
    queue, node, claim = stage.running()
    stage.api.rows("fail_lease", **token(claim), error={"message": "no disk"}, retry=False)
    detail = {"attempt": 1, "outcome": "failed", "error": "no disk"}
    return {
        "lease_id": claim["lease_id"],
        "node_id": node.node_id,
        "queue": queue,
        "detail": detail,
    }


@tells("lease_deadline_exceeded")
def _(stage: Stage) -> Row:
    queue = stage.api.queue()
    lease = stage.api.spawn(queue, deadline=stage.clock.now().isoformat())
    stage.clock.advance(MINUTE)
    stage.api.rows("reap")
    return {"lease_id": lease, "queue": queue}


@tells("task_set")
def _(stage: Stage) -> Row:
    task = f"task-{stage.api.queue()}"
    stage.api.rows("set_task", task=task, defaults={"priority": 3})
    stage.api.rows("set_task", task=task, defaults={"priority": 3})  # as it was: no news
    return {"lease_id": None, "detail": {"task": task, "from": None, "to": {"priority": 3}}}


@tells("task_dropped")
def _(stage: Stage) -> Row:
    task = f"task-{stage.api.queue()}"
    stage.api.rows("set_task", task=task, defaults={"priority": 3})
    stage.api.rows("drop_task", task=task)
    return {"lease_id": None, "detail": {"task": task, "from": {"priority": 3}}}


@tells("lease_requeued")
def _(stage: Stage) -> Row:
    lease = stage.api.spawn(queue := stage.api.queue())
    stage.api.rows("cancel_lease", lease=lease)
    stage.api.rows("requeue_lease", lease=lease)
    return {"lease_id": lease, "queue": queue, "detail": {"from": "cancelled"}}


@tells("lease_deleted")
def _(stage: Stage) -> Row:
    lease = stage.api.spawn(queue := stage.api.queue())
    stage.api.rows("cancel_lease", lease=lease)
    stage.api.rows("delete_leases", filter={"queue": queue})
    return {"lease_id": lease, "queue": queue, "detail": {"from": "cancelled"}}


@tells("lease_updated")
def _(stage: Stage) -> Row:
    lease = stage.api.spawn(queue := stage.api.queue())
    stage.api.rows("update_lease", lease=lease, changes={"priority": 3, "labels": {}})
    return {"lease_id": lease, "queue": queue, "message": "changed: labels, priority"}


@tells("lease_adopted")
def _(stage: Stage) -> Row:
    queue, node = stage.api.queue(), stage.api.node()
    row = stage.api.row("adopt_lease", queue=queue, node=node.node_id, task="t")
    return {
        "lease_id": row["lease_id"],
        "node_id": node.node_id,
        "detail": {"claim_token": str(row["claim_token"])},
    }


@tells("claim_expired")
def _(stage: Stage) -> Row:
    queue, node, claim = stage.running()
    stage.clock.advance(MINUTE)
    stage.api.rows("reap")
    return {"lease_id": claim["lease_id"], "node_id": node.node_id, "queue": queue}


@tells("claim_stop_requested")
def _(stage: Stage) -> Row:
    queue, node, claim = stage.running()
    for _ in range(2):
        stage.api.rows("drain_node", node=node.node_id, deadline=MINUTE)
    return {"lease_id": claim["lease_id"], "node_id": node.node_id, "queue": queue}


@tells("queue_created")
def _(stage: Stage) -> Row:
    queue = stage.api.queue(max_attempts=3)
    stage.api.rows("create_queue", queue=queue, policy={"max_attempts": 3})
    return {"queue": queue, "detail": {"max_attempts": 3}}


@tells("queue_dropped")
def _(stage: Stage) -> Row:
    queue, _, _ = stage.running()
    stage.api.rows("drop_queue", queue=queue, force=True)
    return {"queue": queue, "detail": {"claims": 1}}


@tells("queue_policy_set")
def _(stage: Stage) -> Row:
    queue = stage.api.queue()
    for _ in range(2):
        policy = {"patience": 5, "max_attempts": 5}
        stage.api.rows("set_queue_policy", queue=queue, policy=policy)
    return {"queue": queue, "detail": {"from": {"patience": 2}, "to": {"patience": 5}}}


@tells("queue_paused")
def _(stage: Stage) -> Row:
    queue = stage.api.queue()
    for _ in range(2):
        stage.api.rows("pause_queue", queue=queue)
    return {"queue": queue}


@tells("queue_resumed")
def _(stage: Stage) -> Row:
    queue = stage.api.queue()
    stage.api.rows("pause_queue", queue=queue)
    for _ in range(2):
        stage.api.rows("resume_queue", queue=queue)
    return {"queue": queue}


@tells("service_policy_set")
def _(stage: Stage) -> Row:
    for _ in range(2):
        stage.api.rows("set_service_policy", service=SERVICE, policy={"failure_domain": "node"})
    changed = {"from": {"failure_domain": None}, "to": {"failure_domain": "node"}}
    return {"message": f"service {SERVICE}: failure_domain changed", "detail": changed}


SERVICE = uuid4()


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
    settle_terms(stage.api)
    return {"queue": None}


@tells("generation_raised")
def _(stage: Stage) -> Row:
    become_another_server(stage.api.conn, "timeline")
    for _ in range(2):
        stage.api.rows("reap")
    return {"queue": None}


@tells("event_retention_set")
def _(stage: Stage) -> Row:
    for _ in range(2):
        assert stage.api.value("set_event_retention", days=9) in (14, 9)
    stage.api.rows("set_event_retention", days=9)
    return {"queue": None, "detail": {"from": 14, "to": 9}}


@tells("node_expiry_set")
def _(stage: Stage) -> Row:
    for _ in range(2):
        stage.api.rows("set_node_expiry", after=timedelta(days=30))
    return {"queue": None, "detail": {"from": "168:00:00", "to": "720:00:00"}}


@tells("token_created")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    stage.api.rows("create_token", name=name, secret_sha256=uuid4().bytes * 2, role="viewer")
    detail = {"token": name, "role": "viewer", "tenant": None, "expires_at": None}
    return {"message": f"token {name} for role viewer", "detail": detail}


@tells("token_revoked")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    stage.api.rows("create_token", name=name, secret_sha256=uuid4().bytes * 2, role="viewer")
    for _ in range(2):
        stage.api.rows("revoke_token", name=name)
    return {"message": f"token {name}", "detail": {"token": name}}


def a_webhook(stage: Stage) -> str:
    """A new webhook; its name."""
    name = f"told-{uuid4()}"
    stage.api.rows("set_webhook", name=name, url="https://hooks.example/")
    return name


@tells("webhook_set")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    for _ in range(2):
        stage.api.rows("set_webhook", name=name, url="https://h.example/", options={"tenant": "a"})
    return {"message": f"webhook {name} is new", "detail": {"webhook": name, "tenant": "a"}}


@tells("webhook_dropped")
def _(stage: Stage) -> Row:
    name = a_webhook(stage)
    for _ in range(2):
        stage.api.rows("drop_webhook", name=name)
    return {"detail": {"webhook": name}}


@tells("webhook_paused")
def _(stage: Stage) -> Row:
    name = a_webhook(stage)
    for _ in range(2):
        stage.api.rows("pause_webhook", name=name)
    return {"detail": {"webhook": name, "reason": "asked"}}


@tells("webhook_resumed")
def _(stage: Stage) -> Row:
    name = a_webhook(stage)
    stage.api.rows("pause_webhook", name=name)
    for _ in range(2):
        stage.api.rows("resume_webhook", name=name)
    return {"detail": {"webhook": name}}


@tells("webhook_rotated")
def _(stage: Stage) -> Row:
    name = a_webhook(stage)
    stage.api.rows("rotate_webhook", name=name)
    return {"message": f"webhook {name} has another secret"}


@tells("positions_repaired")
def _(stage: Stage) -> Row:
    conn = stage.api.conn
    conn.execute("update hwqueue.position_horizon set drawn_position = 1000000000")
    for _ in range(2):
        stage.api.rows("reap")
    return {"queue": None}


def _flow(stage: Stage, *steps: Row) -> tuple[Flow, Row]:
    """A run, and what its events say of it."""
    flow = Flow(stage.api, [*steps] or [step("a")])
    return flow, {"run_id": str(flow.run), "workflow": flow.queue}


@tells("workflow_defined")
def _(stage: Stage) -> Row:
    name = f"told-{uuid4()}"
    for _ in range(2):
        stage.api.rows("define_workflow", spec={"name": name, "steps": [step("a")]})
    return {"queue": None, "detail": {"workflow": name, "version": 1}}


@tells("workflow_run_failed")
def _(stage: Stage) -> Row:
    flow, its = _flow(stage)
    flow.fail("a")
    return {"detail": its | {"reason": "step_failed", "detail": {"step": "a"}}}


@tells("workflow_run_cancelled")
def _(stage: Stage) -> Row:
    flow, its = _flow(stage)
    for _ in range(2):
        stage.api.rows("cancel_workflow_run", run=flow.run, reason="no")
    return {"detail": its | {"detail": {"by": "postgres", "reason": "no"}}}


@tells("workflow_run_paused")
def _(stage: Stage) -> Row:
    flow, its = _flow(stage)
    for _ in range(2):
        stage.api.rows("pause_workflow_run", run=flow.run)
    return {"detail": its}


@tells("workflow_run_resumed")
def _(stage: Stage) -> Row:
    flow, its = _flow(stage)
    stage.api.rows("pause_workflow_run", run=flow.run)
    for _ in range(2):
        stage.api.rows("resume_workflow_run", run=flow.run)
    return {"detail": its}


@tells("workflow_run_retried")
def _(stage: Stage) -> Row:
    flow, its = _flow(stage)
    flow.fail("a")
    stage.api.rows("retry_workflow_run", run=flow.run)
    return {"detail": its | {"from": "failed", "steps": 1}}


@tells("workflow_run_updated")
def _(stage: Stage) -> Row:
    flow, its = _flow(stage, step("a"), step("b", "a"))
    for _ in range(2):
        stage.api.rows("update_steps", run=flow.run, changes={"app_version": "2.0"})
    return {"detail": its | {"steps": 1, "changes": ["app_version"]}}


@tells("workflow_wait_timed_out")
def _(stage: Stage) -> Row:
    waits = {"name": "w", "kind": "wait", "signal": "go", "timeout": 0, "on_timeout": "skip"}
    _, its = _flow(stage, step("a"), waits)
    for _ in range(2):
        stage.api.rows("advance_workflows")
    return {"detail": its | {"step": "w", "signal": "go"}}


@tells("workflow_step_skipped")
def _(stage: Stage) -> Row:
    flow, its = _flow(stage)
    stage.api.rows("skip_step", run=flow.run, step="a")
    return {"detail": its | {"step": "a"}}


@tells("upkeep_postponed")
def _(stage: Stage) -> Row:
    for _ in range(2):
        stage.api.conn.execute(
            "select hwqueue.postpone('reap terms', null, '55P03', 'waited', hwqueue.clock())"
        )
    stage.api.conn.execute("delete from hwqueue.postponed")
    return {"queue": None}
