"""update_lease: a lease that waits can be changed."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, Node, token


def test_placement(api: Api) -> None:
    """All of it anew, the shorthands of its spawn included; seen by the next claim."""
    queue, node = api.queue(), api.node(labels={"zone": "a"})
    lease = api.spawn(queue, affinity_tags={"zone": "b"})
    assert api.claim(node, queue) == []
    changes = {"placement": {"require": [{"tags": {"zone": "a"}}]}}
    assert api.value("update_lease", lease=lease, changes=changes) == "pending"
    assert api.claimed(node, queue) == [lease]


def test_labels(api: Api) -> None:
    lease = api.spawn(api.queue(), labels={"app": "a"}, tenant="t", affinity_tags={"x": 1})
    before = api.lease(lease)
    api.rows("update_lease", lease=lease, changes={"labels": {"app": "b"}})
    assert api.lease(lease) == before | {"labels": {"app": "b"}}
    api.rows("update_lease", lease=lease, changes={"labels": None, "placement": None})
    assert api.lease(lease) == before | {"labels": {}, "placement": {}}


def test_priority_and_a_fresh_place_in_line(api: Api, queue: str) -> None:
    first, second, third = (api.spawn(queue, priority=priority) for priority in (3, 2, 2))
    api.rows("update_lease", lease=third, changes={"priority": 4})
    assert api.lease(third)["priority"] == 4
    api.rows("update_lease", lease=second, changes={"priority": 3})
    api.rows("update_lease", lease=first, changes={"labels": {}})
    assert api.claimed(api.node(), queue, qty=3) == [third, second, first]


def test_later_and_sooner(api: Api, queue: str, node: Node, clock: Clock) -> None:
    lease = api.spawn(queue)
    later = clock.now() + timedelta(hours=1)
    changes: dict[str, Any] = {"available_at": later.isoformat()}
    assert api.value("update_lease", lease=lease, changes=changes) == "scheduled"
    assert api.lease(lease)["available_at"] == later
    assert api.claim(node, queue) == []
    changes = {"available_at": clock.now().isoformat()}
    assert api.value("update_lease", lease=lease, changes=changes) == "pending"
    assert api.claimed(node, queue) == [lease]


def test_deadline(api: Api, clock: Clock) -> None:
    soon = (clock.now() + timedelta(minutes=1)).isoformat()
    given, taken = api.spawn(api.queue()), api.spawn(api.queue(), deadline=soon)
    api.rows("update_lease", lease=given, changes={"deadline": soon})
    api.rows("update_lease", lease=taken, changes={"deadline": None})
    api.reap_after(clock, timedelta(minutes=2))
    assert (api.state(given), api.state(taken)) == ("failed", "pending")


def test_attempts_and_tokens_go_on(api: Api) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 60}), api.node()
    old = api.running(queue, node)
    api.rows("fail_lease", **token(old), error={"n": 1})
    changes = {"priority": 1, "available_at": "2020-01-01T00:00:00Z"}
    api.rows("update_lease", lease=old["lease_id"], changes=changes)
    [new] = api.claim(node, queue)
    assert new["attempt"] == 2
    assert new["claim_token"] > old["claim_token"]


def test_nothing_to_change(api: Api) -> None:
    lease = api.spawn(api.queue(), delay=60)
    before = api.lease(lease)
    assert api.value("update_lease", lease=lease, changes={}) == "scheduled"
    assert api.lease(lease) == before


def test_not_while_claimed_nor_when_finished(api: Api) -> None:
    claim = api.running(api.queue())
    call = {"lease": claim["lease_id"], "changes": {"priority": 1}}
    refusal = api.refused("QHL07", "update_lease", **call)
    assert refusal.detail == {"lease_id": str(claim["lease_id"]), "state": "claimed"}
    api.complete(claim)
    assert api.refused("QHL03", "update_lease", **call).detail["state"] == "completed"
    api.refused("QHL04", "update_lease", lease=NOBODY, changes={})


@pytest.mark.parametrize(
    ("code", "field", "changes"),
    [
        ("QHA01", "changes", None),
        ("QHA01", "changes", []),
        ("QHA01", "changes.params", {"params": {}}),
        ("QHA01", "changes.priority", {"priority": 40000}),
        ("QHA01", "changes.labels.app", {"labels": {"app": 1}}),
        ("QHA01", "changes.available_at", {"available_at": "2030-01-01 00:00"}),
        ("QHA01", "changes.deadline", {"deadline": 7}),
        ("QHC03", "changes.placement.require", {"placement": {"require": 1}}),
        (
            "QHC04",
            "changes.placement.resources.gpu_milli",
            {"placement": {"resources": {"gpu": 1, "gpu_milli": 1}}},
        ),
    ],
)
@pytest.mark.thorough
def test_bad_changes(api: Api, code: str, field: str, changes: Any) -> None:
    lease = api.spawn(api.queue())
    assert api.refused(code, "update_lease", lease=lease, changes=changes).field == field
