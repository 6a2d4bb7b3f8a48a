"""Logins that are bound to tenants: what they may do, and what they cannot get at by any way."""

from collections.abc import Callable
from random import Random
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.flows import step
from tests.sql.api import Api, Node, read_refusal, refusing, token
from tests.sql.logins import Logins
from tests.sql.test_roles import ADMIN, DENIED, FILM, GAMES, OPERATOR, PRODUCER, TENANTS, WORKER
from tests.sql.test_tenant_matrix import ALIKE, NARROWED, Callers, Things, answer, kept, nobodys, things
from tests.sql.test_tenants_apart import limited

__all__ = ["kept", "things"]  # fixtures

ALL = ["spawn", "operate"]
# What needs which right: a function that is not here is for all who may read.
RIGHTS = {
    "spawn": {
        *("spawn_lease", "spawn_leases", "spawn_gang", "spawn_everywhere"),
        *("submit_workflow", "submit_workflows", "submit_spec"),
    },
    "operate": {
        *("update_lease", "cancel_lease", "requeue_lease", "signal_lease"),
        *("cancel_leases", "requeue_leases", "update_leases", "delete_leases"),
        *("cancel_gang", "stop_everywhere", "set_service_policy", "skip_step", "update_steps"),
        *("cancel_workflow_run", "pause_workflow_run", "resume_workflow_run", "retry_workflow_run"),
        "signal_workflow_run",
    },
}


@pytest.fixture
def login(api: Api, logins: Logins) -> Callable[..., Api]:
    """Makes a login that is bound to these tenants, with these rights there."""

    def make(*tenants: str, rights: list[str] = ALL, roles: tuple[str, ...] = ()) -> Api:
        name = logins.role(TENANTS, login=True)
        for tenant in tenants:
            api.rows("grant_tenant", login=name, tenant=tenant, rights=rights)
        for role in roles:
            grant(api, role, name)
        return logins.as_login(name)

    return make


@pytest.fixture
def film(login: Callable[..., Api]) -> Api:
    """A login that may do all for one tenant."""
    return login(FILM)


@pytest.fixture
def theirs(api: Api, queue: str) -> UUID:
    """A lease of another tenant."""
    return api.spawn(queue, tenant=GAMES)


def grant(api: Api, role: str, login: str) -> None:
    api.conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(login)))


def refused(its: Api, code: str, function: str, /, **arguments: Any) -> str:
    """What a login is told that must be refused."""
    with pytest.raises(psycopg.Error) as caught:
        its.rows(function, **arguments)
    found = read_refusal(caught.value)
    assert found.code == code, found
    return found.message


def name_of(its: Api) -> str:
    name = its.one("select session_user::text")
    assert isinstance(name, str)
    return name


def hidden_from(its: Api, lease: UUID) -> bool:
    """Whether a lease does not exist for a login, by its id and in lists."""
    with refusing("QHL04"):
        its.lease(lease)
    with refusing("QHL04"):
        its.rows("cancel_lease", lease=lease)
    return all(row["lease_id"] != lease for row in its.rows("list_leases", limit=1000))


def test_a_bound_login_has_what_its_tenant_has(api: Api, film: Api, queue: str, theirs: UUID) -> None:
    own = film.spawn(queue)
    assert api.lease(own)["tenant"] == FILM
    assert {row["tenant"] for row in film.rows("list_leases", limit=1000)} == {FILM}
    assert hidden_from(film, theirs)
    assert hidden_from(film, api.spawn(queue))  # one of no tenant
    assert film.value("cancel_lease", lease=own) == "cancelled"
    assert refused(film, "QHA03", "spawn_lease", queue=queue, task=TASK, options={"tenant": GAMES})


