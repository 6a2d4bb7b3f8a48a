"""retain_completed 0: a lease is gone when it completes; its outcome stays until prune takes it."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.patience import looks
from tests.sql.api import Api, Node, completed, count_all, refusing, settlement, token

pytestmark = pytest.mark.thorough

MINUTE = timedelta(minutes=1)
NOTHING = {"retain_completed": 0}

AWAY = {"leases": {"labels": {"app": "db"}}, "domain": "node", "away": True}
# what is set aside for a lease, or counted for it, its end gives back
KINDS: dict[str, Row] = {
    "plain": {},
    "counted": {"placement": {"resources": {"cpu_milli": 1}}},
    "away": {"labels": {"app": "web"}, "placement": {"require": [AWAY]}},
}


Way = Callable[[Api, Node, list[Row]], None]


def complete_lease(api: Api, node: Node, claims: list[Row], **more: Any) -> None:
    for claim in claims:
        assert api.value("complete_lease", **token(claim), **more) == "completed"


def complete_leases(api: Api, node: Node, claims: list[Row]) -> None:
    ids, tokens = zip(*((c["lease_id"], c["claim_token"]) for c in claims), strict=True)
    assert api.rows("complete_leases", lease_ids=list(ids), tokens=list(tokens)) == []


def by_lists(api: Api, node: Node, claims: list[Row]) -> None:
    call = {**node.who, **completed(*claims), "settle": [], "queues": ["none"], "qty": 0}
    assert api.rows("settle_and_claim", **call) == []


def by_json(api: Api, node: Node, claims: list[Row], **more: Any) -> None:
    call = {**node.who, "settle": [settlement(claim, **more) for claim in claims]}
    rows = api.rows("settle_and_claim", **call, queues=["none"], qty=0)
    assert [row["verdict"] for row in rows] == ["ok"] * len(claims)


BATCHES: dict[str, Way] = {"complete_leases": complete_leases, "lists": by_lists, "json": by_json}
WAYS: dict[str, Way] = BATCHES | {
    "complete_lease": complete_lease,
    "complete_with_result": partial(complete_lease, result={"a": 1}),
    "json_with_results": partial(by_json, result=[1]),
}


def leases_of(api: Api, queue: str) -> list[UUID]:
    return [row["lease_id"] for row in api.rows("list_leases", filter={"queue": queue})]


def outcome(api: Api, lease: UUID) -> tuple[Any, ...] | None:
    """State, token, result of a lease's outcome, and whether it is alone; None: there is none."""
    return api.conn.execute(
        "select state, claim_token, result, eligible_at is not null from hwqueue.outcome where lease_id = %s",
        [lease],
    ).fetchone()


def prune(api: Api, clock: Clock) -> None:
    """Let what has ended be counted, then delete all that nobody needs any more."""
    clock.advance(MINUTE)
    count_all(api.conn)
    clock.advance(MINUTE)
    while api.row("prune")["more"]:
        pass


def claim_all(api: Api, node: Node, queue: str, count: int) -> list[Row]:
    """Claim so many leases; terms come into force on the way, when others have ended."""
    claims: list[Row] = []
    for _ in looks():
        claims += api.claim(node, queue, qty=count - len(claims))
        if len(claims) == count:
            return claims
        api.rows("reap")
    raise AssertionError(f"{len(claims)} of {count} leases could be claimed")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_it_is_gone_at_once(api: Api, way: str, kind: str, count: int) -> None:
    queue = api.queue(**NOTHING)
    node = api.node(capacity={"cpu_milli": 1000} if kind == "counted" else {})
    spawned = {api.spawn(queue, **KINDS[kind]) for _ in range(count)}
    claims = claim_all(api, node, queue, count)
    assert {claim["lease_id"] for claim in claims} == spawned == set(leases_of(api, queue))
    WAYS[way](api, node, claims)
    assert leases_of(api, queue) == []
    for claim in claims:
        assert outcome(api, claim["lease_id"]) == ("completed", claim["claim_token"], None, True)
    assert api.sound()


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.every_variant
def test_it_is_unknown_at_once(api: Api, is_cancelled: bool) -> None:
    """A completion wins against a cancellation."""
    claim = api.running(api.queue(**NOTHING))
    lease = claim["lease_id"]
    if is_cancelled:
        assert api.value("cancel_lease", lease=lease) == "claimed"
    assert api.state(lease) == "claimed"
    assert api.value("complete_lease", **token(claim)) == "completed"
    for call in ("get_lease", "lease_history", "explain_lease", "cancel_lease", "requeue_lease"):
        assert api.refused("QHL04", call, lease=lease).detail == {"lease_id": str(lease)}
    api.refused("QHL04", "update_lease", lease=lease, changes={"priority": 1})
    assert api.one("select count(*) from hwqueue.lease_history where lease_id = %s", lease) == 0


