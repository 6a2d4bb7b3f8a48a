"""Upkeep: a part that takes too long, or fails, undoes no other one."""

import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.flows import Flow, step
from tests.flows import gang as gang_step
from tests.parking import is_parked
from tests.patience import looks
from tests.sql.api import Api
from tests.sql.gangs import GPU, gang, gpus, spawn
from tests.sql.test_everywhere import Fleet, fleet

__all__ = ["fleet"]  # a fixture

Plant = Callable[[str, str], None]

SLEEPS = "perform pg_sleep(3600)"  # the timeout ends it
FAILS = "raise exception 'planted'"
SHORT = "set statement_timeout = '1s'"
"""Far more than the other parts take; nothing depends on how much."""
SECOND = timedelta(seconds=1)
OF_REAP = [
    *("figures", "fleets", "terms", "due", "schedules", "runs", "classes", "clock", "claims", "stops"),
    *("everywhere", "choices", "gangs", "replacements", "lanes", "usage", "samples"),
]
OF_PRUNE = [
    *("leases", "old_runs", "workflows", "old_teams", "old_classes", "nodes", "silent"),
    *("unused", "queues", "old_terms", "caches", "deaths", "deliveries", "fires", "old_figures", "events"),
]


@pytest.fixture
def plant(conn: psycopg.Connection, clock: Clock) -> Iterator[Plant]:
    """Put a statement before the first of a function's; whatever was planted goes with the test."""
    grown: dict[str, str] = {}

    def plant(function: str, statement: str) -> None:
        if function not in grown:
            grown[function] = Api(conn).one(
                "select pg_get_functiondef(p.oid) from pg_proc p"
                " where p.pronamespace = 'hwqueue'::regnamespace and p.proname = %s",
                function,
            )
        was = grown[function]
        first, more = (r"\bbegin\b", ";") if "plpgsql" in was else ("  select ", " or ")
        now = re.sub(first, lambda found: f"{found[0]} {statement}{more}", was, count=1)
        assert now != was
        conn.execute(now.encode())

    yield plant
    for was in grown.values():
        conn.execute(was.encode())
    clock.advance(timedelta(hours=1))  # what was postponed is forgotten
    conn.execute("set statement_timeout = 0")
    conn.execute("select hwqueue.reap(), hwqueue.prune()")


def postponed(conn: psycopg.Connection) -> list[tuple[str, int]]:
    return conn.execute("select part, tries from hwqueue.postponed order by part").fetchall()


def expiring(api: Api, clock: Clock) -> UUID:
    claim = api.running(api.queue(claim_timeout=60))
    clock.advance(timedelta(minutes=2))
    return UUID(str(claim["lease_id"]))


def two_gangs(api: Api) -> tuple[UUID, UUID]:
    """Gangs of 3 and of 2 members, in this order, and room for both."""
    for _ in range(5):
        api.node(gpus=gpus(1))
    queue = api.queue()
    return spawn(api, queue, 3, GPU), spawn(api, queue, 2, GPU)


PARTS = [*(f"reap {part}" for part in OF_REAP), *(f"prune {part}" for part in OF_PRUNE)]


@pytest.mark.parametrize("planted", PARTS)
def test_a_part_that_fails_is_undone_alone(
    api: Api, conn: psycopg.Connection, clock: Clock, plant: Plant, planted: str
) -> None:
    call, part = planted.split()
    lease, due = expiring(api, clock), api.spawn(api.queue(), delay="1 minute")
    clock.advance(timedelta(minutes=2))
    if part == "claims":  # what follows fails, so the ends do not count either
        plant("follow_ended", f"if hwqueue.lease_state('{lease}') = 'pending' then {FAILS}; end if")
    plant(f"{call}_part", f"if p_part = '{part}' and p_part <> 'claims' then {FAILS}; end if")
    assert api.row(call).get("expired") == {"reap": part != "claims", "prune": None}[call]
    assert postponed(conn) == [(planted, 1)]
    assert [broken["rule"] for broken in api.rows("verify_invariants")] == ["upkeep_failed"]
    [event] = api.rows("list_events", filter={"code": "upkeep_postponed"}, limit=1)
    assert event["message"] == f"upkeep had to leave {planted}: planted"
    if call == "reap":
        assert api.state(lease) == ("claimed" if part == "claims" else "pending")
        assert api.state(due) == ("scheduled" if part == "due" else "pending")


