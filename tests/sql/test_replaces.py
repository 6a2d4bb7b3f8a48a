"""A lease that takes the place of another one: on its node, in its room."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.sql.api import Api, Node, beat, refusing, token
from tests.sql.gangs import GPU, gpus, reap

pytestmark = pytest.mark.usefixtures("sound")

OTHER_NODE: Row = {"placement": {"require": [{"label": "kind", "op": "in", "values": ["other"]}]}}
ENDS = pytest.mark.parametrize(("then", "ends"), [("cancel", "cancelled"), ("requeue", "pending")])


def replacing(api: Api, queue: str, old: UUID, /, then: str = "cancel", **options: Any) -> UUID:
    """Spawn a lease that replaces another one; its id."""
    spec = {"lease": str(old), "then": then, "overlap": options.pop("overlap", False)}
    lease = api.spawn(queue, replaces=spec, **options)
    assert api.state(lease) == "scheduled"
    return lease


def headline(api: Api, lease: UUID) -> str:
    return str(api.row("explain_lease", lease=lease)["headline"])


class Swap:
    """A lease that runs, and one that upkeep knows is to take its place."""

    def __init__(self, api: Api, /, *, node: Node | None = None, was: Row = GPU, **options: Any) -> None:
        self.api, self.queue = api, api.queue()
        self.node = node or api.node(gpus=gpus(1))
        self.claim = api.running(self.queue, self.node, **was)
        self.old: UUID = self.claim["lease_id"]
        self.new = replacing(api, self.queue, self.old, **options)
        reap(api)

    def stop_reason(self) -> Any:
        """Why the old one is asked to stop."""
        return self.api.lease(self.old)["stop_reason"]

    def end(self) -> None:
        """Release the old one, and let upkeep see it."""
        self.api.rows("release_lease", **token(self.claim))
        reap(self.api)

    def claimed(self, qty: int = 9) -> list[UUID]:
        return self.api.claimed(self.node, self.queue, qty=qty)


def test_what_has_to_hold_while_the_new_one_runs_is_noted(api: Api) -> None:
    node = api.node(gpus=gpus(1), labels={"disk": "ssd"})
    lasting = [{"label": "disk", "op": "exists", "during": "execution"}]
    swap = Swap(api, node=node, placement={**GPU["placement"], "require": lasting})
    assert api.rows("verify_invariants") == []
    swap.end()
    assert swap.claimed() == [swap.new]


@ENDS
def test_it_takes_the_room_of_the_other_one(api: Api, then: str, ends: str) -> None:
    queue, node = api.queue(), api.node(gpus=gpus(1))
    claim = api.running(queue, node, **GPU)
    old = claim["lease_id"]
    new = replacing(api, queue, old, then, **GPU)
    assert headline(api, new).startswith(f"waits for the place of lease {old}: upkeep")
    reap(api)
    waiting = api.spawn(queue, **GPU)  # no equal gets that room
    [verdict] = api.rows("heartbeat_node", **node.who, claims=beat(claim))
    assert verdict["verdict"] == ("cancelled" if then == "cancel" else "preempted")
    assert f"lease {new} takes its place" in headline(api, old)
    assert "that one is asked to stop" in headline(api, new)
    assert api.claimed(node, queue, qty=9) == []  # it runs there yet
    reap(api)
    assert api.rows("verify_invariants") == []
    api.rows("release_lease", **token(claim))
    assert api.state(old) == ends
    assert api.claimed(node, queue, qty=9) == []  # before upkeep has seen it
    reap(api)
    [taken] = api.claim(node, queue)
    assert (taken["lease_id"], taken["assignment"]) == (new, claim["assignment"])
    api.complete(taken)
    reap(api)
    assert api.claimed(node, queue) == [waiting]


@pytest.mark.parametrize(
    ("options", "why"),
    [(OTHER_NODE, "may not run this one"), ({"placement": {"resources": {"gpu": 2}}}, "no room")],
)
def test_nothing_stops_where_the_new_one_may_not_run(api: Api, options: Row, why: str) -> None:
    node = api.node(gpus=gpus(2))
    api.running(api.queue(), node, **GPU)
    swap = Swap(api, node=node, **options)
    assert why in headline(api, swap.new)
    assert swap.stop_reason() is None
    api.rows("complete_lease", **token(swap.claim))
    api.conn.execute("update hwqueue.replacement set next_try_at = hwqueue.clock()")
    reap(api)  # what it was to replace has ended: it runs wherever it may
    assert api.state(swap.new) == "pending"


def test_terms_about_others_are_those_without_the_old_one(api: Api) -> None:
    """Kept apart from its own kind it may replace one of it, but not beside another one."""
    queue, node = api.queue(), api.node(rack=7101)
    api.node(rack=7102)
    away = {"leases": {"labels": {"app": queue}}, "domain": "rack", "away": True}
    apart: Row = {"labels": {"app": queue}, "placement": {"require": [away]}}
    api.spawn(queue, **apart)
    Direct(api.conn).settle_terms()
    [claim] = api.claim(node, queue)
    new = replacing(api, queue, claim["lease_id"], **apart)
    reap(api)
    assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
    api.rows("release_lease", **token(claim))
    reap(api)
    assert api.claimed(node, queue) == [new]
    assert api.rows("verify_invariants") == []
    swap = Swap(api, node=node, was={}, **apart)
    assert "anti_affinity_conflict" in headline(api, swap.new)
    assert swap.stop_reason() is None


def test_beside_it_where_there_is_room_for_both(api: Api) -> None:
    """Of a worker's places, too: else the old one stops first."""
    swap = Swap(api, node=api.node(gpus=gpus(2)), overlap=True, **GPU)
    assert swap.stop_reason() is None
    assert swap.claimed() == [swap.new]
    reap(api)
    assert swap.stop_reason() == "cancelled"
    narrow = Swap(api, node=api.node(concurrency=1), was={}, overlap=True)
    assert narrow.stop_reason() == "cancelled"
    assert narrow.claimed() == []
    narrow.end()
    assert narrow.claimed() == [narrow.new]


