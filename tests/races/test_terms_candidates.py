"""Classes that cannot run yet are no candidates; tries are bounded; a claim is one xid."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.patience import looks
from tests.plans.explain import explained
from tests.races.cluster import OTHER, QUEUE, Node, completed, set_policy
from tests.races.interleave import Actors
from tests.races.terms import (
    RACK,
    away,
    ids,
    lease,
    leases,
    never,
    place,
    publish,
    soon_granted,
    spread,
    two_together,
    unpublished,
    with_lease,
)
from tests.races.test_late_classes import drain

ATTEMPTS = 10  # of a claim whose transaction ids are counted by what goes by on the server
TRIED = 16  # classes that a claim tries at most
NOT_NOW: dict[str, Any] = {"delay": 3600}
# Whether reap, in its round of all classes, has passed the class of a lease.
_PASSED = """
  select m.watched_class > l.class_id from hwqueue.reap_cursor m, hwqueue.lease l
  where l.lease_id = %s order by m.version desc limit 1
"""


def dependents(direct: Direct, count: int) -> list[UUID]:
    """Leases that must be with as many that are due in an hour; the latter."""
    waiting = [direct.spawn(QUEUE, NOT_NOW)["lease_id"] for _ in range(count)]
    for one in waiting:
        direct.spawn(QUEUE, with_lease(one))
    return waiting


def either(number: int, app: str) -> Row:
    """A lease of a class of its own that only a close look decides: away from app, or nowhere."""
    nowhere = [{"label": "zone", "op": "in", "values": ["none"]}]
    require = [{"any": [[leases(app, away=True)], nowhere]}]
    return lease(f"e{number}", {"require": require})


def drawn(direct: Direct) -> int:
    """The next transaction id."""
    [(number,)] = direct.conn.execute(
        "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    ).fetchall()
    return int(number)


def subtransactions(direct: Direct) -> int:
    """How many the open transaction of a session has had with an id, up to 64; from 16 on."""
    row = direct.conn.execute(
        "select s.subxact_count, s.subxact_overflowed"
        " from pg_stat_get_backend_idset() b, pg_stat_get_backend_subxact(b) s"
        " where pg_stat_get_backend_pid(b) = pg_backend_pid()"
    ).fetchone()
    assert row is not None
    count, overflowed = row
    return 65 if overflowed else int(count)


def xids(direct: Direct, claim: Callable[[], list[Row]], count: int = 1) -> int:
    """How many transaction ids a claim that is granted its leases draws.

    Before 16: how many went by meanwhile; other sessions draw some, too.
    """
    if direct.conn.info.server_version >= 160000:
        with direct.conn.transaction():
            assert len(claim()) == count
            return 1 + subtransactions(direct)
    before = drawn(direct)
    assert len(claim()) == count
    return drawn(direct) - before


def fewest_xids(direct: Direct, claim: Callable[[], list[Row]]) -> int:
    """The same of a claim of one lease, in the best of several."""
    return min(xids(direct, claim) for _ in range(ATTEMPTS))


def statements(direct: Direct, node: Node) -> int:
    """How many statements a claim of one lease runs, when nothing is new to the node."""
    with explained(direct.conn) as work:
        assert len(direct.claim(QUEUE, *node)) == 1
    return len(work.plans)


def test_leases_that_wait_for_another_one_to_start_are_not_tried(direct: Direct) -> None:
    """A claim of something else costs the same with none, 5 or 150 of them, and one xid.

    Of 150 the oldest fill all that a claim looks at in the front of a queue.
    """
    node, done = place(direct, 1, 1), []
    for count in (0, 5, 145):
        dependents(direct, count)
        publish(direct)
        for _ in range(40):
            direct.spawn(QUEUE)
        for _ in range(12):
            assert len(direct.claim(QUEUE, *node)) == 1
        done.append(min(statements(direct, node) for _ in range(3)))
        assert fewest_xids(direct, lambda: direct.claim(QUEUE, *node)) == 1
    assert max(done) <= done[0] + 5  # a claim now and then does some more


def test_new_groups_are_not_tried_while_a_writer_idles(direct: Direct, actor: Actors) -> None:
    """A claim of something else costs the same with 5 as with 40 of them, and one xid."""
    node, done = place(direct, 1, 1), []
    direct.spawn(QUEUE)
    assert len(direct.claim(QUEUE, *node)) == 1
    actor().begin(has_id=True)
    for count in (5, 40):
        for number in range(count):
            direct.spawn(QUEUE, lease(f"g{number}", away(f"g{number}")))
        for _ in range(3):
            direct.reap()
        for _ in range(70):
            direct.spawn(QUEUE)
        for _ in range(50):
            assert len(direct.claim(QUEUE, *node)) == 1
        done.append(min(statements(direct, node) for _ in range(3)))
        assert fewest_xids(direct, lambda: direct.claim(QUEUE, *node)) == 1
    assert unpublished(direct) > 0
    assert done[1] <= done[0] + 5


ONE_BY_ONE = {
    "max_per_domain": spread("web", max_per_domain=10000),
    "a preference": {"prefer": [{"weight": 100, "when": {"tags": {"zone": "9"}}}]},
}


@pytest.mark.parametrize("which", ONE_BY_ONE)
def test_a_claim_of_many_has_no_subtransactions(direct: Direct, which: str) -> None:
    """More than 64 of them would make every snapshot on the server slower until it ends."""
    set_policy(direct, patience=0)
    node = place(direct, 1, 1)
    place(direct, 2, 9)
    is_exact = direct.conn.info.server_version >= 160000
    for _ in range(1 if is_exact else ATTEMPTS):
        for _ in range(100):
            direct.spawn(QUEUE, lease("web", ONE_BY_ONE[which]) | {"patience": 0.001})
        publish(direct)
        drew = xids(direct, lambda: direct.claim(QUEUE, *node, qty=100), 100)
        if drew == 1 or (drew < 64 and not is_exact):
            return
    raise AssertionError(f"a claim of 100 drew {drew} transaction ids")


def test_tries_are_bounded_and_take_turns(direct: Direct) -> None:
    """Of forty classes that only a close look decides a claim tries a few, later ones the others.

    What need not be checked is granted meanwhile; the one that may run has its turn before long.
    """
    node = place(direct, 1, 1)
    direct.spawn(OTHER, lease("busy"))
    assert len(direct.claim(OTHER, *node)) == 1
    for number in range(40):
        direct.spawn(QUEUE, either(number, "busy"))
    wanted = direct.spawn(QUEUE, either(40, "nobody"))["lease_id"]
    publish(direct)
    plain = {direct.spawn(QUEUE)["lease_id"] for _ in range(60)}
    granted: list[UUID] = []
    for _ in range(41 // (TRIED // 2) + 4):
        with explained(direct.conn) as work:
            granted += ids(direct.claim(QUEUE, *node))
        tried = [plan for plan in work.plans if "true as decides, (s.value" in plan["Query Text"]]
        assert len(tried) <= TRIED
    assert wanted in granted
    assert len(granted) == 41 // (TRIED // 2) + 4
    assert set(granted) - {wanted} <= plain


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_lease_is_a_candidate_when_the_one_it_must_be_with_starts(
    direct: Direct, actor: Actors, first_commits: bool
) -> None:
    """In the next claim after that start is committed; if it is undone, after the next start."""
    beside, elsewhere, starter = place(direct, 1, 1), place(direct, 2, 2), place(direct, 3, 1)
    first, second = two_together(direct)
    never(direct, beside)
    one = actor().begin()
    assert ids(one.direct.claim(QUEUE, *starter)) == [first]
    never(direct, beside)
    one.end(first_commits)
    if not first_commits:
        never(direct, beside)
        assert ids(direct.claim(QUEUE, *starter)) == [first]
    assert direct.claim(OTHER, *elsewhere) == []
    assert ids(direct.claim(OTHER, *beside)) == [second]


def test_a_start_that_is_missed_is_found_by_reap(direct: Direct, actor: Actors, clock: Clock) -> None:
    """The class is held while the lease starts, which does not wait for it."""
    beside, starter = place(direct, 1, 1), place(direct, 2, 1)
    first, second = two_together(direct)
    holder = actor().begin()
    holder.conn.execute("select from hwqueue.placement_class for no key update")
    assert ids(direct.claim(QUEUE, *starter)) == [first]
    holder.rollback()
    assert direct.claim(OTHER, *beside) == []
    clock.advance(timedelta(seconds=11))
    direct.reap()
    assert ids(direct.claim(OTHER, *beside)) == [second]


@pytest.mark.parametrize("how", ["claim", "reap", "update", "held"])
def test_a_scheduled_lease_that_a_term_names_is_a_candidate_when_it_is_due(
    direct: Direct, actor: Actors, clock: Clock, how: str
) -> None:
    """Whoever makes it claimable wakes its class; while another session holds that, reap does."""
    node = place(direct, 1, 1)
    [first] = dependents(direct, 1)
    publish(direct)
    waits = direct.conn.execute("select target from hwqueue.placement_class where waits").fetchall()
    assert (first,) in waits
    assert direct.claim(QUEUE, *node) == []
    holder = actor().begin()
    if how == "held":
        holder.conn.execute("select from hwqueue.placement_class for no key update")
    if how == "update":
        direct.update(first, {"available_at": clock.now().isoformat()})
    else:
        clock.advance(timedelta(seconds=NOT_NOW["delay"]))
    if how == "reap":
        direct.reap()
    if how == "held":
        assert direct.claim(QUEUE, *node) == []
    holder.rollback()
    if how == "held":
        clock.advance(timedelta(seconds=11))
        direct.reap()
    assert ids(direct.claim(QUEUE, *node)) == [first]


def test_new_terms_do_not_wait_for_whoever_holds_a_class(direct: Direct, actor: Actors) -> None:
    """One that is new, and whose terms have no rows yet."""
    node = place(direct, 1, 1)
    first = direct.spawn(QUEUE, lease("web", away("web")))["lease_id"]
    holder = actor().begin()
    holder.conn.execute("select from hwqueue.placement_class for no key update")
    actor().direct.reap()
    direct.spawn(OTHER, lease("db"))
    assert len(actor().direct.claim(OTHER, *node)) == 1
    assert actor().direct.claim(QUEUE, *node) == []
    holder.commit()
    publish(direct)
    assert ids(direct.claim(QUEUE, *node)) == [first]


def test_a_named_lease_that_is_due_waits_on_for_one_that_it_must_be_with(
    direct: Direct, clock: Clock
) -> None:
    """It is claimable by its time alone, and a candidate when that one starts."""
    node = place(direct, 1, 1)
    last = direct.spawn(QUEUE, {"delay": 2 * NOT_NOW["delay"]})["lease_id"]
    named = direct.spawn(QUEUE, NOT_NOW | with_lease(last))["lease_id"]
    direct.spawn(QUEUE, with_lease(named))
    publish(direct)
    for granted in ([], [last]):
        waits = direct.conn.execute("select target from hwqueue.placement_class where waits").fetchall()
        assert (named,) in waits
        clock.advance(timedelta(seconds=NOT_NOW["delay"]))
        direct.reap()
        assert ids(direct.claim(QUEUE, *node)) == granted
    assert ids(direct.claim(QUEUE, *node)) == [named]


def test_a_missed_start_behind_many_that_wait_is_found(direct: Direct, actor: Actors, clock: Clock) -> None:
    """Reap looks at some of the classes that wait, and at all of them in turn."""
    beside, starter = place(direct, 1, 1), place(direct, 2, 1)
    dependents(direct, 12)
    first, second = two_together(direct, claim_timeout=3600)
    holder = actor().begin()
    holder.conn.execute("select from hwqueue.placement_class for no key update")
    assert ids(direct.claim(QUEUE, *starter)) == [first]
    holder.rollback()
    for _ in range(40):
        clock.advance(timedelta(seconds=11))
        direct.conn.execute("select from hwqueue.reap(p_limit => 1)")
    assert ids(direct.claim(OTHER, *beside)) == [second]


def test_a_missed_start_of_one_of_the_first_that_wait_is_found_at_once(
    direct: Direct, actor: Actors, clock: Clock
) -> None:
    """Though reap, which looks at classes in turn, has passed it."""
    beside, starter = place(direct, 1, 1), place(direct, 2, 1)
    first, second = two_together(direct, claim_timeout=3600)
    dependents(direct, 3)
    publish(direct)

    def reap() -> None:
        clock.advance(timedelta(seconds=11))
        direct.conn.execute("select from hwqueue.reap(p_limit => 1)")

    for _ in range(20):
        if direct.conn.execute(_PASSED, [second]).fetchone() == (True,):
            break
        reap()
    holder = actor().begin()
    holder.conn.execute("select from hwqueue.placement_class for no key update")
    assert ids(direct.claim(QUEUE, *starter)) == [first]
    holder.rollback()
    assert direct.conn.execute(_PASSED, [second]).fetchone() == (True,)
    reap()
    assert ids(direct.claim(OTHER, *beside)) == [second]


def test_a_lease_that_succeeded_holds_up_nobody(direct: Direct) -> None:
    """Who is spawned later and must be where it ran is a candidate at once."""
    node = place(direct, 1, 1)
    first = completed(direct, node)
    second = direct.spawn(OTHER, with_lease(first))["lease_id"]
    publish(direct)
    assert ids(direct.claim(OTHER, *node)) == [second]


def test_a_class_that_was_judged_while_its_term_was_published(direct: Direct, actor: Actors) -> None:
    """Who judged it before that was committed finds it afterwards."""
    node = place(direct, 1, 1)
    held = direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    publisher = actor()
    for _ in looks():
        publisher.begin()
        publisher.direct.reap()
        if unpublished(publisher.direct) == 0:
            break
        publisher.commit()
    assert direct.claim(OTHER, *node) == []
    publisher.commit()
    assert ids(direct.claim(OTHER, *node)) == [held]


def test_a_claim_takes_a_step_for_terms_whatever_it_grants(direct: Direct) -> None:
    """Nobody reaps, and something else is always granted: a new term comes into force."""
    node = place(direct, 1, 1)
    held = direct.spawn(QUEUE, lease("db", away("web")) | {"priority": 5})["lease_id"]
    granted: list[UUID] = []
    for _ in looks():
        direct.spawn(QUEUE)
        granted = ids(direct.claim(QUEUE, *node))
        if granted == [held]:
            break
    assert granted == [held]


def test_a_named_lease_is_not_taken_for_another_of_its_class(direct: Direct) -> None:
    """What is decided for the lease that a term names does not hold for others of its class."""
    node, other = place(direct, 1, 1), place(direct, 2, 1)
    named = str(uuid4())
    first = direct.spawn(QUEUE)["lease_id"]
    direct.spawn(QUEUE, {"lease_id": named})
    keeps_away = direct.spawn(OTHER, with_lease(named, away=True))["lease_id"]
    publish(direct)
    assert ids(direct.claim(OTHER, *other)) == [keeps_away]
    assert ids(direct.claim(QUEUE, *node)) == [first]
    assert direct.claim(QUEUE, *node) == []


def test_a_class_that_is_woken_while_its_last_term_is_published(direct: Direct, actor: Actors) -> None:
    """Who judged it between the two commits finds it afterwards."""
    beside, starter = place(direct, 1, 1), place(direct, 2, 1)
    first = direct.spawn(QUEUE)["lease_id"]
    asked = [{"lease": str(first), "domain": RACK}, leases("web", away=True)]
    second = direct.spawn(OTHER, {"placement": {"require": asked}})["lease_id"]
    writer, waker, publisher = actor().begin(has_id=True), actor(), actor()
    for _ in range(3):
        direct.reap()
    for node in (beside, starter):
        assert direct.claim(OTHER, *node) == []
    assert unpublished(direct) > 0  # all that is missing is the writer's end
    waker.begin()
    assert ids(waker.direct.claim(QUEUE, *starter)) == [first]
    writer.rollback()
    publisher.begin()
    # as a claim does on its way; reap would hold the profile's row as well
    publisher.conn.execute("select hwqueue.publish_terms(9, true, hwqueue.clock())")
    waker.commit()
    assert direct.claim(OTHER, *beside) == []
    publisher.commit()

    def claim() -> list[Row]:
        direct.reap()
        return direct.claim(OTHER, *beside)

    assert soon_granted(claim) == [second]


@pytest.mark.parametrize("classes", [3, 10, 250])
def test_none_is_passed_by_for_those_that_are_blocked(direct: Direct, classes: int) -> None:
    """However many classes there are: leases go in the order in which they came."""
    node = place(direct, 1, 1)
    for number in range(60):
        direct.spawn(QUEUE, lease(f"k{number}", away(f"k{number}")))
    publish(direct)
    assert len(drain(direct, node, qty=1)) == 60
    for number in range(60):
        direct.spawn(QUEUE, lease(f"k{number}", away(f"k{number}")))
    free = [
        direct.spawn(QUEUE, lease(f"f{number % classes}"))["lease_id"] for number in range(max(20, classes))
    ]
    sooner = [
        direct.spawn(QUEUE, lease(f"f{number % 2}") | {"priority": 1})["lease_id"] for number in range(2)
    ]
    assert drain(direct, node, qty=1) == sooner + free
