"""Lanes of a limit: whoever is in the middle of something, no place is lost, and none is given twice."""

from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register
from tests.races.interleave import TIMEOUT, Actors

IN_LANE = {"limits": ["slots"]}
LAB = {"tenant": "lab"}


@pytest.fixture(autouse=True)
def _limit(direct: Direct) -> None:
    """Two slots for all."""
    direct.rows("create_limit", name="slots", spec={"slots": 2})


def spawned(direct: Direct, count: int) -> list[UUID]:
    return [direct.spawn(QUEUE, IN_LANE)["lease_id"] for _ in range(count)]


def claimed(direct: Direct, node: Node, qty: int = 10) -> list[Row]:
    """What a claim of a session that has not looked yet gets."""
    direct.conn.execute("select set_config('hwqueue.recent_due_scan', '', false)")
    return direct.claim(QUEUE, *node, qty)


def claimed_in_both(direct: Direct, node: Node) -> list[Row]:
    """The same, in two queues."""
    direct.conn.execute("select set_config('hwqueue.recent_due_scan', '', false)")
    return direct.claim_any([QUEUE, "second"], *node, 2)


def complete(direct: Direct, claim: Row) -> str:
    return direct.complete(claim["lease_id"], claim["claim_token"])


@pytest.mark.parametrize("commits", [True, False])
def test_two_ends_at_once_with_nobody_parked(
    direct: Direct, actor: Actors, node: Node, commits: bool
) -> None:
    spawned(direct, 2)
    one, two = claimed(direct, node)
    first, second = actor().begin(), actor().begin()
    complete(first.direct, one)
    complete(second.direct, two)
    first.commit()
    second.end(commits)
    later = spawned(direct, 3)
    assert [row["lease_id"] for row in claimed(direct, node)] == later[: 1 + commits]


def test_a_spawn_beside_the_last_end(direct: Direct, actor: Actors, node: Node) -> None:
    """Neither sees the other."""
    spawned(direct, 2)
    claims = claimed(direct, node)
    producer, worker = actor().begin(), actor().begin()
    [lease] = spawned(producer.direct, 1)
    for claim in claims:
        complete(worker.direct, claim)
    worker.commit()
    assert claimed(direct, node) == []
    producer.commit()
    assert [row["lease_id"] for row in claimed(direct, node)] == [lease]


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
def test_a_handler_settles_in_its_own_transaction(
    direct: Direct, actor: Actors, node: Node, end: str
) -> None:
    """It holds up one lease, no lane; who ends beside it takes the next, and what is undone stays parked."""
    leases = spawned(direct, 5)
    one, two = claimed(direct, node)
    handler = actor().begin()
    complete(handler.direct, one)  # hands over to the third
    complete(direct, two)
    [fourth] = claimed(direct, node)
    assert fourth["lease_id"] == leases[3]
    if end == "kill":
        direct.conn.execute("select pg_terminate_backend(%s, 15000)", [handler.conn.info.backend_pid])
        handler.conn.close()
    else:
        handler.end(end == "commit")
    complete(direct, fourth)
    if end != "commit":
        complete(direct, one)
    assert {row["lease_id"] for row in claimed(direct, node)} == {leases[2], leases[4]}


def test_who_is_about_to_be_cancelled_is_not_forgotten(direct: Direct, actor: Actors, node: Node) -> None:
    [lease] = spawned(direct, 1)
    operator = actor().begin()
    operator.direct.cancel(lease)
    assert claimed(direct, node) == []
    direct.reap()  # it cannot be had
    operator.rollback()
    assert [row["lease_id"] for row in claimed(direct, node)] == [lease]


def test_who_folds_holds_up_no_other_lane(direct: Direct, actor: Actors, node: Node) -> None:
    """A new lane, too, is left to the session that writes it; ends hand over in it all the same."""
    direct.rows("create_limit", name="other", spec={"slots": 1})
    leases = spawned(direct, 3)
    sleeper = actor().begin()
    sleeper.conn.execute("select * from hwqueue.fold_changes(20, '', '{}')")
    assert claimed(direct, node) == []
    other = direct.spawn(QUEUE, {"limits": ["other"]})["lease_id"]
    assert [row["lease_id"] for row in claimed(direct, node)] == [other]
    sleeper.commit()
    claims = claimed(direct, node)
    sleeper.begin()
    spawned(sleeper.direct, 1)
    sleeper.conn.execute("select * from hwqueue.fold_changes(20, '', '{}')")
    complete(direct, claims[0])
    assert [row["lease_id"] for row in claimed(direct, node)] == [leases[2]]
    sleeper.rollback()


