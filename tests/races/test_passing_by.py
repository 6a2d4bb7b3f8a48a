"""What another session holds is passed by: leases, claims, nodes."""

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, node_spec, register, set_policy
from tests.races.interleave import TIMEOUT, Actors
from tests.races.terms import away, place, publish
from tests.sql.api import refusing

Options = dict[str, Any]
UNCOUNTED: Options = {}
COUNTED: Options = {"slots": 1000, "capacity": {"cpu_milli": 10_000_000}}
HELD = 100
CLAIMERS = 8
COUNT_READY = "select count(*) from hwqueue.ready"
SEEN = "select seen_at from hwqueue.list_nodes()"

nodes = pytest.mark.parametrize("spec", [UNCOUNTED, COUNTED], ids=["uncounted", "counted"])


def preferring(weight: int, **options: Any) -> Options:
    """Spawn options of a class that scores so on a node in zone a."""
    preference = {"weight": weight, "when": {"tags": {"zone": "a"}}}
    return {"placement": {"prefer": [preference]}} | options


@nodes
@pytest.mark.parametrize("ranks", [1, 250], ids=["one rank", "many ranks"])
def test_an_open_claim_of_the_best_class(direct: Direct, actor: Actors, spec: Options, ranks: int) -> None:
    """Others get work at every claim from behind what it holds, and all of it."""
    batch = [preferring(50, priority=-(number % ranks)) for number in range(250)]
    leases = [row["lease_id"] for row in direct.spawn_many(QUEUE, batch)]
    worst = direct.spawn(QUEUE, preferring(0, priority=-1000))["lease_id"]
    holder_node, other_node = (register(direct, n, labels={"zone": "a"}, **spec) for n in (1, 2))
    holder, other = actor().begin(), actor()
    held = holder.direct.claim(QUEUE, *holder_node, qty=HELD)
    assert [row["lease_id"] for row in held] == leases[:HELD]
    ones = [other.direct.claim(QUEUE, *other_node) for _ in range(10)]
    assert [len(rows) for rows in ones] == [1] * 10
    got = [row["lease_id"] for rows in ones for row in rows]
    while rows := other.direct.claim(QUEUE, *other_node, qty=50):
        got += [row["lease_id"] for row in rows]
    assert len(got) == len(set(got)) == 250 - HELD + 1
    assert set(got) == {*leases[HELD:], worst}


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("queues", [1, 2])
def test_an_open_claim_at_the_head(direct: Direct, actor: Actors, classes: int, queues: int) -> None:
    """What it has taken is passed, and in the order of the queues."""
    names = [QUEUE, "other"][:queues]
    holder_node, other_node = (register(direct, number) for number in (1, 2))
    for name in names:
        direct.spawn_many(name, [{"labels": {str(n): "n"}} for n in range(classes)])
    for node in (holder_node, other_node) * classes:
        for name in names:
            direct.claim(name, *node)
    while any(direct.claim(name, *node, qty=50) for name in names for node in (holder_node,)):
        pass
    leases = [
        direct.spawn(names[n % queues], {"labels": {str(n % classes): "n"}})["lease_id"] for n in range(12)
    ]
    holder, other = actor().begin(), actor()
    took = [holder.direct.claim_any(names, *holder_node) for _ in range(2)]
    got = [other.direct.claim_any(names, *other_node) for _ in range(2)]
    holder.rollback()
    found = [row["lease_id"] for rows in took + got for row in rows]
    assert found == leases[:4]


@nodes
def test_an_open_claim_of_classes_that_the_node_knows(direct: Direct, actor: Actors, spec: Options) -> None:
    """Of two that score alike; what is held reaches further than a claim looks at first."""
    both = [{"labels": {"kind": kind}} for kind in "ab"]
    holder_node, other_node = (register(direct, n, **spec) for n in (1, 2))
    for node in (holder_node, other_node) * 4:
        direct.spawn_many(QUEUE, both)
        assert direct.complete_many(direct.claim(QUEUE, *node, qty=2)) == []
    leases = [row["lease_id"] for row in direct.spawn_many(QUEUE, both * 60)]
    holder, other = actor().begin(), actor()
    held = [r["lease_id"] for r in holder.direct.claim(QUEUE, *holder_node, qty=HELD)]
    assert held == leases[:HELD]
    got = [row["lease_id"] for _ in range(20) for row in other.direct.claim(QUEUE, *other_node)]
    assert got == leases[HELD:]


