"""Leases of earlier tiers that get the room of later ones: who is asked to stop, and what becomes of them."""

from collections.abc import Iterator
from datetime import timedelta
from random import Random

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.sql.api import Api, token
from tests.sql.gangs import GPU, Gang, gpus, reap
from tests.sql.tiers import BEST_EFFORT, GUARANTEED, PREEMPT, SCAVENGER, asked, code, fill, fleet, of, release


@pytest.fixture(autouse=True)
def _fleet(api: Api) -> Iterator[None]:
    yield from fleet(api)


@pytest.fixture
def queue(api: Api) -> str:
    return api.queue(preempt=PREEMPT, retry={"kind": "none"})


def test_the_room_is_booked_before_anyone_goes(api: Api, queue: str) -> None:
    """Neither the one that goes nor another of its tier gets it, and it is back in line where it was."""
    node = api.node(gpus=gpus(1))
    [claim] = fill(api, node, queue, SCAVENGER)
    behind = api.spawn(queue, tenant=SCAVENGER, **GPU)
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU)
    preview = api.row("preview_preemption", lease=lease)
    [victim] = preview["victims"]
    assert (preview["node"], victim["lease_id"], victim["tier"]) == (
        node.name,
        str(claim["lease_id"]),
        SCAVENGER,
    )
    reap(api)
    assert asked(api, claim) == [claim]
    assert code(api, lease) == "waits_for_preemption"
    [event] = api.rows(
        "list_events", filter={"code": "claim_stop_requested", "lease": str(claim["lease_id"])}
    )
    assert event["detail"]["lease_id"] == str(lease)
    assert api.claimed(node, queue, qty=9) == []
    release(api, claim)
    assert str(lease) not in str(api.lease(claim["lease_id"])), "it may be another tenant's"
    assert api.claimed(node, queue, qty=9) == []
    reap(api)
    [preemptor] = api.claim(node, queue, qty=9)
    assert preemptor["lease_id"] == lease
    reap(api)
    api.complete(preemptor)
    [again] = api.claim(node, queue, qty=9)
    assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 1)
    api.complete(again)
    assert api.claimed(node, queue) == [behind]


@pytest.mark.parametrize(
    "case",
    [
        ([GUARANTEED, BEST_EFFORT], GUARANTEED, [1]),
        ([BEST_EFFORT, SCAVENGER], GUARANTEED, [1]),
        ([SCAVENGER, SCAVENGER], BEST_EFFORT, [1]),
        ([BEST_EFFORT, BEST_EFFORT], BEST_EFFORT, []),
        ([GUARANTEED, BEST_EFFORT], SCAVENGER, []),
    ],
)
def test_the_latest_tier_and_then_the_youngest(
    api: Api, clock: Clock, queue: str, case: tuple[list[str], str, list[int]]
) -> None:
    tenants, own, expected = case
    node = api.node(gpus=gpus(2))
    claims = []
    for tenant in tenants:
        claims += fill(api, node, queue, tenant)
        clock.advance(timedelta(seconds=1))
    lease = api.spawn(queue, tenant=own, **GPU)
    reap(api)
    assert asked(api, *claims) == [claims[number] for number in expected]
    if not expected:
        assert api.row("preview_preemption", lease=lease)["reason"] == "no_victims"


def test_no_more_stop_than_have_to_and_where_fewest_do(api: Api, queue: str) -> None:
    """Of two nodes that would do, and never more than the policy allows."""
    many, few = api.node(gpus=gpus(2)), api.node(gpus=gpus(2))
    claims = fill(api, many, queue, SCAVENGER, SCAVENGER)
    [wide] = [api.running(queue, few, tenant=SCAVENGER, placement={"resources": {"gpu": 2}})]
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {**PREEMPT, "most": 1}})
    two = {"placement": {"resources": {"gpu": 2}}}
    api.spawn(queue, tenant=GUARANTEED, **two)
    reap(api)
    assert asked(api, *claims, wide) == [wide]
    api.spawn(queue, tenant=GUARANTEED, **two)
    reap(api)
    assert asked(api, *claims, wide) == [wide]
    api.rows("set_queue_policy", queue=queue, policy={"preempt": PREEMPT})
    reap(api)
    assert asked(api, *claims) == []  # it tries again later
    api.conn.execute("update hwqueue.replacement set next_try_at = hwqueue.clock()")
    reap(api)
    assert asked(api, *claims) == claims


