"""Callers of one tenant (`hwqueue.tenant`): what the functions show them, and let them name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.calls import TASK, Row
from tests.sql.api import Api, Refusal, read_refusal

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


@pytest.mark.parametrize("tenant", ["", GAMES])
def test_spawns_are_for_ones_own_tenant(api: Api, tenant: str) -> None:
    options = {"tenant": tenant} if tenant else {}
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