@ENDS
def test_one_that_waits_is_held_until_the_new_one_runs(api: Api, then: str, ends: str) -> None:
    queue = api.queue(ageing_step="1 minute")
    old = api.spawn(queue, **GPU)
    new = replacing(api, queue, old, then)
    reap(api)
    assert headline(api, old) == f"held back: lease {new} takes its place once it is claimed"
    assert api.claimed(api.node(gpus=gpus(1)), queue, qty=9) == [new]
    reap(api)
    assert api.state(old) == ends
    if then == "cancel":
        assert api.lease(old)["error"]["reason"] == "replaced"


def test_one_that_was_held_waits_on_when_the_new_one_ends_before_it_runs(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node()
    suspended = api.running(queue, node)
    api.rows("suspend_lease", **token(suspended), signal="go")
    olds = [suspended["lease_id"], api.spawn(queue, delay=3600)]
    news = [replacing(api, queue, old, **OTHER_NODE) for old in olds]
    reap(api)
    assert api.row("signal_lease", lease=olds[0], name="go")["state"] == "scheduled"
    assert api.claimed(node, queue) == []
    for new in news:
        api.rows("cancel_lease", lease=new)
    reap(api)
    assert [api.state(old) for old in olds] == ["pending", "scheduled"]
    clock.advance(timedelta(hours=2))
    assert api.claimed(node, queue, qty=2) == olds


def test_what_verify_invariants_finds(api: Api, queue: str) -> None:
    """A lease that waits for another's place, or is held back for one, and never would be due."""
    old = api.spawn(queue, **GPU)
    for held in (replacing(api, queue, old), old):
        with api.conn.transaction(force_rollback=True):
            api.conn.execute("delete from hwqueue.replacement where old_lease = %s", [old])
            found = [(row["rule"], row["subject"]) for row in api.rows("verify_invariants")]
        assert found == [("held_lease", str(held))]
        reap(api)


def test_one_of_a_service_the_longest_running_first(api: Api, clock: Clock) -> None:
    queue, service = api.queue(), str(uuid4())
    node = api.node()
    claims = [api.running(queue, node, service_id=service) for _ in range(2)]
    olds = [claim["lease_id"] for claim in claims]
    clock.advance(timedelta(seconds=1))  # those of one moment replace none of each other
    news = [api.spawn(queue, service_id=service, replaces={"service": service}) for _ in range(3)]
    reap(api)
    assert [api.lease(old)["stop_reason"] for old in olds] == ["cancelled"] * 2
    assert sorted(map(api.state, news)) == ["claimed", "claimed", "pending"]  # there were two
    left = [new for new in news if api.state(new) == "pending"]
    assert api.claimed(node, queue, qty=9) == left  # the others wait for those to stop
    for claim in claims:
        api.rows("release_lease", **token(claim))
    reap(api)
    assert len(api.claim(node, queue, qty=9)) == 2


def test_a_place_that_is_not_fetched(api: Api, clock: Clock) -> None:
    """It then waits in line, wherever it may run; or it is cancelled while its room is kept."""
    swap = Swap(api, **GPU)
    swap.end()
    clock.advance(timedelta(seconds=60))
    reap(api)
    assert api.state(swap.new) == "pending"
    assert api.claimed(api.node(gpus=gpus(1)), swap.queue) == [swap.new]
    swap = Swap(api, then="requeue", **GPU)
    api.rows("cancel_lease", lease=swap.new)
    reap(api)
    assert api.state(swap.new) == "cancelled"
    api.rows("release_lease", **token(swap.claim))
    assert swap.claimed() == [swap.old]


def test_what_is_refused(api: Api, queue: str) -> None:
    old, own, service = str(api.spawn(queue)), str(uuid4()), str(uuid4())
    of_gang = api.rows("spawn_gang", queue=queue, members=Jsonb([{"task": "t", "count": 2}]))
    replacing(api, queue, UUID(old))
    refused: list[tuple[str, Row, Row]] = [
        ("QHL04", {"lease": str(uuid4())}, {}),
        ("QHL04", {"lease": old}, {"tenant": "x"}),
        ("QHA01", {"lease": old}, {}),  # twice
        ("QHA01", {"lease": str(of_gang[0]["lease_id"])}, {}),
        ("QHA01", {"lease": own}, {"lease_id": own}),
        ("QHA01", {}, {}),
        ("QHA01", {"lease": old, "service": service}, {}),
        ("QHA01", {"service": service}, {"delay": 5}),
        ("QHA01", {"service": service}, {"one_of": str(uuid4())}),
    ]
    for code, replaces, options in refused:
        with refusing(code):
            api.spawn(queue, replaces=replaces, **options)
    circle = [
        {"task": "t", "options": {"lease_id": one, "replaces": {"lease": other}}}
        for one, other in ((own, service), (service, own))
    ]
    assert "circle" in api.refused("QHA01", "spawn_leases", queue=queue, leases=Jsonb(circle)).message


def test_a_chain_goes_one_after_the_other(api: Api) -> None:
    swap = Swap(api, node=api.node(), was={})
    third = replacing(api, swap.queue, swap.new)
    reap(api)
    assert "waits for a place itself" in headline(api, third)
    swap.end()
    assert swap.claimed(qty=1) == [swap.new]
    reap(api)
    assert api.lease(swap.new)["stop_reason"] == "cancelled"


def test_its_terms_count_from_the_moment_that_it_is_earmarked(api: Api) -> None:
    """It may take the place of a lease that would keep it away, and nobody else may."""
    queue, node, app = api.queue(), api.node(gpus=gpus(1)), f"app-{uuid4()}"
    away = {"leases": {"labels": {"app": app}}, "domain": "node", "away": True}
    placement = {"resources": {"gpu": 1}, "require": [away]}
    options: Row = {"placement": placement, "labels": {"app": app}}
    api.spawn(queue, **options)
    claim = api.claim_published(node, queue)
    new = replacing(api, queue, claim["lease_id"], **options)
    reap(api)
    assert "that one is asked to stop" in headline(api, new)
    assert api.rows("verify_invariants") == []
    api.complete(claim)
    other = api.spawn(queue, **options | {"placement": {"require": [away]}})
    assert api.claimed(node, queue, qty=9) == []
    reap(api)
    taken = api.granted(new, node, queue)
    assert api.rows("verify_invariants") == []
    api.complete(taken)
    reap(api)
    assert api.claimed(node, queue) == [other]