def test_what_is_spawned_without_a_tenant_is_of_the_only_one(api: Api, film: Api, queue: str) -> None:
    """In each way to spawn."""
    api.rows("set_queue_policy", queue=queue, policy={"everywhere_tenants": ["*"]})
    api.rows("set_task", task="with-defaults", defaults={"priority": 3})
    members = Jsonb([{"task": TASK, "count": 2}])
    kinds = Jsonb({"kinds": [{"task": TASK}], "each": [{}, {}]})
    batch = [{"task": TASK, "options": {"priority": 1}}, {"task": "with-defaults"}]
    found = [
        film.spawn(queue),
        film.spawn(queue, "with-defaults"),
        *(
            row["lease_id"]
            for each in (kinds, batch)
            for row in film.rows("spawn_leases", queue=queue, leases=each)
        ),
        *(row["lease_id"] for row in film.rows("spawn_gang", queue=queue, members=members)),
    ]
    assert {api.lease(lease)["tenant"] for lease in found} == {FILM}
    everywhere = film.row("spawn_everywhere", queue=queue, task=TASK)["everywhere_id"]
    assert api.row("get_everywhere", everywhere=everywhere)["tenant"] == FILM
    spec = {"name": "own", "queue": queue, "steps": [step("a")]}
    run = film.row("submit_spec", spec=spec)["run_id"]
    assert api.row("get_workflow_run", run=run)["tenant"] == FILM
    film.rows("match_nodes", placement={})


def test_of_several_tenants_one_is_named(api: Api, login: Callable[..., Api], queue: str) -> None:
    both = login(FILM, GAMES)
    refused(both, "QHA03", "spawn_lease", queue=queue, task=TASK)
    for tenant in (FILM, GAMES):
        assert api.lease(both.spawn(queue, tenant=tenant))["tenant"] == tenant
    assert {row["tenant"] for row in both.rows("list_leases", limit=1000)} == {FILM, GAMES}
    with limited(both, GAMES):
        assert {row["tenant"] for row in both.rows("list_leases", limit=1000)} == {GAMES}
        assert api.lease(both.spawn(queue))["tenant"] == GAMES


def test_the_setting_narrows_and_adds_nothing(
    film: Api, login: Callable[..., Api], queue: str, theirs: UUID
) -> None:
    own = film.spawn(queue)
    with limited(film, GAMES):
        assert hidden_from(film, theirs)
        assert hidden_from(film, own)
        assert film.rows("list_leases") == []
        assert "no tenant" in refused(film, "QHA03", "spawn_lease", queue=queue, task=TASK)
    assert film.lease(own)
    nobody = login()
    assert hidden_from(nobody, own)
    assert [nobody.rows(each) for each in ("list_leases", "list_gangs", "list_everywhere")] == [[], [], []]
    for options in ({}, {"tenant": FILM}):
        assert refused(nobody, "QHA03", "spawn_lease", queue=queue, task=TASK, options=options)


@pytest.mark.parametrize("missing", ["spawn", "operate"])
def test_each_right_opens_its_functions(
    api: Api, login: Callable[..., Api], things: dict[str, Things], missing: str
) -> None:
    """The functions are the catalog's: a new one needs no right until it is said here which."""
    has = login(FILM, rights=[each for each in ALL if each != missing])
    callers, own = Callers(api, {FILM: has}), things[FILM]
    granted = api.conn.execute(
        "select distinct p.proname::text from pg_proc p where p.pronamespace = 'hwqueue'::regnamespace"
        " and has_function_privilege(%s, p.oid, 'execute')",
        [TENANTS],
    ).fetchall()
    for (name,) in granted:
        calls = ALIKE[name](FILM, own.queue, own) if name in ALIKE else [{}]
        told = [answer(callers, FILM, name, arguments) for arguments in calls]
        refused = {f"needs the right to {missing}" in each for each in told}
        assert refused == {name in RIGHTS[missing]}, (name, told)
    assert {*ALIKE, *NARROWED, "schema_version"} >= {name for (name,) in granted} >= {*RIGHTS[missing]}


def test_a_right_is_needed_in_each_tenant_that_is_called_for(api: Api, film: Api, queue: str) -> None:
    api.rows("grant_tenant", login=name_of(film), tenant=GAMES)
    found = refused(film, "QHA03", "spawn_lease", queue=queue, task=TASK, options={"tenant": FILM})
    assert GAMES in found
    with limited(film, FILM):
        assert film.spawn(queue)
    with limited(film, GAMES):
        assert refused(film, "QHA03", "spawn_lease", queue=queue, task=TASK)
    api.rows("revoke_tenant", login=name_of(film), tenant=GAMES)
    assert film.spawn(queue)


