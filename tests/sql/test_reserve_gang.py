"""Places that a planner proposes for gangs: what is reserved, what is refused, what it reads."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, refusing
from tests.sql.gangs import Gang, gang, gpus, racks, reap
from tests.sql.logins import OPERATOR, WORKER, Logins

__all__ = ["racks"]

PLANNER = "hwqueue_planner"


@pytest.fixture
def epoch(api: Api, clock: Clock, racks: list[Node]) -> int:
    """Of a leader, once the one of the test before is gone; its nodes are those of the racks."""
    clock.advance(timedelta(hours=1))
    for node in racks:
        api.rows("heartbeat_node", **node.who)
    api.value("lead_planner", holder="the one before", ttl=timedelta(0))
    return int(api.value("lead_planner", holder="me", ttl=timedelta(hours=1)))


def proposed(job: Gang, place: str, epoch: int, /, api: Api | None = None, **more: Any) -> str:
    given = {"gang": job.id, "place": place, "round": 1, "epoch": epoch} | more
    return str((api or job.api).value("reserve_gang", **given))


def test_the_place_that_is_proposed_comes_first(api: Api, epoch: int, racks: list[Node]) -> None:
    """By itself it would be rack 1, where it fits tightest."""
    job = Gang(api, racks, 2, together="rack")
    assert proposed(job, "rack 2", epoch) == "reserved"
    assert job.place == "rack 2"
    claimed = [lease for node in racks for lease in api.claimed(node, job.queue)]
    assert sorted(claimed) == sorted(job.leases)
    assert proposed(job, "rack 2", epoch) == "not_waiting"


@pytest.mark.parametrize("place", ["rack 1", "rack 77", "", "label:zone a", "x" * 4000])
def test_a_place_that_has_no_room_is_only_not_used(
    api: Api, epoch: int, racks: list[Node], place: str
) -> None:
    """Three members fit into rack 2 alone, whatever is proposed."""
    job = Gang(api, racks, 3, together="rack")
    assert proposed(job, place, epoch) == "reserved"
    assert job.place == "rack 2"


def test_a_domain_that_the_gang_would_rather_be_in_comes_before(
    api: Api, epoch: int, racks: list[Node]
) -> None:
    """Where no rack has room for all, one that is proposed is only not used."""
    large = Gang(api, racks, 4, together=["rack", "fleet"])
    rooms = api.rows("planner_rooms", gangs=[large.id])
    assert {row["place"] for row in rooms} == {"rack 1", "rack 2"}
    api.node(rack=3, gpus=gpus(2), labels={"zone": "a"})
    both = Gang(api, racks, 2, together=["rack", "label:zone"])
    assert proposed(both, "label:zone a", epoch) == "reserved"
    assert both.place == "rack 1"
    api.node(gpus=gpus(2))
    assert proposed(large, "rack 2", epoch) == "reserved"
    assert large.place == "fleet"


def test_what_is_refused_changes_nothing(api: Api, epoch: int, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    large = Gang(api, racks, 4, queue=queue, together="rack")
    before = gang(api, large.id)
    assert proposed(large, "rack 2", epoch) == "no_room"
    # not even when it is tried next: a planner delays no gang
    assert gang(api, large.id) == before
    small = Gang(api, racks, 2, queue=queue, together="rack")
    contents = api.contents()
    assert proposed(small, "rack 2", epoch - 1) == "deposed"
    assert proposed(small, "rack 2", epoch + 1) == "deposed"
    assert api.contents() == contents
    assert small.state == "waiting"
    assert proposed(small, "rack 2", epoch, gang=uuid4()) == "not_waiting"
    assert proposed(small, "rack 2", epoch, round=7) == "reserved"
    other = Gang(api, racks, 2, queue=queue, together="rack")
    assert proposed(other, "rack 1", epoch, round=6) == "old_round"
    reap(api)  # goes on without a planner
    assert other.place == "rack 1"


def test_a_gang_that_has_lost_a_member(api: Api, epoch: int, racks: list[Node]) -> None:
    """It is left to reap, which ends it; and one whose queue is paused waits for that."""
    job = Gang(api, racks, 2)
    api.rows("pause_queue", queue=job.queue)
    assert proposed(job, "", epoch) == "not_waiting"
    assert job.state == "waiting"
    api.rows("resume_queue", queue=job.queue)
    api.rows("cancel_lease", lease=job.leases[0])
    assert proposed(job, "", epoch) == "busy"
    reap(api)
    assert job.state == "cancelled"


BAD: list[tuple[str, Row]] = [
    ("reserve_gang", {"gang": None}),
    ("reserve_gang", {"place": None}),
    ("reserve_gang", {"place": "x" * 4001}),
    ("reserve_gang", {"round": -1}),
    ("reserve_gang", {"round": None}),
    ("reserve_gang", {"epoch": None}),
    ("planner_rooms", {"gangs": []}),
    ("planner_rooms", {"gangs": None}),
    ("planner_rooms", {"gangs": [None]}),
    ("planner_rooms", {"gangs": [NOBODY] * 1001}),
    *(("planner_view", {"part": "gangs", "after": after}) for after in ("x", "1", "1 x", "1 -1")),
    ("planner_view", {"part": "gangs", "after": "9" * 19 + " 1"}),
]


@pytest.mark.parametrize(("function", "changes"), BAD, ids=lambda value: str(value)[:30])
@pytest.mark.thorough
@pytest.mark.every_variant
def test_bad_arguments(api: Api, epoch: int, function: str, changes: Row) -> None:
    good: Row = {"gang": uuid4(), "place": "", "round": 1, "epoch": epoch}
    api.refused("QHA01", function, **(good | changes if function == "reserve_gang" else changes))


def test_a_planner_reads_gangs_that_wait_in_order(api: Api, racks: list[Node]) -> None:
    queue, paused = api.queue(), api.queue()
    share = {"placement": {"resources": {"gpu_milli": 500, "cpu_milli": 7, "memory_mib": 9}}}
    later = Gang(api, racks, 2, share, queue=queue, together="rack", same=["model"])
    first = Gang(api, racks, 3, queue=queue, priority=5)
    Gang(api, racks, 2, queue=paused)
    api.rows("pause_queue", queue=paused)
    pages = [api.rows("planner_view", part="gangs", limit=1)]
    while pages[-1] and pages[-1][-1]["next"] is not None:
        after = pages[-1][-1]["next"]
        pages.append(api.rows("planner_view", part="gangs", limit=1, after=after))
    found = [row["item"] for page in pages for row in page if row["item"] is not None]
    assert [item["gang_id"] for item in found] == [str(first.id), str(later.id)]
    assert [(item["queue"], item["together"], item["same"]) for item in found] == [
        (queue, [], []),
        (queue, ["rack"], ["model"]),
    ]
    [whole], [part] = (item["members"] for item in found)
    assert (whole["members"], whole["gpus"], whole["is_plain"]) == (3, 1, True)
    assert (part["gpu_milli"], part["cpu_milli"], part["memory_mib"]) == (500, 7, 9)
    reap(api)
    rest = [row["item"] for row in api.rows("planner_view", part="gangs")]
    assert str(first.id) not in {item["gang_id"] for item in rest}


def test_a_planner_reads_rooms_by_place(api: Api, queue: str, racks: list[Node]) -> None:
    one = Gang(api, racks, 2, together="rack")
    two = Gang(api, racks, 3, {"placement": {"resources": {"gpu_milli": 400}}}, together="rack")
    other = Gang(api, racks, 2, {"placement": {"resources": {"cpu_milli": 1}}})
    api.running(queue, racks[2], placement={"resources": {"gpu_milli": 300}})
    rooms = api.rows("planner_rooms", gangs=[one.id, two.id, other.id])
    by_place = [(row["place"], row["nodes"], sorted(row["rooms"].values())) for row in rooms]
    assert sorted(by_place) == [("rack 1", 2, [1, 2]), ("rack 2", 1, [1]), ("rack 2", 2, [1, 2])]
    [whole] = api.rows("planner_rooms", gangs=[other.id])
    assert (whole["place"], whole["nodes"]) == ("", 5)
    assert api.rows("planner_rooms", gangs=[uuid4()]) == []


def test_logins(api: Api, logins: Logins, epoch: int, racks: list[Node]) -> None:
    """A planner proposes, and does nothing else to a gang; nobody else proposes."""
    job = Gang(api, racks, 2, together="rack")
    _name, planner = logins.api(PLANNER)
    for function in ("get_gang", "cancel_gang", "explain_gang"):
        with refusing("42501"):
            planner.rows(function, gang=job.id)
    for role in (WORKER, OPERATOR):
        _name, other = logins.api(role)
        with refusing("42501"):
            proposed(job, "rack 2", epoch, other)
        with refusing("42501"):
            other.rows("planner_rooms", gangs=[job.id])
    assert planner.rows("planner_rooms", gangs=[job.id])
    assert proposed(job, "rack 2", epoch, planner) == "reserved"
