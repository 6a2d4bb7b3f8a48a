"""Lanes: how leases of a limit are let through, and what gives their places back."""

from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, completed, raw, settlement, token

pytestmark = pytest.mark.usefixtures("sound")

SECOND = timedelta(seconds=1)


def limit(api: Api, **spec: Any) -> str:
    """Create a limit of the test's own; its name."""
    name = f"limit-{api.one('select count(*) from hwqueue.limit_rule')}"
    api.rows("create_limit", name=name, spec=spec)
    return name


def claim(api: Api, clock: Clock, node: Node, queue: str, qty: int = 10) -> list[Row]:
    """Claim, later than the session has looked last."""
    clock.advance(SECOND / 5)
    return api.claim(node, queue, qty=qty)


def ids(claims: list[Row]) -> list[UUID]:
    return [row["lease_id"] for row in claims]


@pytest.fixture
def node(api: Api) -> Node:
    return api.node(concurrency=1000)


@pytest.mark.parametrize("ends", ["one", "batch"])
def test_slots_are_handed_over(api: Api, clock: Clock, queue: str, node: Node, ends: str) -> None:
    name = limit(api, slots=2, by="key")
    leases = [api.spawn(queue, limits={name: "u"}) for _ in range(6)]
    other = api.spawn(queue, limits={name: "v"})
    claims = claim(api, clock, node, queue)
    assert set(ids(claims)) == {*leases[:2], other}
    assert claim(api, clock, node, queue) == []
    mine = [row for row in claims if row["lease_id"] != other]
    if ends == "one":
        api.complete(*mine)
    else:
        api.rows("settle_and_claim", **node.who, settle=raw("[]"), queues=[queue], qty=0, **completed(*mine))
    assert not api.one("select count(*) from hwqueue.lane_change")  # nothing was counted
    [third, fourth] = claim(api, clock, node, queue)
    assert ids([third, fourth]) == leases[2:4]
    api.rows("fail_lease", **token(third), error={}, retry=False)
    api.rows("release_lease", **token(fourth), delay="1 h")  # has no slot while it waits
    assert ids(claim(api, clock, node, queue)) == leases[4:]


