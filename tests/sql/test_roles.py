"""Who may call what: roles of the database, tokens of the HTTP API, callers of one tenant."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from hwqueue.schema.files import SQL_DIR
from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import Api, Node, Refusal, read_refusal, refusing, token
from tests.sql.logins import Logins

PRODUCER, WORKER, PLANNER, OPERATOR, ADMIN, TENANTS = (
    f"hwqueue_{role}" for role in ("producer", "worker", "planner", "operator", "admin", "tenants")
)
ROLES = (PRODUCER, WORKER, PLANNER, OPERATOR, ADMIN, TENANTS)
DENIED = "42501"  # insufficient_privilege

# Sets of roles that may call the same.
ADMINS, OPERATORS = frozenset({ADMIN}), frozenset({OPERATOR, ADMIN})
WORKERS, PLANNERS, BOUND = ADMINS | {WORKER}, ADMINS | {PLANNER}, OPERATORS | {TENANTS}
PRODUCERS, UPKEEP = BOUND | {PRODUCER}, OPERATORS | WORKERS
READERS = PRODUCERS | WORKERS

# A function that is not here is nobody's but the owner's.
_GRANTS: dict[frozenset[str], str] = {
    frozenset(ROLES): "schema_version",
    PRODUCERS: """
      spawn_lease spawn_leases update_lease cancel_lease get_lease await_leases lease_logs
      lease_checkpoints signal_lease spawn_warnings match_nodes match_page match_groups
      spawn_gang get_gang list_gangs cancel_gang explain_gang what_if_gang
      get_everywhere list_everywhere stop_everywhere
      submit_workflow submit_workflows submit_spec check_workflow get_workflow_run
      list_workflow_steps list_workflow_runs get_run_workflow list_step_details list_run_signals
      summarise_runs preview_retry cancel_workflow_run pause_workflow_run resume_workflow_run
      retry_workflow_run update_steps preview_update signal_workflow_run
    """,
    READERS: "step_results run_input",
    WORKERS: """
      register_node heartbeat_node claim_task settle_and_claim complete_lease complete_leases
      fail_lease release_lease extend_claim save_checkpoint checkpoints take_signal suspend_lease
      gang_status add_items add_steps lease_outlook take_deaths compare_tasks report_progress
      append_logs wake_payloads node_wake_payload deregister_own_node take_ended_runs due_plans
      plan_schedule register_bound_node enter_node
    """,
    UPKEEP: "claim_hint reap list_queues prune advance_workflows throttle_limit",
    PLANNERS: """
      lead_planner planner_view set_prices planner_rooms reserve_gang reserve_leases
      assigned_leases note_room
    """,
    BOUND: """
      list_leases spawn_everywhere requeue_lease count_leases cancel_leases requeue_leases
      update_leases delete_leases set_service_policy service_policy lease_history skip_step
    """,
    OPERATORS: """
      planner_status explain_lease explain_class what_if list_nodes list_events node_claims
      requeue_failed pause_queue resume_queue cordon_node uncordon_node drain_node
      deregister_node taint_node untaint_node attest_node revoke_attestation confirm_node
      hand_over_node adopt_lease set_task sync_tasks list_tasks drop_task define_workflow
      get_workflow list_workflows list_workflow_versions check_token verify_invariants
      throughput fleet_history metrics pending_reasons queue_depth running_leases node_usage
      tag_distribution placement_class_stats list_webhooks pause_webhook resume_webhook
      test_webhook list_deliveries redeliver claim_deliveries settle_delivery list_schedules
      schedule_history pause_schedule resume_schedule trigger_schedule backfill_schedule
      list_limits limit_lanes list_tenants preview_preemption set_node_tenants tenant_usage
      list_preemptions
    """,
    ADMINS: """
      create_queue set_queue_policy drop_queue set_event_retention set_node_expiry create_token
      list_tokens revoke_token set_webhook drop_webhook rotate_webhook create_schedule set_schedule
      sync_schedules drop_schedule create_limit set_limit drop_limit
      set_tenant drop_tenant grant_tenant revoke_tenant
    """,
}
MAY_CALL = {name: roles for roles, names in _GRANTS.items() for name in names.split()}


@pytest.fixture
def stranger(logins: Logins) -> str:
    """A login of the server that was granted nothing."""
    return logins.role(login=True)


@contextmanager
def acting_as(conn: psycopg.Connection, role: str) -> Iterator[None]:
    """Run what is inside with the rights of a role."""
    conn.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    try:
        yield
    finally:
        conn.execute("reset role")


def test_the_schema_is_not_open_to_everybody(conn: psycopg.Connection) -> None:
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
    reached = conn.execute(
        "select relname from pg_class where relnamespace = 'hwqueue'::regnamespace"
        " and relkind in ('r', 'p', 'm')"
        " and has_table_privilege(%(role)s, oid,"
        " 'select, insert, update, delete, truncate, references, trigger')"
        " union all select seqrelid::regclass::text from pg_sequence"
        " where has_sequence_privilege(%(role)s, seqrelid, 'usage, select, update')",
        {"role": role},
    ).fetchall()
    assert reached == []


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


def test_roles_are_plain(conn: psycopg.Connection) -> None:
    """They are granted to logins and cannot do anything else."""
    rows = conn.execute(
        "select rolname, rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolbypassrls"
        " or rolreplication from pg_roles where rolname = any (%s)",
        [list(ROLES)],
    ).fetchall()
    assert dict(rows) == dict.fromkeys(ROLES, False)


def test_what_runs_with_the_owners_rights_is_safe(conn: psycopg.Connection) -> None:
    """Exactly the functions that others may call, of a role that is no superuser and that nobody logs in as.

    None follows the caller's search_path.
    """
    rows = conn.execute(
        "select p.proname::text, pg_get_userbyid(p.proowner)::text, coalesce(p.proconfig, '{}')"
        " from pg_proc p where p.pronamespace = 'hwqueue'::regnamespace and p.prosecdef"
    ).fetchall()
    assert {name for name, _, _ in rows} - {"clock"} == MAY_CALL.keys()
    assert {owner for _, owner, _ in rows} == {"hwqueue_owner"}
    assert [n for n, _, settings in rows if "search_path=pg_catalog, pg_temp" not in settings] == []


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


def test_a_worker_neither_trusts_nor_untaints_itself(api: Api, conn: psycopg.Connection) -> None:
    """Whatever it registers with."""
    with acting_as(conn, WORKER):
        node = api.node()
    with acting_as(conn, OPERATOR):
        api.rows("taint_node", node=node.node_id, taint={"key": "x", "effect": "no_schedule"})
    with acting_as(conn, WORKER):
        for function, more in (("attest_node", {"domain": "d"}), ("untaint_node", {"key": "x"})):
            with refusing(DENIED):
                api.rows(function, node=node.node_id, **more)
        for trick in ("operator_taints", "attested", "trust"):
            with refusing("QHA01"):
                api.node(node.node_id, name=node.name, **{trick: ["d"]})
        api.node(node.node_id, name=node.name, taints=[])
    with acting_as(conn, OPERATOR):
        assert [t["by"] for t in api.used(node)["taints"]] == ["operator"]
        api.rows("attest_node", node=node.node_id, domain="d")


@pytest.mark.parametrize("role", ROLES)
def test_reaching_for_what_is_not_ones_own_is_denied(conn: psycopg.Connection, role: str) -> None:
    """Tried, not looked up."""
    not_its = {
        PRODUCER: "select hwqueue.claim_task(array['q'], gen_random_uuid(), 1)",
        WORKER: "select hwqueue.spawn_lease('q', 't')",
        PLANNER: "select hwqueue.uncordon_node(gen_random_uuid())",
        OPERATOR: "select hwqueue.drop_queue('q')",
    }
    with acting_as(conn, role):
        for statement in (
            *(each for owner, each in not_its.items() if owner == role),
            "select * from hwqueue.lease",
            "delete from hwqueue.ready",
            "update hwqueue.node_state set node_epoch = 1",
            "insert into hwqueue.installation default values",
        ):
            with refusing(DENIED):
                conn.execute(statement.encode())


def cells(conn: psycopg.Connection, *roles: str) -> list[tuple[str, str, bool]]:
    """Each function, overloads too, and each of these roles and everybody: whether it may call it."""
    return conn.execute(
        "select p.proname::text, r.role, has_function_privilege(r.role, p.oid, 'execute')"
        " from pg_proc p cross join unnest(%s::text[]) r(role)"
        " where p.pronamespace = 'hwqueue'::regnamespace",
        [[*ROLES, "public", *roles]],
    ).fetchall()


def test_every_function_for_every_role(conn: psycopg.Connection, stranger: str) -> None:
    """A function that the table does not name is nobody's."""
    found = cells(conn, stranger)
    assert {name for name, _, _ in found} >= MAY_CALL.keys()
    assert [cell for cell in found if cell[2] != (cell[1] in MAY_CALL.get(cell[0], ()))] == []


