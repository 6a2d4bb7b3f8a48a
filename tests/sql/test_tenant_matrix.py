"""Every function that a login may call, asked by a caller of one tenant.

It has set `hwqueue.tenant`, or its login is bound to the tenant, whatever other roles it has.

What is another tenant's is answered word for word as what does not exist, in both directions. The
functions are the catalog's: a new one fails until it is said here how it answers.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.patience import looks
from tests.plans.explain import explained
from tests.sql.api import Api, read_refusal
from tests.sql.logins import made_logins
from tests.sql.test_roles import FILM, GAMES, only

pytestmark = [pytest.mark.thorough, pytest.mark.every_variant]

TENANTS = FILM, GAMES
ROLES = [f"hwqueue_{each}" for each in ("producer", "worker", "planner", "operator", "admin", "tenants")]

_GRANTED = """
  select distinct p.proname::text
  from pg_proc p cross join unnest(%s::text[]) r(role)
  where p.pronamespace = 'hwqueue'::regnamespace
    and has_function_privilege(r.role, p.oid, 'execute')
"""
_REQUIRED = """
  select p.proargnames[a.place], format_type(a.type, null)
  from pg_proc p cross join unnest(p.proargtypes) with ordinality a(type, place)
  where p.pronamespace = 'hwqueue'::regnamespace and p.proname = %s
    and a.place <= p.pronargs - p.pronargdefaults
"""
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Things:
    """What a tenant has, or what nobody has."""

    queue: str
    tenant: str
    lease: UUID
    done: UUID
    service: UUID
    node: UUID
    class_id: int
    run: UUID
    gang: UUID
    everywhere: UUID

    @property
    def task(self) -> str:
        """The task of its leases; a label and a key have that name, too."""
        return f"secret-of-{self.tenant}"

    def hidden(self, text: str) -> str:
        """The text without what names these."""
        ids = (self.lease, self.done, self.service, self.node, self.run, self.gang, self.everywhere)
        for value in (*ids, self.task, self.tenant):
            text = text.replace(str(value), "IT")
        return re.sub(rf"\b{self.class_id}\b", "CLASS", text)


@pytest.fixture(scope="module")
def kept() -> dict[str, Things]:
    """What stays from test to test."""
    return {}


@pytest.fixture
def things(api: Api, kept: dict[str, Things]) -> dict[str, Things]:
    """What each of two tenants has: leases that wait, run and failed, a service, a node's claim.

    Made once, since no test changes it.
    """
    if not kept:
        queue = api.queue()
        kept.update({tenant: _made(api, queue, tenant) for tenant in TENANTS})
    return kept


@dataclass(frozen=True)
class Callers:
    """Who asks for one tenant."""

    api: Api
    bound: Mapping[str, Api]

    @contextmanager
    def only(self, tenant: str) -> Iterator[Api]:
        """The calls of one, of which nothing stays: of a bound login, or else of who has set the tenant."""
        if tenant in self.bound:
            with self.bound[tenant].conn.transaction(force_rollback=True):
                yield self.bound[tenant]
        else:
            with only(self.api, tenant):
                yield self.api


@pytest.fixture(scope="module")
def bound(database: str) -> Iterator[dict[str, Api]]:
    """A login that is bound to each tenant, and was given all other roles later."""
    made = {}
    with psycopg.connect(database, autocommit=True) as conn, made_logins(database, conn) as logins:
        for tenant in TENANTS:
            login = logins.role("hwqueue_tenants", login=True)
            Api(conn).rows("grant_tenant", login=login, tenant=tenant, rights=["spawn", "operate"])
            for role in ROLES:
                conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(login)))
            made[tenant] = logins.as_login(login)
        yield made


@pytest.fixture(params=["setting", "login"])
def callers(api: Api, request: pytest.FixtureRequest) -> Callers:
    """By the setting, and by their logins."""
    return Callers(api, request.getfixturevalue("bound") if request.param == "login" else {})


@pytest.fixture
def queue(things: dict[str, Things]) -> str:
    """The queue that all tenants use."""
    return things[FILM].queue


def _made(api: Api, queue: str, tenant: str) -> Things:
    service, task, node = uuid4(), f"secret-of-{tenant}", api.node()
    about = {"tenant": tenant, "service_id": str(service), "labels": {"app": task}}
    done = api.spawn(queue, task, max_attempts=1, **about)
    [claim] = api.claim(node, queue, tasks=[task])
    api.value("fail_lease", lease=done, token=claim["claim_token"], error={"message": task})
    api.spawn(queue, task, **about)
    assert api.claim(node, queue, tasks=[task])
    lease = api.spawn(queue, task, idempotency_key=task, **about)
    class_id = api.row("explain_lease", lease=lease)["class_id"]
    spec = {"name": "shared", "queue": queue, "steps": [{"name": "a", "task": task}]}
    api.rows("define_workflow", spec=spec)
    run = api.row("submit_workflow", workflow="shared", options={"tenant": tenant})["run_id"]
    members = Jsonb([{"task": task, "count": 2}])
    [member, _] = api.rows("spawn_gang", queue=queue, members=members, options={"tenant": tenant})
    options = {"tenant": tenant, "affinity_tags": {"none": task}}
    api.rows("set_queue_policy", queue=queue, policy={"everywhere_tenants": ["*"]})
    everywhere = api.row("spawn_everywhere", queue=queue, task=task, options=options)
    ids = (run, member["gang_id"], everywhere["everywhere_id"])
    return Things(queue, tenant, lease, done, service, node.node_id, class_id, *ids)


NESTED: Row = {"name": "n", "kind": "workflow", "workflow": "shared"}
"""A step that asks nothing itself: its run is submitted by whoever sweeps, limited to no tenant."""


def nobodys(like: Things) -> Things:
    """Ids and names that do not exist; the lease's comes right after the one that is like it."""
    lease = UUID(int=like.lease.int ^ 1)
    ids = (uuid4(), uuid4(), uuid4())
    return Things(like.queue, "nobody", lease, uuid4(), uuid4(), uuid4(), 10**12, *ids)


