"""Who may call what. The functions are the only way in."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from hwqueue.schema.files import SQL_DIR
from tests.sql.api import Api, Node, refusing, token

PRODUCER, WORKER, PLANNER, OPERATOR, ADMIN = (
    f"hwqueue_{role}" for role in ("producer", "worker", "planner", "operator", "admin")
)
ROLES = (PRODUCER, WORKER, PLANNER, OPERATOR, ADMIN)
DENIED = "42501"  # insufficient_privilege

# A function that is not here is nobody's but the owner's.
MAY_CALL: dict[str, set[str]] = {
    "schema_version": {PRODUCER, WORKER, PLANNER, OPERATOR, ADMIN},
    "lead_planner": {PLANNER, ADMIN},
    "planner_view": {PLANNER, ADMIN},
    "set_prices": {PLANNER, ADMIN},
    "planner_rooms": {PLANNER, ADMIN},
    "reserve_gang": {PLANNER, ADMIN},
    "reserve_leases": {PLANNER, ADMIN},
    "assigned_leases": {PLANNER, ADMIN},
    "note_room": {PLANNER, ADMIN},
    "planner_status": {OPERATOR, ADMIN},
    "spawn_lease": {PRODUCER, OPERATOR, ADMIN},
    "spawn_leases": {PRODUCER, OPERATOR, ADMIN},
    "update_lease": {PRODUCER, OPERATOR, ADMIN},
    "cancel_lease": {PRODUCER, OPERATOR, ADMIN},
    "get_lease": {PRODUCER, OPERATOR, ADMIN},
    "await_leases": {PRODUCER, OPERATOR, ADMIN},
    "lease_logs": {PRODUCER, OPERATOR, ADMIN},
    "lease_checkpoints": {PRODUCER, OPERATOR, ADMIN},
    "signal_lease": {PRODUCER, OPERATOR, ADMIN},
    "spawn_warnings": {PRODUCER, OPERATOR, ADMIN},
    "match_nodes": {PRODUCER, OPERATOR, ADMIN},
    "match_page": {PRODUCER, OPERATOR, ADMIN},
    "match_groups": {PRODUCER, OPERATOR, ADMIN},
    "register_node": {WORKER, ADMIN},
    "heartbeat_node": {WORKER, ADMIN},
    "claim_task": {WORKER, ADMIN},
    "settle_and_claim": {WORKER, ADMIN},
    "complete_lease": {WORKER, ADMIN},
    "complete_leases": {WORKER, ADMIN},
    "fail_lease": {WORKER, ADMIN},
    "release_lease": {WORKER, ADMIN},
    "extend_claim": {WORKER, ADMIN},
    "save_checkpoint": {WORKER, ADMIN},
    "spawn_gang": {PRODUCER, OPERATOR, ADMIN},
    "get_gang": {PRODUCER, OPERATOR, ADMIN},
    "list_gangs": {PRODUCER, OPERATOR, ADMIN},
    "cancel_gang": {PRODUCER, OPERATOR, ADMIN},
    "explain_gang": {PRODUCER, OPERATOR, ADMIN},
    "what_if_gang": {PRODUCER, OPERATOR, ADMIN},
    "gang_status": {WORKER, ADMIN},
    "spawn_everywhere": {OPERATOR, ADMIN},
    "get_everywhere": {PRODUCER, OPERATOR, ADMIN},
    "list_everywhere": {PRODUCER, OPERATOR, ADMIN},
    "stop_everywhere": {PRODUCER, OPERATOR, ADMIN},
    "add_items": {WORKER, ADMIN},
    "add_steps": {WORKER, ADMIN},
    "checkpoints": {WORKER, ADMIN},
    "take_signal": {WORKER, ADMIN},
    "suspend_lease": {WORKER, ADMIN},
    "lease_outlook": {WORKER, ADMIN},
    "take_deaths": {WORKER, ADMIN},
    "compare_tasks": {WORKER, ADMIN},
    "report_progress": {WORKER, ADMIN},
    "append_logs": {WORKER, ADMIN},
    "claim_hint": {WORKER, OPERATOR, ADMIN},
    "reap": {WORKER, OPERATOR, ADMIN},
    "list_queues": {WORKER, OPERATOR, ADMIN},
    "wake_payloads": {WORKER, ADMIN},
    "node_wake_payload": {WORKER, ADMIN},
    "deregister_own_node": {WORKER, ADMIN},
    "explain_lease": {OPERATOR, ADMIN},
    "explain_class": {OPERATOR, ADMIN},
    "what_if": {OPERATOR, ADMIN},
    "list_leases": {OPERATOR, ADMIN},
    "list_nodes": {OPERATOR, ADMIN},
    "list_events": {OPERATOR, ADMIN},
    "node_claims": {OPERATOR, ADMIN},
    "requeue_lease": {OPERATOR, ADMIN},
    "requeue_failed": {OPERATOR, ADMIN},
    "count_leases": {OPERATOR, ADMIN},
    "cancel_leases": {OPERATOR, ADMIN},
    "requeue_leases": {OPERATOR, ADMIN},
    "update_leases": {OPERATOR, ADMIN},
    "delete_leases": {OPERATOR, ADMIN},
    "pause_queue": {OPERATOR, ADMIN},
    "resume_queue": {OPERATOR, ADMIN},
    "cordon_node": {OPERATOR, ADMIN},
    "uncordon_node": {OPERATOR, ADMIN},
    "drain_node": {OPERATOR, ADMIN},
    "deregister_node": {OPERATOR, ADMIN},
    "taint_node": {OPERATOR, ADMIN},
    "untaint_node": {OPERATOR, ADMIN},
    "attest_node": {OPERATOR, ADMIN},
    "revoke_attestation": {OPERATOR, ADMIN},
    "confirm_node": {OPERATOR, ADMIN},
    "hand_over_node": {OPERATOR, ADMIN},
    "set_service_policy": {OPERATOR, ADMIN},
    "service_policy": {OPERATOR, ADMIN},
    "adopt_lease": {OPERATOR, ADMIN},
    "set_task": {OPERATOR, ADMIN},
    "sync_tasks": {OPERATOR, ADMIN},
    "list_tasks": {OPERATOR, ADMIN},
    "drop_task": {OPERATOR, ADMIN},
    "prune": {WORKER, OPERATOR, ADMIN},
    "advance_workflows": {WORKER, OPERATOR, ADMIN},
    "take_ended_runs": {WORKER, ADMIN},
    "define_workflow": {OPERATOR, ADMIN},
    "get_workflow": {OPERATOR, ADMIN},
    "list_workflows": {OPERATOR, ADMIN},
    "skip_step": {OPERATOR, ADMIN},
    "submit_workflow": {PRODUCER, OPERATOR, ADMIN},
    "submit_workflows": {PRODUCER, OPERATOR, ADMIN},
    "submit_spec": {PRODUCER, OPERATOR, ADMIN},
    "check_workflow": {PRODUCER, OPERATOR, ADMIN},
    "get_workflow_run": {PRODUCER, OPERATOR, ADMIN},
    "list_workflow_steps": {PRODUCER, OPERATOR, ADMIN},
    "step_results": {PRODUCER, WORKER, OPERATOR, ADMIN},
    "run_input": {PRODUCER, WORKER, OPERATOR, ADMIN},
    "list_workflow_runs": {PRODUCER, OPERATOR, ADMIN},
    "get_run_workflow": {PRODUCER, OPERATOR, ADMIN},
    "list_step_details": {PRODUCER, OPERATOR, ADMIN},
    "list_run_signals": {PRODUCER, OPERATOR, ADMIN},
    "summarise_runs": {PRODUCER, OPERATOR, ADMIN},
    "preview_retry": {PRODUCER, OPERATOR, ADMIN},
    "list_workflow_versions": {OPERATOR, ADMIN},
    "cancel_workflow_run": {PRODUCER, OPERATOR, ADMIN},
    "pause_workflow_run": {PRODUCER, OPERATOR, ADMIN},
    "resume_workflow_run": {PRODUCER, OPERATOR, ADMIN},
    "retry_workflow_run": {PRODUCER, OPERATOR, ADMIN},
    "update_steps": {PRODUCER, OPERATOR, ADMIN},
    "preview_update": {PRODUCER, OPERATOR, ADMIN},
    "signal_workflow_run": {PRODUCER, OPERATOR, ADMIN},
    "check_token": {OPERATOR, ADMIN},
    "verify_invariants": {OPERATOR, ADMIN},
    "throughput": {OPERATOR, ADMIN},
    "metrics": {OPERATOR, ADMIN},
    "pending_reasons": {OPERATOR, ADMIN},
    "queue_depth": {OPERATOR, ADMIN},
    "running_leases": {OPERATOR, ADMIN},
    "node_usage": {OPERATOR, ADMIN},
    "tag_distribution": {OPERATOR, ADMIN},
    "lease_history": {OPERATOR, ADMIN},
    "placement_class_stats": {OPERATOR, ADMIN},
    "create_queue": {ADMIN},
    "set_queue_policy": {ADMIN},
    "drop_queue": {ADMIN},
    "set_event_retention": {ADMIN},
    "set_node_expiry": {ADMIN},
    "create_token": {ADMIN},
    "list_tokens": {ADMIN},
    "revoke_token": {ADMIN},
    "set_webhook": {ADMIN},
    "drop_webhook": {ADMIN},
    "rotate_webhook": {ADMIN},
    "list_webhooks": {OPERATOR, ADMIN},
    "pause_webhook": {OPERATOR, ADMIN},
    "resume_webhook": {OPERATOR, ADMIN},
    "test_webhook": {OPERATOR, ADMIN},
    "list_deliveries": {OPERATOR, ADMIN},
    "redeliver": {OPERATOR, ADMIN},
    "claim_deliveries": {OPERATOR, ADMIN},
    "settle_delivery": {OPERATOR, ADMIN},
}


_MATRIX = """
  select p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', p.proname::text,
         r.rolname::text, has_function_privilege(r.oid, p.oid, 'execute')
  from pg_proc p cross join pg_roles r
  where p.pronamespace = 'hwqueue'::regnamespace and r.rolname = any (%s)