def head(api: Api, queue: str) -> Row:
    """Claim a lease from the head of its queue."""
    return api.running(queue)


def head_of_classes(api: Api, queue: str) -> Row:
    """Claim a lease from the head of a queue of two classes."""
    node, lease = api.node(), api.spawn(queue, labels={"n": "1"})
    api.spawn(queue, labels={"n": "2"})
    for _ in range(3):
        [row] = api.claim(node, queue)
        api.rows("release_lease", **token(row))
    [row] = [row for row in api.claim(node, queue, qty=2) if row["lease_id"] == lease]
    api.rows("release_lease", **token(row))
    [row] = api.claim(node, queue)
    return row


def head_of_queues(api: Api, queue: str) -> Row:
    """Claim a lease of two queues, of which the other one keeps what is done."""
    node, other = api.node(), api.queue()
    for name in (other, queue) * 4:
        api.spawn(name)
        for row in api.claim(node, other, queue):
            api.rows("release_lease", **token(row), delay=timedelta(days=1))
    lease = api.spawn(queue)
    return api.granted(lease, node, other, queue)


def head_after_settling(api: Api, queue: str) -> Row:
    """Claim a lease by settle_and_claim."""
    node = api.node()
    first = api.running(queue, node)
    api.spawn(queue)
    call = {**node.who, **completed(first), "settle": [], "queues": [queue]}
    [row] = api.rows("settle_and_claim", **call)
    assert row["kind"] == "claimed"
    return row


def batch(api: Api, queue: str) -> Row:
    """Claim two leases in a call."""
    for _ in range(2):
        api.spawn(queue)
    return api.claim(api.node(), queue, qty=2)[1]


def counted(api: Api, queue: str) -> Row:
    """Claim a lease on a node whose capacity is counted."""
    return api.running(queue, api.node(capacity={"cpu_milli": 1}), None, **KINDS["counted"])


def counted_queues(api: Api, queue: str) -> Row:
    """The same, of two queues."""
    lease = api.spawn(queue, **KINDS["counted"])
    return api.granted(lease, api.node(capacity={"cpu_milli": 1}), api.queue(), queue)


def checked(api: Api, queue: str) -> Row:
    """Claim a lease that asks about others."""
    api.spawn(queue, **KINDS["away"])
    [row] = claim_all(api, api.node(), queue, 1)
    return row


def adopted(api: Api, queue: str) -> Row:
    return api.row("adopt_lease", queue=queue, node=api.node().node_id, task=TASK, options={})


GRANTS = [
    *(head, head_of_classes, head_of_queues, head_after_settling, batch),
    *(counted, counted_queues, checked, adopted),
]


@pytest.mark.parametrize("grant", GRANTS)
@pytest.mark.parametrize("retain", [0, 86400])
def test_whichever_way_it_was_claimed(api: Api, grant: Callable[[Api, str], Row], retain: int) -> None:
    claim = grant(api, api.queue(retain_completed=retain))
    api.complete(claim)
    if retain:
        assert api.state(claim["lease_id"]) == "completed"
        assert outcome(api, claim["lease_id"]) == ("completed", claim["claim_token"], None, False)
    else:
        api.refused("QHL04", "get_lease", lease=claim["lease_id"])
    assert api.sound()


@pytest.mark.parametrize("way", BATCHES)
def test_of_a_batch_some_are_kept(api: Api, way: str) -> None:
    """Those of a queue that keeps them, and those that have a key."""
    node, keeps, drops = api.node(), api.queue(), api.queue(**NOTHING)
    kept = [api.spawn(keeps) for _ in range(2)]
    dropped = [api.spawn(drops) for _ in range(2)]
    keyed = api.spawn(drops, idempotency_key="k")
    dropped.append(api.spawn(drops))
    BATCHES[way](api, node, api.claim(node, keeps, drops, qty=6))
    assert [api.state(lease) for lease in kept] == ["completed"] * 2
    assert [outcome(api, lease) is None for lease in dropped] == [False] * 3
    assert leases_of(api, drops) == [keyed]


@pytest.mark.parametrize(("before", "after"), [(0, 86400), (86400, 0)])
def test_the_policy_is_that_of_the_claim(api: Api, before: int, after: int) -> None:
    queue = api.queue(retain_completed=before)
    claim = api.running(queue)
    api.rows("set_queue_policy", queue=queue, policy={"retain_completed": after})
    api.complete(claim)
    later = api.running(queue)
    api.complete(later)
    stays = [claim["lease_id"]] if before else [later["lease_id"]]
    assert leases_of(api, queue) == stays