def test_who_can_be_granted_a_tenant(api: Api, logins: Logins) -> None:
    """Only a login that may call nothing else: it would see for all tenants."""
    bound, tenant = logins.role(TENANTS, login=True), f"t-{uuid4()}"
    superuser = api.one("select session_user::text")
    wide = [logins.role(TENANTS, role, login=True) for role in (WORKER, OPERATOR, ADMIN)]
    for login in (logins.role(PRODUCER, login=True), *wide, superuser, "nobody", None):
        assert api.fault("grant_tenant", login=login, tenant=tenant) == "p_login"
    for none in ("", "*"):
        assert api.fault("grant_tenant", login=bound, tenant=none) == "p_tenant"
    assert api.fault("grant_tenant", login=bound, tenant=tenant, rights=["own"]) == "p_rights"
    for rights, kept_rights in ((["operate", "spawn"], ["read", *ALL]), ([], ["read"]), (None, ["read"])):
        assert api.value("grant_tenant", login=bound, tenant=tenant, rights=rights) == kept_rights
        [row] = api.rows("list_tenants", name=tenant)
        assert (row["tier"], row["logins"]) == (None, {bound: kept_rights})
    assert [api.value("revoke_tenant", login=bound, tenant=tenant) for _ in range(2)] == [True, False]
    assert api.rows("list_tenants", name=tenant) == []


def test_a_dropped_tenant_is_nobodys(api: Api, login: Callable[..., Api], queue: str) -> None:
    tenant = f"t-{uuid4()}"
    its = login(tenant)
    lease = its.spawn(queue)
    assert api.value("drop_tenant", name=tenant) is True
    assert hidden_from(its, lease)
    assert api.value("drop_tenant", name=tenant) is False
    assert api.lease(lease)["tenant"] == tenant


def test_a_row_that_comes_later_changes_nothing_of_what_is_seen(
    api: Api, login: Callable[..., Api], queue: str
) -> None:
    """Whose a lease is says its class, whenever a row of its tenant was written."""
    mine, yours = f"t-{uuid4()}", f"t-{uuid4()}"
    its = login(mine)
    own, theirs = [its.spawn(queue)], [api.spawn(queue, tenant=yours)]
    for tenant in (mine, yours):
        api.rows("set_tenant", name=tenant, changes={"tier": "scavenger"})
    own.append(its.spawn(queue))
    theirs.append(api.spawn(queue, tenant=yours))
    assert {its.lease(lease)["tenant"] for lease in own} == {mine}
    assert all(hidden_from(its, lease) for lease in theirs)


def test_who_may_do_all_is_no_bound_login(api: Api, logins: Logins, theirs: UUID) -> None:
    """A superuser is a member of every role, and who installs has made this one."""
    _, installer = logins.api(TENANTS, "hwqueue_owner")
    assert installer.lease(theirs)["tenant"] == GAMES
    for role in (TENANTS, PRODUCER):
        api.conn.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        assert api.lease(theirs)["tenant"] == GAMES
    api.conn.execute("reset role")


def test_membership_binds_however_it_came(api: Api, logins: Logins, queue: str, theirs: UUID) -> None:
    """By a group, or without its rights; and beside another role that may do more."""
    group = logins.role(TENANTS)
    name, its = logins.api(group, PRODUCER, OPERATOR)
    api.conn.execute(sql.SQL("alter role {} noinherit").format(sql.Identifier(name)))
    its.conn.execute(sql.SQL("set role {}").format(sql.Identifier(OPERATOR)))
    assert hidden_from(its, theirs)
    refused(its, "QHA03", "spawn_lease", queue=queue, task=TASK)
    refused(its, "QHA03", "list_events")
    assert its.one("select count(*) from hwqueue.lease_history") == 0


def test_without_the_membership_a_login_can_do_nothing(api: Api, film: Api, queue: str) -> None:
    """As after a restore on a server that has not granted it: what it was granted here opens nothing."""
    lease = film.spawn(queue)
    role, name = sql.Identifier(TENANTS), sql.Identifier(name_of(film))
    api.conn.execute(sql.SQL("revoke {} from {}").format(role, name))
    for function, call in (("get_lease", {"lease": lease}), ("list_leases", {}), ("schema_version", {})):
        with refusing(DENIED):
            film.rows(function, **call)
    grant(api, TENANTS, name_of(film))
    assert film.lease(lease)["tenant"] == FILM