"""
_SECURED = """
  select p.proname::text, pg_get_userbyid(p.proowner)::text, p.proconfig
  from pg_proc p where p.pronamespace = 'hwqueue'::regnamespace and p.prosecdef
"""


@pytest.fixture
def stranger(conn: psycopg.Connection) -> Iterator[str]:
    """A login of the server that was granted nothing."""
    name = f"hwqueue_test_{uuid4().hex[:12]}"
    conn.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
    yield name
    conn.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@contextmanager
def acting_as(conn: psycopg.Connection, role: str) -> Iterator[None]:
    """Run what is inside with the rights of a role."""
    conn.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    try:
        yield
    finally:
        conn.execute("reset role")


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_call_its_functions_and_no_others(conn: psycopg.Connection, role: str) -> None:
    rows = conn.execute(
        "select proname, has_function_privilege(%s, oid, 'execute') from pg_proc"
        " where pronamespace = 'hwqueue'::regnamespace",
        [role],
    ).fetchall()
    assert {name for name, may in rows if may} == {name for name, roles in MAY_CALL.items() if role in roles}


def test_functions_are_not_open_to_everybody(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        "select proname from pg_proc where pronamespace = 'hwqueue'::regnamespace"
        " and has_function_privilege('public', oid, 'execute')"
    ).fetchall()
    assert rows == []
    [usage] = conn.execute("select has_schema_privilege('public', 'hwqueue', 'usage')")
    assert usage == (False,)


def test_a_new_function_is_closed_by_the_revokes(conn: psycopg.Connection) -> None:
    """Postgres opens every new function to everybody; the revokes come after them."""
    conn.execute("create function hwqueue.fresh() returns int language sql return 1")
    conn.execute((SQL_DIR / "revoke.sql").read_bytes())
    for role in ROLES:
        with acting_as(conn, role), refusing(DENIED):
            conn.execute("select hwqueue.fresh()")
    conn.execute("drop function hwqueue.fresh()")


@pytest.mark.parametrize("role", [*ROLES, "public"])
def test_nobody_touches_a_table(conn: psycopg.Connection, role: str) -> None:
    rows = conn.execute(
        "select relname from pg_class where relnamespace = 'hwqueue'::regnamespace"
        " and relkind in ('r', 'p', 'm')"
        " and has_table_privilege(%s, oid,"
        " 'select, insert, update, delete, truncate, references, trigger')",
        [role],
    ).fetchall()
    assert rows == []
    rows = conn.execute(
        "select seqrelid::regclass::text from pg_sequence"
        " where has_sequence_privilege(%s, seqrelid, 'usage, select, update')",
        [role],
    ).fetchall()
    assert rows == []


@pytest.mark.parametrize("role", [*ROLES, "public"])
def test_operators_read_the_views_and_nobody_else(conn: psycopg.Connection, role: str) -> None:
    rows = conn.execute(
        "select relname, has_table_privilege(%s, oid, 'select'),"
        " has_table_privilege(%s, oid, 'insert, update, delete, truncate, references, trigger')"
        " from pg_class where relnamespace = 'hwqueue'::regnamespace and relkind = 'v'",
        [role, role],
    ).fetchall()
    assert len(rows) == 8
    may = role in (OPERATOR, ADMIN)
    assert {(reads, writes) for _, reads, writes in rows} == {(may, False)}
    for name, _, _ in rows if may else []:
        with acting_as(conn, role):
            conn.execute(sql.SQL("select * from hwqueue.{}").format(sql.Identifier(name)))


@pytest.mark.parametrize("role", ROLES)
def test_roles_are_plain(conn: psycopg.Connection, role: str) -> None:
    """They are granted to logins and cannot do anything else."""
    row = conn.execute(
        "select rolcanlogin, rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolreplication"
        " from pg_roles where rolname = %s",
        [role],
    ).fetchone()
    assert row == (False,) * 6


def test_what_runs_with_the_owners_rights_is_safe(conn: psycopg.Connection) -> None:
    """Exactly the functions that others may call; none follows the caller's search_path."""
    rows = conn.execute(
        "select proname, proconfig from pg_proc"
        " where pronamespace = 'hwqueue'::regnamespace and prosecdef and proname <> 'clock'"
    ).fetchall()
    assert {name for name, _ in rows} == MAY_CALL.keys()
    for name, settings in rows:
        assert "search_path=pg_catalog, pg_temp" in (settings or []), name