def test_several_on_one_node_at_a_time(api: Api, queue: str) -> None:
    """Each has room of its own booked, and what leaves for one is not counted for another."""
    node = api.node(gpus=gpus(3))
    claims = fill(api, node, queue, *[SCAVENGER] * 3)
    wanted = [api.spawn(queue, tenant=GUARANTEED, **GPU) for _ in range(2)]
    wanted.append(api.spawn(queue, tenant=BEST_EFFORT, **GPU))
    for _ in range(3):
        reap(api)
    assert asked(api, *claims) == claims
    release(api, *claims)
    reap(api)
    assert set(api.claimed(node, queue, qty=9)) == set(wanted)


def test_only_an_earlier_tier_passes_the_earmark(api: Api, queue: str) -> None:
    """Not a lease of the same tier, whatever its priority: the next one would stop others again."""
    node = api.node(gpus=gpus(1))
    [claim] = fill(api, node, queue, SCAVENGER)
    lease = api.spawn(queue, tenant=BEST_EFFORT, **GPU)
    reap(api)
    urgent = api.spawn(queue, tenant=BEST_EFFORT, priority=9, **GPU)
    release(api, claim)
    assert api.claimed(node, queue, qty=9) == []
    first = api.spawn(queue, tenant=GUARANTEED, **GPU)
    [passed] = api.claim(node, queue, qty=9)
    assert passed["lease_id"] == first
    api.complete(passed)
    reap(api)
    assert api.claimed(node, queue, qty=9) == [lease]
    assert api.state(urgent) == "pending"


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_who_goes_on_is_ended(api: Api, clock: Clock, queue: str, is_cancelled: bool) -> None:
    """A claim timeout of its queue after its time, if its worker is alive; it has used no attempt.

    Its own timeout, which its tenant chooses, does not prolong that, nor does a cancellation.
    """
    api.rows("set_queue_policy", queue=queue, policy={"claim_timeout": 60})
    node = api.node(gpus=gpus(1), heartbeat_timeout=86_400)
    [claim] = fill(api, node, queue, SCAVENGER, claim_timeout=86_400)
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    if is_cancelled:
        api.rows("cancel_lease", lease=claim["lease_id"])
    for _ in range(3):
        clock.advance(timedelta(seconds=29))
        assert api.verdicts(node, claim) == ["cancelled" if is_cancelled else "preempted"]
        reap(api)
    assert api.claimed(node, queue, qty=9) == []
    clock.advance(timedelta(seconds=4))
    reap(api)
    assert api.verdicts(node, claim) == ["cancelled" if is_cancelled else "lost"]
    assert api.claimed(node, queue, qty=9) == [lease]
    assert is_cancelled or api.lease(claim["lease_id"])["attempt"] == 0


