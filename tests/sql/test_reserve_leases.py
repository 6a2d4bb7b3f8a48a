"""What a planner proposes: room for single leases, and for gangs."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, refusing, token
from tests.sql.explained import explain
from tests.sql.gangs import Gang, gang, gpus, reap
from tests.sql.logins import OPERATOR, WORKER, Logins

HOLD = timedelta(seconds=3)
LINE = "select rank, position, eligible_at from hwqueue.ready where lease_id = %s"
IS_PAST = """
  select max(m.position) > l.position
  from hwqueue.lease l
  join hwqueue.low_water w on w.queue_id = l.queue_id
  cross join unnest(w.positions) m(position)
  where l.lease_id = %s group by l.position
"""


@pytest.fixture
def epoch(api: Api, clock: Clock) -> int:
    """Of a leader, once the one of the test before is gone; no node lives."""
    clock.advance(timedelta(hours=1))
    api.leave_all()
    api.value("lead_planner", holder="the one before", ttl=timedelta(0))
    return int(api.value("lead_planner", holder="me", ttl=timedelta(hours=1)))


def assigned(
    api: Api, epoch: int, *places: tuple[UUID, Node], hold: timedelta = HOLD, **more: Any
) -> list[str]:
    """What reserve_leases answers, in the order given."""
    given = [{"lease": str(lease), "node": str(node.node_id)} for lease, node in places]
    rows = api.rows("reserve_leases", places=given, hold=hold, **({"round": 1, "epoch": epoch} | more))
    verdicts = {row["lease_id"]: row["verdict"] for row in rows}
    return [verdicts[lease] for lease, _ in places]


def expire(api: Api, clock: Clock) -> None:
    """Let a reservation run out, and upkeep end it."""
    api.reap_after(clock, timedelta(minutes=1))


def test_only_its_node_fetches_it(api: Api, queue: str, epoch: int) -> None:
    one, other = api.node(), api.node()
    lease, rest = api.spawn(queue), api.spawn(queue)
    assert assigned(api, epoch, (lease, other)) == ["reserved"]
    assert explain(api, lease)["code"] == "reserved"
    assert api.rows("verify_invariants") == []
    assert api.claimed(one, queue, qty=5) == [rest]
    [claim] = api.claim(other, queue)
    assert (claim["lease_id"], claim["attempt"]) == (lease, 1)
    assert assigned(api, epoch, (lease, one)) == ["taken"]
    api.complete(claim)
    assert api.state(lease) == "completed"


@pytest.mark.usefixtures("eager_marks")
def test_in_vain_it_is_back_where_it_was(api: Api, queue: str, clock: Clock, epoch: int) -> None:
    """Although those behind it have gone meanwhile, and the low-water mark is past it."""
    node, other = api.node(), api.node()
    first, *rest = leases = [api.spawn(queue) for _ in range(12)]
    [before] = api.conn.execute(LINE, [first]).fetchall()
    assert assigned(api, epoch, (first, other)) == ["reserved"]
    for lease in rest[:8]:
        assert api.claimed(node, queue) == [lease]
    [(is_past,)] = api.conn.execute(IS_PAST, [first]).fetchall()
    assert is_past
    expire(api, clock)
    assert api.conn.execute(LINE, [first]).fetchall() == [before]
    assert api.rows("verify_invariants") == []
    [claim] = api.claim(node, queue)
    assert (claim["lease_id"], claim["attempt"]) == (first, 1)
    assert api.claimed(node, queue, qty=3) == leases[9:]


def test_its_node_may_come_late(api: Api, clock: Clock, epoch: int) -> None:
    """As long as upkeep has not ended the reservation; of what then completes a queue may keep nothing."""
    node, queue = api.node(), api.queue(retain_completed=0)
    lease = api.spawn(queue)
    assigned(api, epoch, (lease, node))
    clock.advance(HOLD * 2)
    claim = api.granted(lease, node, queue)
    api.complete(claim)
    api.refused("QHL04", "get_lease", lease=lease)


def test_reserved_after_the_clock_was_set_back(api: Api, clock: Clock, epoch: int) -> None:
    """The last sweep was later than its hold, and yet before it: nothing is broken."""
    node, queue = api.node(), api.queue()
    api.rows("reap")
    clock.advance(-timedelta(minutes=2))
    assert assigned(api, epoch, (api.spawn(queue), node)) == ["reserved"]
    assert api.rows("verify_invariants") == []


def test_cancelled_or_past_its_deadline_while_reserved(api: Api, clock: Clock, epoch: int) -> None:
    node, queue = api.node(), api.queue()
    soon = (clock.now() + timedelta(seconds=2)).isoformat()
    fetched, expired, late = api.spawn(queue), api.spawn(queue), api.spawn(queue, deadline=soon)
    places = ((fetched, node), (expired, api.node()), (late, api.node()))
    assert assigned(api, epoch, *places) == ["reserved"] * 3
    for lease in (fetched, expired):
        api.rows("cancel_lease", lease=lease)
    assert api.claimed(node, queue) == []
    assert api.state(fetched) == "cancelled"
    expire(api, clock)
    api.rows("reap")
    assert (api.state(expired), api.state(late)) == ("cancelled", "failed")


def test_another_of_its_service_takes_its_place(api: Api, clock: Clock, epoch: int) -> None:
    """Once it runs: what is reserved is neither replaced nor passed over."""
    node, other = api.node(), api.node()
    queue, service = api.queue(), str(uuid4())
    old = api.spawn(queue, service_id=service)
    clock.advance(timedelta(seconds=1))
    new = api.spawn(queue, service_id=service, replaces={"service": service})
    assert assigned(api, epoch, (old, node)) == ["reserved"]
    api.rows("reap")
    assert api.claimed(other, queue) == []
    assert api.claimed(node, queue) == [old]
    api.rows("reap")
    assert (api.state(new), api.lease(old)["stop_reason"]) == ("claimed", "cancelled")
    assert api.rows("verify_invariants") == []


def test_what_is_refused_changes_nothing(api: Api, epoch: int) -> None:
    node = api.node(slots=2, labels={"zone": "a"})
    queue, paused = api.queue(), api.queue()
    first, second = api.spawn(queue), api.spawn(queue)
    there = api.spawn(queue, placement={"require": [{"label": "zone", "op": "in", "values": ["b"]}]})
    later = api.spawn(queue, delay=60)
    still = api.spawn(paused)
    api.rows("pause_queue", queue=paused)
    gone = Node(uuid4(), 1, "gone")
    before = api.contents()
    places = ((there, node), (still, node), (later, node), (uuid4(), node), (first, gone))
    verdicts = ["does_not_suit", "blocked", "taken", "taken", "does_not_suit"]
    assert assigned(api, epoch, *places) == verdicts
    assert assigned(api, epoch - 1, (first, node)) == ["deposed"]
    after = api.contents()
    assert {name for name, found in after.items() if found != before[name]} <= {"planner"}
    assert assigned(api, epoch, (first, node), round=7) == ["reserved"]
    assert assigned(api, epoch, (second, node), round=6) == ["old_round"]
    assert assigned(api, epoch, (second, node), round=7) == ["reserved"]
    third = api.spawn(queue)
    assert assigned(api, epoch, (third, node), round=7) == ["no_room"]
    assert api.state(third) == "pending"
    assert api.rows("verify_invariants") == []


def test_what_keeps_a_claim_off_keeps_a_reservation_off(api: Api, queue: str, epoch: int) -> None:
    """It counts for the others as a claim does."""
    alone = {
        "labels": {"app": "web"},
        "placement": {
            "spread": [{"domain": "node", "max_per_domain": 1, "select": {"labels": {"app": "web"}}}]
        },
    }
    one, two = api.spawn(queue, **alone), api.spawn(queue, **alone)
    api.settle_terms()
    node = api.node()
    assert assigned(api, epoch, (one, node)) == ["reserved"]
    assert assigned(api, epoch, (two, node)) == ["blocked"]
    assert api.claimed(node, queue, qty=2) == [one]


@pytest.mark.thorough
def test_bad_arguments(api: Api, epoch: int) -> None:
    lease, node = {"lease": str(uuid4())}, {"node": str(uuid4())}
    good = {"places": [lease | node], "hold": HOLD, "round": 1, "epoch": epoch}
    bad_places: list[Any] = [[], None, [{"lease": "x"} | node], [lease | {"to": "x"}]]
    for places in (*bad_places, [lease] * 65):
        api.refused("QHA01", "reserve_leases", **good | {"places": places})
    for hold in (timedelta(0), timedelta(hours=1), None):
        api.refused("QHA01", "reserve_leases", **good | {"hold": hold})
    for places in (*bad_places, [{"lease": "x"}], [{"to": 1}]):
        api.refused("QHA01", "assigned_leases", places=places)


def test_what_a_planner_reads(api: Api, epoch: int) -> None:
    """Of a queue that is short, where it makes a difference which node a lease gets."""
    best, other = api.node(labels={"zone": "a"}), api.node(labels={"zone": "b"}, slots=3)
    plain, queue = api.queue(), api.queue(patience=5)
    api.spawn(plain)
    lease = api.spawn(queue, placement={"strength": 50, "prefer": [{"when": {"tags": {"zone": "a"}}}]})
    for node in (best, other):
        # a node judges what it may run when it asks
        api.claim(node, queue, plain, tasks=["nothing"])
    assert api.rows("planner_view", part="matches", queue=plain) == []
    [row] = api.rows("planner_view", part="matches", queue=queue)
    item = row["item"]
    assert [each[0] for each in item["leases"]] == [str(lease)]
    nodes = {UUID(node): (affinity, room) for node, affinity, room in item["nodes"]}
    assert nodes == {best.node_id: (50, 10000), other.node_id: (0, 3)}
    assert (item["best"], item["worst"], item["patience"]) == (50, 0, 5)
    api.spawn(queue)
    assert api.rows("planner_view", part="matches", queue=queue, most=1) == []


def became(api: Api, *places: tuple[UUID, Node]) -> list[str]:
    """What assigned_leases says of them, in the order given."""
    given = [{"lease": str(lease), "node": str(node.node_id)} for lease, node in places]
    rows = {row["lease_id"]: row["verdict"] for row in api.rows("assigned_leases", places=given)}
    return [rows[lease] for lease, _ in places]


def test_what_has_become_of_them(api: Api, clock: Clock, epoch: int) -> None:
    node, other = api.node(), api.node()
    queue, brief = api.queue(), api.queue(retain_completed=0)
    again, done, gone = api.spawn(queue), api.spawn(brief), api.spawn(queue)
    places = [(lease, node) for lease in (again, done, gone)]
    assert assigned(api, epoch, *places) == became(api, *places) == ["reserved"] * 3
    api.rows("cancel_lease", lease=gone)
    claims = {claim["lease_id"]: claim for claim in api.claim(node, queue, brief, qty=3)}
    assert became(api, *places) == ["fetched", "fetched", "gone"]
    api.rows("fail_lease", **token(claims[again]), error={"message": "no"})
    api.rows("complete_lease", **token(claims[done]))
    places += [(api.spawn(queue), node), (api.spawn(queue), node)]
    assert assigned(api, epoch, *places[3:]) == ["reserved"] * 2
    expire(api, clock)
    # the one that failed waits, too, but was fetched before
    assert became(api, *places) == ["fetched", "fetched", "gone", "expired", "expired"]
    assert len(api.claimed(other, queue, qty=3)) == 3
    assert became(api, *places) == ["gone", "fetched", "gone", "gone", "gone"]


PLANNER = "hwqueue_planner"


@pytest.fixture
def epoch_of_racks(api: Api, clock: Clock, racks: list[Node]) -> int:
    """Of a leader, once the one of the test before is gone; its nodes are those of the racks."""
    clock.advance(timedelta(hours=1))
    for node in racks:
        api.rows("heartbeat_node", **node.who)
    api.value("lead_planner", holder="the one before", ttl=timedelta(0))
    return int(api.value("lead_planner", holder="me", ttl=timedelta(hours=1)))


def proposed(job: Gang, place: str, epoch_of_racks: int, /, api: Api | None = None, **more: Any) -> str:
    given = {"gang": job.id, "place": place, "round": 1, "epoch": epoch_of_racks} | more
    return str((api or job.api).value("reserve_gang", **given))


def test_the_place_that_is_proposed_comes_first(api: Api, epoch_of_racks: int, racks: list[Node]) -> None:
    """By itself it would be rack 1, where it fits tightest."""
    job = Gang(api, racks, 2, together="rack")
    assert proposed(job, "rack 2", epoch_of_racks) == "reserved"
    assert job.place == "rack 2"
    claimed = [lease for node in racks for lease in api.claimed(node, job.queue)]
    assert sorted(claimed) == sorted(job.leases)
    assert proposed(job, "rack 2", epoch_of_racks) == "not_waiting"


@pytest.mark.parametrize("place", ["rack 1", "rack 77", "", "label:zone a", "x" * 4000])
def test_a_place_that_has_no_room_is_only_not_used(
    api: Api, epoch_of_racks: int, racks: list[Node], place: str
) -> None:
    """Three members fit into rack 2 alone, whatever is proposed."""
    job = Gang(api, racks, 3, together="rack")
    assert proposed(job, place, epoch_of_racks) == "reserved"
    assert job.place == "rack 2"


def test_a_domain_that_the_gang_would_rather_be_in_comes_before(
    api: Api, epoch_of_racks: int, racks: list[Node]
) -> None:
    """Where no rack has room for all, one that is proposed is only not used."""
    large = Gang(api, racks, 4, together=["rack", "fleet"])
    rooms = api.rows("planner_rooms", gangs=[large.id])
    assert {row["place"] for row in rooms} == {"rack 1", "rack 2"}
    api.node(rack=3, gpus=gpus(2), labels={"zone": "a"})
    both = Gang(api, racks, 2, together=["rack", "label:zone"])
    assert proposed(both, "label:zone a", epoch_of_racks) == "reserved"
    assert both.place == "rack 1"
    api.node(gpus=gpus(2))
    assert proposed(large, "rack 2", epoch_of_racks) == "reserved"
    assert large.place == "fleet"


def test_a_gang_that_is_refused_changes_nothing(api: Api, epoch_of_racks: int, racks: list[Node]) -> None:
    queue = api.queue(earmarks=0)
    large = Gang(api, racks, 4, queue=queue, together="rack")
    before = gang(api, large.id)
    assert proposed(large, "rack 2", epoch_of_racks) == "no_room"
    # not even when it is tried next: a planner delays no gang
    assert gang(api, large.id) == before
    small = Gang(api, racks, 2, queue=queue, together="rack")
    contents = api.contents()
    assert proposed(small, "rack 2", epoch_of_racks - 1) == "deposed"
    assert proposed(small, "rack 2", epoch_of_racks + 1) == "deposed"
    assert api.contents() == contents
    assert small.state == "waiting"
    assert proposed(small, "rack 2", epoch_of_racks, gang=uuid4()) == "not_waiting"
    assert proposed(small, "rack 2", epoch_of_racks, round=7) == "reserved"
    other = Gang(api, racks, 2, queue=queue, together="rack")
    assert proposed(other, "rack 1", epoch_of_racks, round=6) == "old_round"
    reap(api)  # goes on without a planner
    assert other.place == "rack 1"


def test_a_gang_that_has_lost_a_member(api: Api, epoch_of_racks: int, racks: list[Node]) -> None:
    """It is left to reap, which ends it; and one whose queue is paused waits for that."""
    job = Gang(api, racks, 2)
    api.rows("pause_queue", queue=job.queue)
    assert proposed(job, "", epoch_of_racks) == "not_waiting"
    assert job.state == "waiting"
    api.rows("resume_queue", queue=job.queue)
    api.rows("cancel_lease", lease=job.leases[0])
    assert proposed(job, "", epoch_of_racks) == "busy"
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
def test_bad_arguments_about_gangs(api: Api, epoch_of_racks: int, function: str, changes: Row) -> None:
    good: Row = {"gang": uuid4(), "place": "", "round": 1, "epoch": epoch_of_racks}
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


def test_logins(api: Api, logins: Logins, epoch_of_racks: int, racks: list[Node]) -> None:
    """A planner proposes, and does nothing else to a gang; nobody else proposes."""
    job = Gang(api, racks, 2, together="rack")
    _name, planner = logins.api(PLANNER)
    for function in ("get_gang", "cancel_gang", "explain_gang"):
        with refusing("42501"):
            planner.rows(function, gang=job.id)
    for role in (WORKER, OPERATOR):
        _name, other = logins.api(role)
        with refusing("42501"):
            proposed(job, "rack 2", epoch_of_racks, other)
        with refusing("42501"):
            other.rows("planner_rooms", gangs=[job.id])
    assert planner.rows("planner_rooms", gangs=[job.id])
    assert proposed(job, "rack 2", epoch_of_racks, planner) == "reserved"
