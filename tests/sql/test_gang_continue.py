"""Gangs with `on_lost` `continue`: a lost member is not replaced, and the others go on."""

from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, gang, leases, racks, reap, spawn, start
from tests.sql.test_earmarks import became

__all__ = ["racks"]
pytestmark = pytest.mark.usefixtures("sound")

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