def test_a_new_function_is_noticed(conn: psycopg.Connection, stranger: str) -> None:
    """The table above fails for it, whoever it is open to."""
    with conn.transaction(force_rollback=True):
        conn.execute("create function hwqueue.fresh() returns int language sql return 1")
        found = cells(conn, stranger)
    may = {role: may for name, role, may in found if name == "fresh"}
    assert may == dict.fromkeys((*ROLES, "public", stranger), True)


def test_a_login_without_a_role_reaches_nothing(
    conn: psycopg.Connection, logins: Logins, stranger: str
) -> None:
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
    its = logins.as_login(stranger).conn
    for (call,) in calls:
        with refusing(DENIED):
            its.execute(call.encode())


def test_the_documented_roles_are_these() -> None:
    """docs/run/security.md has a row for each."""
    page = (Path(__file__).parents[2] / "docs" / "run" / "security.md").read_text()
    assert set(re.findall(r"^\| `(hwqueue_\w+)` \|", page, re.MULTILINE)) == {*ROLES, "hwqueue_owner"}


_numbers = count(1)


def made(api: Api, role: str = "viewer", **rest: Any) -> tuple[str, bytes]:
    """Make a token; its name and the hash of its secret."""
    name = f"token-{next(_numbers)}"
    digest = hashlib.sha256(name.encode()).digest()
    api.rows("create_token", name=name, secret_sha256=digest, role=role, **rest)
    return name, digest