# Not "set session authorization": the tests' connections are a superuser's, and may.
ATTACKS: list[LiteralString] = [
    "set role postgres",
    "set is_superuser = 'on'",
    "select set_config('is_superuser', 'on', false)",
    "select * from hwqueue.tenant_login",
    "insert into hwqueue.tenant_login values (session_user, 'games', '{read}', now())",
    "select hwqueue.grant_tenant(session_user::text, 'games')",
    "select hwqueue.my_tenants()",
    "select hwqueue.find_lease(null)",
    "select hwqueue.check_token('x')",
    "select * from hwqueue.lease_history",
    "select * from hwqueue.pending_reasons",
    "create function hwqueue.mine() returns int language sql return 1",
    "alter role hwqueue_tenants nologin",
    "revoke hwqueue_tenants from current_user",
    "listen hwqueue; select hwqueue.wake_payloads(array['q'])",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_statement_of_its_own_frees_it(api: Api, film: Api, theirs: UUID, attack: LiteralString) -> None:
    with api.unchanged():
        try:
            film.conn.execute(attack)
        except psycopg.Error as error:
            assert error.sqlstate in (DENIED, "55P02", "22023", "0LP01"), error  # noqa: PT017
        assert hidden_from(film, theirs)


def test_names_of_its_own_are_not_taken_for_ours(api: Api, film: Api, logins: Logins, theirs: UUID) -> None:
    """Tables, functions and operators in its search path, in a schema or for the session alone."""
    schema = sql.Identifier(f"s_{uuid4().hex}")
    api.conn.execute(
        sql.SQL("create schema {} authorization {}").format(schema, sql.Identifier(name_of(film)))
    )
    for statement in (
        "set search_path = {0}, pg_temp, pg_catalog",
        "create table {0}.tenant_login as"
        " select session_user::text as login, 'games' as tenant, '{{}}'::text[] as rights",
        "create temp table tenant_login as select * from {0}.tenant_login",
        "create temp table pg_roles as select session_user as rolname, true as rolsuper",
        "create function {0}.pg_has_role(name, oid, text) returns boolean language sql as 'select false'",
        "create function {0}.session_user() returns name language sql as 'select ''postgres''::name'",
        "create function {0}.equals(text, text) returns boolean language sql as 'select true'",
        "create operator {0}.= (leftarg = text, rightarg = text, function = {0}.equals)",
        "set role hwqueue_tenants",
    ):
        film.conn.execute(sql.SQL(statement).format(schema))
    assert hidden_from(film, theirs)
    film.conn.execute("reset role")
    film.conn.execute("discard temp")
    api.conn.execute(sql.SQL("drop schema {} cascade").format(schema))


def test_functions_of_others_do_not_free_it(api: Api, film: Api, logins: Logins, theirs: UUID) -> None:
    """One that runs with the rights of a login for all tenants is called in the name of who calls it."""
    schema = sql.Identifier(f"s_{uuid4().hex}")
    owner = logins.role(PRODUCER, OPERATOR)
    for statement in (
        "create schema {0} authorization {1}",
        "grant usage on schema {0} to public",
        "create function {0}.looked(uuid) returns text language sql security definer"
        " as 'select g.tenant from hwqueue.get_lease($1) g'",
        "alter function {0}.looked(uuid) owner to {1}",
        "create view {0}.all_leases as select * from hwqueue.list_leases()",
        "alter view {0}.all_leases owner to {1}",
        "grant select on {0}.all_leases to public",
    ):
        api.conn.execute(sql.SQL(statement).format(schema, sql.Identifier(owner)))
    assert api.conn.execute(sql.SQL("select {}.looked(%s)").format(schema), [theirs]).fetchone() == (GAMES,)
    with refusing("QHL04"):
        film.conn.execute(sql.SQL("select {}.looked(%s)").format(schema), [theirs])
    seen = film.conn.execute(sql.SQL("select tenant from {}.all_leases").format(schema)).fetchall()
    assert {tenant for (tenant,) in seen} <= {FILM}
    api.conn.execute(sql.SQL("drop schema {} cascade").format(schema))


def test_a_token_of_another_tenant_opens_nothing(api: Api, film: Api, theirs: UUID) -> None:
    """The server's settings, said by the login itself."""
    film.conn.execute("select set_config('hwqueue.actor', 'token:ops', false)")
    for tenant in (GAMES, "*", f"{FILM},{GAMES}", "film' or true --"):
        with limited(film, tenant):
            assert hidden_from(film, theirs)


CHANGES: list[tuple[str, Row]] = [
    *(("cancel", {}), ("requeue", {})),
    *(("update", {"changes": {"priority": 9}}), ("signal", {"name": "go"})),
]


class Histories:
    """What one tenant does at random, by its login, and a node that runs its leases."""

    KINDS = ("spawn", "batch", "gang", "submit", "change", "bulk", "run", "work")

    def __init__(self, api: Api, its: Api, node: Node, queue: str, rng: Random) -> None:
        self.api, self.its, self.node, self.queue, self.rng = api, its, node, queue, rng
        self.leases: list[UUID] = []
        self.runs: list[UUID] = []
        self.gangs: list[UUID] = []

    def act(self) -> None:
        """One thing; it may be refused."""
        try:
            getattr(self, f"_{self.rng.choice(self.KINDS)}")()
        except psycopg.Error as error:
            assert str(error.sqlstate).startswith("QH"), error  # noqa: PT017

    def _spawn(self) -> None:
        key = self.rng.choice([{}, {"idempotency_key": "shared"}, {"service_id": str(UUID(int=7))}])
        self.leases.append(self.its.spawn(self.queue, "t", labels={"app": "web"}, **key))

    def _batch(self) -> None:
        rows = self.its.rows("spawn_leases", queue=self.queue, leases=[{"task": "t"}, {"task": "u"}])
        self.leases += [row["lease_id"] for row in rows]

    def _gang(self) -> None:
        members = Jsonb([{"task": "t", "count": 2}])
        self.gangs.append(self.its.rows("spawn_gang", queue=self.queue, members=members)[0]["gang_id"])

    def _submit(self) -> None:
        self.runs.append(self.its.row("submit_workflow", workflow="shared")["run_id"])

    def _change(self) -> None:
        verb, more = self.rng.choice(CHANGES)
        if self.leases:
            self.its.rows(f"{verb}_lease", lease=self.rng.choice(self.leases), **more)
        if self.gangs:
            self.its.rows("cancel_gang", gang=self.gangs.pop())

    def _bulk(self) -> None:
        name = self.rng.choice(["cancel_leases", "requeue_leases", "delete_leases"])
        self.its.rows(name, filter={"queue": self.queue})

    def _run(self) -> None:
        if self.runs:
            verb = self.rng.choice(["pause", "resume", "retry", "cancel"])
            self.its.rows(f"{verb}_workflow_run", run=self.rng.choice(self.runs))

    def _work(self) -> None:
        for claim in self.api.claim(self.node, self.queue, tasks=["t"]):
            self.api.rows("fail_lease", **token(claim), error={"message": "secret"})
        self.api.rows("reap")


def test_nothing_that_one_tenant_does_is_seen_by_another(
    api: Api, login: Callable[..., Api], things: dict[str, Things], clock: Clock
) -> None:
    """Answers stay as they are through 200 histories: rows, counts, refusals and their words.

    Left out is what another's leases may change: where nodes have room, and who asked for a
    service first (docs/run/security.md).
    """
    assert clock
    own, theirs = things[GAMES], things[FILM]
    queue = own.queue
    callers = Callers(api, {GAMES: login(GAMES)})
    asked = [
        (name, arguments)
        for name, calls in ALIKE.items()
        if name not in ("explain_lease", "match_nodes", "match_page", "match_groups")
        for its in (own, theirs, nobodys(theirs))
        for arguments in calls(GAMES, queue, its)
        if name not in RIGHTS["spawn"] or its is not own
    ]
    asked += [(name, {}) for name in (*sorted(NARROWED), "list_leases", "list_workflow_runs")]

    its, node = login(FILM), api.node(tasks=["t"])
    api.reap()  # what upkeep finds out about leases that were there before is no answer to anybody
    before = [answer(callers, GAMES, *call) for call in asked]
    for seed in range(200):
        rng = Random(seed)
        history = Histories(api, its, node, queue, rng)
        for _ in range(8):
            history.act()
        for number in rng.sample(range(len(asked)), 20) if seed < 199 else range(len(asked)):
            assert answer(callers, GAMES, *asked[number]) == before[number], (seed, asked[number])
