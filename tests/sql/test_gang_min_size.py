"""Gangs that start with some of their members, or go on without the lost ones."""

from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, Gang, gang, gpus, later, leases, reap, spawn, start
from tests.sql.test_earmarks import became

pytestmark = pytest.mark.usefixtures("sound")


def test_all_start_together_where_they_fit(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 3, min_size=2, together="rack")
    reap(api)
    assert job.now("state", "place", "missing") == ("reserved", "rack 2", 0)
    claims = job.start(racks[:4])
    assert job.ready(claims) == {False}  # the last of them is reserved, and comes too
    assert job.ready(claims + job.run(racks[4:])) == {True}
    assert job.state == "running"


def test_the_others_join_later(api: Api, racks: list[Node], clock: Clock) -> None:
    """The first in rank start; a handler that runs is not bothered by those that come."""
    big, queue = api.node(gpus=gpus(4)), api.queue()
    job = Gang(api, [big], 4, queue=queue, min_size=2, together="node")
    held = [api.running(queue, big, **GPU) for _ in range(2)]
    reap(api)
    for _ in range(3):  # where reap begins to read goes on meanwhile
        later(api, clock, [big], seconds=5)
    assert job.members == "rrss"
    claims = job.start()
    status = api.row("gang_status", **token(claims[0]))
    assert (status["ready"], status["size"], status["min_size"]) == (True, 4, 2)
    assert [member["state"] for member in status["members"]] == ["claimed"] * 2 + ["scheduled"] * 2
    reap(api)
    found = job.now("state", "missing", "min_size", "reason")
    assert found == ("running", 2, 2, "insufficient_capacity")
    third = job.leases[2]
    place = f"node {big.node_id}, where the others run, has no room for one more"
    told = api.row("explain_lease", lease=third)["headline"]
    assert told == f"waits to join gang {job.id} of 4: {place}"
    assert job.explained["headline"].startswith("2 of 4 members wait to join; of the next one: ")
    api.rows("complete_lease", **token(held.pop()))
    later(api, clock, [big])
    assert job.members == "ccrs"
    assert job.now("state", "missing", "place") == ("running", 1, f"node {big.node_id}")
    assert job.ready(claims) == {True}
    [joined] = api.claim(big, queue)
    assert (joined["lease_id"], job.ready([joined])) == (third, {True})


def test_none_joins_once_one_has_completed(api: Api, racks: list[Node], clock: Clock) -> None:
    """The job is ending; when min_size have completed, the others are not needed."""
    job = Gang(api, racks, 4, min_size=2, together="rack")
    first, second = job.run()
    api.complete(first)
    later(api, clock, racks)  # though there is a free device in the rack
    assert job.state == "running"
    assert sorted(job.members) == sorted("-css")
    last = job.leases[-1]
    assert api.row("explain_lease", lease=last)["headline"].endswith("so it joins no more")
    assert api.rows("verify_invariants") == []
    job.complete(second)
    assert job.state == "completed"
    assert (api.state(last), api.lease(last)["error"]["reason"]) == ("cancelled", "gang_incomplete")


def test_as_many_join_as_there_is_room_for(api: Api, racks: list[Node], clock: Clock) -> None:
    job = Gang(api, racks, 9, min_size=2)
    job.start()
    later(api, clock, racks)
    assert job.members == "ccrrrssss"


