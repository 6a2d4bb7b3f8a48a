"""drop_queue: an empty one goes, a full one only by force."""

import pytest

from tests.sql.api import Api, outlive, token


def purge(api: Api) -> None:
    """Delete what dropped queues held: noted first, deleted once nobody can be on the way."""
    api.rows("prune")
    outlive(api.conn)
    api.rows("prune")


def test_an_empty_queue_goes(api: Api, queue: str) -> None:
    """One of which all leases are finished, too."""
    api.rows("drop_queue", queue=queue)
    assert api.refused("QHQ01", "drop_queue", queue=queue).detail["queue"] == queue
    queue = api.queue()
    claim = api.running(queue, idempotency_key="once")
    api.complete(claim)
    api.rows("drop_queue", queue=queue)
    purge(api)
    assert api.refused("QHL04", "get_lease", lease=claim["lease_id"]).detail


@pytest.mark.parametrize("where", ["ready", "scheduled", "claimed"])
def test_a_lease_keeps_it(api: Api, queue: str, where: str) -> None:
    if where == "claimed":
        api.running(queue)
    else:
        api.spawn(queue, delay=60 if where == "scheduled" else 0)
    for force in ({}, {"force": False}, {"force": None}):
        refusal = api.refused("QHQ03", "drop_queue", queue=queue, **force)
        assert refusal.detail["queue"] == queue


def test_its_name_is_free_at_once(api: Api) -> None:
    queue, node = api.queue(max_attempts=7), api.node()
    lost = api.spawn(queue, idempotency_key="once")
    api.rows("drop_queue", queue=queue, force=True)
    api.rows("create_queue", queue=queue, policy={"max_attempts": 8})
    kept = api.spawn(queue, idempotency_key="once")
    assert kept != lost
    assert api.claimed(node, queue, qty=5) == [kept]
    purge(api)
    assert api.state(kept) == "claimed"


def test_by_force_nothing_of_it_is_left(api: Api) -> None:
    """What runs is asked to stop; then it is in no table, and its room is free again."""
    node = api.node(capacity={"cpu_milli": 1000})
    other = api.queue()
    kept = api.needing(other, cpu_milli=1000)
    purge(api)  # of the tests before
    before = api.contents()
    queue = api.queue()
    failed = api.running(queue)
    api.rows("fail_lease", **token(failed), error={})
    api.spawn(queue, delay=3600, idempotency_key="key")
    api.needing(queue, cpu_milli=1000)
    [running] = api.claim(node, queue, qty=1)
    assert api.claim(node, other) == []
    api.rows("drop_queue", queue=queue, force=True)
    api.rows("reap")
    purge(api)
    assert api.row("get_lease", lease=running["lease_id"])["stop_reason"] == "cancelled"
    assert api.value("release_lease", **token(running)) == "cancelled"
    purge(api)
    after = api.contents()
    tables = ["queue", "queue_signal", "lease", "ready", "scheduled", "claim", "attempt"]
    for table in [*tables, "idempotency", "placement_class"]:
        assert after[table][0] == before[table][0], table  # as many rows as before
    assert api.claimed(node, other) == [kept]