def test_a_gang_that_takes_too_long_is_undone_alone(
    api: Api, conn: psycopg.Connection, clock: Clock, plant: Plant
) -> None:
    lease = expiring(api, clock)
    big, small = two_gangs(api)
    plant("reserve_members", f"if p_gang.size = 3 then {SLEEPS}; end if")
    conn.execute(SHORT)
    api.rows("reap")  # the big one comes first
    api.rows("reap")
    assert api.state(lease) == "pending"
    assert [gang(api, each)["state"] for each in (big, small)] == ["waiting", "reserved"]
    told = api.row("explain_gang", gang=big)
    assert told["code"] == "upkeep_postponed"
    assert "leave it, once in a row: canceling statement due to statement timeout" in told["headline"]
    assert ("gang", 1) in postponed(conn)
    plant("reserve_members", "null")
    api.reap_after(clock, SECOND)
    assert gang(api, big)["state"] == "reserved"
    assert ("gang", 1) not in postponed(conn)
    assert api.rows("verify_invariants") == []


def test_each_part_has_its_turn_though_calls_are_short(
    api: Api, conn: psycopg.Connection, plant: Plant
) -> None:
    """And assembling ends before the timeout does."""
    big, _ = two_gangs(api)
    plant("is_time_up", "true")
    for _ in OF_REAP:  # each call ends after one part
        assert api.row("reap")["more"]
    found = [each for each in postponed(conn) if each[0].startswith("reap ")]
    assert found == [(f"reap {part}", 1) for part in sorted(OF_REAP)]
    with pytest.raises(psycopg.errors.QueryCanceled, match="longer than a statement_timeout of"):
        conn.execute(
            "select hwqueue.assemble_gang(g, null, false, hwqueue.clock()) from hwqueue.gang g"
            " where g.gang_id = %s",
            [big],
        )


def test_changes_of_a_gang_that_is_slow_hide_no_others(api: Api, clock: Clock, plant: Plant) -> None:
    flow = Flow(api, [gang_step("train", 3, **GPU)])
    big, small = flow.steps()["train"]["gang_id"], two_gangs(api)[1]
    api.rows("reap")
    for each in (big, small):
        api.rows("cancel_gang", gang=each)
    plant("items_ended", SLEEPS)  # of the run
    api.conn.execute(SHORT)
    for _ in range(3):  # it comes first, and behind the other one from then on
        api.rows("reap")
        clock.advance(SECOND)
    assert [gang(api, each)["state"] for each in (big, small)] == ["cancelling", "cancelled"]
    assert "upkeep had to leave it, 2 times in a row" in api.row("explain_gang", gang=big)["headline"]
    plant("items_ended", "null")
    api.reap_after(clock, SECOND)
    assert gang(api, big)["state"] == "cancelled"


def test_what_follows_an_expiry_is_timed_with_it(api: Api, clock: Clock, plant: Plant) -> None:
    flow = Flow(api, [step(f"s{number}") for number in range(21)])
    assert len(flow.claims()) == 21
    clock.advance(timedelta(hours=1))
    plant("follow_ended", f"if cardinality(v_words) > 1 + 20 * 4 then {FAILS}; end if")
    assert api.row("reap")["expired"] == 21


def test_a_replacement_that_fails_hides_no_others(api: Api, queue: str, clock: Clock, plant: Plant) -> None:
    olds = [api.spawn(queue), api.spawn(queue)]
    news = [api.spawn(queue, replaces={"lease": str(old)}) for old in olds]
    plant("look_at_replacement", f"if p_lease = '{news[0]}' then {FAILS}; end if")
    api.rows("reap")
    assert [api.state(each) for each in news] == ["scheduled", "pending"]
    assert "upkeep had to leave it" in api.row("explain_lease", lease=news[0])["headline"]
    plant("look_at_replacement", "null")
    api.reap_after(clock, SECOND)
    assert [api.state(each) for each in news] == ["pending", "pending"]