def test_failed_and_cancelled_ones_are_kept(api: Api) -> None:
    queue = api.queue(**NOTHING)
    failed, cancelled = api.running(queue), api.running(queue)
    api.rows("fail_lease", **token(failed), error={}, retry=False)
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    api.rows("fail_lease", **token(cancelled), error={})
    waited = api.spawn(queue)
    api.rows("cancel_lease", lease=waited)
    ended = [failed["lease_id"], cancelled["lease_id"], waited]
    assert [api.state(lease) for lease in ended] == ["failed", "cancelled", "cancelled"]
    assert api.value("requeue_lease", lease=failed["lease_id"]) == "pending"
    assert api.sound()


def test_a_retried_one_goes_too(api: Api, clock: Clock) -> None:
    queue, node = api.queue(**NOTHING), api.node()
    first = api.running(queue, node)
    api.rows("release_lease", **token(first))
    [second] = api.claim(node, queue)
    assert second["claim_token"] > first["claim_token"]
    api.complete(second)
    assert leases_of(api, queue) == []
    prune(api, clock)
    assert api.one("select count(*) from hwqueue.attempt where lease_id = %s", first["lease_id"]) == 0
    assert outcome(api, first["lease_id"]) is None


def figures(api: Api, queue: str) -> list[Row]:
    """What the queue's minutes say, those without anything left out."""
    rows = api.rows("throughput", queue=queue, minutes=10)
    return [{key: value for key, value in row.items() if key != "minute"} for row in rows if row["claims"]]


def test_figures_are_those_of_kept_ones(api: Api, clock: Clock) -> None:
    """Completions and earlier attempts are counted, and how long leases waited and ran."""
    retry = {"kind": "fixed", "base": 0}
    queues, node = [api.queue(retry=retry), api.queue(retry=retry, **NOTHING)], api.node()
    for queue in queues:
        for _ in range(3):
            api.spawn(queue)
    clock.advance(timedelta(seconds=5))
    claims = [row for queue in queues for row in api.claim(node, queue, qty=3)]
    failed = [claims[0], claims[3]]
    for claim in failed:
        api.rows("fail_lease", **token(claim), error={})
    claims += api.claim(node, *queues, qty=2)
    clock.advance(timedelta(seconds=2))
    by_lists(api, node, [claim for claim in claims if claim not in failed])
    assert leases_of(api, queues[1]) == []
    clock.advance(MINUTE)
    count_all(api.conn)
    kept, gone = (figures(api, queue) for queue in queues)
    assert kept == gone
    # two rows where a minute began meanwhile
    sums = {name: sum(row[name] for row in gone) for name in ("claims", "completed", "retried")}
    assert sums == {"claims": 4, "completed": 3, "retried": 1}
    # as fine as the histogram is
    assert [row["wait_p95"] for row in gone if row["wait_p95"]] == pytest.approx([5], rel=0.5)
    assert [row["run_p50"] for row in gone if row["run_p50"]][-1:] == pytest.approx([2], rel=0.5)


def test_with_an_idempotency_key_it_stays_until_prune(api: Api, clock: Clock) -> None:
    """The key keeps a repeated spawn from doing the work twice, however soon it was done."""
    queue = api.queue(**NOTHING)
    keyed = {"queue": queue, "task": TASK, "options": {"idempotency_key": "k"}}
    claim = api.running(queue, idempotency_key="k")
    api.complete(claim)
    again = api.row("spawn_lease", **keyed)
    assert (again["lease_id"], again["created"]) == (claim["lease_id"], False)
    assert again["state"] == "completed"
    assert outcome(api, claim["lease_id"]) == ("completed", claim["claim_token"], None, False)
    prune(api, clock)
    assert api.row("spawn_lease", **keyed)["created"]


def late_batch(api: Api, node: Node, queue: str, first: Row, second: Row) -> list[tuple[Any, Any]]:
    """Verdict and state of one in JSON and one in the lists."""
    call = {**node.who, **completed(second), "settle": [settlement(first)]}
    rows = api.rows("settle_and_claim", **call, queues=[queue], qty=0)
    return [(row["verdict"], row["state"]) for row in rows]


def test_a_late_settlement_is_refused(api: Api, node: Node, clock: Clock) -> None:
    """While there is an outcome it tells why; then nothing is known of the lease."""
    queue = api.queue(**NOTHING)
    first = api.running(queue, node)
    api.rows("release_lease", **token(first))
    [second] = api.claim(node, queue)
    api.complete(second)
    assert api.refused("QHL03", "complete_lease", **token(second)).detail["state"] == "completed"
    api.refused("QHL03", "fail_lease", **token(second), error={})
    api.refused("QHL01", "complete_lease", **token(first))
    unknown = token(second | {"claim_token": second["claim_token"] + 1})
    api.refused("QHL05", "complete_lease", **unknown)
    told = late_batch(api, node, queue, first, second)
    assert told == [("lost", "completed"), ("finished", "completed")]
    prune(api, clock)
    api.refused("QHL04", "complete_lease", **token(second))
    assert late_batch(api, node, queue, first, second) == [("lost", None), ("lost", None)]


