"""The helpers that users get for their own tests."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from hwqueue import Cancelled
from hwqueue.client import Client
from hwqueue.testing import (
    assert_not_spawned,
    assert_spawned,
    claim_one,
    install_clock,
    make_async_context,
    make_claim,
    make_context,
    spawned,
)
from hwqueue.types import NodeSpec
from tests.client.conftest import producer

client = producer


def test_the_clock_moves_for_everybody(client: Client, conn: psycopg.Connection) -> None:
    clock = install_clock(conn)
    clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    client.spawn_lease("work", "t", delay=timedelta(hours=1))
    with pytest.raises(AssertionError, match="nothing to claim in queue 'work'"):
        claim_one(client, "work")
    clock.advance(timedelta(hours=1))
    assert clock.now() == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert claim_one(client, "work").task_name == "t"


def test_claim_one_can_be_a_certain_node(client: Client) -> None:
    client.spawn_lease("work", "t", affinity_tags={"gpu": True})
    with pytest.raises(AssertionError, match="nothing to claim"):
        claim_one(client, "work")
    node = NodeSpec(name="gpu", instance_id="i", labels={"gpu": True})
    assert claim_one(client, "work", node=node).task_name == "t"


def test_assert_spawned_counts_what_fits(client: Client) -> None:
    client.spawn_lease("work", "mail", {"to": "a", "n": 1})
    client.spawn_lease("work", "mail", {"to": "b"})
    (lease,) = assert_spawned(client, "mail", params={"to": "a"})
    assert lease.params["n"] == 1
    assert len(assert_spawned(client, "mail", count=2)) == 2
    assert assert_spawned(client, "other", count=0) == []
    with pytest.raises(AssertionError, match=r"0 spawned(.|\n)*'to': 'a'"):
        assert_spawned(client, "mail", params={"to": "c"})
    for params in ([1, 2], "text", 7):
        client.spawn_lease("work", "mail", params)
    assert_spawned(client, "mail", params={"to": "b"})
    assert_spawned(client, "mail", params={"to": [{}]}, count=0)
    assert_spawned(client, "mail", count=5)


def test_what_was_spawned_instead_is_said(client: Client) -> None:
    client.create_queue("new")
    with pytest.raises(AssertionError, match="spawned were: no leases"):
        assert_spawned(client, "mail")
    client.spawn_lease("work", "mail", {"to": "a", "n": 1})
    client.spawn_lease("work", "mail", [1])
    with pytest.raises(AssertionError) as told:
        assert_spawned(client, "mail", params={"to": "b", "at": 2}, queue="new")
    assert str(told.value).splitlines() == [
        "1 of task 'mail' in queue 'new' with params {'to': 'b', 'at': 2} expected, 0 spawned",
        "all of task 'mail', newest first:",
        "  [1], pending: in queue 'work', other params",
        "  {'n': 1, 'to': 'a'}, pending: in queue 'work', no 'at', 'to' is 'a'",
    ]
    with pytest.raises(AssertionError, match=r"spawned were: 'mail' \(2\)"):
        assert_spawned(client, "maill")
    with pytest.raises(AssertionError, match="0 of task 'mail' expected, 2 spawned"):
        assert_not_spawned(client, "mail")
    assert_not_spawned(client, "mail", state="completed")
    assert [lease.params for lease in spawned(client, params=[1])] == [[1]]


def test_a_context_for_a_handler() -> None:
    context = make_context({"to": "a"}, attempt=2, headers={"trace": "x"})
    assert (context.claim.params, context.attempt) == ({"to": "a"}, 2)
    assert context.headers == {"trace": "x"}
    assert context.extend(timedelta(hours=1)) > datetime.now(UTC)
    context.cancelled.set()
    with pytest.raises(Cancelled):
        context.raise_if_cancelled()
    assert make_context().claim.params == {}


async def test_an_async_context_for_a_handler() -> None:
    context = make_async_context(claim=make_claim("mail", [1], attempt=3))
    assert (context.claim.task_name, context.claim.params, context.attempt) == ("mail", [1], 3)
    assert await context.extend(timedelta(hours=1)) > datetime.now(UTC)
