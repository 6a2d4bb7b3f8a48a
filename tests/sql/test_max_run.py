"""max_run: how long a lease may run, asked for at spawn and enforced by upkeep."""

from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, beat, settlement, token


def beats(api: Api, clock: Clock, node: Node, claim: Row, seconds: int) -> str:
    """Let time pass while the worker goes on; what its last heartbeat is told."""
    verdict = ""
    for _ in range(0, seconds, 20):
        clock.advance(timedelta(seconds=20))
        [row] = api.rows("heartbeat_node", **node.who, claims=Jsonb(beat(claim)))
        verdict = row["verdict"]
        api.rows("reap")
    return verdict


def test_it_is_asked_to_stop_and_fails(api: Api, queue: str, node: Node, clock: Clock) -> None:
    claim = api.running(queue, node, max_run=100)
    assert beats(api, clock, node, claim, 100) == "ok"
    assert api.lease(claim["lease_id"])["stop_reason"] == "run_time_exceeded"
    assert beats(api, clock, node, claim, 20) == "preempted"  # a word that all workers know
    assert api.value("release_lease", **token(claim)) in ("scheduled", "pending")
    found = api.lease(claim["lease_id"])
    assert found["attempt"] == 1  # it is used up
    [attempt] = found["attempts"]
    assert (attempt["outcome"], attempt["error"]["reason"]) == ("expired", "run_time_exceeded")


@pytest.mark.parametrize("capacity", [{}, {"capacity": {"cpu_milli": 1000}}])
def test_a_worker_that_goes_on_loses_the_claim(api: Api, clock: Clock, capacity: Row) -> None:
    """After a claim timeout more; what it held is free."""
    queue, node = api.queue(), api.node(**capacity)
    needs = {"placement": {"resources": {"cpu_milli": 1000}}} if capacity else {}
    claim = api.running(queue, node, max_run=100, max_attempts=1, **needs)
    beats(api, clock, node, claim, 120)
    assert api.state(claim["lease_id"]) == "claimed"
    assert beats(api, clock, node, claim, 40) in ("preempted", "lost")
    found = api.lease(claim["lease_id"])
    assert (found["state"], found["error"]["reason"]) == ("failed", "run_time_exceeded")
    api.refused("QHL03", "complete_lease", **token(claim))
    assert api.rows("verify_invariants") == []


def test_a_completion_in_time_wins_and_without_it_a_lease_runs_on(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node, max_run=100)
    beats(api, clock, node, claim, 120)
    assert api.value("complete_lease", **token(claim)) == "completed"
    claim = api.running(queue, node)
    assert beats(api, clock, node, claim, 400) == "ok"
    assert api.lease(claim["lease_id"])["stop_reason"] is None


def test_a_task_has_it_by_default(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """So do changed leases, and those whose class a term names."""
    api.rows("set_task", task="bounded", defaults={"max_run": "1 min"})
    lease = api.spawn(queue, "bounded")
    api.rows("update_lease", lease=lease, changes={"labels": {"changed": "yes"}})
    [claim] = api.claim(node, queue)
    beats(api, clock, node, claim, 60)
    assert api.lease(lease)["stop_reason"] == "run_time_exceeded"
    [row] = api.rows(
        "settle_and_claim", **node.who, settle=Jsonb([settlement(claim, "release")]), queues=[queue], qty=0
    )
    assert row["verdict"] == "ok"


def test_what_it_may_be(api: Api) -> None:
    asked = {"queue": api.queue(), "task": "work"}
    for value in (0, "soon", -1, True):
        refusal = api.refused("QHA01", "spawn_lease", **asked, options={"max_run": value})
        assert refusal.field == "options.max_run"