def test_the_life_of_a_lease_by_roles(api: Api, conn: psycopg.Connection) -> None:
    """Every step with no more than the rights of the role whose step it is."""
    with acting_as(conn, ADMIN):
        queue = api.queue()
    with acting_as(conn, PRODUCER):
        lease = api.spawn(queue)
    node_id = uuid4()
    with acting_as(conn, WORKER):
        node: Node = api.node(node_id)
        [claim] = api.claim(node, queue)
        api.rows("heartbeat_node", **node.who)
        assert api.value("fail_lease", **token(claim), error={}, retry=False) == "failed"
    with acting_as(conn, OPERATOR):
        assert api.value("requeue_lease", lease=lease) == "pending"
        api.rows("cordon_node", node=node_id)
        assert api.state(lease) == "pending"


@pytest.mark.parametrize("role", ROLES)
def test_reaching_for_a_table_is_denied(conn: psycopg.Connection, role: str) -> None:
    with acting_as(conn, role):
        for statement in (
            "select * from hwqueue.lease",
            "delete from hwqueue.ready",
            "update hwqueue.node_state set node_epoch = 1",
            "insert into hwqueue.installation default values",
        ):
            with refusing(DENIED):
                conn.execute(statement.encode())


def test_a_worker_neither_trusts_nor_untaints_itself(api: Api, conn: psycopg.Connection) -> None:
    """Whatever it registers with."""
    taint = {"key": "x", "effect": "no_schedule"}
    with acting_as(conn, WORKER):
        node = api.node()
    with acting_as(conn, OPERATOR):
        api.rows("taint_node", node=node.node_id, taint=taint)
    with acting_as(conn, WORKER):
        for function, more in (
            ("attest_node", {"domain": "d"}),
            ("revoke_attestation", {"domain": "d"}),
            ("taint_node", {"taint": taint}),
            ("untaint_node", {"key": "x"}),
        ):
            with refusing(DENIED):
                api.rows(function, node=node.node_id, **more)
        for trick in ("operator_taints", "attested", "trust"):
            with refusing("QHA01"):
                api.node(node.node_id, name=node.name, **{trick: ["d"]})
        api.node(node.node_id, name=node.name, taints=[])
    with acting_as(conn, OPERATOR):
        assert [t["by"] for t in api.used(node)["taints"]] == ["operator"]
        api.rows("attest_node", node=node.node_id, domain="d")


