"""take_deaths: leases that died without a handler, for workers that have hooks for that."""

from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import TASK
from tests.sql.api import Api, Node, token


def hearer(api: Api, queue: str, *tasks: str) -> Node:
    """A node whose worker takes deaths of the queue and the tasks."""
    return api.node(hears_deaths=True, queues=[queue], tasks=[*tasks] or [TASK], heartbeat_timeout="1 day")


def dead(api: Api, clock: Clock, queue: str, **options: Any) -> dict[str, Any]:
    """The claim of a lease whose only attempt expires."""
    claim = api.running(queue, None, {"n": 1}, max_attempts=1, claim_timeout=30, **options)
    api.reap_after(clock, timedelta(seconds=40))
    assert api.state(claim["lease_id"]) == "failed"
    return claim


def test_a_claim_that_expires_at_the_last_attempt(api: Api, queue: str, clock: Clock) -> None:
    """Unless it was requeued meanwhile."""
    node = hearer(api, queue)
    claim = dead(api, clock, queue, headers={"h": 1})
    api.rows("requeue_lease", lease=dead(api, clock, queue)["lease_id"])
    [death] = api.rows("take_deaths", **node.who)
    assert (death["lease_id"], death["claim_token"]) == (claim["lease_id"], claim["claim_token"])
    assert (death["attempt"], death["queue"], death["task_name"]) == (1, queue, TASK)
    assert (death["params"], death["headers"]) == ({"n": 1}, {"h": 1})
    assert death["error"]["reason"] == "claim_expired"
    assert api.rows("take_deaths", **node.who) == []


def test_a_deadline_and_a_superseded_node(api: Api, clock: Clock) -> None:
    queue = api.queue(max_attempts=1)
    node, other = hearer(api, queue), api.node()
    soon = (clock.now() + timedelta(seconds=5)).isoformat()
    late, held = api.spawn(queue, deadline=soon, priority=-1), api.spawn(queue)
    assert api.claimed(other, queue) == [held]
    api.node(other.node_id, name=other.name, instance_id="second")
    api.reap_after(clock, timedelta(seconds=10))
    reasons = {row["lease_id"]: row["error"]["reason"] for row in api.rows("take_deaths", **node.who)}
    assert reasons == {late: "deadline_exceeded", held: "node_superseded"}


def test_what_a_worker_settles_is_none(api: Api, queue: str, clock: Clock) -> None:
    """It calls its hooks itself; a retry and a cancellation are no deaths."""
    node = hearer(api, queue)
    failed, retried, cancelled = (
        api.running(queue, claim_timeout=30, max_attempts=most) for most in (1, 2, 1)
    )
    api.rows("fail_lease", **token(failed), error={})
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    api.reap_after(clock, timedelta(seconds=40))
    assert api.state(retried["lease_id"]) == "pending"
    assert api.state(cancelled["lease_id"]) == "cancelled"
    assert api.rows("take_deaths", **node.who) == []


def test_only_what_it_serves_and_has_asked_to_hear_of(api: Api, clock: Clock) -> None:
    """And nothing is kept where nobody hears."""
    queue, others = api.queue(), api.queue()
    deaf = api.node(queues=[queue], tasks=[TASK], heartbeat_timeout="1 day")
    elsewhere, other_task = hearer(api, others), hearer(api, queue, "other")
    dead(api, clock, queue)
    node = hearer(api, queue)  # too late
    claim = dead(api, clock, queue)
    for one in deaf, elsewhere, other_task:
        assert api.rows("take_deaths", **one.who) == []
    assert [d["lease_id"] for d in api.rows("take_deaths", **node.who)] == [claim["lease_id"]]


def test_what_requires_trust_is_told_to_who_is_trusted(api: Api, clock: Clock) -> None:
    """Any worker can say that it serves a queue; params of such leases are not for all of them."""
    queue = api.queue(max_attempts=1)
    stranger, trusted, runs = hearer(api, queue), hearer(api, queue), api.node()
    for node in trusted, runs:
        api.rows("attest_node", node=node.node_id, domain="vault")
    needs = [{"trust": "vault"}]
    lease = api.spawn(queue, TASK, Jsonb({"key": 1}), placement={"require": needs})
    assert api.claimed(runs, queue) == [lease]
    api.node(runs.node_id, name=runs.name, instance_id="second")
    assert api.state(lease) == "failed"
    assert api.rows("take_deaths", **stranger.who) == []
    [death] = api.rows("take_deaths", **trusted.who)
    assert (death["lease_id"], death["params"]) == (lease, {"key": 1})


def test_after_an_hour_it_is_forgotten(api: Api, queue: str, clock: Clock) -> None:
    """Prune says whether there are more."""
    node = hearer(api, queue)
    for _ in range(2):
        dead(api, clock, queue)
    clock.advance(timedelta(hours=2))
    assert api.rows("take_deaths", **node.who) == []
    more = [api.row("prune", limit=1)["more"] for _ in range(3)]
    assert (more[0], more[2]) == (True, False)
    assert api.one("select count(*) from hwqueue.death") == 0
    api.refused("QHN03", "take_deaths", node=node.node_id, epoch=node.epoch + 1)