def test_fewer_than_min_size_are_none(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    for node in (racks[0], racks[2]):
        api.running(queue, node, **GPU)
    job = Gang(api, racks, 5, queue=queue, min_size=3, together="rack")
    reap(api)
    assert job.now("state", "reason", "missing") == ("waiting", "insufficient_capacity", 0)
    assert job.members == "sssss"
    told = job.explained
    assert told["headline"].startswith(
        "3 of 5 must start together; no rack has room for all 3; rack 2 has room for 2"
    )
    assert (told["waiting"], told["kinds"][0]["members"]) == (5, 3)
    said = api.row("explain_lease", lease=job.leases[0])["headline"]
    assert said.endswith("no rack has room for 3 of them")


def test_room_is_kept_for_min_size(api: Api, racks: list[Node]) -> None:
    held = api.running(api.queue(), racks[2], **GPU)
    job = Gang(api, racks, 4, min_size=3, together="rack")
    reap(api)
    assert job.now("state", "place", "missing") == ("earmarked", "rack 2", 1)
    assert api.rows("verify_invariants") == []
    job.complete(held)
    assert job.members == "rrrs"
    job.run()
    assert job.state == "running"


@pytest.mark.parametrize("on_lost", ["stop", "replace"])
def test_one_that_is_lost_joins_again(api: Api, racks: list[Node], clock: Clock, on_lost: str) -> None:
    """As long as min_size are left, nobody stops, and it waits after the first time."""
    job = Gang(api, racks, 3, min_size=2, on_lost=on_lost, together="rack")
    claims = job.run()
    lost = claims.pop(0)
    for losses, missing in ((1, 0), (2, 1)):
        api.rows("fail_lease", **token(lost), error={"message": "no"})
        assert job.ready(claims) == {True}
        reap(api)
        assert job.now("state", "losses", "missing") == ("running", losses, missing)
        assert {api.lease(claim["lease_id"])["stop_reason"] for claim in claims} == {None}
        clock.advance(timedelta(seconds=2 * missing))
        [again] = job.start()
        assert (again["lease_id"], again["attempt"]) == (lost["lease_id"], losses + 1)
        lost = again
    reap(api)
    assert job.now("state", "missing") == ("running", 0)


@pytest.mark.parametrize(("on_lost", "state"), [("stop", "stopping"), ("replace", "reserved")])
def test_fewer_than_min_size_are_left(
    api: Api, racks: list[Node], clock: Clock, on_lost: str, state: str
) -> None:
    job = Gang(api, racks, 3, min_size=2, on_lost=on_lost, together="rack")
    *lost, kept = job.run()
    for claim in lost:
        api.rows("fail_lease", **token(claim), error={"message": "no"})
    assert job.ready([kept]) == {False}
    reap(api)
    assert job.state == state
    assert api.rows("verify_invariants") == []
    left = [kept]
    if on_lost == "stop":
        assert api.lease(kept["lease_id"])["stop_reason"] == "preempted"
        job.release(left.pop())
    clock.advance(timedelta(seconds=2))
    assert job.ready(left + job.run()) == {True}
    assert job.now("state", "missing") == ("running", 0)


def test_one_that_is_not_fetched(api: Api, racks: list[Node], clock: Clock) -> None:
    """Of those that start together: without it the others are enough."""
    job = Gang(api, racks, 3, min_size=2, together="rack", hold="10 s")
    claims = job.start(racks[:4])
    assert job.ready(claims) == {False}
    clock.advance(timedelta(seconds=11))
    reap(api)
    assert job.now("state", "losses", "missing") == ("running", 1, 0)
    assert job.ready(claims) == {True}


def test_a_gang_that_lacks_some_is_cancelled(api: Api, racks: list[Node]) -> None:
    job = Gang(api, racks, 4, min_size=2, together="rack")
    claims = job.start()
    assert len(claims) == 2
    job.cancel()
    assert job.members == "cc--"
    job.release(*claims)
    assert job.now("state", "missing") == ("cancelled", 0)


def test_the_first_kinds_of_members_start(api: Api, racks: list[Node]) -> None:
    """What the others ask does not matter for that; upkeep knows who is missing."""
    spare = {"placement": {"resources": {"gpu": 8}}}
    members = [{"task": "train", "count": 2, "options": GPU}, {"task": "spare", "options": spare}]
    asked = {"members": Jsonb(members), "options": {"min_size": 2, "together": "rack"}}
    asked["queue"] = api.queue()
    ahead = api.row("what_if_gang", **asked)
    assert (ahead["code"], ahead["size"]) == ("ready", 3)
    assert ahead["headline"] == "2 of 3 must start together; rack 1 has room for all 2 now"
    gang_id = api.rows("spawn_gang", **asked)[0]["gang_id"]
    reap(api)
    states = [member.get("reserved_until") is not None for member in gang(api, gang_id)["members"]]
    assert states == [True, True, False]
    assert {r["missing"] for r in api.rows("list_gangs", state="reserved")} == {1}
    with api.conn.transaction(force_rollback=True):
        api.conn.execute("update hwqueue.gang set missing = 2 where gang_id = %s", [gang_id])
        assert {row["rule"] for row in api.rows("verify_invariants")} == {"gang_members"}


def test_a_min_size_that_cannot_be(api: Api, queue: str) -> None:
    """One that is all is none."""
    until: Row = {"deadline": "2099-01-01T00:00:00Z"}
    members = Jsonb([{"task": "train", "count": 3}])
    for options, words in (
        ({"min_size": 4}, "min_size 4 is more than the 3 members of the gang"),
        ({"min_size": 0}, "an integer from 1 to 1000"),
        ({"min_size": 2, **until}, "min_size goes with no deadline"),
    ):
        refusal = api.refused("QHA01", "spawn_gang", queue=queue, members=members, options=options)
        assert refusal.field == "options.min_size"
        assert words in refusal.message
    gang_id = spawn(api, queue, 2, min_size=2, **until)
    assert gang(api, gang_id)["min_size"] == gang(api, spawn(api, queue, 2))["min_size"] == 2


FAULT = {"message": "no"}


def states(api: Api, claims: list[Row]) -> list[str]:
    return [api.state(claim["lease_id"]) for claim in claims]


def asked_to_stop(api: Api, claims: list[Row]) -> list[bool]:
    return [api.lease(claim["lease_id"])["stop_reason"] is not None for claim in claims]


def test_the_others_go_on_and_complete(api: Api, queue: str, racks: list[Node]) -> None:
    """Whichever way it is lost: no attempt follows, and the roster says who is gone."""
    gang_id = spawn(api, queue, 4, GPU, on_lost="continue")
    claims = start(api, racks, queue)
    reap(api)
    assert api.value("fail_lease", **token(claims[0]), error=FAULT) == "failed"
    assert api.value("release_lease", **token(claims[1])) == "failed"
    assert became(api, gang_id) == "running"
    assert asked_to_stop(api, claims[2:]) == [False, False]
    for change in ("on_lost = 'stop'", "min_size = 3"):  # upkeep knows who may be lost
        planted = f"update hwqueue.gang set {change} where gang_id = %s"
        assert {rule for rule, _ in api.breaks(planted, gang_id)} == {"gang_members"}
    roster = api.row("gang_status", **token(claims[2]))
    assert roster["ready"]
    there = sorted(member["state"] for member in roster["members"])
    assert there == ["claimed", "claimed", "failed", "failed"]
    assert api.lease(claims[1]["lease_id"])["error"]["reason"] == "gang_goes_on"
    told = api.row("explain_gang", gang=gang_id)["headline"]
    assert told == "2 members run, 2 are lost"
    api.rows("cancel_lease", lease=claims[2]["lease_id"])
    api.rows("release_lease", **token(claims[2]))
    api.complete(claims[3])
    assert states(api, claims) == ["failed", "failed", "cancelled", "completed"]
    assert became(api, gang_id) == "completed"


def test_fewer_than_min_size_end_the_gang(api: Api, queue: str, racks: list[Node]) -> None:
    gang_id = spawn(api, queue, 3, GPU, on_lost="continue", min_size=2, together="rack")
    claims = start(api, racks, queue)
    reap(api)
    for claim, state in zip(claims, ("running", "cancelling"), strict=False):
        api.rows("fail_lease", **token(claim), error=FAULT)
        assert (became(api, gang_id), api.sound()) == (state, True)
    assert asked_to_stop(api, claims[2:]) == [True]
    api.rows("release_lease", **token(claims[2]))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == ("failed", "too_few_left")
    assert states(api, claims) == ["failed", "failed", "cancelled"]


def test_all_start_again_until_all_were_there(api: Api, queue: str, racks: list[Node], clock: Clock) -> None:
    """From then on, whether upkeep has looked or not, a lost member is left behind."""
    gang_id = spawn(api, queue, 2, GPU, on_lost="continue", together="rack")
    reap(api)
    [first] = api.claim(racks[0], queue)
    assert api.value("fail_lease", **token(first), error=FAULT) == "scheduled"
    reap(api)
    clock.advance(timedelta(seconds=2))
    again = start(api, racks, queue)
    assert {claim["lease_id"] for claim in again} == set(leases(api, gang_id))
    kept = api.conn.execute("select state from hwqueue.gang where gang_id = %s", [gang_id])
    assert (kept.fetchone(), gang(api, gang_id)["state"]) == (("reserved",), "running")
    assert api.value("fail_lease", **token(again[0]), error=FAULT) == "failed"
    reap(api)
    assert (gang(api, gang_id)["state"], asked_to_stop(api, again[1:])) == ("running", [False])


def test_who_has_not_begun_still_joins(api: Api, queue: str, racks: list[Node], clock: Clock) -> None:
    """Two of three start, and the third one joins; so does a lost one that is requeued."""
    busy = api.running(queue, racks[2], **GPU)
    gang_id = spawn(api, queue, 3, GPU, on_lost="continue", min_size=2, together="rack")
    api.rows("cordon_node", node=racks[0].node_id)  # rack 1 is too small
    claims = start(api, racks, queue)
    reap(api)
    assert (gang(api, gang_id)["state"], gang(api, gang_id)["missing"]) == ("running", 1)
    api.complete(busy)
    clock.advance(timedelta(seconds=20))
    for node in racks:
        api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    reap(api)
    [third] = start(api, racks, queue)
    reap(api)
    api.rows("fail_lease", **token(claims[0]), error=FAULT)
    reap(api)
    assert (gang(api, gang_id)["state"], gang(api, gang_id)["missing"]) == ("running", 0)
    api.rows("requeue_lease", lease=claims[0]["lease_id"])
    reap(api)
    [back] = start(api, racks, queue)
    assert back["lease_id"] == claims[0]["lease_id"]
    assert became(api, gang_id) == "running"
    assert asked_to_stop(api, [claims[1], third, back]) == [False] * 3


@pytest.mark.parametrize("min_size", [None, 2])
def test_the_last_one_is_lost(api: Api, queue: str, racks: list[Node], min_size: int | None) -> None:
    gang_id = spawn(api, queue, 2, GPU, on_lost="continue", min_size=min_size)
    claims = start(api, racks, queue)
    reap(api)
    for claim in claims:
        api.rows("fail_lease", **token(claim), error=FAULT)
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == ("failed", "too_few_left")