def test_a_choice_that_fails_hides_no_others(
    api: Api, conn: psycopg.Connection, clock: Clock, plant: Plant
) -> None:
    queue, node = api.queue(), api.node()
    lost = []
    for choice in (uuid4(), uuid4()):
        taken, other = (api.spawn(queue, one_of=str(choice)) for _ in range(2))
        assert api.claimed(node, queue) == [taken]
        lost.append((choice, other))
    plant("take_free_entries", f"if '{lost[0][1]}' = any (p_leases) then {FAILS}; end if")
    for _ in range(2):
        api.rows("reap", limit=1)
    assert [api.state(lease) for _, lease in lost] == ["pending", "cancelled"]
    assert postponed(conn) == [("choice", 1)]
    plant("take_free_entries", "null")
    api.reap_after(clock, SECOND)
    assert [api.state(lease) for _, lease in lost] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("function", ["look_at_node", "expand_node"])
def test_a_node_where_an_everywhere_task_fails_hides_no_others(
    api: Api, fleet: Fleet, conn: psycopg.Connection, plant: Plant, function: str
) -> None:
    """Whether it has registered after the task was spawned, or is met by a sweep."""
    nodes = [fleet.node(), fleet.node()]
    fleet.reap()
    for node in nodes:
        api.rows("cordon_node", node=node.node_id)
    everywhere = fleet.spawn()
    if function == "expand_node":
        nodes = [fleet.node(node.node_id) for node in nodes]
    for node in nodes:
        api.rows("uncordon_node", node=node.node_id)
    argument = "p_node" if function == "look_at_node" else "p_state.node_id"
    plant(function, f"if {argument} = '{nodes[0].node_id}' then {FAILS}; end if")
    for _ in range(2):
        api.rows("reap")
    assert [node.name in fleet.leases(everywhere) for node in nodes] == [False, True]
    assert postponed(conn) == [("everywhere", 1)]
    plant(function, "null")
    fleet.reap(SECOND)
    assert [node.name in fleet.leases(everywhere) for node in nodes] == [True, True]


def test_what_is_cut_short_comes_last_and_does_half_as_much(
    api: Api, conn: psycopg.Connection, clock: Clock, plant: Plant
) -> None:
    plant("reap_fleets", FAILS)
    for pause in (1, 2, 4):
        api.rows("reap")
        api.rows("reap")  # it waits
        clock.advance(timedelta(seconds=pause))
    due = conn.execute(
        "select part, most from hwqueue.parts_due('reap', '{fleets,claims}', 1000, hwqueue.clock())"
    ).fetchall()
    assert due == [("claims", 1000), ("fleets", 125)]
    api.prune_after(clock, timedelta(minutes=11))
    assert postponed(conn) == []


def test_a_cancellation_is_passed_on(api: Api, dsn: str, conn: psycopg.Connection, plant: Plant) -> None:
    """Whoever cancels a call wants it to end: nothing of it is committed."""
    plant("reap_fleets", "perform pg_advisory_xact_lock(4711)")
    conn.execute("select pg_advisory_lock(4711)")
    raised: list[BaseException] = []

    def cancelled(session: psycopg.Connection) -> None:
        try:
            session.execute("select hwqueue.reap()")
        except psycopg.errors.QueryCanceled as error:
            raised.append(error)

    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("set statement_timeout = '1h'")
        thread = threading.Thread(target=cancelled, args=[other])
        thread.start()
        for _ in looks():
            if is_parked(conn):
                break
        conn.execute("select pg_cancel_backend(%s)", [other.info.backend_pid])
        thread.join()
    conn.execute("select pg_advisory_unlock(4711)")
    assert len(raised) == 1
    assert postponed(conn) == []
