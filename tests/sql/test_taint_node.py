"""taint_node and untaint_node: what keeps leases off a node, and what asks them to leave."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, Node, token
from tests.sql.placed import codes, reasons, running_placed, spawn_placed, stop, verdict

FILM = {"key": "dedicated", "value": "film", "effect": "no_schedule"}
SOFT = {"key": "slow", "effect": "prefer_no_schedule"}
EVICT = {"key": "maintenance", "effect": "no_execute"}
NOTHING = (None, None, None, None)


def tolerating(taint: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    """A list of one toleration of just this taint."""
    return [taint | {"op": "equal"} | more]


def taint(api: Api, node: Node, *taints: dict[str, str]) -> None:
    for each in taints:
        api.rows("taint_node", node=node.node_id, taint=each)


@pytest.mark.parametrize("effect", ["no_schedule", "no_execute"])
@pytest.mark.thorough
def test_what_does_not_tolerate_it_stays_away(api: Api, queue: str, node: Node, effect: str) -> None:
    bad = FILM | {"effect": effect}
    before = api.spawn(queue)
    assert api.claimed(node, queue) == [before]  # judged before the node was tainted
    taint(api, node, bad)
    plain = api.spawn(queue)
    tolerant = spawn_placed(api, queue, tolerate=tolerating(bad))
    assert api.claimed(node, queue, qty=9) == [tolerant]
    [reason] = reasons(api, node)
    assert (reason["code"], reason["permanent"]) == ("untolerated_taint", True)
    assert f"dedicated=film:{effect}" in reason["message"]
    assert reason["predicate"] == bad
    assert reasons(api, node, tolerate=tolerating(bad)) == []
    hint = api.row("claim_hint", queues=[queue], node=node.node_id)
    assert hint["reasons"] == {"untolerated_taint": 1}
    assert api.claimed(api.node(), queue) == [plain]


def test_untainted_it_works_again(api: Api, queue: str, node: Node) -> None:
    """So do leases that name the node as well: they are judged for the node, not for its profile."""
    named: dict[str, Any] = {"require": [{"node": [str(node.node_id)]}]}
    running_placed(api, queue, node, **named)
    taint(api, node, FILM, FILM | {"effect": "no_execute"}, FILM | {"key": "other"})
    leases = [api.spawn(queue), spawn_placed(api, queue, **named)]
    assert api.value("untaint_node", node=node.node_id, key="dedicated", effect="no_execute") == 1
    assert [t["key"] for t in api.used(node)["taints"]] == ["dedicated", "other"]
    assert [api.value("untaint_node", node=node.node_id, key="dedicated") for _ in range(2)] == [1, 0]
    assert api.claimed(node, queue) == []
    assert api.value("untaint_node", node=node.node_id, key="other") == 1
    assert api.claimed(node, queue, qty=9) == leases
    assert api.used(node)["taints"] == []


def test_one_of_each_key_and_effect(api: Api, node: Node, clock: Clock) -> None:
    """Twice is once."""
    taint(api, node, FILM, EVICT)
    clock.advance(timedelta(seconds=3))
    with api.unchanged():
        taint(api, node, FILM, EVICT)
    taint(api, node, FILM | {"value": "games"}, FILM | {"effect": "no_execute"})
    listed = api.used(node)["taints"]
    assert {(t["value"], t["effect"], t["by"]) for t in listed if t["key"] == "dedicated"} == {
        ("games", "no_schedule", "operator"),
        ("film", "no_execute", "operator"),
    }


def test_a_registration_changes_its_own_taints_only(api: Api) -> None:
    queue, own = api.queue(), {"key": "booting", "effect": "no_schedule"}
    node = api.node(taints=[own])
    taint(api, node, FILM)
    assert codes(api, node) == ["untolerated_taint"] * 2
    api.node(node.node_id, name=node.name, taints=[])
    assert [t["key"] for t in api.used(node)["taints"]] == ["dedicated"]
    api.rows("deregister_node", node=node.node_id)
    api.node(node.node_id, name=node.name, instance_id="second")
    assert codes(api, node) == ["untolerated_taint"]  # like a cordon, it is there after it was away
    api.node(node.node_id, name=node.name, instance_id="third", taints=[own, FILM])
    assert [(t["key"], t["by"]) for t in api.used(node)["taints"]] == [
        *(("booting", "node"), ("dedicated", "node"), ("dedicated", "operator"))
    ]
    # what the node registered with is not the operator's to take away, and the other way round
    assert api.value("untaint_node", node=node.node_id, key="booting") == 0
    assert api.value("untaint_node", node=node.node_id, key="dedicated") == 1
    assert codes(api, node) == ["untolerated_taint"] * 2
    again = api.node(node.node_id, name=node.name, instance_id="third")
    lease = api.spawn(queue)
    assert api.claimed(again, queue) == [lease]


def test_soft_taints_lower_the_score(api: Api) -> None:
    """The more of them a lease does not tolerate, the lower; without them nothing changes."""
    queue = api.queue(tuning={"weight_affinity": 1, "weight_fit": 0, "weight_spread": 0}, patience=0)
    clean, soft, softer = api.node(), api.node(), api.node()
    taint(api, soft, SOFT)
    taint(api, softer, SOFT, SOFT | {"key": "hot"})
    for node, score in ((clean, 0), (soft, -50), (softer, -200 / 3)):
        lease = api.spawn(queue)
        [claim] = api.claim(node, queue)
        assert (claim["lease_id"], claim["score"]) == (lease, pytest.approx(score))
        assert codes(api, node) == []
        matched = {
            row["node_id"]: row["score"]
            for row in api.rows("match_nodes", placement={}, options={"queue": queue})
        }
        assert matched[node.node_id] == pytest.approx(score)
    claim = running_placed(api, queue, soft, tolerate=[{"op": "exists"}])
    assert claim["score"] == 0


def test_a_lease_that_minds_waits_for_one_that_does_not(api: Api) -> None:
    """The taint decides among leases of equal priority, and weighs as much as all preferences together."""
    weights = {"weight_affinity": 1, "weight_fit": 0, "weight_spread": 0}
    queue, node = api.queue(patience=0, tuning=weights), api.node(labels={"zone": "a"}, taints=[SOFT])
    minding = api.spawn(queue)
    tolerant = spawn_placed(api, queue, tolerate=tolerating(SOFT))
    assert api.claimed(node, queue) == [tolerant]
    assert api.claimed(node, queue) == [minding]
    prefer = [{"weight": 30, "when": {"label": "zone", "op": "in", "values": ["a"]}}]
    for each, score in ((node, 0), (api.node(labels={"zone": "a"}), 100)):
        assert running_placed(api, queue, each, prefer=prefer)["score"] == score


def test_no_execute_asks_what_runs_to_stop(api: Api, queue: str, node: Node, clock: Clock) -> None:
    plain = running_placed(api, queue, node)
    tolerant = running_placed(api, queue, node, tolerate=tolerating(EVICT))
    taint(api, node, FILM, SOFT)
    assert stop(api, plain) == NOTHING
    taint(api, node, EVICT)
    now = clock.now()
    assert stop(api, plain) == ("preempted", "taint maintenance:no_execute", now, now)
    assert stop(api, tolerant) == NOTHING
    assert (verdict(api, node, plain), verdict(api, node, tolerant)) == ("preempted", "ok")
    api.rows("untaint_node", node=node.node_id, key="maintenance")
    assert verdict(api, node, plain) == "preempted"  # its worker may know already
    assert api.value("release_lease", **token(plain)) == "pending"


def test_tolerated_for_a_time(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """The worker is told when the time is over, not before; the shortest of several counts."""
    both = [*tolerating(EVICT, seconds=30), {"op": "exists", "effect": "no_execute", "seconds": 10}]
    claim = running_placed(api, queue, node, tolerate=both)
    untainted = running_placed(api, queue, node, tolerate=tolerating(EVICT, seconds=30))
    none = running_placed(api, queue, node, tolerate=tolerating(EVICT, seconds=0))
    taint(api, node, EVICT)
    end = clock.now() + timedelta(seconds=10)
    assert stop(api, claim) == ("preempted", "taint maintenance:no_execute", end, end)
    assert api.verdicts(node, claim, none) == ["ok", "preempted"]
    clock.advance(timedelta(seconds=10))
    assert api.verdicts(node, claim) == ["preempted"]
    clock.advance(timedelta(seconds=19))
    assert api.value("untaint_node", node=node.node_id, key="maintenance") == 1
    assert stop(api, untainted) == NOTHING  # in time: it may stay
    clock.advance(timedelta(seconds=9))
    assert api.verdicts(node, untainted) == ["ok"]


def test_of_two_taints_the_earlier_end_counts(api: Api, queue: str, node: Node, clock: Clock) -> None:
    other = EVICT | {"key": "heat"}
    tolerate = [*tolerating(EVICT, seconds=30), *tolerating(other, seconds=5)]
    claim = running_placed(api, queue, node, tolerate=tolerate)
    taint(api, node, EVICT)
    late = clock.now() + timedelta(seconds=30)
    clock.advance(timedelta(seconds=2))
    taint(api, node, other)
    assert stop(api, claim)[1:3] == ("taint heat:no_execute", clock.now() + timedelta(seconds=5))
    api.rows("untaint_node", node=node.node_id, key="heat")
    assert stop(api, claim) == ("preempted", "taint maintenance:no_execute", late, late)


def test_a_node_that_taints_itself(api: Api, queue: str, node: Node, clock: Clock) -> None:
    plain = running_placed(api, queue, node)
    timed = running_placed(api, queue, node, tolerate=tolerating(EVICT, seconds=30))
    api.node(node.node_id, name=node.name, taints=[EVICT])
    assert verdict(api, node, plain) == "preempted"
    end = clock.now() + timedelta(seconds=30)
    clock.advance(timedelta(seconds=7))
    api.node(node.node_id, name=node.name, taints=[EVICT], labels={"zone": "a"})
    assert stop(api, timed)[2] == end  # the taint was there before
    api.node(node.node_id, name=node.name, taints=[])
    assert stop(api, timed) == NOTHING


def test_who_comes_later_may_stay_as_long(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """Granted or adopted beside the taint: reap notes when they have to leave."""
    taint(api, node, EVICT)
    clock.advance(timedelta(seconds=100))
    timed = running_placed(api, queue, node, tolerate=tolerating(EVICT, seconds=30))
    ever = running_placed(api, queue, node, tolerate=tolerating(EVICT))
    adopted = api.row("adopt_lease", queue=queue, node=node.node_id, task="work", params={})
    end = clock.now() + timedelta(seconds=30)
    api.reap_after(clock, timedelta(seconds=5))
    assert stop(api, timed)[2:] == (end, end)
    assert stop(api, adopted)[2:] == (clock.now(), clock.now())
    assert stop(api, ever) == NOTHING


def test_a_locked_node_keeps_no_other_one_back(dsn: str, api: Api, queue: str) -> None:
    """However few claims reap may ask to stop: one of two nodes is locked, it asks those of the other."""
    nodes = [api.node(taints=[EVICT]) for _ in range(2)]
    api.reap()
    for held, free in (nodes, nodes[::-1]):
        for node in 2 * nodes:
            api.rows("adopt_lease", queue=queue, node=node.node_id, task="work")
        with psycopg.connect(dsn) as holder:
            holder.execute("select from hwqueue.node_state where node_id = %s for update", [held.node_id])
            assert api.row("reap", limit=2)["more"]
        asked = "select count(*) from hwqueue.claim where node_id = %s and stop_requested_at is not null"
        assert api.one(asked, free.node_id) == 2


@pytest.mark.parametrize("why", ["cancelled", "preempted"])
def test_a_cancellation_or_drain_is_told_at_once(api: Api, clock: Clock, why: str) -> None:
    """Whatever a taint would have asked later; and it is not taken back with the taint."""
    queue, node = api.queue(), api.node()
    claim = running_placed(api, queue, node, tolerate=tolerating(EVICT, seconds=30))
    taint(api, node, EVICT)
    if why == "cancelled":
        api.rows("cancel_lease", lease=claim["lease_id"])
        assert verdict(api, node, claim) == why
    else:
        api.rows("drain_node", node=node.node_id, deadline=timedelta(seconds=60))
        end = clock.now() + timedelta(seconds=30)
        assert stop(api, claim) == (why, "node is drained", clock.now(), end)
    api.rows("untaint_node", node=node.node_id, key="maintenance")
    assert verdict(api, node, claim) == why


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("p_taint", None),
        ("p_taint", "x"),
        ("p_taint", []),
        ("p_taint.when", FILM | {"when": 1}),
        ("p_taint.key", {"effect": "no_schedule"}),
        ("p_taint.key", FILM | {"key": ""}),
        ("p_taint.key", FILM | {"key": "x" * 254}),
        ("p_taint.value", FILM | {"value": 7}),
        ("p_taint.value", FILM | {"value": "x" * 254}),
        ("p_taint.effect", {"key": "x"}),
        ("p_taint.effect", FILM | {"effect": "NoSchedule"}),
    ],
)
@pytest.mark.thorough
def test_bad_taints(api: Api, node: Node, field: str, bad: Any) -> None:
    assert api.fault("taint_node", node=node.node_id, taint=bad) == field


@pytest.mark.thorough
def test_at_most_a_hundred(api: Api, node: Node) -> None:
    taint(api, node, *({"key": f"k{number}", "effect": "no_schedule"} for number in range(100)))
    taint(api, node, {"key": "k7", "value": "other", "effect": "no_schedule"})
    assert api.fault("taint_node", node=node.node_id, taint=FILM) == "p_taint"


def test_bad_ways_to_untaint_and_unknown_nodes(api: Api) -> None:
    node = api.node().node_id
    assert api.fault("untaint_node", node=node, key=None) == "p_key"
    assert api.fault("untaint_node", node=node, key="x", effect="all") == "p_effect"
    api.rows("deregister_node", node=node)
    arguments: dict[str, Any]
    for function, arguments in (("taint_node", {"taint": FILM}), ("untaint_node", {"key": "x"})):
        for gone in (NOBODY, node):
            refusal = api.refused("QHN01", function, node=gone, **arguments)
            assert refusal.detail["node_id"] == str(gone)
