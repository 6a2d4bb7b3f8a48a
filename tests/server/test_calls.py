"""Each route makes one call of the client with what it was sent, and answers what that returns."""

import dataclasses
import re
from typing import Any

import pytest

from hwqueue.client import AsyncClient, Client
from hwqueue.client._http import NODE_CALLS
from tests.faces import STEPS, WAITS, Json, Things, flat, note_calls
from tests.server.conftest import V1, Http
from tests.server.test_other_tenants import ROUTES

WHEN = "2999-01-01T00:00:00Z"
OURS = {"queue": "{queue}"}
WEST = {"affinity_tags": {"zone": "west"}}
FAILED = OURS | {"state": "failed"}
LEASE = {"task": "t", "params": {"n": 1}, "options": {"priority": 1}}
MEMBERS = [LEASE | {"count": 2}]
PLACE = {"require": [{"tags": {"gpu": True}}]}
TAINT = {"key": "broken", "value": "fan", "effect": "no_schedule"}
HOOK = {"url": "https://hooks.example/", "codes": ["lease_failed"], "labels": {"app": "db"}}
# The call, the route, and what is sent: a body, or what stands behind the path. The call is given this
# and what the path names, in these words; or else the row says in which.
CALLS: list[tuple[Any, ...]] = [
    (
        "spawn_lease",
        "POST /leases",
        OURS | {"task": "t", "params": 7, "options": {"delay": 60}},
    ),
    ("spawn_leases", "POST /leases/batch", OURS | {"leases": [LEASE]}),
    ("list_leases", "GET /leases", OURS | {"state": "failed", "task": "t", "before": "{lease}", "limit": 2}),
    ("list_leases", "GET /leases", OURS | {"idempotency_key": "k", "tenant": "film"}),
    ("list_leases", "GET /leases", {"node_id": "{node}", "service_id": "{lease}", "error_type": "Odd"}),
    ("list_leases", "GET /leases", {"created_from": WHEN, "created_before": WHEN}),
    ("list_leases", "GET /leases", {"finished_from": WHEN, "finished_before": WHEN}),
    ("list_leases", "GET /leases", {"label": ["a=b", "c=x=y"]}, {"labels": {"a": "b", "c": "x=y"}}),
    ("count_page", "POST /leases/count", {"filter": FAILED, "states": ["failed"], "limit": 2}),
    ("change_page cancel", "POST /leases/cancel", {"filter": OURS, "reason": "why"}),
    ("change_page requeue", "POST /leases/requeue", {"filter": FAILED}),
    (
        "change_page update",
        "POST /leases/update",
        {"filter": OURS, "changes": {"priority": 7}},
    ),
    ("change_page delete", "POST /leases/delete", {"filter": FAILED | {"labels": {"a": "b"}}, "limit": 3}),
    ("get_lease", "GET /leases/{lease}", {}),
    ("update_lease", "PATCH /leases/{lease}", {"labels": None, "available_at": WHEN}),
    ("cancel_lease", "POST /leases/{lease}/cancel", {"reason": "typo"}),
    ("requeue_lease", "POST /leases/{failed}/requeue", {}),
    ("signal_lease", "POST /leases/{lease}/signals/{signal}", {"payload": {"n": 7}, "key": "k"}),
    ("lease_checkpoints", "GET /leases/{lease}/checkpoints", {"limit": 5}),
    ("lease_history", "GET /leases/{failed}/history", {}),
    ("lease_logs", "GET /leases/{lease}/logs", {"attempt": 1, "last": True, "limit": 5}),
    ("explain_lease", "GET /leases/{lease}/explanation", {}),
    ("explain_class", "GET /classes/{class_id}/explanation", {}),
    ("preview_preemption", "GET /leases/{lease}/preemption", {}),
    ("spawn_gang", "POST /gangs", OURS | {"members": MEMBERS, "options": {"together": ["rack"], "hold": 60}}),
    ("list_gangs", "GET /gangs", {"state": "waiting", "limit": 2}),
    ("list_gangs", "GET /gangs", {"before": f"{WHEN},{{gang}}"}, {"before": WHEN, "before_gang": "{gang}"}),
    ("what_if_gang", "POST /gangs/what-if", OURS | {"members": MEMBERS, "options": {"same": ["zone"]}}),
    ("get_gang", "GET /gangs/{gang}", {}),
    ("explain_gang", "GET /gangs/{gang}/explanation", {}),
    ("cancel_gang", "POST /gangs/{gang}/cancel", {"reason": "no"}),
    ("spawn_everywhere", "POST /everywhere", OURS | {"task": "t", "params": 7, "options": WEST}),
    ("list_everywhere", "GET /everywhere", {"state": "active", "limit": 1}),
    ("list_everywhere", "GET /everywhere", {"created_before": WHEN}, {"before": WHEN}),
    ("get_everywhere", "GET /everywhere/{everywhere}", {"after": "{node}", "limit": 5}),
    ("stop_everywhere", "POST /everywhere/{everywhere}/stop", {"running": "stop"}),
    ("define_workflow", "POST /workflows", {"name": "flow", "steps": STEPS}),
    ("list_workflows", "GET /workflows", {"after": "a", "limit": 1}),
    ("get_workflow", "GET /workflows/{workflow}", {"version": 1}),
    ("list_workflow_versions", "GET /workflows/{workflow}/versions", {}),
    ("check_workflow", "POST /workflows/check", {"spec": "{workflow}"}, {"workflow": "{workflow}"}),
    ("submit_workflow", "POST /workflows/{workflow}/runs", {"input": 7, "options": {"priority": 5, **WEST}}),
    ("submit_spec", "POST /runs", {"spec": {"name": "flow", "steps": WAITS}, "input": 7, "options": WEST}),
    (
        "list_workflow_runs",
        "GET /runs",
        {"state": "running", "is_nested": True, "before": "{run}", "limit": 2},
    ),
    (
        "list_workflow_runs",
        "GET /runs",
        {"workflow": "w", "parent_run_id": "{run}", "root_run_id": "{lease}"},
    ),
    ("list_workflow_runs", "GET /runs", {"submitted_from": WHEN, "submitted_before": WHEN}),
    (
        "list_workflow_runs",
        "GET /runs",
        {"label": "a=b", "tenant": "x"},
        {"labels": {"a": "b"}, "tenant": "x"},
    ),
    ("get_workflow_run", "GET /runs/{run}", {}),
    ("list_workflow_steps", "GET /runs/{run}/steps", {}),
    ("step_results", "GET /runs/{run}/steps/{step}/results", {"state": "running", "after": -2, "limit": 2}),
    ("list_run_signals", "GET /runs/{waits}/signals", {}),
    ("signal_workflow_run", "POST /runs/{waits}/signals/{signal}", {"payload": {"n": 7}, "key": "k"}),
    ("cancel_workflow_run", "POST /runs/{run}/cancel", {"reason": "no"}),
    ("pause_workflow_run", "POST /runs/{run}/pause", {}),
    ("resume_workflow_run", "POST /runs/{run}/resume", {}),
    ("retry_workflow_run", "POST /runs/{stopped}/retry", {"mode": "all", "input": {"n": 9}}),
    ("preview_retry", "POST /runs/{stopped}/retry/preview", {"steps": ["a"]}),
    ("update_steps", "POST /runs/{run}/update", {"changes": {"app_version": "2.0"}, "steps": ["b"]}),
    ("preview_update", "POST /runs/{run}/update/preview", {"changes": {"app_version": None}, "steps": ["b"]}),
    ("skip_step", "POST /runs/{run}/steps/{step}/skip", {"result": {"by": "hand"}, "reason": "known"}),
    ("list_queues", "GET /queues", {}),
    ("create_queue", "POST /queues", {"queue": "films/2030", "policy": {"retry": {"kind": "none"}}}),
    ("list_queues", "GET /queues/{queue}", {}),
    ("set_queue_policy", "PATCH /queues/{queue}/policy", {"claim_timeout": 90, "ageing_step": 0.5}),
    ("pause_queue", "POST /queues/{queue}/pause", {}),
    ("resume_queue", "POST /queues/{queue}/resume", {}),
    ("requeue_failed", "POST /queues/{queue}/requeue-failed", {"task": "draw", "since": WHEN, "limit": 1}),
    ("list_tasks", "GET /tasks", {}),
    ("set_task", "PUT /tasks/{task}", {"max_attempts": 1, "placement": PLACE}),
    ("drop_task", "DELETE /tasks/{task}", {}),
    ("list_nodes", "GET /nodes", {"name": "n", "after": "a", "limit": 2}),
    ("list_nodes", "GET /nodes/{node}", {}),
    ("cordon_node", "POST /nodes/{node}/cordon", {}),
    ("uncordon_node", "POST /nodes/{node}/uncordon", {}),
    ("drain_node", "POST /nodes/{node}/drain", {"deadline": 600}),
    ("deregister_node", "POST /nodes/{node}/deregister", {}),
    ("taint_node", "POST /nodes/{node}/taint", TAINT),
    ("untaint_node", "POST /nodes/{node}/untaint", {"key": "broken", "effect": "no_schedule"}),
    ("set_node_tenants", "PUT /nodes/{node}/tenants", {"tenants": ["film"], "stop": True}),
    ("hand_over_node", "POST /nodes/{node}/hand-over", {"login": "hwqueue_worker"}),
    ("match_page", "POST /match", OURS | {"placement": PLACE, "skip": 1, "limit": 5}),
    ("what_if", "POST /what-if", {"nodes": [{"labels": {"gpu": True}, "count": 2}]}),
    ("pending_reasons", "GET /pending", OURS | {"kind": "contended", "order": "oldest", "limit": 5}),
    ("queue_depth", "GET /queue-depth", OURS),
    ("throughput", "GET /throughput", OURS | {"minutes": 3}),
    ("fleet_history", "GET /fleet-history", {"kind": "gpus", "minutes": 3}),
    ("node_usage", "GET /node-usage", {"state": "live", "after": "a", "limit": 5}),
    ("planner_status", "GET /planner", {}),
    ("tag_distribution", "GET /labels", {"label": "gpu", "limit": 5}),
    ("placement_class_stats", "GET /classes", OURS | {"after": 1, "limit": 5}),
    ("list_events", "GET /events", {"code": ["queue_paused"], "actor": "ann", "after": 1, "limit": 5}),
    ("list_events", "GET /events", OURS | {"class_id": 7, "lease_id": "{lease}", "node_id": "{node}"}),
    ("list_events", "GET /events", {"since": WHEN, "until": WHEN, "before": 9}),
    ("set_tenant", "PATCH /tenants/{queue}", {"changes": {"tier": "scavenger"}}),
    ("list_tenants", "GET /tenants", {"after": "a", "limit": 5}),
    ("tenant_usage", "GET /tenant-usage", {"tenant": "film", "limit": 5}, {"name": "film", "limit": 5}),
    ("list_preemptions", "GET /preemptions", {"lease_id": "{lease}", "tenant": "film", "limit": 5}),
    (
        "grant_tenant",
        "PUT /logins/{login}/tenants/{queue}",
        {"rights": ["spawn"]},
    ),
    (
        "revoke_tenant",
        "DELETE /logins/{login}/tenants/{queue}",
        {},
    ),
    ("drop_tenant", "DELETE /tenants/{queue}", {}),
    ("list_webhooks", "GET /webhooks", {}),
    ("set_webhook", "PUT /webhooks/{webhook}", HOOK),
    ("drop_webhook", "DELETE /webhooks/{webhook}", {}),
    ("pause_webhook", "POST /webhooks/{webhook}/pause", {}),
    ("resume_webhook", "POST /webhooks/{webhook}/resume", {}),
    ("rotate_webhook", "POST /webhooks/{webhook}/rotate", {"keep": 60}),
    ("test_webhook", "POST /webhooks/{webhook}/test", {}),
    ("list_deliveries", "GET /webhooks/{webhook}/deliveries", {"state": "waiting", "before": "{lease}"}),
    ("redeliver", "POST /webhooks/{webhook}/redeliver", {"delivery_id": "{lease}"}, {"delivery": "{lease}"}),
]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Json, Any]]:
    """The calls of the server's clients."""
    return note_calls(AsyncClient, monkeypatch)


