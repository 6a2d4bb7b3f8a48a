"""Functions that decide on what they read after their locks refuse other isolation levels."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.calls import TASK
from tests.sql.api import Api, read_refusal

ID = uuid4()
LEASE = {"lease": ID}
CLAIM = {"lease": ID, "token": 1}
NODE = {"node": ID}
EPOCH = {"node": ID, "epoch": 1}
ROUND = {"round": 1, "epoch": 1}
PLACES = {"places": [{"lease": str(ID), "node": str(ID)}]}
FILTER = {"filter": {"queue": "q"}}
REFUSING: dict[str, dict[str, Any]] = {
    "adopt_lease": {"queue": "q", "node": ID, "task": TASK},
    "attest_node": NODE | {"domain": "d"},
    "cancel_lease": LEASE,
    "cancel_leases": FILTER,
    "claim_task": EPOCH | {"queues": ["q"]},
    "complete_lease": CLAIM,
    "complete_leases": {"lease_ids": [], "tokens": []},
    "cordon_node": NODE,
    "delete_leases": FILTER,
    "deregister_node": NODE,
    "drain_node": NODE,
    "extend_claim": CLAIM | {"extend": None},
    "fail_lease": CLAIM | {"error": {}},
    "heartbeat_node": EPOCH,
    "lead_planner": {"holder": "me"},
    "prune": {},
    "reap": {},
    "register_node": {"node": ID, "spec": {}},
    "release_lease": CLAIM,
    "requeue_failed": {"queue": "q"},
    "requeue_lease": LEASE,
    "requeue_leases": FILTER,
    "note_room": ROUND | {"room": {"gpus": 1, "allocated": 0, "bound": 1}, "ttl": "1 s"},
    "reserve_gang": ROUND | {"gang": ID, "place": ""},
    "reserve_leases": ROUND | PLACES | {"hold": "1 s"},
    "set_prices": ROUND | {"queue": "q", "prices": {}, "ttl": "1 s"},
    "set_node_tenants": NODE | {"tenants": []},
    "set_service_policy": {"service": ID, "policy": {}},
    "revoke_attestation": NODE | {"domain": "d"},
    "settle_and_claim": EPOCH | {"settle": [], "queues": ["q"]},
    "taint_node": NODE | {"taint": {"key": "k", "effect": "no_execute"}},
    "uncordon_node": NODE,
    "untaint_node": NODE | {"key": "k"},
    "update_lease": LEASE | {"changes": {}},
    "update_leases": FILTER | {"changes": {}},
}
SERVING: dict[str, dict[str, Any]] = {
    "spawn_lease": {"queue": "q", "task": TASK},
    "spawn_leases": {"queue": "q", "leases": [{"task": TASK}]},
    **{function: {} for function in ("list_leases", "list_nodes", "list_queues")},
    **{function: {"placement": {}} for function in ("match_nodes", "match_page", "match_groups")},
    "assigned_leases": PLACES,
    "planner_rooms": {"gangs": [ID]},
    "planner_view": {"part": "nodes"},
    "service_policy": {"service": ID},
    "what_if": {"nodes": {}},
}
LEVELS = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


@pytest.fixture(autouse=True)
def _queue(api: Api) -> None:
    api.rows("create_queue", queue="q")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.thorough
def test_refused(api: Api, conn: psycopg.Connection, level: IsolationLevel) -> None:
    conn.isolation_level = level
    for function, arguments in REFUSING.items():
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            api.rows(function, **arguments)
        refusal = read_refusal(caught.value)
        assert refusal.code == "QHA02", function
        assert refusal.detail == {"isolation": level.name.lower().replace("_", " ")}
        assert "read committed" in refusal.hint


@pytest.mark.parametrize("level", LEVELS)
def test_served(api: Api, conn: psycopg.Connection, level: IsolationLevel) -> None:
    """Spawning is the caller's business: it works in every transaction; so does looking."""
    conn.isolation_level = level
    for function, arguments in SERVING.items():
        with conn.transaction():
            api.rows(function, **arguments)
