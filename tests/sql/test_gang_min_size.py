"""Gangs that start with some of their members: the others join when there is room for them."""

from datetime import timedelta
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.test_gangs import GPU, gang, gpus, leases, racks, reap, spawn, start

__all__ = ["racks"]


def states(api: Api, gang_id: UUID) -> str:
    """Of its members by rank: (c)laimed, (r)eserved, (s)cheduled, or (-) another."""
    return "".join(
        "r" if member.get("reserved_until") else {"claimed": "c", "scheduled": "s"}.get(was, "-")
        for member in gang(api, gang_id)["members"]
        for was in [member["state"]]
    )


def ready(api: Api, claims: list[Row]) -> set[bool]:
    return {api.row("gang_status", **token(claim))["ready"] for claim in claims}


def test_all_start_together_where_they_fit(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU, min_size=2, together="rack")
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["place"], found["missing"]) == ("reserved", "rack 2", 0)
    claims = start(api, racks[:4], queue)
    assert ready(api, claims) == {False}  # the last of them is reserved, and comes too
    assert ready(api, claims + start(api, racks[4:], queue)) == {True}
    reap(api)
    assert gang(api, gang_id)["state"] == "running"


def test_the_others_join_later(api: Api, racks: list[Node], clock: Clock) -> None:
    """The first in rank start; a handler that runs is not bothered by those that come."""
    queue = api.queue()
    gang_id = spawn(api, queue, 4, GPU, min_size=2, together="node")
    big = api.node(gpus=gpus(4))
    held = [api.running(queue, big, **GPU) for _ in range(2)]
    reap(api)
    assert states(api, gang_id) == "rrss"
    claims = api.claim(big, queue, qty=10)
    status = api.row("gang_status", **token(claims[0]))
    assert (status["ready"], status["size"], status["min_size"]) == (True, 4, 2)
    assert [member["state"] for member in status["members"]] == ["claimed"] * 2 + ["scheduled"] * 2
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["missing"], found["min_size"]) == ("running", 2, 2)
    assert found["reason"] == "insufficient_capacity"
    third = leases(api, gang_id)[2]
    told = api.row("explain_lease", lease=third)["headline"]
    assert told == (
        f"waits to join gang {gang_id} of 4: node {big.node_id}, where the others run, "
        "has no room for one more"
    )
    told = api.row("explain_gang", gang=gang_id)["headline"]
    assert told.startswith("2 of 4 members wait to join; of the next one: ")
    api.rows("complete_lease", **token(held.pop()))
    clock.advance(timedelta(seconds=20))
    api.rows("heartbeat_node", **big.who, claims=Jsonb([]))
    reap(api)
    assert states(api, gang_id) == "ccrs"
    found = gang(api, gang_id)
    assert (found["state"], found["missing"], found["place"]) == (
        "running",
        1,
        f"node {big.node_id}",
    )
    assert ready(api, claims) == {True}
    [joined] = api.claim(big, queue)
    assert (joined["lease_id"], ready(api, [joined])) == (third, {True})
    assert api.rows("verify_invariants") == []


def test_none_joins_once_one_has_completed(api: Api, racks: list[Node], clock: Clock) -> None:
    """The job is ending; when min_size have completed, the others are not needed."""
    queue = api.queue()
    gang_id = spawn(api, queue, 4, GPU, min_size=2, together="rack")
    first, second = start(api, racks, queue)
    reap(api)
    api.rows("complete_lease", **token(first))
    clock.advance(timedelta(seconds=20))
    for node in racks:
        api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    reap(api)  # though there is a free device in the rack
    assert gang(api, gang_id)["state"] == "running"
    assert sorted(states(api, gang_id)) == sorted("-css")
    last = leases(api, gang_id)[-1]
    assert api.row("explain_lease", lease=last)["headline"].endswith("so it joins no more")
    assert api.rows("verify_invariants") == []
    api.rows("complete_lease", **token(second))
    reap(api)
    assert gang(api, gang_id)["state"] == "completed"
    assert (api.state(last), api.lease(last)["error"]["reason"]) == ("cancelled", "gang_incomplete")
    assert api.rows("verify_invariants") == []


def test_as_many_join_as_there_is_room_for(api: Api, racks: list[Node], clock: Clock) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 9, GPU, min_size=2)
    start(api, racks, queue)
    clock.advance(timedelta(seconds=20))
    for node in racks:
        api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    reap(api)
    assert states(api, gang_id) == "ccrrrssss"
    assert api.rows("verify_invariants") == []


def test_fewer_than_min_size_are_none(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    api.running(queue, racks[0], **GPU)
    api.running(queue, racks[2], **GPU)
    gang_id = spawn(api, queue, 5, GPU, min_size=3, together="rack")
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"], found["missing"]) == (
        "waiting",
        "insufficient_capacity",
        0,
    )
    assert states(api, gang_id) == "sssss"
    told = api.row("explain_gang", gang=gang_id)
    assert told["headline"].startswith(
        "3 of 5 must start together; no rack has room for all 3; rack 2 has room for 2"
    )
    assert (told["waiting"], told["kinds"][0]["members"]) == (5, 3)
    [lease, *_] = leases(api, gang_id)
    assert api.row("explain_lease", lease=lease)["headline"].endswith("no rack has room for 3 of them")


