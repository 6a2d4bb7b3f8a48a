"""The helpers that users get for their own tests."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from hwqueue.client import Client
from hwqueue.testing import assert_spawned, claim_one, install_clock
from hwqueue.types import NodeSpec


def test_the_clock_moves_for_everybody(dsn: str, conn: psycopg.Connection) -> None:
    clock = install_clock(conn)
    clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    with Client(dsn) as client:
        client.create_queue("work")
        client.spawn_lease("work", "t", delay=timedelta(hours=1))
        with pytest.raises(AssertionError, match="nothing to claim in queue 'work'"):
            claim_one(client, "work")
        clock.advance(timedelta(hours=1))
        assert clock.now() == datetime(2030, 1, 1, 1, tzinfo=UTC)
        assert claim_one(client, "work").task_name == "t"


def test_claim_one_can_be_a_certain_node(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("work")
        client.spawn_lease("work", "t", affinity_tags={"gpu": True})
        with pytest.raises(AssertionError, match="nothing to claim"):
            claim_one(client, "work")
        node = NodeSpec(name="gpu", instance_id="i", labels={"gpu": True})
        assert claim_one(client, "work", node=node).task_name == "t"


def test_assert_spawned_takes_params_that_are_no_object(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("work")
        for params in ([1, 2], "text", 7, {"to": "a"}):
            client.spawn_lease("work", "mail", params)
        assert_spawned(client, "work", "mail", params={"to": "a"})
        assert_spawned(client, "work", "mail", params={"to": [{}]}, count=0)
        assert_spawned(client, "work", "mail", count=4)


def test_assert_spawned_counts_what_fits(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("work")
        client.spawn_lease("work", "mail", {"to": "a", "n": 1})
        client.spawn_lease("work", "mail", {"to": "b"})
        (lease,) = assert_spawned(client, "work", "mail", params={"to": "a"})
        assert lease.params["n"] == 1
        assert len(assert_spawned(client, "work", "mail", count=2)) == 2
        assert assert_spawned(client, "work", "other", count=0) == []
        with pytest.raises(AssertionError, match=r"found 0.*'to': 'a'"):
            assert_spawned(client, "work", "mail", params={"to": "c"})
