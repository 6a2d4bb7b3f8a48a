"""Gangs that are together where a place has room for them, and anywhere where none has."""

from datetime import timedelta

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow
from tests.flows import gang as gang_step
from tests.sql.api import Api, Node
from tests.sql.test_explain_gang import explained, ways
from tests.sql.test_gang_min_size import states
from tests.sql.test_gangs import GPU, gang, nodes, racks, reap, spawn, start

__all__ = ["racks"]

RACK_ELSE_ANYWHERE = ["rack", "fleet"]


def test_a_rack_that_has_room_comes_first(api: Api, racks: list[Node], clock: Clock) -> None:
    """Rack 2 has three GPUs; when one of them is in use no rack has as many."""
    queue = api.queue(earmarks=0)
    held = api.running(queue, racks[2], **GPU)
    wide, narrow = (spawn(api, queue, size, GPU, together=RACK_ELSE_ANYWHERE) for size in (3, 2))
    reap(api)
    assert [gang(api, each)["place"] for each in (wide, narrow)] == ["fleet", None]
    api.rows("cancel_gang", gang=wide)
    api.rows("complete_lease", lease=held["lease_id"], token=held["claim_token"])
    clock.advance(timedelta(seconds=20))
    reap(api)
    assert gang(api, narrow)["place"] == "rack 1"
    assert api.rows("verify_invariants") == []


def begun(api: Api, racks: list[Node], needed: int) -> Row:
    """A gang of six of which as many run, and as many as do not wait to join them."""
    gang_id = spawn(api, queue := api.queue(), 6, GPU, min_size=needed, together=RACK_ELSE_ANYWHERE)
    reap(api)
    start(api, racks, queue)
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["missing"]) == ("running", 6 - needed)
    return found


def told(api: Api, found: Row) -> str:
    """Of its last member."""
    return str(api.row("explain_lease", lease=found["members"][-1]["lease_id"])["headline"])


def test_in_a_rack_no_other_one_joins_from_elsewhere(api: Api, racks: list[Node]) -> None:
    """Rack 1 has room for two, but the others run in rack 2."""
    found = begun(api, racks, 3)
    assert (found["place"], states(api, found["gang_id"])) == ("rack 2", "cccsss")
    assert told(api, found).endswith("rack 2, where the others run, has no room for one more")


def test_in_the_fleet_others_join_anywhere(api: Api, racks: list[Node], clock: Clock) -> None:
    """And it does not become a gang of the rack in which one of them gets room."""
    held = api.running(api.queue(), racks[0], **GPU)
    found = begun(api, racks, 4)
    assert found["place"] == "fleet"
    assert told(api, found).endswith("no node has room for one more")
    headline = explained(api, found["gang_id"])["headline"]
    assert "of the next one: the fleet has room for 0 of 1" in headline
    api.rows("complete_lease", lease=held["lease_id"], token=held["claim_token"])
    clock.advance(timedelta(seconds=20))
    reap(api)
    assert states(api, found["gang_id"]) == "ccccrs"
    assert gang(api, found["gang_id"])["place"] == "fleet"


def test_no_rack_is_kept_for_one_that_may_be_anywhere(api: Api, racks: list[Node]) -> None:
    """Rack 2 is full and large enough; the fleet has a GPU that is free, and waits for two."""
    queue = api.queue()
    held = {node.name: api.running(queue, node, **GPU) for node in racks[1:]}
    gang_id = spawn(api, queue, 3, GPU, together=RACK_ELSE_ANYWHERE)
    reap(api)
    found = gang(api, gang_id)
    assert (found["state"], found["place"]) == ("earmarked", "fleet")
    kept = nodes(api, gang_id)
    assert racks[0].name in kept
    [told] = explained(api, gang_id)["places"]
    assert (told["place"], told["words"], told["room"]) == ("fleet", "the fleet", 1)
    for name in kept & held.keys():
        claim = held[name or ""]
        api.rows("complete_lease", lease=claim["lease_id"], token=claim["claim_token"])
    reap(api)
    assert (gang(api, gang_id)["state"], nodes(api, gang_id)) == ("reserved", kept)
    assert api.rows("verify_invariants") == []


def test_what_is_told_of_it(api: Api, racks: list[Node]) -> None:
    """That neither has room, and no way out that it has taken already."""
    queue = api.queue(earmarks=0)
    api.running(queue, racks[2], **GPU)
    gang_id = spawn(api, queue, 5, GPU, together=RACK_ELSE_ANYWHERE)
    reap(api)
    found = explained(api, gang_id)
    assert found["headline"].startswith(
        "no rack, nor the fleet, has room for all 5; the fleet has room for 4; "
    )
    assert list(ways(found)) == ["smaller", "empty", "stop", "wait"]
    assert ways(found)["smaller"]["words"] == "4 of 5 have room now: the fleet"
    alike = spawn(api, queue, 2, GPU, together=RACK_ELSE_ANYWHERE, same=["model"])
    assert explained(api, alike)["headline"].startswith('no node that may run its members has label "model"')


def test_a_step_of_a_run(api: Api, racks: list[Node]) -> None:
    flow = Flow(api, [gang_step("train", 4, together=RACK_ELSE_ANYWHERE, **GPU)])
    reap(api)
    found = gang(api, flow.steps()["train"]["gang_id"])
    assert (found["state"], found["place"]) == ("reserved", "fleet")