def test_room_is_kept_for_min_size(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    held = api.running(queue, racks[2], **GPU)
    gang_id = spawn(api, queue, 4, GPU, min_size=3, together="rack")
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["place"], found["missing"]) == ("earmarked", "rack 2", 1)
    assert api.rows("verify_invariants") == []
    api.rows("complete_lease", **token(held))
    reap(api)
    assert states(api, gang_id) == "rrrs"
    start(api, racks, queue)
    reap(api)
    assert gang(api, gang_id)["state"] == "running"
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize("on_lost", ["stop", "replace"])
def test_one_that_is_lost_joins_again(api: Api, racks: list[Node], clock: Clock, on_lost: str) -> None:
    """As long as min_size are left, nobody stops, and it waits after the first time."""
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU, min_size=2, on_lost=on_lost, together="rack")
    claims = start(api, racks, queue)
    reap(api)
    lost = claims.pop(0)
    for losses, missing in ((1, 0), (2, 1)):
        api.rows("fail_lease", **token(lost), error={"message": "no"})
        assert ready(api, claims) == {True}
        reap(api)
        found = gang(api, gang_id)
        assert (found["state"], found["losses"], found["missing"]) == ("running", losses, missing)
        assert {api.lease(claim["lease_id"])["stop_reason"] for claim in claims} == {None}
        clock.advance(timedelta(seconds=2 * missing))
        [again] = start(api, racks, queue)
        assert (again["lease_id"], again["attempt"]) == (lost["lease_id"], losses + 1)
        lost = again
    reap(api)
    assert (gang(api, gang_id)["state"], gang(api, gang_id)["missing"]) == ("running", 0)
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize(("on_lost", "state"), [("stop", "stopping"), ("replace", "reserved")])
def test_fewer_than_min_size_are_left(
    api: Api, racks: list[Node], clock: Clock, on_lost: str, state: str
) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU, min_size=2, on_lost=on_lost, together="rack")
    claims = start(api, racks, queue)
    reap(api)
    for claim in claims[:2]:
        api.rows("fail_lease", **token(claim), error={"message": "no"})
    assert ready(api, claims[2:]) == {False}
    reap(api)
    assert gang(api, gang_id)["state"] == state
    assert api.rows("verify_invariants") == []
    if on_lost == "stop":
        assert api.lease(claims[2]["lease_id"])["stop_reason"] == "preempted"
        api.rows("release_lease", **token(claims.pop()))
        reap(api)
    clock.advance(timedelta(seconds=2))
    assert ready(api, claims[2:] + start(api, racks, queue)) == {True}
    reap(api)
    assert (gang(api, gang_id)["state"], gang(api, gang_id)["missing"]) == ("running", 0)
    assert api.rows("verify_invariants") == []


def test_one_that_is_not_fetched(api: Api, racks: list[Node], clock: Clock) -> None:
    """Of those that start together: without it the others are enough."""
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU, min_size=2, together="rack", hold="10 s")
    claims = start(api, racks[:4], queue)
    assert ready(api, claims) == {False}
    clock.advance(timedelta(seconds=11))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["losses"], found["missing"]) == ("running", 1, 0)
    assert ready(api, claims) == {True}
    assert api.rows("verify_invariants") == []


def test_a_gang_that_lacks_some_is_cancelled(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 4, GPU, min_size=2, together="rack")
    claims = start(api, racks, queue)
    assert len(claims) == 2
    api.rows("cancel_gang", gang=gang_id)
    reap(api)
    assert states(api, gang_id) == "cc--"
    for claim in claims:
        api.rows("release_lease", **token(claim))
    reap(api)
    assert (gang(api, gang_id)["state"], gang(api, gang_id)["missing"]) == ("cancelled", 0)
    assert api.rows("verify_invariants") == []


def test_the_first_kinds_of_members_start(api: Api, racks: list[Node]) -> None:
    """What the others ask does not matter for that."""
    members = [
        {"task": "train", "count": 2, "options": GPU},
        {"task": "spare", "options": {"placement": {"resources": {"gpu": 8}}}},
    ]
    queue, options = api.queue(), {"min_size": 2, "together": "rack"}
    ahead = api.row("what_if_gang", queue=queue, members=Jsonb(members), options=options)
    assert (ahead["code"], ahead["size"]) == ("ready", 3)
    assert ahead["headline"] == "2 of 3 must start together; rack 1 has room for all 2 now"
    [row, *_] = api.rows("spawn_gang", queue=queue, members=Jsonb(members), options=options)
    reap(api)
    assert states(api, row["gang_id"]) == "rrs"
    assert {r["missing"] for r in api.rows("list_gangs", state="reserved")} == {1}


def test_upkeep_knows_who_is_missing(api: Api, racks: list[Node]) -> None:
    gang_id = spawn(api, api.queue(), 3, GPU, min_size=2, together="rack")
    reap(api)
    with api.conn.transaction(force_rollback=True):
        api.conn.execute("update hwqueue.gang set missing = 2 where gang_id = %s", [gang_id])
        assert {row["rule"] for row in api.rows("verify_invariants")} == {"gang_members"}


@pytest.mark.parametrize(
    ("min_size", "more", "words"),
    [
        (4, {}, "min_size 4 is more than the 3 members of the gang"),
        (0, {}, "an integer from 1 to 1000"),
        (2, {"deadline": "2099-01-01T00:00:00Z"}, "min_size goes with no deadline"),
    ],
)
def test_a_min_size_that_cannot_be(api: Api, min_size: int, more: Row, words: str) -> None:
    refusal = api.refused(
        "QHA01",
        "spawn_gang",
        queue=api.queue(),
        members=Jsonb([{"task": "train", "count": 3}]),
        options={"min_size": min_size, **more},
    )
    assert refusal.field == "options.min_size"
    assert words in refusal.message


def test_a_min_size_that_is_all(api: Api) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, min_size=2, deadline="2099-01-01T00:00:00Z")
    assert gang(api, gang_id)["min_size"] == gang(api, spawn(api, queue, 2))["min_size"] == 2