@pytest.mark.parametrize("gone", ["cordon", "silent", "cancelled", "completed", "deadline"])
def test_what_happens_meanwhile(api: Api, clock: Clock, queue: str, gone: str) -> None:
    """A node that is lost is given up for another one; one that ends otherwise frees the room earlier."""
    node = api.node(gpus=gpus(1), heartbeat_timeout=20)
    [claim] = fill(api, node, queue, SCAVENGER)
    deadline = {"deadline": (clock.now() + timedelta(seconds=10)).isoformat()} if gone == "deadline" else {}
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU, **deadline)
    reap(api)
    if gone == "cordon":
        api.rows("cordon_node", node=node.node_id)
    elif gone == "silent":
        clock.advance(timedelta(seconds=21))
    elif gone == "cancelled":
        api.rows("cancel_lease", lease=lease)
    elif gone == "deadline":
        clock.advance(timedelta(seconds=11))
    else:
        api.complete(claim)
    reap(api)
    if gone == "completed":
        assert api.claimed(node, queue, qty=9) == [lease]
    elif gone in ("cancelled", "deadline"):
        assert api.lease(lease)["state"] in ("cancelled", "failed")
    else:
        other = api.node(gpus=gpus(1))
        assert api.claimed(other, queue, qty=9) == [lease]
    clock.advance(timedelta(seconds=80))
    reap(api)
    assert api.one("select count(*) from hwqueue.replacement where lease_id = %s", lease) == 0


def test_a_victim_that_another_session_holds_stops_nobody(api: Api, dsn: str, queue: str) -> None:
    """All of them are asked, or none, and the lease waits where it was."""
    node = api.node(gpus=gpus(2))
    claims = fill(api, node, queue, SCAVENGER, SCAVENGER)
    lease = api.spawn(queue, tenant=GUARANTEED, placement={"resources": {"gpu": 2}})
    with psycopg.connect(dsn) as other:
        held = claims[0]["lease_id"]
        other.execute("select from hwqueue.claim where lease_id = %s for update", [held])
        reap(api)
    assert asked(api, *claims) == []
    assert api.state(lease) == "pending"


def test_whom_a_policy_spares(api: Api, clock: Clock, queue: str) -> None:
    """Those that have not run for min_run, and those that were preempted max_times in a day."""
    other = api.queue(preemptible={"min_run": 60, "max_times": 1})
    node = api.node(gpus=gpus(1), heartbeat_timeout=86_400)
    [claim] = fill(api, node, other, SCAVENGER, claim_timeout=86_400)
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    assert asked(api, claim) == []
    clock.advance(timedelta(seconds=61))
    reap(api)
    assert asked(api, claim) == [claim]
    release(api, claim)
    reap(api)
    [preemptor] = api.claim(node, queue, other, qty=9)
    assert preemptor["lease_id"] == lease
    reap(api)
    api.complete(preemptor)
    [again] = api.claim(node, queue, other)
    clock.advance(timedelta(seconds=61))
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    assert asked(api, again) == []
    for _ in range(2):
        clock.advance(timedelta(hours=12))
        api.verdicts(node, again)
    reap(api)
    assert asked(api, again) == [again]
    api.rows("cancel_lease", lease=lease)


@pytest.mark.parametrize("call", ["pause_queue", "drop_queue"])
def test_a_queue_that_stands_still_stops_nobody(api: Api, clock: Clock, queue: str, call: str) -> None:
    """Nor is its lease looked at when it was looking before."""
    node, other = api.node(gpus=gpus(1), heartbeat_timeout=86_400), api.queue()
    [claim] = fill(api, node, other, GUARANTEED, claim_timeout=86_400)
    api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    api.rows(call, queue=queue, **({"force": True} if call == "drop_queue" else {}))
    api.complete(claim)
    [claim] = fill(api, node, other, SCAVENGER, claim_timeout=86_400)
    clock.advance(timedelta(seconds=20))
    reap(api)
    assert asked(api, claim) == []


def test_it_is_off_unless_a_queue_asks(api: Api, queue: str) -> None:
    """Nor for leases that have not waited for long enough, and what has room is claimed."""
    node, plain = api.node(gpus=gpus(1)), api.queue()
    claims = fill(api, node, queue, SCAVENGER)
    api.spawn(plain, tenant=GUARANTEED, **GPU)
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {"enabled": False}})
    api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {"after": 5}})
    reap(api)
    assert asked(api, *claims) == []
    api.node(gpus=gpus(1))
    waiting = api.spawn(queue, tenant=GUARANTEED, **GPU)
    assert api.row("preview_preemption", lease=waiting)["reason"] == "fits"


