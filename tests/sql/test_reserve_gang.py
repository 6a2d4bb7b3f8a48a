"""Places that a planner proposes for gangs: what is reserved, what is refused, what it reads."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, refusing
from tests.sql.logins import OPERATOR, WORKER, Logins
from tests.sql.test_gangs import GPU, gang, leases, racks, reap, spawn

__all__ = ["racks"]

PLANNER = "hwqueue_planner"


@pytest.fixture
def epoch(api: Api, clock: Clock) -> int:
    """Of a leader, once the one of the test before is gone."""
    clock.advance(timedelta(hours=1))
    api.value("lead_planner", holder="the one before", ttl=timedelta(0))
    return int(api.value("lead_planner", holder="me", ttl=timedelta(hours=1)))


@pytest.fixture
def fresh(epoch: int, racks: list[Node]) -> list[Node]:
    """Two nodes with a GPU in rack 1, three in rack 2; and a planner leads."""
    return racks


def proposed(api: Api, gang_id: UUID, place: str, epoch: int, /, **more: Any) -> str:
    """What reserve_gang answers."""
    given = {"round": 1, "epoch": epoch} | more
    verdict = api.value("reserve_gang", gang=gang_id, place=place, **given)
    assert isinstance(verdict, str)
    return verdict


def test_the_place_that_is_proposed_comes_first(api: Api, epoch: int, fresh: list[Node]) -> None:
    """By itself it would be rack 1, where it fits tightest."""
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU, together="rack")
    assert proposed(api, gang_id, "rack 2", epoch) == "reserved"
    assert gang(api, gang_id)["place"] == "rack 2"
    claimed = [lease for node in fresh for lease in api.claimed(node, queue)]
    assert sorted(claimed) == sorted(leases(api, gang_id))
    assert api.rows("verify_invariants") == []
    assert proposed(api, gang_id, "rack 2", epoch) == "not_waiting"


@pytest.mark.parametrize("place", ["rack 1", "rack 77", "", "label:zone a", "x" * 4000])
def test_a_place_that_has_no_room_is_only_not_used(
    api: Api, epoch: int, fresh: list[Node], place: str
) -> None:
    """Three members fit into rack 2 alone, whatever is proposed."""
    gang_id = spawn(api, api.queue(), 3, GPU, together="rack")
    assert proposed(api, gang_id, place, epoch) == "reserved"
    assert gang(api, gang_id)["place"] == "rack 2"


def test_a_domain_that_the_gang_would_rather_be_in_comes_before(
    api: Api, epoch: int, fresh: list[Node]
) -> None:
    api.node(rack=3, gpus=[{"resource_id": str(uuid4())} for _ in range(2)], labels={"zone": "a"})
    both = spawn(api, api.queue(), 2, GPU, together=["rack", "label:zone"])
    assert proposed(api, both, "label:zone a", epoch) == "reserved"
    assert gang(api, both)["place"] == "rack 1"


def test_one_that_may_be_anywhere_is_proposed_a_rack(api: Api, epoch: int, fresh: list[Node]) -> None:
    """No rack has four nodes, so what is proposed is only not used."""
    large = spawn(api, api.queue(), 4, GPU, together=["rack", "fleet"])
    assert {row["place"] for row in api.rows("planner_rooms", gangs=[large])} == {
        "rack 1",
        "rack 2",
    }
    assert proposed(api, large, "rack 2", epoch) == "reserved"
    assert gang(api, large)["place"] == "fleet"


def test_what_is_refused_changes_nothing(api: Api, epoch: int, fresh: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    large = spawn(api, queue, 4, GPU, together="rack")
    before = gang(api, large)
    assert proposed(api, large, "rack 2", epoch) == "no_room"
    # not even when it is tried next: a planner delays no gang
    assert gang(api, large) == before
    small = spawn(api, queue, 2, GPU, together="rack")
    contents = api.contents()
    assert proposed(api, small, "rack 2", epoch - 1) == "deposed"
    assert proposed(api, small, "rack 2", epoch + 1) == "deposed"
    assert api.contents() == contents
    assert gang(api, small)["state"] == "waiting"
    assert proposed(api, uuid4(), "rack 2", epoch) == "not_waiting"
    assert proposed(api, small, "rack 2", epoch, round=7) == "reserved"
    other = spawn(api, queue, 2, GPU, together="rack")
    assert proposed(api, other, "rack 1", epoch, round=6) == "old_round"
    reap(api)  # goes on without a planner
    assert gang(api, other)["place"] == "rack 1"


def test_a_gang_whose_queue_is_paused(api: Api, epoch: int, fresh: list[Node]) -> None:
    queue = api.queue()
    gang_id = spawn(api, queue, 2, GPU)
    api.rows("pause_queue", queue=queue)
    assert proposed(api, gang_id, "", epoch) == "not_waiting"
    assert gang(api, gang_id)["state"] == "waiting"


def test_a_gang_that_has_lost_a_member(api: Api, epoch: int, fresh: list[Node]) -> None:
    """It is left to reap, which ends it."""
    gang_id = spawn(api, api.queue(), 2, GPU)
    api.rows("cancel_lease", lease=leases(api, gang_id)[0])
    assert proposed(api, gang_id, "", epoch) == "busy"
    reap(api)
    assert gang(api, gang_id)["state"] == "cancelled"


@pytest.mark.parametrize(
    "changes",
    [
        {"gang": None},
        {"place": None},
        {"place": "x" * 4001},
        {"round": -1},
        {"round": None},
        {"epoch": None},
    ],
    ids=lambda changes: str(changes)[:20],
)
@pytest.mark.thorough
def test_bad_arguments(api: Api, epoch: int, changes: Row) -> None:
    good = {"gang": uuid4(), "place": "", "round": 1, "epoch": epoch}
    api.refused("QHA01", "reserve_gang", **good | changes)


class TestView:
    """What a planner reads of gangs."""

    def test_gangs_that_wait_in_order(self, api: Api, fresh: list[Node]) -> None:
        queue = api.queue()
        share = {"placement": {"resources": {"gpu_milli": 500, "cpu_milli": 7, "memory_mib": 9}}}
        later = spawn(api, queue, 2, share, together="rack", same=["model"])
        first = spawn(api, queue, 3, GPU, priority=5)
        paused = api.queue()
        spawn(api, paused, 2, GPU)
        api.rows("pause_queue", queue=paused)
        pages = [api.rows("planner_view", part="gangs", limit=1)]
        while pages[-1][-1]["item"] is None:
            after = pages[-1][-1]["next"]
            pages.append(api.rows("planner_view", part="gangs", limit=1, after=after))
            if not pages[-1]:
                break
        found = [row["item"] for page in pages for row in page if row["item"] is not None]
        assert [item["gang_id"] for item in found] == [str(first), str(later)]
        assert [(item["queue"], item["together"], item["same"]) for item in found] == [
            (queue, [], []),
            (queue, ["rack"], ["model"]),
        ]
        [whole], [part] = (item["members"] for item in found)
        assert (whole["members"], whole["gpus"], whole["is_plain"]) == (3, 1, True)
        assert (part["gpu_milli"], part["cpu_milli"], part["memory_mib"]) == (500, 7, 9)
        reap(api)
        rest = [row["item"] for row in api.rows("planner_view", part="gangs")]
        assert str(first) not in {item["gang_id"] for item in rest}

    def test_rooms_by_place(self, api: Api, fresh: list[Node]) -> None:
        queue = api.queue()
        share = {"placement": {"resources": {"gpu_milli": 400}}}
        one = spawn(api, queue, 2, GPU, together="rack")
        two = spawn(api, queue, 3, share, together="rack")
        other = spawn(api, queue, 2, {"placement": {"resources": {"cpu_milli": 1}}})
        api.running(queue, fresh[2], placement={"resources": {"gpu_milli": 300}})
        rooms = api.rows("planner_rooms", gangs=[one, two, other])
        by_place = [(row["place"], row["nodes"], sorted(row["rooms"].values())) for row in rooms]
        assert sorted(by_place) == [
            ("rack 1", 2, [1, 2]),
            ("rack 2", 1, [1]),
            ("rack 2", 2, [1, 2]),
        ]
        [whole] = api.rows("planner_rooms", gangs=[other])
        assert (whole["place"], whole["nodes"]) == ("", 5)
        assert api.rows("planner_rooms", gangs=[uuid4()]) == []

    @pytest.mark.parametrize(
        "arguments",
        [{"gangs": []}, {"gangs": None}, {"gangs": [None]}, {"gangs": [uuid4()] * 1001}],
        ids=["none", "null", "null in it", "too many"],
    )
    def test_rooms_of_what(self, api: Api, arguments: Row) -> None:
        api.refused("QHA01", "planner_rooms", **arguments)

    @pytest.mark.parametrize("after", ["x", "1", "1 x", "1 -1", "9" * 19 + " 1"])
    def test_after_what(self, api: Api, after: str) -> None:
        api.refused("QHA01", "planner_view", part="gangs", after=after)


def test_logins(api: Api, logins: Logins, epoch: int, fresh: list[Node]) -> None:
    """A planner proposes, and does nothing else to a gang; nobody else proposes."""
    gang_id = spawn(api, api.queue(), 2, GPU, together="rack")
    _name, planner = logins.api(PLANNER)
    for function in ("get_gang", "cancel_gang", "explain_gang"):
        with refusing("42501"):
            planner.rows(function, gang=gang_id)
    for role in (WORKER, OPERATOR):
        _name, other = logins.api(role)
        with refusing("42501"):
            proposed(other, gang_id, "rack 2", epoch)
        with refusing("42501"):
            other.rows("planner_rooms", gangs=[gang_id])
    assert planner.rows("planner_rooms", gangs=[gang_id])
    assert proposed(planner, gang_id, "rack 2", epoch) == "reserved"