def listed(api: Api, name: str) -> dict[str, Any]:
    """What list_tokens says of a token."""
    [row] = [row for row in api.rows("list_tokens") if row["name"] == name]
    return row


def test_a_token_is_known_by_its_hash(api: Api) -> None:
    name, digest = made(api, "producer", tenant="film")
    assert api.row("check_token", secret_sha256=digest) == {
        "name": name, "role": "producer", "tenant": "film", "expires_at": None,
    }  # fmt: skip
    assert api.rows("check_token", secret_sha256=bytes(32)) == []
    assert api.rows("check_token", secret_sha256=digest[:31]) == []


def test_it_ends(api: Api, clock: Clock) -> None:
    _, digest = made(api, expires_at=clock.now() + timedelta(hours=1))
    assert api.rows("check_token", secret_sha256=digest)
    clock.advance(timedelta(hours=1))
    assert api.rows("check_token", secret_sha256=digest) == []
    name, _ = made(api, expires_at="infinity")
    assert listed(api, name)["expires_at"] is None


def test_it_is_revoked_once_and_for_all(api: Api, clock: Clock) -> None:
    name, digest = made(api)
    at = clock.now()
    assert api.value("revoke_token", name=name) is True
    clock.advance(timedelta(minutes=1))
    assert api.value("revoke_token", name=name) is False
    assert api.rows("check_token", secret_sha256=digest) == []
    assert listed(api, name)["revoked_at"] == at
    again = {"name": name, "secret_sha256": bytes(32), "role": "viewer"}
    assert api.refused("QHK02", "create_token", **again).field == "p_name"
    api.refused("QHK01", "revoke_token", name="nobody")


def test_its_use_is_noted_to_the_hour(api: Api, clock: Clock) -> None:
    name, digest = made(api)
    assert listed(api, name)["used_at"] is None
    first = clock.now()
    api.rows("check_token", secret_sha256=digest)
    clock.advance(timedelta(minutes=59))
    api.rows("check_token", secret_sha256=digest)
    assert listed(api, name)["used_at"] == first
    clock.advance(timedelta(minutes=2))
    api.rows("check_token", secret_sha256=digest)
    assert listed(api, name)["used_at"] == first + timedelta(minutes=61)


def test_who_made_and_ended_it(api: Api) -> None:
    with api.conn.transaction():
        api.conn.execute("select set_config('hwqueue.actor', 'token:ops', true)")
        name, _ = made(api)
    user = api.one("select session_user")
    row = listed(api, name)
    assert (row["created_by"], row["created_login"]) == ("token:ops", user)
    assert row["revoked_login"] is None
    api.rows("revoke_token", name=name)
    row = listed(api, name)
    assert (row["revoked_by"], row["revoked_login"]) == (user, user)


@pytest.mark.thorough
def test_bad_arguments(api: Api, clock: Clock) -> None:
    good = {"name": "new", "secret_sha256": bytes(32), "role": "viewer"}
    for argument, values in {
        "name": ("", None),
        "secret_sha256": (b"short", None),
        "role": ("king", None),
        "tenant": ("", "t" * 101),
        # what has ended already; what nobody could read again, too
        "expires_at": (clock.now(), "10000-01-01", "-infinity"),
    }.items():
        for value in values:
            assert api.fault("create_token", **good | {argument: value}) == f"p_{argument}"


FILM, GAMES = "film", "games"


@contextmanager
def only(api: Api, tenant: str) -> Iterator[None]:
    """Call for one tenant inside, as the HTTP server does; nothing of it stays."""
    with api.conn.transaction(force_rollback=True):
        api.conn.execute("select set_config('hwqueue.tenant', %s, true)", [tenant])
        yield


