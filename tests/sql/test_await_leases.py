"""What those who wait for leases are told, and when the end of a claim is notified."""

import psycopg
import pytest

from tests.flows import finish_all
from tests.sql.api import NOBODY, Api, Node, settlement, token

Connection = psycopg.Connection


@pytest.fixture(autouse=True)
def _listening(conn: Connection) -> None:
    conn.execute("listen hwqueue_ended")


def heard(conn: Connection) -> list[str]:
    """The payloads that have come since the last call."""
    return [notify.payload for notify in conn.notifies(timeout=0)]


def awaited(api: Api, *leases: object) -> dict[object, str]:
    """Wait for these leases: their payloads."""
    rows = api.rows("await_leases", lease_ids=list(leases), notify=True)
    return {row["lease_id"]: row["payload"] for row in rows}


def test_a_state_for_each(api: Api, queue: str, node: Node, conn: Connection) -> None:
    running = api.running(queue, node)
    done = api.running(queue, node)
    api.complete(done)
    waiting = api.spawn(queue)
    ids = [running["lease_id"], done["lease_id"], waiting, waiting, NOBODY]
    with api.unchanged():
        rows = api.rows("await_leases", lease_ids=ids)
    assert {row["lease_id"]: row["state"] for row in rows} == {
        running["lease_id"]: "claimed",
        done["lease_id"]: "completed",
        waiting: "pending",
        NOBODY: None,
    }
    assert {row["payload"] for row in rows} == {None}
    assert len(rows) == 4
    api.complete(running)
    assert heard(conn) == []  # nobody waits to be notified


def test_completions_notify_who_waits_and_nobody_else(api: Api, conn: Connection) -> None:
    """A lease that goes when it completes as well."""
    queue, node = api.queue(retain_completed=0), api.node()
    mine, other = (api.running(queue, node) for _ in range(2))
    [payload] = awaited(api, mine["lease_id"]).values()
    api.complete(other)
    assert heard(conn) == []
    api.complete(mine)
    assert heard(conn) == [payload]
    assert str(mine["lease_id"]) not in payload
    [row] = api.rows("await_leases", lease_ids=[mine["lease_id"]])
    assert row["state"] is None
    claims = [api.running(api.queue(), node) for _ in range(3)]
    payloads = awaited(api, *(claim["lease_id"] for claim in claims[:2]))
    finish_all(api, claims)
    assert sorted(heard(conn)) == sorted(payloads.values())


def test_other_ends_notify_and_a_retry_does_not(api: Api, conn: Connection) -> None:
    queue, node = api.queue(max_attempts=2, retry={"kind": "fixed", "base": 0}), api.node()
    claim = api.running(queue, node)
    awaited(api, claim["lease_id"])
    error = {"message": "no"}
    assert api.value("fail_lease", **token(claim), error=error) == "pending"
    assert heard(conn) == []
    [again] = api.claim(node, queue)
    [payload] = awaited(api, again["lease_id"]).values()
    assert api.value("fail_lease", **token(again), error=error) == "failed"
    assert heard(conn) == [payload]
    claim = api.running(queue, node)
    [payload] = awaited(api, claim["lease_id"]).values()
    assert api.value("cancel_lease", lease=claim["lease_id"]) == "claimed"
    assert heard(conn) == []
    settle = [settlement(claim, "release")]
    api.rows("settle_and_claim", **node.who, settle=settle, queues=[queue], qty=0)
    assert heard(conn) == [payload]


@pytest.mark.parametrize("ids", [None, [], [None], [NOBODY] * 1001, [[NOBODY]]], ids=str)
@pytest.mark.thorough
def test_bad_arguments(api: Api, ids: object) -> None:
    assert api.fault("await_leases", lease_ids=ids) == "p_lease_ids"