@pytest.mark.parametrize("row", CALLS, ids=lambda row: row[1])
async def test_a_route_makes_one_call(http: Http, sql: Client, queue: str, noted: Any, row: Any) -> None:
    call, route, sent, *told = row
    things = Things(sql, queue)
    method, path = route.format_map(things).split(" ")
    sent, told = things.filled(sent), things.filled(told)
    sends = {"params" if method == "GET" else "json": sent}
    response = await http.request(method, V1 + path, **sends)
    assert response.is_success, response.text
    [(given, returned), *_] = [rest for name, *rest in noted if name == call]
    named = [things[name] for name in re.findall(r"{(\w+)}", route)]
    left = {key: each for key, each in flat(given).items() if str(each) not in named and each != named}
    limit = left.pop("limit", 0) - sent.get("limit", 0)
    assert "limit" not in sent or limit in (0, 1)  # one more tells whether there is another page
    wanted = told[0] if told else sent
    assert left == flat(wanted, "limit") or [*left.values()] == [wanted]
    answer = response.json() if response.content else {}
    if isinstance(returned, str | int):
        assert returned in answer.values()
    if dataclasses.is_dataclass(returned):
        assert {field.name for field in dataclasses.fields(returned)} <= answer.keys()


async def test_a_tenant_has_any_name(http: Http) -> None:
    """That of all others, too, also as the cursor of a page."""
    for name in ("*", "Équipe du film"):
        response = await http.patch(f"{V1}/tenants/{name}", json={"changes": {"tier": "scavenger"}})
        assert response.json() == {"name": name, "spec": {"tier": "scavenger"}}
        assert (await http.get(f"{V1}/tenants", params={"after": name})).is_success
        assert (await http.delete(f"{V1}/tenants/{name}")).json() == {"name": name, "changed": True}


def test_every_route_is_tried() -> None:
    """But for streams, and for what has a file of its own here."""
    workers = "|".join(("register", "wait", *NODE_CALLS))
    elsewhere = re.compile(
        rf"/(limits|schedules|me|healthz|readyz|metrics|openapi.json)\b|/stream$|^{V1}/nodes/{{node_id}}/({workers})$"
    )
    routes = {f"{method} {path.removeprefix(V1)}" for method, path in ROUTES if not elsewhere.search(path)}
    tried = {route for _, route, *_ in CALLS}
    assert {re.sub(r"{\w+}", "", route) for route in tried} == {
        re.sub(r"{\w+}", "", route) for route in routes
    }


async def test_metrics(http: Http, queue: str) -> None:
    response = await http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "\nhwqueue_up 1.0\n" in response.text
    assert queue in response.text
    openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = await http.get("/metrics", headers=openmetrics)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    for version in ("x", "", "9.9.9", "1.0.0; escaping=x"):
        accept = {"Accept": f"application/openmetrics-text; version={version}"}
        response = await http.get("/metrics", headers=accept)
        assert response.status_code == 200, version
        assert "hwqueue_up 1" in response.text