def _placements(its: Things) -> list[Row]:
    at = {"domain": "node"}
    return [
        {"require": [{"lease": str(its.lease), **at}]},
        {"require": [{"lease": str(its.lease), **at, "away": True}]},
        {"prefer": [{"when": {"service": str(its.service)}}]},
        {"require": [{"service": str(its.service), **at, "away": True}]},
        {"require": [{"leases": {"labels": {}}, **at, "tenants": [its.tenant]}]},
    ]


def _options(caller: str, its: Things) -> list[Row]:
    """Options of leases that name what is its. Not its service_id: an unknown one is free."""
    named = [{"placement": placement} for placement in _placements(its)]
    return [{"tenant": its.tenant}, *({"tenant": caller, **options} for options in named)]


Calls = Callable[[str, str, Things], list[Row]]
"""The arguments to try: by who calls, the queue, and whose things are named."""


def _by(what: str, **more: Any) -> Calls:
    return lambda _caller, _queue, its: [{what: getattr(its, what), **more}]


def _each(call: Callable[[str, Row], Row]) -> Calls:
    """A call with each of the options that name what is its."""
    return lambda caller, queue, its: [call(queue, options) for options in _options(caller, its)]


def _batch(caller: str, queue: str, its: Things) -> list[Row]:
    own = {"task": "t", "options": {"tenant": caller}}
    return [
        {"queue": queue, "leases": [own, {"task": "t", "options": each}]} for each in _options(caller, its)
    ]


def _gang(caller: str, queue: str, its: Things) -> list[Row]:
    one = {"task": "t", "count": 2}
    placed = [{**one, "options": {"placement": each}} for each in _placements(its)]
    return [
        {"queue": queue, "members": Jsonb([one]), "options": {"tenant": its.tenant}},
        *({"queue": queue, "members": Jsonb([each]), "options": {"tenant": caller}} for each in placed),
    ]


def _match(caller: str, _queue: str, its: Things) -> list[Row]:
    return [{"placement": {}, "options": {"tenant": its.tenant}}] + [
        {"placement": placement, "options": {"tenant": caller}} for placement in _placements(its)
    ]


def _submit_spec(caller: str, queue: str, its: Things) -> list[Row]:
    spec = {"name": "its", "queue": queue, "steps": [{"name": "a", "task": "t"}]}
    below = spec | {"steps": [NESTED]}
    placed = [{"spec": below | {"placement": placement}} for placement in _placements(its)]
    return [
        *({"spec": each, "options": options} for each in (spec, below) for options in _options(caller, its)),
        *({**each, "options": {"tenant": caller}} for each in placed),
    ]


def _list(_caller: str, _queue: str, its: Things) -> list[Row]:
    return [
        {"filter": {"tenant": its.tenant}},
        {"filter": {"service": str(its.service)}},
        {"filter": {"node": str(its.node)}},
        {"filter": {"task": its.task}},
    ]


