"""Which leases would have to stop so that a gang has room, and by when it has without that."""

from datetime import datetime, timedelta

from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, Gang, gpus, later, racks, reap
from tests.sql.test_my_tenants import FILM, GAMES, only

__all__ = ["racks"]

TWO_GPUS: Row = {"placement": {"resources": {"gpu": 2}}}


def in_rack(rack: int) -> Row:
    return {"placement": GPU["placement"] | {"require": [{"rack": rack}]}}


def named(way: Row) -> set[str]:
    return {claim["lease_id"] for claim in way["claims"]}


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
    job = Gang(api, racks, 2, TWO_GPUS, queue=queue, together="rack")
    reap(api)
    assert job.state == "waiting"
    stop = job.ways["stop"]
    assert named(stop) == {str(held[1]["lease_id"])}
    assert (stop["place"], stop["members"]) == ("rack 9", 2)
    assert stop["words"] == f"rack 9 has room for all once lease {held[1]['lease_id']} is stopped"
    api.rows("release_lease", **token(held[1]))
    later(api, clock, [idle, younger])
    assert job.state == "reserved"


def test_kinds_that_share_a_node_do_not_share_its_room(api: Api, racks: list[Node]) -> None:
    """Either kind alone would have room when one of the two leases has stopped."""
    queue, node = api.queue(earmarks=0), api.node(rack=9, gpus=gpus(2))

    def ways(rack: int) -> dict[str, Row]:
        members = [{"task": task, "options": in_rack(rack)} for task in ("lead", "train")]
        asked = {"queue": queue, "members": Jsonb(members), "options": {"together": "node"}}
        return {way["way"]: way for way in api.row("what_if_gang", **asked)["ways"]}

    held = {str(api.running(queue, node, **GPU)["lease_id"]) for _ in range(2)}
    stop = ways(9)["stop"]
    assert named(stop) == held
    assert stop["words"].endswith(" are stopped")
    api.running(queue, api.node(rack=8, gpus=gpus(1)), max_run="1 hour", **GPU)
    found = ways(8)
    assert "stop" not in found
    # one kind of them could be too many, too, for the nodes and claims that are looked at
    assert found["wait"]["words"].endswith(
        "kinds of its members share nodes there, or more is in the way than is looked at"
    )


def test_when_enough_of_what_runs_is_over(api: Api, racks: list[Node], clock: Clock) -> None:
    """The first ends that are enough count, whatever goes on beside."""
    clock.freeze()
    queue = api.queue(earmarks=0)
    for node, hours in zip(racks[2:], (3, 2, 5), strict=True):
        api.running(queue, node, max_run=f"{hours} hours", **GPU)
    for size, hours in ((2, 3), (3, 5)):
        job = Gang(api, racks, size, in_rack(2), queue=queue)
        reap(api)
        wait, until = job.ways["wait"], clock.now() + timedelta(hours=hours)
        assert datetime.fromisoformat(wait["until"]) == until
        assert wait["words"] == (
            f"the fleet has room for all by {until:%Y-%m-%d %H:%M:%S} UTC, unless other leases take it"
        )


def test_what_has_to_end_for_a_gang_that_is_earmarked(api: Api, queue: str, racks: list[Node]) -> None:
    """Not what runs on the same node beside the room that is kept."""
    big, idle = (api.node(rack=9, gpus=gpus(2), concurrency=4) for _ in range(2))
    held = [api.running(queue, big, max_run="1 hour", **GPU) for _ in range(2)]
    api.running(queue, big, max_run="2 hours")
    job = Gang(api, racks, 2, TWO_GPUS, queue=queue, together="rack")
    reap(api)
    assert job.now("state", "place") == ("earmarked", "rack 9")
    told = job.ways
    assert named(told["stop"]) == {str(claim["lease_id"]) for claim in held}
    assert told["wait"]["words"].endswith(" UTC")
    endless = api.running(queue, racks[2], **GPU)
    other = Gang(api, racks, 3, in_rack(2), queue=queue, together="rack")
    reap(api)
    assert other.place == "rack 2"
    assert other.ways["wait"]["until"] is None
    assert named(other.ways["stop"]) == {str(endless["lease_id"])}
    api.complete(*held)
    assert job.ways == {}  # the next reap reserves it on big and on idle
    reap(api)
    assert (job.state, job.on) == ("reserved", {big.name, idle.name})


def test_a_tenant_is_told_to_stop_its_own_alone(api: Api, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    own = api.running(queue, racks[2], tenant=FILM, priority=9, **GPU)
    others = api.running(queue, racks[3], tenant=GAMES, **GPU)
    job, pair = (
        Gang(api, racks, size, member, queue=queue, together="rack", tenant=FILM)
        for size, member in ((3, GPU), (2, in_rack(2)))
    )
    reap(api)
    with only(api, FILM):
        assert "stop" not in job.ways
        assert named(pair.ways["stop"]) == {str(own["lease_id"])}
        reason = job.ways["wait"]["words"]
    known = f"lease {own['lease_id']} on {racks[2].name} has no max_run, nor has another one"
    assert reason.endswith(known)
    assert named(pair.ways["stop"]) == {str(others["lease_id"])}
    with only(api, FILM):
        api.complete(own)
        reason = job.ways["wait"]["words"]
    assert reason.endswith(": a lease of another tenant has no max_run")