@nodes
def test_an_open_claim_of_several_classes(direct: Direct, actor: Actors, spec: Options) -> None:
    """Every class has its best taken; nothing is left out, down to the last lease."""
    batch = [preferring(10 * (n % 5), priority=n % 7) for n in range(70)]
    spawned = {row["lease_id"] for row in direct.spawn_many(QUEUE, batch)}
    holder_node, other_node = (register(direct, n, labels={"zone": "a"}, **spec) for n in (1, 2))
    holder, other = actor().begin(), actor()
    held = {row["lease_id"] for row in holder.direct.claim(QUEUE, *holder_node, qty=30)}
    got = {row["lease_id"] for _ in range(40) for row in other.direct.claim(QUEUE, *other_node)}
    assert (len(held), got) == (30, spawned - held)


@nodes
def test_no_claim_is_empty_while_leases_wait(direct: Direct, dsn: str, spec: Options) -> None:
    """Of several scored classes and ranks, under eight claimers at once."""
    dice = random.Random(1)
    batch = [preferring(10 * dice.randrange(4), priority=dice.randrange(3)) for _ in range(500)]
    direct.spawn_many(QUEUE, batch)
    claimers = [register(direct, n, labels={"zone": "a"}, **spec) for n in range(CLAIMERS)]
    with ThreadPoolExecutor(CLAIMERS) as pool:
        jobs = [pool.submit(claim_all, dsn, node, epoch) for node, epoch in claimers]
        ends = [job.result() for job in jobs]
    assert sum(granted for granted, _ in ends) == 500
    # what was there after an empty claim was there all along: only the others' own can be held
    assert [left for _, missed in ends for left in missed if left >= CLAIMERS] == []


def claim_all(dsn: str, node: UUID, epoch: int) -> tuple[int, list[int]]:
    """Claim until nothing is left; how many, and what waited after each empty claim."""
    granted = 0
    missed: list[int] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        direct = Direct(conn)
        while not missed or missed[-1]:
            if direct.claim(QUEUE, node, epoch):
                granted += 1
            else:
                [(found,)] = conn.execute(COUNT_READY).fetchall()
                missed.append(found)
    return granted, missed