def _bulk(**more: Any) -> Calls:
    """Filters that name what is its."""
    return lambda _caller, queue, its: [
        {"filter": {"queue": queue, **wanted}, **more}
        for wanted in (
            {"tenant": its.tenant},
            {"service": str(its.service)},
            {"task": its.task},
            {"labels": {"app": its.task}},
        )
    ]


# Answers about another's as about nothing.
ALIKE: dict[str, Calls] = {
    "await_leases": lambda _caller, _queue, its: [{"lease_ids": [its.lease]}],
    "update_lease": _by("lease", changes={"priority": 3}),
    "cancel_lease": _by("lease", reason="no"),
    "requeue_lease": lambda _caller, _queue, its: [{"lease": its.done}],
    "lease_logs": _by("lease", last=True),
    "signal_lease": _by("lease", name="packed"),
    **dict.fromkeys(("get_lease", "lease_history", "lease_checkpoints", "explain_lease"), _by("lease")),
    "submit_workflow": _each(lambda _queue, options: {"workflow": "shared", "options": options}),
    "submit_workflows": _each(lambda _queue, options: {"workflow": "shared", "runs": [{"options": options}]}),
    **dict.fromkeys(("submit_spec", "check_workflow"), _submit_spec),
    **dict.fromkeys(("get_workflow_run", "list_workflow_steps", "run_input", "get_run_workflow"), _by("run")),
    **dict.fromkeys(("list_step_details", "list_run_signals", "preview_retry"), _by("run")),
    **dict.fromkeys((f"{verb}_workflow_run" for verb in ("pause", "resume", "retry")), _by("run")),
    **dict.fromkeys(("step_results", "skip_step"), _by("run", step="a")),
    "list_workflow_runs": lambda _caller, _queue, its: [{"filter": {"tenant": its.tenant}}],
    "summarise_runs": lambda _caller, _queue, its: [{"run_ids": [its.run]}],
    "cancel_workflow_run": _by("run", reason="no"),
    "update_steps": _by("run", changes={"affinity_tags": {"zone": "west"}}),
    "preview_update": _by("run", changes={"app_version": "2.0"}),
    "signal_workflow_run": _by("run", name="go"),
    **dict.fromkeys(
        ("spawn_lease", "spawn_everywhere"),
        _each(lambda queue, options: {"queue": queue, "task": "t", "options": options}),
    ),
    "spawn_leases": _batch,
    "spawn_gang": _gang,
    "get_gang": _by("gang"),
    "cancel_gang": _by("gang", reason="no"),
    "get_everywhere": _by("everywhere"),
    "stop_everywhere": _by("everywhere", running="stop"),
    "explain_gang": _by("gang"),
    "spawn_warnings": lambda _caller, _queue, its: [{"id": its.everywhere}],
    "what_if_gang": _gang,
    **dict.fromkeys(("match_nodes", "match_page", "match_groups"), _match),
    "list_leases": _list,
    "count_leases": _bulk(),
    "cancel_leases": _bulk(reason="no"),
    "requeue_leases": _bulk(),
    "update_leases": _bulk(changes={"priority": 3}),
    "delete_leases": _bulk(),
    "service_policy": _by("service"),
    "set_service_policy": _by("service", policy={}),
}

# About all tenants at once: refused, whatever it is asked about.
REFUSED = {
    *("explain_class", "what_if", "node_claims", "list_events", "requeue_failed"),
    *("pending_reasons", "placement_class_stats", "tag_distribution"),
    *("list_nodes", "list_queues", "queue_depth", "node_usage", "throughput", "metrics"),
    "running_leases",
    *("verify_invariants", "adopt_lease", "pause_queue", "resume_queue"),
    *("create_queue", "set_queue_policy", "drop_queue", "set_event_retention"),
    "set_node_expiry",
    *("cordon_node", "uncordon_node", "drain_node", "deregister_node"),
    *("taint_node", "untaint_node", "set_node_tenants", "attest_node", "revoke_attestation"),
    *("set_task", "sync_tasks", "list_tasks", "drop_task"),
    *("define_workflow", "get_workflow", "list_workflows", "list_workflow_versions"),
    *("confirm_node", "hand_over_node", "create_token", "list_tokens", "revoke_token"),
    *("set_webhook", "list_webhooks", "drop_webhook", "pause_webhook", "resume_webhook"),
    *("rotate_webhook", "test_webhook", "list_deliveries", "redeliver"),
    *("claim_deliveries", "settle_delivery"),
    *("create_schedule", "set_schedule", "sync_schedules", "drop_schedule", "list_schedules"),
    *("pause_schedule", "resume_schedule", "trigger_schedule", "backfill_schedule"),
    *("schedule_history", "due_plans", "plan_schedule"),
    *("create_limit", "set_limit", "drop_limit", "list_limits", "limit_lanes", "throttle_limit"),
    *("set_tenant", "drop_tenant", "list_tenants", "grant_tenant", "revoke_tenant", "preview_preemption"),
    *("tenant_usage", "list_preemptions", "fleet_history"),
    *("lead_planner", "planner_view", "set_prices", "planner_rooms", "reserve_gang"),
    *("reserve_leases", "assigned_leases", "note_room", "planner_status"),
}