@pytest.mark.parametrize("away", [True, False])
def test_terms_are_judged_without_those_that_go(api: Api, queue: str, away: bool) -> None:
    """A lease that keeps away from a victim gets its room; one that stays keeps it off."""
    node = api.node(gpus=gpus(2), rack=1)
    [goes] = fill(api, node, queue, SCAVENGER, labels={"app": "db"})
    [stays] = fill(api, node, queue, GUARANTEED, labels={"app": "web" if away else "db"})
    term = {"leases": {"labels": {"app": "db"}}, "domain": "node", "away": True}
    lease = api.spawn(queue, tenant=GUARANTEED, placement={**GPU["placement"], "require": [term]})
    api.settle_terms()
    reap(api)
    assert asked(api, goes, stays) == ([goes] if away else [])
    if away:
        release(api, goes)
        reap(api)
        assert api.claimed(node, queue, qty=9) == [lease]


def test_a_member_of_a_gang_goes_last(api: Api, queue: str) -> None:
    """Its gang does with it what on_lost says."""
    node = api.node(gpus=gpus(3))
    api.rows(
        "spawn_gang",
        queue=queue,
        members=Jsonb([{"task": "t", "count": 2, "options": {"tenant": SCAVENGER, **GPU}}]),
    )
    reap(api)
    members = api.claim(node, queue, qty=9)
    assert len(members) == 2
    claims = fill(api, node, queue, BEST_EFFORT)
    api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    assert asked(api, *members, *claims) == claims
    api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    assert len(asked(api, *members)) >= 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rounds", [3, pytest.param(350, marks=pytest.mark.slow)])
def test_guaranteed_leases_and_gangs_are_seated(
    api: Api, clock: Clock, queue: str, seed: int, rounds: int
) -> None:
    """In a full fleet; victims obey at random or are ended, and nobody of the first tier is asked."""
    chance = Random(seed)
    nodes = [api.node(gpus=gpus(4), heartbeat_timeout=86_400) for _ in range(4)]
    for _ in range(rounds):
        for _ in range(16):
            size = {"placement": {"resources": {"gpu": chance.choice([1, 1, 2])}}}
            api.spawn(queue, tenant=chance.choice([BEST_EFFORT, SCAVENGER]), **size)
        running = {row["lease_id"]: row for node in nodes for row in api.claim(node, queue, qty=16)}
        wanted = {
            api.spawn(queue, tenant=GUARANTEED, placement={"resources": {"gpu": chance.choice([1, 2, 4])}})
            for _ in range(chance.randint(1, 4))
        }
        if chance.random() < 0.5:
            wanted |= {
                *Gang(
                    api, nodes, chance.randint(2, 4), of(GUARANTEED, chance.randint(1, 2)), queue=queue
                ).leases
            }
        for _ in range(60):
            reap(api)
            for lease in list(running):
                state = api.lease(lease)
                assert lease not in wanted or state["stop_reason"] is None
                if state["stop_reason"] == "tier_preempted" and chance.random() < 0.5:
                    release(api, running.pop(lease))
            claims = [row for node in nodes for row in api.claim(node, queue, qty=16)]
            running |= {row["lease_id"]: row for row in claims}
            if wanted <= set(running):
                break
            clock.advance(timedelta(seconds=5))
        assert wanted <= set(running)
        assert api.rows("verify_invariants") == []
        for lease in chance.sample(sorted(running), len(running)):
            if api.lease(lease)["state"] == "claimed":
                api.rows("complete_lease", **token(running[lease]))
        reap(api)
        api.rows("cancel_leases", filter={"queue": queue}) if chance.random() < 0.3 else None