def test_a_heartbeat_and_an_open_cancel(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """The claim that is being cancelled is not waited for; the others are extended."""
    clock.freeze()
    set_policy(direct, claim_timeout=60)
    direct.spawn_many(QUEUE, [{}] * 3)
    claims = direct.claim(QUEUE, *node, qty=3)
    stopping = claims[1]["lease_id"]
    before = claims[1]["expires_at"]
    clock.advance(timedelta(seconds=20))
    operator, worker = actor().begin(), actor()
    assert operator.direct.cancel(stopping) == "claimed"
    rows = {row["lease_id"]: row for row in worker.direct.heartbeat(*node, claims)}
    assert [rows[claim["lease_id"]]["verdict"] for claim in claims] == ["ok"] * 3
    ends = {row["expires_at"] for row in rows.values() if row["lease_id"] != stopping}
    assert ends == {clock.now() + timedelta(seconds=60)}
    assert rows[stopping]["expires_at"] == before
    operator.commit()
    rows = {row["lease_id"]: row for row in direct.heartbeat(*node, claims)}
    assert rows[stopping]["verdict"] == "cancelled"
    assert rows[stopping]["expires_at"] == clock.now() + timedelta(seconds=60)


def test_a_heartbeat_of_a_node_that_is_held(direct: Direct, actor: Actors, clock: Clock) -> None:
    """Work that settles with the user's own transaction costs the node's other claims nothing."""
    clock.freeze()
    set_policy(direct, claim_timeout=60)
    node = register(direct, **COUNTED)
    needs = {"placement": {"resources": {"cpu_milli": 1000}}}
    direct.spawn_many(QUEUE, [needs] * 3)
    [done, *claims] = direct.claim(QUEUE, *node, qty=3)
    clock.advance(timedelta(seconds=20))
    handler, worker = actor().begin(), actor()
    handler.direct.complete(done["lease_id"], done["claim_token"])
    rows = worker.direct.heartbeat(*node, claims)
    assert [row["verdict"] for row in rows] == ["ok", "ok"]
    assert {row["expires_at"] for row in rows} == {clock.now() + timedelta(seconds=60)}
    handler.commit()
    assert direct.conn.execute(SEEN).fetchall() == [(clock.now() - timedelta(seconds=20),)]
    worker.direct.heartbeat(*node, claims)
    assert direct.conn.execute(SEEN).fetchall() == [(clock.now(),)]


LIMITED_REAP = "select expired from hwqueue.reap(p_limit => 5)"


@pytest.mark.parametrize("placement", [{}, {"resources": {"cpu_milli": 1000}}], ids=str)
def test_reap_and_expired_claims_that_are_held(
    direct: Direct, actor: Actors, clock: Clock, placement: Mapping[str, Any]
) -> None:
    """Six that another session holds do not use up the limit of five: the seventh is reaped."""
    set_policy(direct, claim_timeout=60)
    direct.spawn_many(QUEUE, [{"placement": placement}] * 7)
    one, two = (register(direct, n, **COUNTED) for n in (1, 2))
    held = direct.claim(QUEUE, *one, qty=6)
    clock.advance(timedelta(seconds=1))
    [free] = direct.claim(QUEUE, *two)
    clock.advance(timedelta(minutes=5))
    worker, sweeper = actor().begin(), actor()
    for claim in held:
        worker.direct.complete(claim["lease_id"], claim["claim_token"])
    assert sweeper.conn.execute(LIMITED_REAP).fetchall() == [(1,)]
    assert sweeper.direct.lease(free["lease_id"])["state"] == "pending"


ADOPT = """
  select lease_id from hwqueue.adopt_lease(p_queue => 'races', p_node => %s, p_task => 'work',
                                           p_options => '{"idempotency_key": "once"}')
"""


def test_adopting_what_a_producer_is_spawning(direct: Direct, actor: Actors) -> None:
    """It waits for the producer's key, and the node goes on claiming and beating meanwhile."""
    node = register(direct, slots=10)
    lease = direct.spawn(QUEUE, {"priority": 1})["lease_id"]
    producer, adopter, worker = actor().begin(), actor(), actor()
    keyed = producer.direct.spawn(QUEUE, {"idempotency_key": "once"})["lease_id"]
    adopted = adopter.parked(lambda d: d.conn.execute(ADOPT, [node[0]]).fetchall())
    claims = worker.direct.claim(QUEUE, *node, qty=5)
    assert [row["lease_id"] for row in claims] == [lease]
    assert [row["verdict"] for row in worker.direct.heartbeat(*node, claims)] == ["ok"]
    producer.commit()
    assert adopted.result(TIMEOUT) == [(keyed,)]
    assert direct.lease(keyed)["state"] == "claimed"


def test_past_its_deadline_behind_a_held_one(direct: Direct, actor: Actors, clock: Clock) -> None:
    """A class is decided about by its first entry; of those behind it a late one is not granted."""
    node = place(direct, 1, 1)
    options = {"placement": away("db")}
    late = options | {"deadline": (clock.now() + timedelta(seconds=5)).isoformat()}
    held, _late, good = (direct.spawn(QUEUE, each)["lease_id"] for each in (options, late, options))
    publish(direct)
    clock.advance(timedelta(seconds=6))
    one = actor().begin()
    one.direct.cancel(held)
    assert [row["lease_id"] for row in direct.claim(QUEUE, *node)] == [good]


Settle = Callable[[Direct, Row], object]
NEEDS = {"placement": {"resources": {"cpu_milli": 1000}}}
SETTLING: dict[str, Settle] = {
    "complete": lambda d, c: d.complete(c["lease_id"], c["claim_token"]),
    "complete many": lambda d, c: d.complete_many([c]),
    "fail": lambda d, c: d.fail(c["lease_id"], c["claim_token"], retry=False),
    "release": lambda d, c: d.release(c["lease_id"], c["claim_token"], timedelta(hours=1)),
    "extend": lambda d, c: d.extend(c["lease_id"], c["claim_token"], timedelta(minutes=1)),
}


def used(direct: Direct, node: UUID) -> int:
    """The CPU that is counted on a node."""
    [row] = [row for row in direct.rows("list_nodes") if row["node_id"] == node]
    return int(row["used"].get("cpu_milli", 0))


@pytest.mark.parametrize("how", [how for how in SETTLING if how != "extend"])
def test_a_node_begins_to_count_under_a_settlement(direct: Direct, actor: Actors, how: str) -> None:
    """When the settlement looks nothing is set aside for the claim; when it acts, there is."""
    set_policy(direct, max_result_bytes=1)  # none is less
    direct.spawn_many(QUEUE, [NEEDS] * 2)
    node, epoch = register(direct)
    claim = direct.claim(QUEUE, node, epoch)[0]
    agent, worker, other = actor().begin(), actor(), actor()
    agent.direct.register(node, node_spec(0, capacity={"cpu_milli": 4000}))
    worker.begin()
    settled = worker.parked(lambda d: SETTLING[how](d, claim))
    agent.commit()
    settled.result(TIMEOUT)
    claimed = other.parked(lambda d: d.claim(QUEUE, node, epoch))  # what the node has left is not known yet
    worker.commit()
    assert len(claimed.result(TIMEOUT)) == 1
    assert used(direct, node) == 1000


@pytest.mark.parametrize("how", SETTLING)
def test_an_old_token_waits_for_nobody(direct: Direct, actor: Actors, how: str) -> None:
    """Whoever has the lease now may settle it in a transaction that lasts."""
    direct.spawn(QUEUE, NEEDS)
    before, now = (register(direct, number, capacity={"cpu_milli": 4000}) for number in (1, 2))
    old = direct.claim(QUEUE, *before)[0]
    direct.release(old["lease_id"], old["claim_token"])
    current = direct.claim(QUEUE, *now)[0]
    worker, late = actor().begin(), actor()
    worker.direct.complete(current["lease_id"], current["claim_token"])
    if how == "complete many":
        assert [row["verdict"] for row in late.direct.complete_many([old])] == ["lost"]
    else:
        with refusing("QHL01"):
            SETTLING[how](late.direct, old)
    [row] = late.direct.settle_and_claim(QUEUE, *before, [old], qty=0)
    assert row["verdict"] == "lost"


@pytest.mark.parametrize("how", [how for how in SETTLING if how != "extend"])
def test_a_settlement_whose_node_waits_for_its_claim(direct: Direct, actor: Actors, how: str) -> None:
    """Its session has extended the claim, against the order of locks: it gives way, and is told so."""
    direct.spawn(QUEUE, NEEDS)
    node = register(direct, capacity={"cpu_milli": 4000})
    [claim] = direct.claim(QUEUE, *node)
    worker, holder = actor().begin(), actor()
    worker.conn.execute("set deadlock_timeout = '10ms'")
    holder.conn.execute("set deadlock_timeout = '1min'")
    SETTLING["extend"](worker.direct, claim)
    settled = holder.parked(lambda d: d.settle_and_claim(QUEUE, *node, [claim], qty=0), behind=worker)
    if how == "complete many":
        assert [row["verdict"] for row in worker.direct.complete_many([claim])] == ["busy"]
    else:
        with refusing("QHL09"):
            SETTLING[how](worker.direct, claim)
    worker.rollback()
    assert [row["verdict"] for row in settled.result(TIMEOUT)] == ["ok"]


def test_a_node_that_another_session_holds(direct: Direct, actor: Actors) -> None:
    """A claim on it that commits under a batch is busy; an instance that was superseded is told so."""
    direct.spawn_many(QUEUE, [NEEDS] * 4)
    first, (node, epoch) = (register(direct, number, capacity={"cpu_milli": 4000}) for number in (1, 2))
    now = direct.register(node, node_spec(2, instance_id="second", capacity={"cpu_milli": 4000}))
    seen, held, agent, worker, late = direct.claim(QUEUE, *first), *(actor().begin() for _ in range(4))
    held.direct.claim(QUEUE, *first)
    claims = seen + agent.direct.claim(QUEUE, node, now)
    SETTLING["extend"](late.direct, seen[0])  # holds the claim
    settled = late.parked(lambda d: d.complete_many(claims))
    agent.commit()
    worker.direct.claim(QUEUE, node, now)
    held.commit()
    assert [(row["ordinal"], row["verdict"]) for row in settled.result(TIMEOUT)] == [(2, "busy")]
    with refusing("QHN03"):
        direct.heartbeat(node, epoch, [])