def test_tenants_have_lanes_of_their_own(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = limit(api, slots=1, by="key")
    leases = {api.spawn(queue, limits={name: "u"}, tenant=tenant) for tenant in ("a", "b")}
    assert set(ids(claim(api, clock, node, queue))) == leases
    tenants = (
        "select tenant from hwqueue.lane join hwqueue.limit_rule using (limit_id) where name = %s order by 1"
    )
    assert api.conn.execute(tenants, [name]).fetchall() == [("a",), ("b",)]


def test_a_tenant_that_leaves_many_lanes_keeps_no_other_one_waiting(
    api: Api, clock: Clock, queue: str, node: Node
) -> None:
    keyed, shared = limit(api, slots=1, by="key"), limit(api, slots=1)
    leases = [api.spawn(queue, tenant="t", limits={keyed: str(n)}) for n in range(60)]
    api.rows("reap")
    [running] = claim(api, clock, node, queue, 1)
    for lease in leases:
        api.rows("cancel_lease", lease=lease)
    api.complete(running)
    assert api.one("select array_agg(distinct tenant) from hwqueue.lane_change") == ["t"]
    lease = api.spawn(queue, limits=[shared])
    assert ids(claim(api, clock, node, queue)) == [lease]


def test_keys_take_turns_by_weight(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = limit(api, fair=True, by="key", weights={"b": 2, "c": 4})
    options = [{"limits": {name: key}} for key in "a" * 300 + "b" * 100 + "c" * 100]
    api.rows("spawn_leases", queue=queue, leases=[{"task": "t", "params": o, "options": o} for o in options])
    claim(api, clock, node, queue, 28)
    shares = Counter(row["params"]["limits"][name] for row in claim(api, clock, node, queue, 84))
    assert shares == {"a": 12, "b": 24, "c": 48}  # one claim, and more than stand in line
    later = api.spawn(queue, limits={name: "d"})
    assert later in ids(claim(api, clock, node, queue, 30))


def test_a_hundred_keys_have_equal_shares(api: Api, clock: Clock, queue: str, node: Node) -> None:
    """Whatever else is parked of one of them."""
    name = limit(api, fair=True, by="key")
    keys = [str(n) for n in range(100)]
    options = [{"limits": {name: key}} for key in ["0"] * 500 + keys * 14]
    for first in range(0, len(options), 500):
        leases = [{"task": "t", "params": o, "options": o} for o in options[first : first + 500]]
        api.rows("spawn_leases", queue=queue, leases=leases)
    claims = [row for _ in range(12) for row in claim(api, clock, node, queue, 100)]
    assert Counter(row["params"]["limits"][name] for row in claims[200:]) == dict.fromkeys(keys, 10)


def test_a_rate_reaches_what_it_allows(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = limit(api, rate={"count": 60, "per": "1 min", "burst": 3})
    for _ in range(40):
        api.spawn(queue, limits=[name])
    claim(api, clock, node, queue)
    started = 0
    for _ in range(30):
        clock.advance(SECOND * 4 / 5)
        started += len(claim(api, clock, node, queue))
    assert started in (29, 30, 31)


def test_a_chain_is_passed_lane_by_lane(api: Api, clock: Clock, queue: str, node: Node) -> None:
    """Who waits in the second lane has a slot of the first, and no other."""
    by_key, shared = limit(api, slots=1, by="key"), limit(api, slots=2)
    leases = [api.spawn(queue, limits={by_key: key, shared: None}) for key in "aabbcc"]
    claims = claim(api, clock, node, queue)
    assert ids(claims) == [leases[0], leases[2]]
    api.complete(claims[0])
    assert ids(claim(api, clock, node, queue)) == [leases[4]]
    api.rows("cancel_lease", lease=leases[1])  # it is parked in the second lane by now
    api.complete(claims[1])
    assert ids(claim(api, clock, node, queue)) == [leases[3]]


def test_an_update_keeps_the_turn(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name, target = limit(api, slots=1), api.queue(limits=[limit(api, slots=1, by="tenant")])
    leases = [api.spawn(queue, limits=[name]) for _ in range(4)]
    running = claim(api, clock, node, queue)
    api.rows("update_lease", lease=leases[1], changes={"labels": {"a": "b"}})
    api.rows("update_lease", lease=leases[3], changes={"priority": 5})
    assert claim(api, clock, node, queue) == []
    order = [ids(running)]
    for _ in range(2):
        api.complete(*running)
        running = claim(api, clock, node, queue)
        order.append(ids(running))
    assert order == [[leases[0]], [leases[3]], [leases[1]]]
    api.rows("update_lease", lease=leases[2], changes={"queue": target})
    blocked = [api.spawn(target) for _ in range(2)]
    api.complete(*running)
    assert claim(api, clock, node, queue) == []
    assert ids(claim(api, clock, node, target)) == [leases[2]]  # with the limits of both
    assert not set(blocked) & set(ids(claim(api, clock, node, target)))


def test_an_update_without_a_move(api: Api, clock: Clock, queue: str, node: Node) -> None:
    """Where the policy of its queue has changed it gets the lanes of that; else it keeps its time, too."""
    name, rate = limit(api, slots=1), limit(api, rate={"count": 1, "per": "1 min", "burst": 1})
    moved = [api.spawn(queue, limits=[name]) for _ in range(2)]
    running = claim(api, clock, node, queue)
    api.rows("set_queue_policy", queue=queue, policy={"limits": [limit(api, slots=1, by="tenant")]})
    api.rows("update_lease", lease=moved[1], changes={"queue": queue})
    api.complete(*running)
    assert ids(claim(api, clock, node, queue)) == moved[1:]
    other = api.queue()
    leases = [api.spawn(other, limits=[rate]) for _ in range(3)]
    assert ids(claim(api, clock, node, other)) == leases[:1]
    clock.advance(SECOND * 30)
    api.rows("update_lease", lease=leases[1], changes={"priority": 5})
    clock.advance(SECOND * 30)
    assert ids(claim(api, clock, node, other)) == leases[1:2]


def test_limits_are_changed_closed_and_dropped(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = limit(api, slots=1)
    leases = [api.spawn(queue, limits=[name]) for _ in range(7)]
    running = claim(api, clock, node, queue)
    api.rows("set_limit", name=name, changes={"slots": 3})
    api.reap()
    running += claim(api, clock, node, queue)
    assert ids(running) == leases[:3]
    api.rows("set_limit", name=name, changes={"slots": 2})
    api.complete(running.pop(0))
    assert claim(api, clock, node, queue) == []  # it shrinks
    api.complete(running.pop(0))
    running += claim(api, clock, node, queue)
    assert ids(running) == leases[2:4]
    api.rows("throttle_limit", name=name, retry_after="5 s")
    api.complete(running.pop(0))
    api.reap()
    assert claim(api, clock, node, queue) == []
    api.reap_after(clock, SECOND * 6)
    running += claim(api, clock, node, queue)
    assert ids(running) == leases[3:5]
    api.rows("drop_limit", name=name)
    api.reap()
    assert ids(claim(api, clock, node, queue)) == leases[5:]
    api.prune_after(clock, timedelta(hours=2))


def test_who_fits_nowhere_lets_another_class_go_first(api: Api, clock: Clock, queue: str, node: Node) -> None:
    """Whatever its priority; those that had their turn come last. No other key notices."""
    name = limit(api, slots=1, by="key")
    big = [api.spawn(queue, limits={name: "u"}, placement={"resources": {"gpu_count": n}}) for n in (8, 9)]
    leases = [api.spawn(queue, limits={name: "u"}, priority=-n) for n in range(2)]
    other = api.spawn(queue, limits={name: "v"})
    assert ids(claim(api, clock, node, queue)) == [other]
    for turns, lease in zip((2, 1), leases, strict=True):
        for _ in range(turns):
            assert claim(api, clock, node, queue) == []
            api.reap_after(clock, SECOND * 11)
        [running] = claim(api, clock, node, queue)
        assert running["lease_id"] == lease
        api.complete(running)  # the first of the big ones has its turn again
    assert {api.lease(one)["state"] for one in big} == {"pending", "scheduled"}


@pytest.mark.parametrize("limited", [False, True])
def test_who_fits_nowhere_has_its_turn_behind_others(
    api: Api, clock: Clock, queue: str, node: Node, limited: bool
) -> None:
    """However many stand in front that fit nowhere either, without limits, or in lanes of their own."""
    name = limit(api, slots=1, by="key")
    big: Row = {"placement": {"resources": {"gpu_count": 8}}}
    front = [{**big, "limits": {name: str(n)}} if limited else big for n in range(500 if limited else 100)]
    leases = [{"task": "t", "options": options} for options in front]
    api.rows("spawn_leases", queue=queue, leases=leases)
    while limited and api.row("reap")["more"]:
        pass
    api.spawn(queue, limits={name: "u"}, **big)
    small = api.spawn(queue, limits={name: "u"})
    claims = []
    for _ in range(3):
        api.reap_after(clock, SECOND * 11)
        claims += claim(api, clock, node, queue)
    assert ids(claims) == [small]


def test_delayed_leases_without_limits_of_a_paused_queue(
    api: Api, clock: Clock, queue: str, node: Node
) -> None:
    """They become pending, and are told of, as in a queue without limits; the others go on with it."""
    name, other = limit(api, slots=1), api.queue()
    plain = api.spawn(queue, delay="5 s")
    limited = [api.spawn(queue, limits=[name], delay="5 s") for _ in range(2)]
    api.spawn(other, limits=[name])
    [running] = claim(api, clock, node, other)
    api.rows("pause_queue", queue=queue)
    api.reap_after(clock, SECOND * 6)
    assert api.lease(plain)["state"] == "pending"
    reasons = api.rows("pending_reasons", queue=queue)
    assert {(row["code"], row["pending"]) for row in reasons} == {("queue_paused", 1), ("queue_paused", 2)}
    api.rows("resume_queue", queue=queue)
    api.reap()
    assert ids(claim(api, clock, node, queue)) == [plain]
    api.complete(running)
    assert ids(claim(api, clock, node, queue)) == limited[:1]


@pytest.mark.parametrize(
    "spec",
    [{"slots": 1}, {"fair": True, "by": "tenant"}, {"rate": {"count": 1, "per": 1, "burst": 1}}],
    ids=["slots", "fair", "rate"],
)
def test_a_paused_queue_leaves_limits_to_others(
    api: Api, clock: Clock, queue: str, node: Node, spec: dict[str, Any]
) -> None:
    """What has passed goes back, what is parked in front is set aside, once; then it comes again."""
    shared, other = limit(api, **spec), api.queue()
    options = {"limits": {limit(api, slots=5, by="key"): "u", shared: None}}

    def run(queue: str, count: int) -> list[UUID]:
        done = []
        for _ in range(count):
            api.reap_after(clock, SECOND * 2)
            claims = api.claim(node, queue)
            done += ids(claims)
            api.complete(*claims)
        return done

    big = {"task": "t", "options": {"placement": {"resources": {"gpu_count": 8}}}}  # has no limits
    api.rows("spawn_leases", queue=queue, leases=[big] * 100)
    paused = [api.spawn(queue, **options) for _ in range(7)]
    api.reap()
    api.rows("pause_queue", queue=queue)
    leases = [api.spawn(other, **options) for _ in range(5)]
    assert run(other, len(leases) + 1) == leases
    times = [api.lease(lease)["available_at"] for lease in paused]
    api.reap_after(clock, SECOND * 2)
    assert [api.lease(lease)["available_at"] for lease in paused] == times
    assert api.row("explain_lease", lease=paused[0])["code"] == "queue_paused"
    api.rows("resume_queue", queue=queue)
    assert set(run(queue, len(paused) + 1)) == set(paused)


def test_a_lease_that_was_to_be_replaced_is_parked_again(
    api: Api, clock: Clock, queue: str, node: Node
) -> None:
    """When the other one ends before it has run."""
    name = limit(api, slots=1)
    first, old = (api.spawn(queue, limits=[name]) for _ in range(2))
    running = claim(api, clock, node, queue)
    assert ids(running) == [first]
    new = api.spawn(queue, replaces={"lease": str(old), "then": "requeue"})
    api.reap()
    api.rows("cancel_lease", lease=new)
    api.reap()
    api.complete(*running)
    assert ids(claim(api, clock, node, queue)) == [old]


@pytest.mark.parametrize(
    "spec", [{"slots": 1}, {"rate": {"count": 1, "per": 10, "burst": 1}}], ids=["slots", "rate"]
)
def test_signals_of_one_that_is_parked(
    api: Api, clock: Clock, queue: str, node: Node, spec: dict[str, Any]
) -> None:
    """The first one parks it; with those that follow it keeps its turn, and its time."""
    name = limit(api, **spec)
    one = api.spawn(queue, limits=[name])
    api.value("suspend_lease", **token(claim(api, clock, node, queue)[0]), signal="go")
    api.reap_after(clock, SECOND * 10)
    api.spawn(queue, limits=[name])
    running = claim(api, clock, node, queue)
    api.rows("signal_lease", lease=one, name="go")
    api.spawn(queue, limits=[name])
    for _ in range(2):
        api.reap()
        api.rows("signal_lease", lease=one, name="go")
    api.complete(*running)
    api.reap_after(clock, SECOND * 10)
    assert ids(claim(api, clock, node, queue)) == [one]


def test_a_paused_queue_outlives_its_limits(api: Api, clock: Clock, queue: str) -> None:
    """The last limit that there is may go while leases wait that had passed its lanes."""
    name = limit(api, slots=3)
    api.conn.execute("delete from hwqueue.limit_rule where name <> %s", [name])
    leases = [api.spawn(queue, limits=[name]) for _ in range(2)]
    api.rows("pause_queue", queue=queue)
    api.reap()
    api.rows("drop_limit", name=name)
    api.reap()
    api.prune_after(clock, timedelta(hours=2))
    assert not api.one("select count(*) from hwqueue.limit_rule")
    api.rows("resume_queue", queue=queue)
    api.reap()
    assert ids(claim(api, clock, api.node(), queue)) == leases


def test_a_dropped_queue_leaves_limits_to_others(api: Api, clock: Clock, queue: str, node: Node) -> None:
    """At once, not only when prune deletes what was in it, which old transactions put off."""
    shared, other = limit(api, slots=1), api.queue()
    api.spawn(other, limits=[shared])
    api.reap()
    lease = api.spawn(queue, limits=[shared])
    api.rows("drop_queue", queue=other, force=True)
    api.reap()
    assert ids(claim(api, clock, node, queue)) == [lease]


@pytest.mark.parametrize("last", [{"slots": 9}, {"fair": True, "by": "tenant"}])
def test_who_fits_nowhere_keeps_no_slot_of_a_chain(
    api: Api, clock: Clock, queue: str, node: Node, last: dict[str, Any]
) -> None:
    """It is parked in the first lane where another class waits, and holds what it did before that one."""
    keyed, shared = limit(api, slots=1, by="key", turn="10 s"), limit(api, **last)
    options = {"limits": {keyed: "u", shared: None}}
    big = api.spawn(queue, **options, placement={"resources": {"gpu_count": 8}})
    small = api.spawn(queue, **options)
    api.reap()
    api.reap_after(clock, SECOND * 11)
    [running] = claim(api, clock, node, queue)
    assert running["lease_id"] == small
    api.complete(running)
    api.rows("cancel_lease", lease=big)
    later = api.spawn(queue, **options)
    assert ids(claim(api, clock, node, queue)) == [later]


def test_adopted_and_planned_work_counts(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = limit(api, slots=2)
    options = {"limits": [name], "idempotency_key": "k"}
    api.spawn(queue, "t", **options)
    api.reap()  # it has a slot already
    adopted = api.row("adopt_lease", queue=queue, node=node.node_id, task="t", options=options)
    leases = [api.spawn(queue, limits=[name]) for _ in range(2)]
    assert ids(claim(api, clock, node, queue)) == leases[:1]
    api.complete(adopted)
    assert ids(claim(api, clock, node, queue)) == leases[1:]


def test_idle_lanes_go(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = limit(api, slots=1, by="key")
    for key in "ab":
        api.spawn(queue, limits={name: key})
    done, running = claim(api, clock, node, queue)
    api.complete(done)
    api.prune_after(clock, SECOND)
    lanes = "select count(*) from hwqueue.lane join hwqueue.limit_rule using (limit_id) where name = %s"
    assert api.one(lanes, name) == 2
    api.complete(running)
    api.reap()
    api.prune_after(clock, timedelta(minutes=2))
    assert not api.one(lanes, name)


def test_settlements_in_a_batch_claim_what_they_let_through(
    api: Api, clock: Clock, queue: str, node: Node
) -> None:
    name = limit(api, slots=2)
    leases = [api.spawn(queue, limits=[name]) for _ in range(4)]
    claims = claim(api, clock, node, queue)
    rows = api.rows(
        "settle_and_claim", **node.who, settle=[settlement(row) for row in claims], queues=[queue], qty=10
    )
    assert [row["lease_id"] for row in rows if row["kind"] == "claimed"] == leases[2:]


def test_what_is_wrong_is_found(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = limit(api, slots=1)
    for _ in range(2):
        api.spawn(queue, limits=[name])
    claim(api, clock, node, queue)
    found = api.breaks("update hwqueue.lane set used = used + 1")
    assert {rule for rule, _ in found} == {"lane_used"}
    found = api.breaks("update hwqueue.lease set lanes_passed = 1 where lanes is not null and position = 0")
    assert "lane_entry" in {rule for rule, _ in found}


def test_a_batch_leaves_a_line_and_lets_a_rate_leave_it_too(
    api: Api, clock: Clock, queue: str, node: Node
) -> None:
    fair = limit(api, fair=True, by="key", weights={"k": 0.5})
    pace = limit(api, rate={"count": 60, "per": "1 min", "burst": 1})
    for limits in {fair: "k"}, {pace: None}, {fair: "k", pace: None}, {fair: "k"}, {fair: "k"}:
        api.spawn(queue, limits=limits)
    assert len(claim(api, clock, node, queue, 2)) == 2  # each place goes to another one: sound