def test_reap_passes_by_a_lane_that_is_held(direct: Direct, actor: Actors, node: Node) -> None:
    direct.rows("create_limit", name="other", spec={"slots": 1})
    spawned(direct, 1)
    direct.reap()
    operator = actor().begin()
    operator.direct.rows("throttle_limit", name="slots", retry_after="1 min")
    spawned(direct, 60)
    other = direct.spawn(QUEUE, {"limits": ["other"]})["lease_id"]
    direct.reap()
    assert direct.lease(other)["state"] == "pending"
    operator.rollback()


def test_reap_looks_once_at_a_lane_whose_next_is_held(direct: Direct, actor: Actors, node: Node) -> None:
    spawned(direct, 3)
    one, two = claimed(direct, node)
    handler = actor().begin()
    complete(handler.direct, one)  # hands over to the third
    complete(direct, two)
    assert not direct.row("reap")["more"]
    handler.rollback()


def test_reap_locks_nothing_without_limits_in_a_paused_queue(
    direct: Direct, actor: Actors, node: Node
) -> None:
    spawned(direct, 1)
    direct.spawn_many(QUEUE, [{}, {"delay": "5 s"}])
    direct.reap()
    direct.rows("pause_queue", queue=QUEUE)
    upkeep = actor().begin()
    upkeep.direct.reap()
    for entries in "select from hwqueue.ready", "select from hwqueue.scheduled where turn is null":
        assert len(direct.conn.execute(f"{entries} for update skip locked").fetchall()) == 1
    upkeep.rollback()


def test_reap_takes_few_advisory_locks(direct: Direct, actor: Actors) -> None:
    """The server has some thousands, for all sessions; new keys may be many more."""
    direct.rows("create_limit", name="keys", spec={"slots": 1, "by": "key"})
    leases = [{"task": "t", "options": {"limits": {"keys": str(key)}}} for key in range(1200)]
    for half in leases[:600], leases[600:]:
        direct.rows("spawn_leases", queue=QUEUE, leases=half)
    upkeep = actor().begin()
    assert upkeep.direct.row("reap")["more"]
    upkeep.rollback()


def test_sixteen_sessions_ask_for_what_a_rate_lets_start(direct: Direct, actor: Actors, clock: Clock) -> None:
    """In no span more than burst + span / per, after pauses and an hour without workers, too."""
    clock.freeze()
    direct.rows("create_limit", name="rate", spec={"rate": {"count": 60, "per": "1 min", "burst": 3}})
    direct.spawn_many(QUEUE, [{"limits": ["rate"]}] * 60)
    sessions = [(actor(), register(direct, number)) for number in range(16)]
    starts: list[datetime] = []
    for pause in [0, 0.4, 0.4, 0.4, 1, 0, 3600, 0, 0.5, 5, 0.1, 2, 0, 0.9, 60, 0]:
        clock.advance(timedelta(seconds=pause))
        calls = [session.start(partial(claimed, node=node, qty=2)) for session, node in sessions]
        starts += [clock.now() for call in calls for _ in call.result(TIMEOUT)]
    assert len(starts) > 12
    for first, start in enumerate(starts):
        for count, end in enumerate(starts[first:], 1):
            assert count <= 3 + (end - start).total_seconds() + 0.01


def test_tenants_take_turns_in_claims(direct: Direct, actor: Actors, node: Node) -> None:
    """Those whose lanes another session holds keep no other one waiting, also where nobody reaps."""
    direct.rows("create_limit", name="keys", spec={"slots": 1, "by": "key"})
    options = [{"limits": {"keys": "k"}, "tenant": f"t{n:02}"} for n in range(50)]
    first = [direct.spawn(QUEUE, one)["lease_id"] for one in options[:40]]
    direct.reap()
    holder = actor().begin()
    holder.conn.execute("select from hwqueue.lane for no key update")
    later = [direct.spawn(QUEUE, one)["lease_id"] for one in options]
    found = [row["lease_id"] for _ in range(3) for row in claimed(direct, node, 100)]
    assert set(found) == {*first, *later[40:]}
    holder.rollback()


def test_a_claim_that_is_undone_keeps_its_place(direct: Direct, actor: Actors, node: Node) -> None:
    leases = spawned(direct, 3)
    worker = actor().begin()
    assert len(claimed(worker.direct, node, 2)) == 2
    worker.rollback()
    assert [row["lease_id"] for row in claimed(direct, node)] == leases[:2]


def test_who_has_gone_is_not_scanned_again(direct: Direct, actor: Actors, node: Node) -> None:
    """Whoever keeps their entries by an old snapshot; who comes later with an earlier place is not lost."""
    old, producer = actor().begin("repeatable read"), actor().begin()
    old.conn.execute("select 1")
    leases = spawned(direct, 1)
    [early] = spawned(producer.direct, 1)
    leases += spawned(direct, 199)
    for _ in range(95):
        for claim in claimed(direct, node):
            complete(direct, claim)
    leases += spawned(direct, 1)
    one, two = claimed(direct, node)
    read = "select pg_stat_get_xact_tuples_returned('hwqueue.scheduled_lane'::regclass)"
    with direct.conn.transaction():
        [(before,)] = direct.conn.execute(read)
        complete(direct, one)
        [(after,)] = direct.conn.execute(read)
    assert after - before < 80
    producer.commit()
    [third] = claimed(direct, node)
    assert [two["lease_id"], third["lease_id"]] == leases[191:193]
    complete(direct, two)
    assert [row["lease_id"] for row in claimed(direct, node)] == [early]
    old.end(False)


