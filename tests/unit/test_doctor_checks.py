"""Each check of `hwqueue doctor` finds nothing where all is well, and what is wrong where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from hwqueue.doctor import Finding, Level, server, work
from hwqueue.doctor.facts import Holder, Server, Skew, Work
from hwqueue.schema.bundle import ROLES
from hwqueue.types import (
    BrokenInvariant,
    KnownTask,
    Limit,
    NodeUsage,
    PendingReason,
    Queue,
    Schedule,
    Webhook,
)
from tests.unit.claims import bare

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GOOD = Server(
    version="18.1",
    version_number=180001,
    database="app",
    encoding="UTF8",
    isolation="read committed",
    login="gpu_worker",
    clock=NOW,
    in_recovery=False,
    read_only=False,
    connections=97,
    connected=12,
    autovacuum=True,
    outlives_crashes=True,
    synchronous_commit="on",
    has_standby=True,
    idle_timeout=60.0,
    oldest_xid_age=1_000_000,
    is_superuser=False,
    owns_schema=False,
    roles_there=ROLES,
    roles_held=("hwqueue_worker",),
    sees_sessions=True,
)
BUSY = Work(
    figures={
        "hwqueue_reap_lag_seconds": 3,
        "hwqueue_prune_lag_seconds": 40,
        "hwqueue_terms_unpublished": 0,
        "hwqueue_statistics_lag_seconds": 5,
        "hwqueue_webhook_oldest_seconds": 3,
        "hwqueue_schedule_oldest_due_seconds": 3,
    },
    nodes={"live": 3, "silent": 0, "cordoned": 0, "draining": 0},
    silent=(),
    queues=(Queue(queue="q", paused=False, pending=0, scheduled=0, claimed=0, policy={}),),
    reasons=(),
    webhooks=(),
    schedules=(),
)


def node(name: str) -> NodeUsage:
    found: NodeUsage = bare(NodeUsage, node_name=name, state="silent")
    return found


def schedule(**said: Any) -> Any:
    return bare(Schedule, name="nightly", **said)


def limit(**said: Any) -> Any:
    return bare(Limit, name="openai", **said)


def unset(task: str) -> KnownTask:
    """A task for which workers declare defaults and the database has none."""
    return KnownTask(task=task, defaults={}, served=True, set_at=None, set_by=None)


def reason(**said: Any) -> Any:
    """Why leases of a class are pending."""
    return bare(PendingReason, **{"queue": "q", "task_name": "draw", "pending": 7, **said})


def levels(found: Finding | list[Finding]) -> set[Level]:
    """How bad what was found is; what is not well comes with advice, and only that."""
    findings = found if isinstance(found, list) else [found]
    assert all((each.level is not Level.OK) == bool(each.advice) for each in findings)
    return {each.level for each in findings}


SERVER: list[tuple[Callable[[Server], Finding], dict[str, Any], Level, str]] = [
    (server.version, {"version_number": 140012}, Level.FAIL, "upgrade"),
    (server.version, {"version_number": 190000}, Level.WARN, "up to 18"),
    (server.encoding, {"encoding": "SQL_ASCII"}, Level.FAIL, "encoding 'UTF8'"),
    (server.isolation, {"isolation": "serializable"}, Level.WARN, 'alter role "gpu_worker" set'),
    (server.writable, {"in_recovery": True}, Level.FAIL, "target_session_attrs"),
    (server.writable, {"read_only": True}, Level.FAIL, "default_transaction_read_only"),
    (server.autovacuum, {"autovacuum": False}, Level.FAIL, "autovacuum = on"),
    (server.durability, {"outlives_crashes": False}, Level.FAIL, "fsync = on"),
    (server.durability, {"synchronous_commit": "off"}, Level.WARN, "synchronous_commit = on"),
    (server.durability, {"synchronous_commit": "local"}, Level.WARN, "synchronous_commit = on"),
    (server.idle_timeout, {"idle_timeout": 0.0}, Level.WARN, 'alter role "gpu_worker" set'),
    (server.wraparound, {"oldest_xid_age": 1_500_000_000}, Level.FAIL, "vacuum freeze"),
    (server.login, {"is_superuser": True}, Level.WARN, "security.md"),
    (server.login, {"roles_held": ()}, Level.FAIL, 'hwqueue_worker to "gpu_worker"'),
    (server.login, {"roles_held": ("hwqueue_tenants", "hwqueue_worker")}, Level.WARN, "alone"),
    (server.roles, {"roles_there": ROLES[1:]}, Level.WARN, "--from-owner"),
]


@pytest.mark.parametrize(("check", "wrong", "level", "advice"), SERVER)
def test_a_check_of_the_server(
    check: Callable[[Server], Finding], wrong: dict[str, Any], level: Level, advice: str
) -> None:
    assert levels(check(GOOD)) == {Level.OK}
    found = check(replace(GOOD, **wrong))
    assert levels(found) == {level}
    assert advice in found.advice


def test_who_needs_no_standby_and_who_no_role() -> None:
    alone = replace(GOOD, synchronous_commit="local", has_standby=False)
    assert levels(server.durability(alone)) == {Level.OK}
    assert levels(server.login(replace(GOOD, roles_held=(), owns_schema=True))) == {Level.OK}


@pytest.mark.parametrize(("ahead", "side"), [(3.0, "ahead of"), (-3.0, "behind")])
def test_a_clock_that_is_wrong(ahead: float, side: str) -> None:
    found = server.clock(Skew(seconds=ahead, uncertainty=0.1))
    assert levels(found) == {Level.WARN}
    assert f"3 s {side} this machine's" in found.message
    assert levels(server.clock(Skew(seconds=ahead, uncertainty=5.0))) == {Level.OK}


@pytest.mark.parametrize("kind", ["session", "prepared", "slot", "standby"])
def test_each_holder_is_named_with_what_ends_it(kind: str) -> None:
    assert levels(server.horizon(GOOD, [])) == {Level.OK}
    seconds = 900.0 if kind in ("session", "prepared") else None
    holder = Holder(kind=kind, who="somebody", seconds=seconds, writes=kind == "session", name="42")
    [found] = server.horizon(GOOD, [holder])
    assert levels(found) == {Level.WARN}
    assert "42" in found.advice
    assert ("open for 15 min" in found.message) == (seconds is not None)
    assert ("affinity terms" in found.message) == holder.writes


def test_names_of_others_are_quoted_in_what_is_advised() -> None:
    gid = "x'; drop schema hwqueue cascade; --"
    holder = Holder(kind="prepared", who="somebody", seconds=900.0, writes=True, name=gid)
    [found] = server.horizon(GOOD, [holder])
    written = gid.replace("'", "''")
    assert found.advice == f"commit prepared '{written}'; or rollback prepared '{written}';"
    odd = replace(GOOD, login='app"; drop', sees_sessions=False, idle_timeout=0.0)
    nobody, operator = (replace(odd, roles_held=held) for held in [(), ("hwqueue_operator",)])
    for found in server.login(nobody), server.idle_timeout(odd), *server.horizon(operator, []):
        assert ' "app""; drop"' in found.advice


def test_sessions_that_are_hidden_are_not_called_absent() -> None:
    blind = replace(GOOD, sees_sessions=False)
    assert levels(server.horizon(blind, [])) == {Level.SKIP}
    [found] = server.horizon(replace(blind, roles_held=("hwqueue_operator",)), [])
    assert found.advice == 'grant pg_read_all_stats to "gpu_worker";'
    [found] = server.horizon(replace(blind, roles_held=("hwqueue_worker",)), [])
    assert found.advice.startswith("run it as an operator")
    slot = Holder(kind="slot", who="slot late", seconds=None, writes=False, name="late")
    assert levels(server.horizon(blind, [slot])) == {Level.WARN, Level.SKIP}


WORK: list[tuple[Callable[[Work], Finding], dict[str, Any], Level, str]] = [
    (work.queues, {"queues": ()}, Level.WARN, "hwqueue queue create"),
    (work.queues, {"queues": (replace(BUSY.queues[0], paused=True),)}, Level.WARN, "resume q"),
    (work.workers, {"nodes": {"live": 0}}, Level.WARN, "hwqueue worker run"),
    (work.workers, {"nodes": {"live": 0, "silent": 2}}, Level.FAIL, "hwqueue node list"),
    (work.silent, {"nodes": {"silent": 1}, "silent": (node("gpu-7"),)}, Level.WARN, "deregister"),
    (work.reaping, {"hwqueue_reap_lag_seconds": 200}, Level.FAIL, "hwqueue.reap()"),
    (work.pruning, {"hwqueue_prune_lag_seconds": 9000}, Level.WARN, "hwqueue.prune()"),
    (work.terms, {"hwqueue_terms_unpublished": 2}, Level.WARN, "vacuum horizon"),
    (work.webhooks, {"hwqueue_webhook_oldest_seconds": 2000}, Level.WARN, "hwqueue webhook run"),
    (work.limits, {"limits": (limit(parked=1),)}, Level.WARN, "run a worker"),
    (work.schedules, {"hwqueue_schedule_oldest_due_seconds": 90}, Level.WARN, "run a worker"),
    (work.schedules, {"schedules": (schedule(is_dry=True),)}, Level.WARN, "reap-interval"),
    (work.schedules, {"schedules": (schedule(plan_error="no"),)}, Level.WARN, "schedule set nightly"),
    (work.schedules, {"schedules": (schedule(last_outcome="failed"),)}, Level.WARN, "history nightly"),
    (
        work.webhooks,
        {"webhooks": (bare(Webhook, name="pager", failing_since=NOW),)},
        Level.WARN,
        "deliveries pager",
    ),
    (
        work.webhooks,
        {"webhooks": (bare(Webhook, name="pager", paused_reason="gone"),)},
        Level.WARN,
        "webhook resume",
    ),
    (work.statistics, {"hwqueue_statistics_lag_seconds": 400}, Level.WARN, "monitoring.md"),
    (work.tasks, {"tasks": (unset("train"),)}, Level.WARN, "hwqueue task sync"),
]


@pytest.mark.parametrize(("check", "wrong", "level", "advice"), WORK)
def test_a_check_of_the_work(
    check: Callable[[Work], Finding], wrong: dict[str, Any], level: Level, advice: str
) -> None:
    assert levels(check(BUSY)) == {Level.OK}
    if next(iter(wrong)) in BUSY.figures:
        wrong = {"figures": {**BUSY.figures, **wrong}}
    found = check(replace(BUSY, **wrong))
    assert levels(found) == {level}
    assert advice in found.advice


def test_every_check_can_fail() -> None:
    assert set(server.CHECKS) <= {check for check, *_ in SERVER}
    assert set(work.CHECKS) == {check for check, *_ in WORK}


def test_leases_that_nobody_asks_for_and_those_that_nobody_may_run() -> None:
    assert levels(work.unserved(BUSY)) == {Level.OK}
    unserved = reason(code="no_handler", message="no live node polls queue q", nodes_matching=0)
    unmatched = reason(code="label_mismatch", message="no live node will do", nodes_matching=0)
    crowded = reason(code="nodes_support_but_contended", nodes_matching=3)
    found = work.unserved(replace(BUSY, reasons=(crowded, unserved, unmatched)))
    assert [each.level for each in found] == [Level.FAIL, Level.WARN]
    assert found[0].message == "7 of task draw in queue q: no live node polls queue q"


def test_the_worst_of_what_nobody_runs_comes_first_and_nothing_is_left_out() -> None:
    """Many small warnings, older than one large failure; then as many failures."""
    few = [
        reason(task_name=f"t{number}", code="label_mismatch", message="no", nodes_matching=0)
        for number in range(9)
    ]
    alike = [reason(code="no_handler", message="no worker", pending=75) for _ in range(2)]
    found = work.unserved(replace(BUSY, reasons=(*few, *alike)))
    assert [each.level for each in found] == [Level.FAIL, *[Level.WARN] * 5]
    assert found[0].message == "150 of task draw in queue q: no worker"
    assert found[-1].message == "and 5 more classes, 35 leases"
    served = [replace(each, code="no_handler", pending=1) for each in few]
    found = work.unserved(replace(BUSY, reasons=(*alike, *served)))
    assert (found[-1].level, found[-1].message) == (Level.FAIL, "and 5 more classes, 5 leases")


def test_an_invariant_that_is_broken() -> None:
    assert levels(work.invariants([])) == {Level.OK}
    broken = BrokenInvariant(rule="capacity", subject=str(UUID(int=1)), detail={"used": 2})
    [found] = work.invariants([broken])
    assert levels(found) == {Level.FAIL}
    assert "capacity does not hold" in found.message
    assert work.invariants([broken] * 7)[-1].message == "and 2 more"
