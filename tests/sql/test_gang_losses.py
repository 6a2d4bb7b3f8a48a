"""Gangs whose members are lost, are cancelled or end: what becomes of the others."""

from datetime import timedelta

from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.patience import looks
from tests.sql.api import Api, Node, token
from tests.sql.test_gangs import GPU, gang, gpus, leases, racks, reap, spawn, start

__all__ = ["racks"]


def test_a_reservation_that_is_not_fetched(api: Api, racks: list[Node], clock: Clock) -> None:
    """What the others hold is given up with it, and no attempt is used up."""
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, together="rack", hold="10 s")
    reap(api)
    [claim] = api.claim(racks[0], queue)
    clock.advance(timedelta(seconds=11))
    reap(api)
    assert gang(api, gang_id)["state"] == "stopping"
    [verdict] = api.rows("heartbeat_node", **racks[0].who, claims=Jsonb([ids(claim)]))
    assert verdict["verdict"] == "preempted"
    api.rows("release_lease", **token(claim))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["losses"]) == ("waiting", 1)
    clock.advance(timedelta(seconds=2))
    for node in racks:
        api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    reap(api)
    assert gang(api, gang_id)["state"] == "reserved"
    [again] = [c for node in racks for c in api.claim(node, queue) if c["lease_id"] == claim["lease_id"]]
    assert again["attempt"] == 1
    assert again["claim_token"] > claim["claim_token"]
    assert api.rows("verify_invariants") == []


def ids(claim: Row) -> Row:
    return {"lease_id": str(claim["lease_id"]), "claim_token": claim["claim_token"]}


def test_one_that_fails_stops_the_others(api: Api, racks: list[Node], clock: Clock) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)
    first, second = start(api, racks, queue)
    assert api.value("fail_lease", **token(first), error={"message": "no"}) == "scheduled"
    reap(api)
    assert gang(api, gang_id)["state"] == "stopping"
    assert api.lease(second["lease_id"])["stop_reason"] == "preempted"
    api.rows("release_lease", **token(second))
    reap(api)
    clock.advance(timedelta(seconds=2))
    again = start(api, racks, queue)
    assert {c["lease_id"]: c["attempt"] for c in again} == {
        first["lease_id"]: 2,
        second["lease_id"]: 1,
    }


def test_one_that_fails_for_good_ends_the_gang(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, max_attempts=1)
    first, second = start(api, racks, queue)
    api.rows("fail_lease", **token(first), error={"message": "no"})
    reap(api)
    assert gang(api, gang_id)["state"] == "cancelling"
    api.rows("release_lease", **token(second))
    reap(api)
    assert gang(api, gang_id)["state"] == "failed"
    assert api.state(second["lease_id"]) == "cancelled"
    assert api.lease(second["lease_id"])["error"]["reason"] == "gang_incomplete"


def test_a_lost_member_is_replaced(api: Api, racks: list[Node], clock: Clock) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, on_lost="replace", together="rack")
    first, second = start(api, racks[2:] + racks[:2], queue)
    reap(api)
    place = gang(api, gang_id)["place"]
    api.rows("fail_lease", **token(first), error={"message": "no"})
    reap(api)
    assert api.lease(second["lease_id"])["stop_reason"] is None
    clock.advance(timedelta(seconds=2))
    [again] = start(api, racks, queue)
    assert again["lease_id"] == first["lease_id"]
    reap(api)
    assert (gang(api, gang_id)["state"], gang(api, gang_id)["place"]) == ("running", place)


def test_room_for_the_first_lost_member_is_reserved_at_once(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU, on_lost="replace", together="rack")
    [first, *_others] = start(api, racks, queue)
    reap(api)
    single = api.spawn(queue, placement=GPU["placement"] | {"require": [{"rack": 2}]})
    api.rows("fail_lease", **token(first), error={"message": "no"})
    reap(api)  # before any claim, and before time has passed
    assert gang(api, gang_id)["state"] == "reserved"
    [again] = start(api, racks[2:], queue)
    assert (again["lease_id"], api.lease(single)["state"]) == (first["lease_id"], "pending")


def test_a_place_that_all_have_left_binds_nobody(api: Api, racks: list[Node], clock: Clock) -> None:
    """They are lost one after the other, while the gang waits for those that went before."""
    queue = api.queue()
    gang_id = spawn(api, queue, 3, GPU, on_lost="replace", together="rack")
    claims = start(api, racks, queue)
    reap(api)
    others = [api.node(rack=3, gpus=gpus(1)) for _ in range(3)]
    for node, claim in zip(racks[2:], claims, strict=True):
        assert gang(api, gang_id)["place"] == "rack 2"
        api.rows("cordon_node", node=node.node_id)
        api.rows("fail_lease", **token(claim), error={"message": "no"})
        reap(api)
    clock.advance(timedelta(seconds=20))
    for node in others:
        api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["place"]) == ("reserved", "rack 3")