def refused(api: Api, code: str, function: str, /, **arguments: Any) -> Refusal:
    """Call for the tenant film a function that must refuse."""
    with only(api, FILM), pytest.raises(psycopg.Error) as caught, api.conn.transaction():
        api.rows(function, **arguments)
    refusal = read_refusal(caught.value)
    assert refusal.code == code, refusal
    return refusal


@pytest.fixture
def theirs(api: Api) -> UUID:
    return api.spawn(api.queue(), tenant=GAMES, service_id=str(uuid4()))


def test_ones_own_leases_do(api: Api, queue: str) -> None:
    """Lists hold these alone."""
    own, _ = (api.spawn(queue, tenant=tenant) for tenant in (FILM, GAMES))
    with only(api, FILM):
        for wanted in ({}, {"tenant": FILM}, {"queue": queue}):
            rows = api.rows("list_leases", filter=wanted)
            assert {row["tenant"] for row in rows} == {FILM}
            assert own in {row["lease_id"] for row in rows}
        assert api.lease(own)["tenant"] == FILM
        assert api.value("update_lease", lease=own, changes={"priority": 1}) == "pending"
        assert api.value("cancel_lease", lease=own) == "cancelled"
        assert api.value("requeue_lease", lease=own) == "pending"
    assert refused(api, "QHA03", "list_leases", filter={"tenant": GAMES}).field == "filter.tenant"
    assert refused(api, "QHA03", "explain_lease", lease=own).hint


def test_spawns_are_for_ones_own_tenant(api: Api) -> None:
    options = {"tenant": GAMES}
    found = refused(api, "QHA03", "spawn_lease", queue=api.queue(), task=TASK, options=options)
    assert found.field == "options.tenant"
    batch = [{"task": TASK, "options": {"tenant": FILM}}, {"task": TASK, "options": options}]
    found = refused(api, "QHA03", "spawn_leases", queue=api.queue(), leases=batch)
    assert (found.field, found.detail["index"]) == ("options.tenant", 1)


def test_a_dry_run_names_ones_own(api: Api, theirs: UUID) -> None:
    service = api.lease(theirs)["service_id"]
    options = {"tenant": FILM}
    for target in ({"lease": str(theirs)}, {"service": str(service)}):
        placement = {"require": [target]}
        for function in ("match_nodes", "match_page", "match_groups"):
            found = refused(api, "QHA03", function, placement=placement, options=options)
            assert found.field == "options.placement"
    found = refused(api, "QHA03", "match_nodes", placement={}, options={"tenant": GAMES})
    assert found.field == "options.tenant"
    with only(api, FILM):
        api.rows("match_nodes", placement={}, options=options)


def test_policies_of_services_are_for_ones_own(api: Api, queue: str, theirs: UUID) -> None:
    foreign, own = str(api.lease(theirs)["service_id"]), str(uuid4())
    api.spawn(queue, tenant=FILM, service_id=own)
    for service in (foreign, str(uuid4())):
        refused(api, "QHA03", "service_policy", service=service)
        refused(api, "QHA03", "set_service_policy", service=service, policy={})
        policy = {"anti_affinity_services": [service]}
        refused(api, "QHA03", "set_service_policy", service=own, policy=policy)
    with only(api, FILM):
        policy = {"anti_affinity_services": [own]}
        assert api.value("set_service_policy", service=own, policy=policy)
    # one that keeps a tenant's service away from another's is no word of the tenant's
    api.value("set_service_policy", service=own, policy={"anti_affinity_services": [foreign]})
    with only(api, FILM):
        assert api.spawn(queue, tenant=FILM, service_id=own)


def test_without_the_setting_nothing_is_narrowed(api: Api, theirs: UUID) -> None:
    api.conn.execute("select set_config('hwqueue.tenant', '', false)")
    placement = {"require": [{"lease": str(theirs)}]}
    assert api.spawn(api.queue(), placement=placement)
    assert api.lease(theirs)["tenant"] == GAMES


@pytest.mark.parametrize("own", [{}, {"tenant": GAMES}])
def test_a_submission_for_another_tenant_learns_nothing(api: Api, own: Row) -> None:
    key = {"idempotency_key": str(uuid4())}
    steps = [{"name": "a", "task": TASK}]
    spec: Row = {"name": "theirs", "queue": api.queue(), "tenant": GAMES, "steps": steps}
    spec["affinity_tags"] = {"zone": "secret"}
    api.row("submit_spec", spec=spec, options=key)
    unique = {"unique": {"key": str(uuid4())}}
    api.row("submit_spec", spec=spec, options=unique)
    told = {
        (found.message, str(found.detail), found.hint)
        for options in (key, key | {"priority": 1}, {}, unique, {"affinity_tags": {"zone": "b"}})
        for found in [refused(api, "QHA03", "submit_spec", spec=spec, options=own | options)]
    }
    assert len(told) == 1, told