@pytest.mark.parametrize("many", [True, False])
def test_those_that_no_stop_helps_are_not_in_front(api: Api, queue: str, many: bool) -> None:
    """Many leases of a class that fits nowhere; one of its own class that holds another lease back."""
    node = api.node(gpus=gpus(2))
    claims = fill(api, node, queue, SCAVENGER, SCAVENGER)
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {"enabled": False}})
    if many:
        for _ in range(1001):
            api.spawn(queue, tenant=GUARANTEED, placement={"resources": {"gpu": 99}})
    else:
        held = api.spawn(queue, tenant=GUARANTEED, **GPU)
        api.spawn(queue, tenant=GUARANTEED, replaces={"lease": str(held)}, **GPU)
    reap(api)
    api.rows("set_queue_policy", queue=queue, policy={"preempt": PREEMPT})
    api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    assert len(asked(api, *claims)) == 1


def test_where_terms_refuse_it_another_node_is_tried(api: Api, dsn: str, clock: Clock, queue: str) -> None:
    """However many would cost less; nodes that were tried in vain are free for claims at once."""
    nodes = [api.node(gpus=gpus(2)) for _ in range(6)]
    claims = fill(api, nodes[5], queue, SCAVENGER, BEST_EFFORT)
    clock.advance(timedelta(seconds=1))
    for node in nodes[:5]:
        fill(api, node, queue, GUARANTEED, labels={"app": "db"})
        fill(api, node, queue, SCAVENGER)
    term = {"leases": {"labels": {"app": "db"}}, "domain": "node", "away": True}
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {"enabled": False}})
    api.spawn(queue, tenant=GUARANTEED, placement={**GPU["placement"], "require": [term]})
    api.settle_terms()
    api.rows("set_queue_policy", queue=queue, policy={"preempt": PREEMPT})
    with psycopg.connect(dsn) as other:
        Api(other).rows("reap")
        free = api.conn.execute(
            "select node_id from hwqueue.node_state where node_id = any (%s) for update skip locked",
            [[node.node_id for node in nodes]],
        )
        assert {node_id for (node_id,) in free} == {node.node_id for node in nodes[:5]}
    assert asked(api, *claims) == claims[:1]


def test_a_node_that_does_not_fetch_is_left_alone(api: Api, clock: Clock, queue: str) -> None:
    """Its worker asks another queue for work: nobody there stops a second time for this lease."""
    other = api.queue()
    node = api.node(gpus=gpus(1), heartbeat_timeout=86_400)
    [claim] = fill(api, node, other, SCAVENGER, claim_timeout=86_400)
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    release(api, claim)
    reap(api)
    assert code(api, lease) == "reserved"
    clock.advance(timedelta(seconds=31))
    reap(api)
    [claim] = api.claim(node, other)
    clock.advance(timedelta(seconds=20))
    reap(api)
    assert asked(api, claim) == []


def test_it_runs_and_is_cancelled_while_one_goes_on(api: Api, clock: Clock, queue: str) -> None:
    """Who was asked for it on a node that was given up is ended all the same."""
    node = api.node(gpus=gpus(1), heartbeat_timeout=86_400)
    [claim] = fill(api, node, queue, SCAVENGER, claim_timeout=60)
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    api.rows("cordon_node", node=node.node_id)
    reap(api)
    api.granted(lease, api.node(gpus=gpus(1)), queue)
    api.rows("cancel_lease", lease=lease)
    for _ in range(4):
        api.verdicts(node, claim)
        clock.advance(timedelta(seconds=29))
        reap(api)
    assert api.verdicts(node, claim) == ["lost"]


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_clock_is_set_back(api: Api, clock: Clock, queue: str, is_asked: bool) -> None:
    """One that was asked is ended in time, and a lease that waited preempts."""
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {"after": 0 if is_asked else 5}})
    node = api.node(gpus=gpus(1), heartbeat_timeout=86_400)
    [claim] = fill(api, node, queue, SCAVENGER, claim_timeout=60)
    api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    clock.advance(timedelta(hours=-1))
    reap(api)
    assert asked(api, claim) == [claim]
    for _ in range(4):
        api.verdicts(node, claim)
        clock.advance(timedelta(seconds=29))
        reap(api)
    assert api.verdicts(node, claim) == ["lost"]