# Lists what is one's own; nothing of it can be asked for by name.
NARROWED = {"list_gangs", "list_everywhere"}

# The setting changes nothing: what workers call, and what the HTTP server asks for itself.
NOT_NARROWED = {
    *("register_node", "heartbeat_node", "claim_task", "settle_and_claim", "complete_lease"),
    *("complete_leases", "fail_lease", "release_lease", "extend_claim", "lease_outlook"),
    "take_deaths",
    *("claim_hint", "wake_payloads", "reap", "prune", "check_token", "schema_version"),
    *("node_wake_payload", "deregister_own_node", "report_progress", "append_logs"),
    *("save_checkpoint", "checkpoints", "take_signal", "suspend_lease"),
    *("add_items", "add_steps", "gang_status"),
    "compare_tasks",
    *("advance_workflows", "take_ended_runs", "register_bound_node", "enter_node"),
}


def _granted(conn: psycopg.Connection[Any], roles: list[str]) -> set[str]:
    return {name for (name,) in conn.execute(_GRANTED, [roles]).fetchall()}


def test_every_function_has_its_entry(conn: psycopg.Connection) -> None:
    entries = [*ALIKE, *REFUSED, *NARROWED, *NOT_NARROWED]
    assert len(entries) == len(set(entries))
    assert set(entries) == _granted(conn, ROLES)
    with conn.transaction(force_rollback=True):
        conn.execute("create function hwqueue.fresh() returns int language sql return 1")
        conn.execute("grant execute on function hwqueue.fresh() to hwqueue_producer")
        assert _granted(conn, ROLES) - set(entries) == {"fresh"}


def test_what_is_not_narrowed_is_for_workers(conn: psycopg.Connection) -> None:
    """And documented, each by its name."""
    for_producers = _granted(conn, ["hwqueue_producer"])
    assert NOT_NARROWED & for_producers == {"schema_version"}
    workers = _granted(conn, ["hwqueue_worker"])
    assert NOT_NARROWED - workers == {"check_token"}
    page = (Path(__file__).parents[2] / "docs" / "run" / "security.md").read_text()
    assert {name for name in NOT_NARROWED if f"`{name}`" not in page} == set()


def test_bound_logins_call_what_is_narrowed(conn: psycopg.Connection) -> None:
    """And nothing else: all that is about all tenants, and all that is not narrowed, is denied to them."""
    assert _granted(conn, ["hwqueue_tenants"]) - {"schema_version"} <= {*ALIKE, *NARROWED}


def answer(callers: Callers, caller: str, function: str, arguments: Row) -> str:
    """All that a caller of the tenant is told: the rows, or the refusal."""
    with callers.only(caller) as api:
        try:
            return str(api.rows(function, **arguments))
        except psycopg.Error as error:
            return str(read_refusal(error))


def other_than(caller: str, things: dict[str, Things]) -> Things:
    [theirs] = [its for tenant, its in things.items() if tenant != caller]
    return theirs


def told_apart(
    callers: Callers,
    caller: str,
    things: dict[str, Things],
    function: str,
    call: Callable[[Things], list[Row]],
) -> Iterator[str]:
    """What is told of another's things, which must be what is told of nobody's, call by call."""
    theirs, own = other_than(caller, things), things[caller]
    none = nobodys(theirs)
    for calls in zip(*(call(its) for its in (theirs, none, own)), strict=True):
        told, of_none, of_own = (
            # all names out of each: the id of a class is a short number, which others may be, too
            theirs.hidden(none.hidden(own.hidden(answer(callers, caller, function, arguments))))
            for arguments in calls
        )
        assert told == of_none
        assert told != of_own  # else the call proves nothing: it is wrong in itself
        yield told


def secrets(things: Things) -> list[str]:
    """What nobody else may be told."""
    ids = (things.lease, things.done, things.service, things.gang, things.everywhere)
    return [*map(str, ids), things.task, things.tenant]


