"""Which leases would have to stop so that a gang has room, and by when it has without that."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.test_gangs import GPU, gang, gpus, racks, reap, spawn

__all__ = ["racks"]

TWO_GPUS: Row = {"placement": {"resources": {"gpu": 2}}}
IN_RACK_2: Row = {"placement": GPU["placement"] | {"require": [{"rack": 2}]}}


def ways(api: Api, gang_id: UUID) -> dict[str, Row]:
    found = api.row("explain_gang", gang=gang_id)["ways"]
    return {way["way"]: way for way in found}


def named(way: Row) -> set[str]:
    return {claim["lease_id"] for claim in way["claims"]}


@contextmanager
def of_tenant(api: Api, tenant: str) -> Iterator[None]:
    """The caller is for one tenant alone."""
    with api.conn.transaction():
        api.conn.execute("select set_config('hwqueue.tenant', %s, true)", [tenant])
        yield


def test_few_stop_the_least_urgent_and_youngest_first(api: Api, racks: list[Node], clock: Clock) -> None:
    """And no lease that leaves nothing which the gang needs; then the gang starts."""
    clock.freeze()
    queue = api.queue(earmarks=0)
    pair, idle, urgent, older, younger = (api.node(rack=9, gpus=gpus(2)) for _ in range(5))
    for _ in range(2):
        api.running(queue, pair, **GPU)
    api.running(queue, urgent, priority=5, **TWO_GPUS)
    held = []
    for node in (older, younger):
        clock.advance(timedelta(seconds=1))
        held.append(api.running(queue, node, **TWO_GPUS))
    clock.advance(timedelta(seconds=1))
    api.running(queue, younger)  # needs no device
    gang_id = spawn(api, queue, 2, TWO_GPUS, together="rack")
    reap(api)
    assert gang(api, gang_id)["state"] == "waiting"
    stop = ways(api, gang_id)["stop"]
    assert named(stop) == {str(held[1]["lease_id"])}
    assert (stop["place"], stop["members"]) == ("rack 9", 2)
    assert stop["words"] == f"rack 9 has room for all once lease {held[1]['lease_id']} is stopped"
    api.rows("release_lease", **token(held[1]))
    clock.advance(timedelta(seconds=20))
    for node in (idle, younger):
        api.rows("heartbeat_node", **node.who, claims=Jsonb([]))
    reap(api)
    assert gang(api, gang_id)["state"] == "reserved"


def test_kinds_that_share_a_node_do_not_share_its_room(api: Api, racks: list[Node]) -> None:
    """Either kind alone would have room when one of the two leases has stopped."""
    queue, node = api.queue(earmarks=0), api.node(rack=9, gpus=gpus(2))
    held = {str(api.running(queue, node, **GPU)["lease_id"]) for _ in range(2)}
    asked = {"placement": GPU["placement"] | {"require": [{"rack": 9}]}}
    members = [{"task": task, "options": asked} for task in ("lead", "train")]
    options = {"together": "node"}
    found = api.row("what_if_gang", queue=queue, members=Jsonb(members), options=options)
    [stop] = [way for way in found["ways"] if way["way"] == "stop"]
    assert named(stop) == held
    assert stop["words"].endswith(" are stopped")
    small = api.node(rack=8, gpus=gpus(1))
    api.running(queue, small, max_run="1 hour", **GPU)
    elsewhere = {"placement": GPU["placement"] | {"require": [{"rack": 8}]}}
    members = [member | {"options": elsewhere} for member in members]
    found = api.row("what_if_gang", queue=queue, members=Jsonb(members), options=options)
    assert "stop" not in {way["way"] for way in found["ways"]}
    [wait] = [way for way in found["ways"] if way["way"] == "wait"]
    # one kind of them could be too many, too, for the nodes and claims that are looked at
    assert wait["words"].endswith(
        "kinds of its members share nodes there, or more is in the way than is looked at"
    )


def test_when_enough_of_what_runs_is_over(api: Api, racks: list[Node], clock: Clock) -> None:
    """The first ends that are enough count, whatever goes on beside."""
    clock.freeze()
    queue = api.queue(earmarks=0)
    for node, hours in zip(racks[2:], (3, 2, 5), strict=True):
        api.running(queue, node, max_run=f"{hours} hours", **GPU)
    for size, hours in ((2, 3), (3, 5)):
        gang_id = spawn(api, queue, size, IN_RACK_2)
        reap(api)
        wait, until = ways(api, gang_id)["wait"], clock.now() + timedelta(hours=hours)
        assert datetime.fromisoformat(wait["until"]) == until
        assert wait["words"] == (
            f"the fleet has room for all by {until:%Y-%m-%d %H:%M:%S} UTC, unless other leases take it"
        )


def test_what_has_to_end_for_a_gang_that_is_earmarked(api: Api, racks: list[Node]) -> None:
    """Not what runs on the same node beside the room that is kept."""
    queue = api.queue()
    big, idle = (api.node(rack=9, gpus=gpus(2), concurrency=4) for _ in range(2))
    held = [api.running(queue, big, max_run="1 hour", **GPU) for _ in range(2)]
    api.running(queue, big, max_run="2 hours")
    gang_id = spawn(api, queue, 2, TWO_GPUS, together="rack")
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["place"]) == ("earmarked", "rack 9")
    told = ways(api, gang_id)
    assert named(told["stop"]) == {str(claim["lease_id"]) for claim in held}
    assert told["wait"]["words"].endswith(" UTC")
    endless = api.running(queue, racks[2], **GPU)
    other = spawn(api, queue, 3, IN_RACK_2, together="rack")
    reap(api)
    assert gang(api, other)["place"] == "rack 2"
    assert ways(api, other)["wait"]["until"] is None
    assert named(ways(api, other)["stop"]) == {str(endless["lease_id"])}
    for claim in held:
        api.rows("complete_lease", **token(claim))
    assert ways(api, gang_id) == {}  # the next reap reserves it on big and on idle
    reap(api)
    assert gang(api, gang_id)["state"] == "reserved"
    assert {m["node"] for m in gang(api, gang_id)["members"]} == {big.name, idle.name}


def test_a_tenant_is_told_to_stop_its_own_alone(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    own = api.running(queue, racks[2], tenant="film", priority=9, **GPU)
    others = api.running(queue, racks[3], tenant="games", **GPU)
    asked = {"together": "rack", "tenant": "film"}
    gang_id = spawn(api, queue, 3, GPU, **asked)
    pair = spawn(api, queue, 2, IN_RACK_2, **asked)
    reap(api)
    with of_tenant(api, "film"):
        assert "stop" not in ways(api, gang_id)
        assert named(ways(api, pair)["stop"]) == {str(own["lease_id"])}
        reason = ways(api, gang_id)["wait"]["words"]
    known = f"lease {own['lease_id']} on {racks[2].name} has no max_run, nor has another one"
    assert reason.endswith(known)
    assert named(ways(api, pair)["stop"]) == {str(others["lease_id"])}
    with of_tenant(api, "film"):
        api.rows("complete_lease", **token(own))
        reason = ways(api, gang_id)["wait"]["words"]
    assert reason.endswith(": a lease of another tenant has no max_run")