def test_calling_what_is_not_ones_own_is_denied(api: Api, conn: psycopg.Connection) -> None:
    with acting_as(conn, PRODUCER), refusing(DENIED):
        api.rows("claim_task", queues=["q"], node=uuid4(), epoch=1)
    with acting_as(conn, WORKER), refusing(DENIED):
        api.rows("spawn_lease", queue="q", task="t")
    with acting_as(conn, WORKER), refusing(DENIED):
        api.rows("uncordon_node", node=uuid4())
    with acting_as(conn, OPERATOR), refusing(DENIED):
        api.rows("drop_queue", queue="q")


def test_every_function_for_every_role(conn: psycopg.Connection, stranger: str) -> None:
    """A function that the table does not name is nobody's; overloads count, too."""
    cells = conn.execute(_MATRIX, [[*ROLES, stranger]]).fetchall()
    assert {name for _, name, _, _ in cells} >= MAY_CALL.keys()
    wrong = [
        (function, role, may)
        for function, name, role, may in cells
        if may != (role in MAY_CALL.get(name, set()))
    ]
    assert wrong == []


def test_a_new_function_is_noticed(conn: psycopg.Connection, stranger: str) -> None:
    """The table above fails for it, whoever it is open to."""
    with conn.transaction(force_rollback=True):
        conn.execute("create function hwqueue.fresh() returns int language sql return 1")
        cells = conn.execute(_MATRIX, [[*ROLES, stranger]]).fetchall()
    assert {(role, may) for _, name, role, may in cells if name == "fresh"} == {
        (role, True) for role in (*ROLES, stranger)
    }