@pytest.mark.parametrize("caller", TENANTS)
@pytest.mark.parametrize("function", ALIKE)
def test_anothers_is_answered_as_what_does_not_exist(
    callers: Callers, queue: str, things: dict[str, Things], function: str, caller: str
) -> None:
    def call(its: Things) -> list[Row]:
        return ALIKE[function](caller, queue, its)

    with callers.api.unchanged():
        assert list(told_apart(callers, caller, things, function, call))


def done(api: Api, function: str, arguments: Row) -> tuple[int, float]:
    """How many statements a call runs, and how many rows these read."""
    with only(api, FILM), explained(api.conn) as work, suppress(psycopg.Error), api.conn.transaction():
        api.conn.execute("set local plan_cache_mode = 'force_generic_plan'")
        api.rows(function, **arguments)
    return len(work.plans), sum(node["Actual Rows"] * node["Actual Loops"] for node in work.nodes)


@pytest.mark.parametrize("function", ALIKE)
def test_anothers_takes_no_more_statements(api: Api, things: dict[str, Things], function: str) -> None:
    """And reads few rows more; a filter reads those that it names, and leaves them out."""
    theirs, call = things[GAMES], ALIKE[function]
    for calls in zip(*(call(FILM, theirs.queue, it) for it in (theirs, nobodys(theirs))), strict=True):
        for _ in range(3):  # the first ones have their plans made
            (count, rows), (of_none, rows_of_none) = (done(api, function, each) for each in calls)
        assert count == of_none
        assert call.__qualname__.startswith(("_bulk", "_list")) or rows - rows_of_none <= 5


@pytest.mark.parametrize("function", ["update_steps", "preview_update"])
def test_an_update_of_a_nested_run_asks_nothing_about_another(
    api: Api, queue: str, things: dict[str, Things], function: str
) -> None:
    steps = [{"name": "a", "task": "t"}, NESTED | {"after": ["a"]}]
    spec = {"name": "its", "queue": queue, "steps": steps}
    run = api.row("submit_spec", spec=spec, options={"tenant": FILM})["run_id"]

    def call(its: Things) -> list[Row]:
        return [{"run": run, "changes": {"placement": each}} for each in _placements(its)]

    for told in told_apart(Callers(api, {}), FILM, things, function, call):
        assert "QHA03" in told


def dry_run(api: Api, queue: str, **step: Any) -> tuple[str, str]:
    """What a dry run of a step tells a caller of one tenant, and one that may see all of them."""
    spec = {"name": "dry", "queue": queue, "steps": [{"name": "a", "task": "t"} | step]}
    call = {"spec": spec, "options": {"tenant": FILM}}
    return answer(Callers(api, {}), FILM, "check_workflow", call), api.row("check_workflow", **call)[
        "headline"
    ]


def test_a_dry_run_tells_no_names_that_are_nearly_those(api: Api) -> None:
    queue = f"{api.queue()}-of-matrices"
    for each in (queue, f"{queue}s"):
        api.rows("create_queue", queue=each)
    with api.conn.transaction(force_rollback=True):
        api.leave_all()  # those of other tests poll every queue
        api.node(queues=[queue], tasks=["render-matrices"])
        for asked in ({"queue": f"{queue}s"}, {"queue": queue, "task": "render-matrics"}):
            told, of_all = dry_run(api, **asked)
            assert "no_handler" in told
            assert ("did you mean" in told, "did you mean" in of_all) == (False, True)


def test_a_dry_run_tells_nothing_of_a_session(api: Api, dsn: str) -> None:
    """That of another application, which keeps what it asks about other leases from coming true."""
    queue = api.queue()
    api.node(queues=[queue], tasks=["t"])
    with psycopg.connect(dsn, application_name="of-games") as other:
        other.execute("select hwqueue.spawn_lease(%s, 't')", [queue])
        placement = {"require": [{"leases": {"labels": {"app": queue}}, "domain": "node"}]}
        api.spawn(queue, "t", tenant=FILM, placement=placement)
        # the oldest session is named; those of other tests on the same server, anywhere, end
        for _ in looks():
            told, of_all = dry_run(api, queue, placement=placement)
            if "of-games" in of_all:
                break
    assert "'what it asks about other leases is not published yet'" in told
    assert ("of-games" in told, "of-games" in of_all) == (False, True)
    assert "transaction of session" not in told