def test_an_id_is_taken_as_long_as_the_outcome_is_there(api: Api, clock: Clock) -> None:
    """A new lease's tokens would begin where the old one's did: an old token would settle it."""
    queue, node, lease = api.queue(**NOTHING), api.node(), uuid4()
    claim = api.running(queue, node, None, lease_id=str(lease))
    api.complete(claim)
    spawn = {"queue": queue, "task": TASK, "options": {"lease_id": str(lease)}}
    refusal = api.refused("QHL06", "spawn_lease", **spawn)
    assert refusal.detail == {"field": "options.lease_id", "lease_id": str(lease), "index": 0}
    api.refused("QHL06", "adopt_lease", node=node.node_id, **spawn)
    several = [{"task": TASK, "options": {}}, {"task": TASK, "options": spawn["options"]}]
    assert api.refused("QHL06", "spawn_leases", queue=queue, leases=several).detail["index"] == 1
    prune(api, clock)
    assert api.spawn(queue, TASK, None, lease_id=str(lease)) == lease
    assert api.state(lease) == "pending"
    assert api.sound()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_an_older_snapshot_does_not_let_the_id_in(api: Api, dsn: str, isolation: str) -> None:
    """It shows neither the lease nor its outcome; under read committed each statement looks."""
    queue, lease = api.queue(**NOTHING), uuid4()
    with psycopg.connect(dsn) as other:
        other.execute(f"set transaction isolation level {isolation}".encode())
        other.execute("select count(*) from hwqueue.outcome")
        claim = api.running(queue, None, None, lease_id=str(lease))
        api.complete(claim)
        with refusing("QHL06"):
            Api(other).spawn(queue, TASK, None, lease_id=str(lease))
        other.rollback()
        # one that was never used is let in, and leaves nothing behind
        other.execute(f"set transaction isolation level {isolation}".encode())
        fresh = Api(other).spawn(queue, TASK, None, lease_id=str(uuid4()))
    assert outcome(api, fresh) is None
    assert leases_of(api, queue) == [fresh]
    assert api.sound()


def test_those_that_must_be_with_it_run_where_it_succeeded(api: Api) -> None:
    queue = api.queue(**NOTHING)
    one, other = api.node(), api.node()
    claim = api.running(queue, one)
    toward = {"require": [{"lease": str(claim["lease_id"]), "domain": "node"}]}
    follower = api.spawn(queue, placement=toward)
    api.complete(claim)
    late = api.spawn(queue, placement=toward)
    for _ in range(10):
        api.rows("reap")
        assert api.claim(other, queue) == []
    assert {row["lease_id"] for row in claim_all(api, one, queue, 2)} == {follower, late}


def test_what_is_left_of_it_goes_with_its_queue(api: Api, clock: Clock) -> None:
    queue = api.queue(**NOTHING)
    claim = api.running(queue)
    api.complete(claim)
    api.rows("drop_queue", queue=queue)
    known = "select count(*) from hwqueue.queue where name = %s"
    for _ in looks():
        api.reap_after(clock, MINUTE)
        api.rows("prune")
        if api.one(known, queue) == 0:
            break
    assert (outcome(api, claim["lease_id"]), api.one(known, queue)) == (None, 0)


def test_a_completion_writes_the_events_that_it_did(api: Api) -> None:
    claims = [api.running(api.queue(**policy)) for policy in ({}, NOTHING)]
    api.complete(*claims)
    kinds = "select count(*) from hwqueue.event where lease_id = %s"
    kept, gone = (api.one(kinds, claim["lease_id"]) for claim in claims)
    assert kept == gone


@pytest.mark.parametrize(
    ("edit", "broken"),
    [
        ("update hwqueue.outcome set eligible_at = null where lease_id = %s", "gone"),
        ("update hwqueue.outcome set eligible_at = finished_at where lease_id = %s", "kept"),
        ("delete from hwqueue.lease where lease_id = %s", "kept"),
    ],
)
def test_the_check_tells_one_that_went_from_one_that_is_lost(
    api: Api, edit: LiteralString, broken: str
) -> None:
    claims = {name: api.running(api.queue(**policy)) for name, policy in (("kept", {}), ("gone", NOTHING))}
    api.complete(*claims.values())
    assert api.sound()
    lease = claims[broken]["lease_id"]
    assert api.breaks(edit, lease) == {("one_entry", str(lease))}