def test_a_lane_that_reap_notes_is_not_pruned(
    direct: Direct, actor: Actors, node: Node, clock: Clock
) -> None:
    """Nobody else writes a lane of which only its id is noted: the change would stay for ever."""
    clock.freeze()
    spawned(direct, 1)
    complete(direct, claimed(direct, node)[0])
    direct.reap()
    direct.rows("set_limit", name="slots", changes={"slots": 1})
    folder, upkeep = actor().begin(), actor().begin()
    folder.conn.execute("select from hwqueue.lane for no key update")
    upkeep.direct.reap()
    folder.rollback()
    clock.advance(timedelta(minutes=2))
    direct.rows("prune")
    upkeep.commit()
    direct.reap()
    assert direct.conn.execute("select from hwqueue.lane_change").fetchall() == []


def test_sixteen_sessions_claim_for_one_tenant(direct: Direct, actor: Actors) -> None:
    """Never more than its slots in two queues, whoever is undone or killed, and while these change."""
    direct.rows("create_queue", queue="second")
    direct.rows("set_tenant", name="lab", changes={"slots": 1})
    spawned = [row["lease_id"] for name in (QUEUE, "second") for row in direct.spawn_many(name, [LAB] * 30)]
    sessions = [(actor(), register(direct, number)) for number in range(16)]
    done: list[UUID] = []
    running: list[Row] = []
    for turn in range(100):
        slots = 1 + turn % 5
        passed = sum(row["used"] for row in direct.rows("limit_lanes", name="tenant slots"))
        direct.rows("set_tenant", name="lab", changes={"slots": slots})
        direct.row("reap")
        calls = [session.begin().start(partial(claimed_in_both, node=node)) for session, node in sessions]
        answers = [call.result(TIMEOUT) for call in calls]
        for number, claims in enumerate(answers):
            session, node = sessions[number]
            if number == turn % 16:
                pid = session.conn.info.backend_pid
                direct.conn.execute("select pg_terminate_backend(%s, 15000)", [pid])
                session.conn.close()
                sessions[number] = actor(), node
            else:
                commits = (number + turn) % 3 > 0
                session.end(commits)
                running += claims if commits else []
        [(count,)] = direct.conn.execute("select count(*) from hwqueue.claim").fetchall()
        assert count == len(running) <= max(slots, passed)  # what was let through stays
        for claim in running:
            complete(direct, claim)
            done.append(claim["lease_id"])
        running = []
        if len(done) == len(spawned):
            break
    assert sorted(done) == sorted(spawned)
    assert direct.rows("verify_invariants") == []


@pytest.mark.parametrize("commits", [True, False])
def test_changes_of_a_tenant_hold_nobody_up(direct: Direct, actor: Actors, commits: bool) -> None:
    """Who closes its lane, or another one of the limit; the change comes with the next look of upkeep."""
    direct.value("set_tenant", name="lab", changes={"slots": 1})
    for _ in range(4):
        direct.spawn(QUEUE, LAB)
    direct.row("reap")
    one, two = actor().begin(), actor()
    one.direct.value("set_tenant", name="lab", changes={"slots": 3})
    one.direct.value("set_limit", name="slots", changes={"slots": 3})
    for key in ("lab", "film"):
        assert two.direct.value("throttle_limit", name="tenant slots", key=key, retry_after=timedelta(0))
    one.end(commits)
    direct.row("reap")
    [lane] = [row for row in direct.rows("limit_lanes", name="tenant slots") if row["key"] == "lab"]
    assert lane["most"] == (3 if commits else 1)


@pytest.mark.parametrize("commits", [True, False])
def test_a_tenant_is_set_for_the_first_time_in_two_sessions(
    direct: Direct, actor: Actors, commits: bool
) -> None:
    """The second waits, and changes what the first has left."""
    one, two = actor().begin(), actor()
    one.direct.value("set_tenant", name="new", changes={"slots": 3})
    second = two.parked(lambda d: d.value("set_tenant", name="new", changes={"tier": "scavenger"}))
    one.end(commits)
    spec = {"tier": "scavenger"} | ({"slots": 3} if commits else {})
    assert second.result(TIMEOUT) == spec
    told = direct.rows("list_events", filter={"code": "tenant_set"})
    assert len(told) == 1 + commits