def test_cancel_a_gang_that_waits(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 9, GPU)
    assert api.value("cancel_gang", gang=gang_id, reason="not needed") == "cancelling"
    reap(api)
    assert gang(api, gang_id)["state"] == "cancelled"
    assert {api.state(lease) for lease in leases(api, gang_id)} == {"cancelled"}
    assert api.value("cancel_gang", gang=gang_id) == "cancelled"
    assert api.rows("verify_invariants") == []


def test_cancel_a_gang_that_is_reserved_and_runs(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, together="rack")
    reap(api)
    [claim] = api.claim(racks[0], queue)
    api.rows("cancel_gang", gang=gang_id)
    reap(api)
    api.rows("release_lease", **token(claim))
    reap(api)
    assert gang(api, gang_id)["state"] == "cancelled"
    assert api.rows("verify_invariants") == []


def test_a_reservation_that_is_cancelled_uses_up_no_attempt(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)
    reap(api)
    for lease in leases(api, gang_id):
        api.rows("cancel_lease", lease=lease)
    assert [api.claimed(node, queue) for node in racks] == [[]] * 5
    reap(api)
    ended = [api.lease(lease) for lease in leases(api, gang_id)]
    assert [(one["state"], one["attempt"]) for one in ended] == [("cancelled", 0)] * 2
    assert api.rows("verify_invariants") == []


def test_a_member_that_is_cancelled_ends_the_gang(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 9, GPU)
    api.rows("cancel_lease", lease=leases(api, gang_id)[3])
    reap(api)
    assert gang(api, gang_id)["state"] == "cancelled"


def test_a_node_that_is_cordoned_meanwhile(api: Api, racks: list[Node]) -> None:
    """It does not fetch: the gang gives up, and goes elsewhere."""
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, together="rack")
    reap(api)
    api.rows("cordon_node", node=racks[0].node_id)
    assert api.claimed(racks[0], queue) == []
    reap(api)
    assert gang(api, gang_id)["state"] == "waiting"
    assert api.rows("verify_invariants") == []


def test_a_new_instance_of_a_node(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, together="rack")
    reap(api)
    api.node(racks[0].node_id, name=racks[0].name, rack=1, gpus=gpus(1), instance_id="second")
    reap(api)
    assert gang(api, gang_id)["state"] == "waiting"
    assert {api.lease(lease)["attempt"] for lease in leases(api, gang_id)} == {0}
    assert api.rows("verify_invariants") == []


def test_a_deadline_that_has_passed(api: Api, racks: list[Node], clock: Clock) -> None:
    queue = api.queue()
    until = (clock.now() + timedelta(seconds=5)).isoformat()
    gang_id = spawn(api, queue, 9, GPU, deadline=until)
    clock.advance(timedelta(seconds=6))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == ("failed", "deadline_exceeded")
    assert {api.state(lease) for lease in leases(api, gang_id)} == {"failed"}


def test_a_deadline_is_that_of_a_second_start_too(api: Api, racks: list[Node], clock: Clock) -> None:
    """A gang that runs is not bothered by it, until a member is lost."""
    queue = api.queue()
    until = (clock.now() + timedelta(seconds=5)).isoformat()
    gang_id = spawn(api, queue, 2, GPU, deadline=until)
    first, second = start(api, racks, queue)
    reap(api)
    clock.advance(timedelta(seconds=6))
    reap(api)
    assert gang(api, gang_id)["state"] == "running"
    api.rows("fail_lease", **token(first), error={"message": "no"})
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == ("cancelling", "deadline_exceeded")
    api.rows("release_lease", **token(second))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["reason"]) == ("failed", "deadline_exceeded")


def test_a_dropped_queue_takes_its_gangs_along(api: Api, racks: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)
    api.rows("drop_queue", queue=queue, force=True)
    reap(api)
    assert gang(api, gang_id)["state"] == "waiting"
    for _ in looks():
        api.rows("prune")
        if api.conn.execute("select from hwqueue.gang where gang_id = %s", [gang_id]).rowcount == 0:
            break
    api.refused("QHG01", "get_gang", gang=gang_id)


def test_gangs_go_with_their_leases(api: Api, racks: list[Node], clock: Clock) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 9, GPU)
    api.rows("cancel_gang", gang=gang_id)
    reap(api)
    clock.advance(timedelta(days=60))
    for _ in range(3):
        api.rows("prune")
    api.refused("QHG01", "get_gang", gang=gang_id)


def test_when_it_started(api: Api, racks: list[Node], clock: Clock) -> None:
    """Also of a gang that has ended before anybody looked."""
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)
    claims = start(api, racks, queue)
    started = clock.now()
    clock.advance(timedelta(seconds=5))
    for claim in claims:
        api.rows("complete_lease", **token(claim))
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["started_at"]) == ("completed", started)
    assert found["place"] is None