@pytest.mark.parametrize("caller", TENANTS)
@pytest.mark.parametrize(
    "case",
    [
        ("list_leases", {"filter": {}}, "task"),
        ("list_leases", {"filter": {"state": "pending"}}, "task"),
        ("list_leases", {"filter": {"state": "failed"}}, "task"),
        ("list_gangs", {}, "gang"),
        ("list_gangs", {"state": "waiting"}, "gang"),
        ("list_everywhere", {}, "everywhere"),
    ],
    ids=str,
)
def test_lists_name_nothing_of_another(
    callers: Callers, queue: str, things: dict[str, Things], case: tuple[str, Row, str], caller: str
) -> None:
    (function, wanted, shown), theirs = case, other_than(caller, things)
    asked = [wanted]
    if "filter" in wanted:
        asked.append({"filter": wanted["filter"] | {"queue": queue}})
    for call in asked:
        told = answer(callers, caller, function, {**call, "limit": 1000})
        assert str(getattr(things[caller], shown)) in told
        assert [secret for secret in secrets(theirs) if secret in told] == []


@pytest.mark.parametrize("caller", TENANTS)
@pytest.mark.parametrize("function", sorted(REFUSED))
def test_what_is_about_all_tenants_is_refused(
    callers: Callers, queue: str, things: dict[str, Things], function: str, caller: str
) -> None:
    """In the same words whatever it is asked about, and before anything is looked up."""
    theirs = other_than(caller, things)
    required = callers.api.conn.execute(_REQUIRED, [function]).fetchall()
    told, before = set(), callers.api.contents()
    for its, name in ((theirs, queue), (nobodys(theirs), "none"), (things[caller], queue)):
        ids = {"p_queue": name, "p_node": its.node, "p_class": its.class_id, "p_lease": its.lease}
        call = sql.SQL("select * from hwqueue.{}({})").format(
            sql.Identifier(function),
            sql.SQL(", ").join(
                sql.SQL("{} => {}::{}").format(
                    sql.Identifier(each), sql.Literal(ids.get(each)), sql.SQL(kind)
                )
                for each, kind in required
            ),
        )
        with callers.only(caller) as api, pytest.raises(psycopg.Error) as caught, api.conn.transaction():
            api.conn.execute(call)
        refusal = read_refusal(caught.value)
        assert refusal.code == "QHA03"
        assert refusal.hint
        told.add(str(refusal))
    [only_one] = told
    assert _UUID.search(only_one) is None
    assert callers.api.contents() == before


@pytest.mark.parametrize(
    ("function", "argument", "more"),
    [
        ("submit_workflow", "workflow", {}),
        ("submit_workflows", "workflow", {"runs": [{}]}),
        ("check_workflow", "spec", {}),
    ],
)
def test_a_workflow_of_another_tenant_is_missing(api: Api, function: str, argument: str, more: Row) -> None:
    """To a caller that names no tenant; naming its own it may submit it: the steps are shared."""
    steps = [{"name": "a", "task": "t", "queue": api.queue()}]
    for name, tenant in (("theirs", GAMES), ("open", "")):
        spec = {"name": name, "steps": steps} | ({"tenant": tenant} if tenant else {})
        api.rows("define_workflow", spec=spec)
    theirs, none, unnamed = (
        answer(Callers(api, {}), FILM, function, {argument: name} | more)
        for name in ("theirs", "absent", "open")
    )
    assert "code='QHF01'" in theirs
    assert theirs.replace("theirs", "absent") == none
    assert "code=" not in unnamed
    with only(api, FILM):
        run = api.row("submit_workflow", workflow="theirs", options={"tenant": FILM})["run_id"]
        assert api.row("get_workflow_run", run=run)["tenant"] == FILM


def test_a_view_is_refused_or_shows_ones_own(callers: Callers, things: dict[str, Things]) -> None:
    """A bound login that may read views sees nothing in them."""
    shown = "[]" if callers.bound else str(things[FILM].lease)
    names = callers.api.conn.execute(
        "select relname::text from pg_class where relnamespace = 'hwqueue'::regnamespace and relkind = 'v'"
    ).fetchall()
    assert len(names) >= 8
    for (name,) in names:
        with callers.only(FILM) as api:
            try:
                view = sql.SQL("table hwqueue.{}").format(sql.Identifier(name))
                told = str(api.conn.execute(view).fetchall())
            except psycopg.Error as error:
                told = str(read_refusal(error))
        assert [secret for secret in secrets(things[GAMES]) if secret in told] == []
        assert (shown if name == "lease_history" else "code='QHA03'") in told, name
