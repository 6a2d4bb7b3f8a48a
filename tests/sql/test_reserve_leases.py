"""Nodes that a planner proposes for single leases: what is reserved, refused, and goes back."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, Node, token
from tests.sql.explained import explain

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