def test_a_login_without_a_role_reaches_nothing(conn: psycopg.Connection, stranger: str) -> None:
    """Tried, not looked up: each function by its own arguments, each table and view."""
    calls = conn.execute(
        "select format('select hwqueue.%I(%s)', p.proname, (select string_agg('null::' ||"
        " format_type(a, null), ', ') from unnest(p.proargtypes) a))"
        " from pg_proc p where p.pronamespace = 'hwqueue'::regnamespace and p.prokind = 'f'"
        " union all select format('select * from hwqueue.%I', c.relname)"
        " from pg_class c where c.relnamespace = 'hwqueue'::regnamespace"
        " and c.relkind in ('r', 'p', 'v', 'S')"
    ).fetchall()
    assert len(calls) > 300
    conn.execute(sql.SQL("set session authorization {}").format(sql.Identifier(stranger)))
    try:
        for (call,) in calls:
            with refusing(DENIED):
                conn.execute(call.encode())
    finally:
        conn.execute("reset session authorization")


def test_what_runs_with_the_owners_rights_is_the_owners(conn: psycopg.Connection) -> None:
    """A role that is no superuser and that nobody logs in as."""
    rows = conn.execute(_SECURED).fetchall()
    assert len(rows) > 50
    assert {owner for _, owner, _ in rows} == {"hwqueue_owner"}
    unpinned = [n for n, _, config in rows if "search_path=pg_catalog, pg_temp" not in config]
    assert unpinned == []


def test_the_documented_roles_are_these() -> None:
    """docs/run/security.md has a row for each."""
    page = (Path(__file__).parents[2] / "docs" / "run" / "security.md").read_text()
    assert set(re.findall(r"^\| `(hwqueue_\w+)` \|", page, re.MULTILINE)) == {
        *ROLES,
        "hwqueue_owner",
    }
