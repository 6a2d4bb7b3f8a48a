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

GPU: Row = {"placement": {"resources": {"gpu": 1}}}
OTHER_NODE: Row = {"placement": {"require": [{"label": "kind", "op": "in", "values": ["other"]}]}}


def reap(api: Api) -> None:
    """As upkeep does about once a second; several times, since changes make others."""
    for _ in range(3):
        api.rows("reap")


def gpu_node(api: Api, gpus: int = 1, **spec: Any) -> Node:
    return api.node(gpus=[{"resource_id": str(uuid4())} for _ in range(gpus)], **spec)


def replacing(api: Api, queue: str, old: UUID, /, then: str = "cancel", **options: Any) -> UUID:
    """Spawn a lease that replaces another one; its id."""
    overlap = options.pop("overlap", False)
    spec = {"lease": str(old), "then": then, "overlap": overlap}
    lease = api.spawn(queue, replaces=spec, **options)
    assert api.state(lease) == "scheduled"
    return lease


def headline(api: Api, lease: UUID) -> str:
    found = api.row("explain_lease", lease=lease)["headline"]
    assert isinstance(found, str)
    return found


def test_what_has_to_hold_while_the_new_one_runs_is_noted(api: Api) -> None:
    queue, node = api.queue(), gpu_node(api, labels={"disk": "ssd"})
    old = api.running(queue, node, **GPU)
    lasting = [{"label": "disk", "op": "exists", "during": "execution"}]
    asks: Row = {"placement": {**GPU["placement"], "require": lasting}}
    new = replacing(api, queue, old["lease_id"], **asks)
    reap(api)
    assert api.rows("verify_invariants") == []
    api.rows("release_lease", **token(old))
    reap(api)
    assert api.claimed(node, queue) == [new]
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize(("then", "ends"), [("cancel", "cancelled"), ("requeue", "pending")])
def test_it_takes_the_room_of_the_other_one(api: Api, then: str, ends: str) -> None:
    queue, node = api.queue(), gpu_node(api)
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
    api.rows("complete_lease", **token(taken))
    reap(api)
    assert api.claimed(node, queue) == [waiting]
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize(
    ("options", "why"),
    [(OTHER_NODE, "may not run this one"), ({"placement": {"resources": {"gpu": 2}}}, "no room")],
)
def test_nothing_stops_where_the_new_one_may_not_run(api: Api, options: Row, why: str) -> None:
    queue, node = api.queue(), gpu_node(api, 2)
    claim, _ = (api.running(queue, node, **GPU) for _ in range(2))
    new = replacing(api, queue, claim["lease_id"], **options)
    reap(api)
    assert why in headline(api, new)
    assert api.lease(claim["lease_id"])["stop_reason"] is None
    api.rows("complete_lease", **token(claim))
    api.conn.execute("update hwqueue.replacement set next_try_at = '-infinity'")
    reap(api)  # what it was to replace has ended: it runs wherever it may
    assert api.state(new) == "pending"


def test_terms_about_others_are_those_without_the_old_one(api: Api) -> None:
    """Kept apart from its own kind it may replace one of it, but not beside another one."""
    queue = api.queue()
    apart: Row = {
        "labels": {"app": queue},
        "placement": {
            "require": [
                {"leases": {"labels": {"app": queue}}, "domain": "rack", "away": True},
            ]
        },
    }
    racks = [api.node(rack=rack) for rack in (7101, 7102)]
    api.spawn(queue, **apart)
    Direct(api.conn).settle_terms()
    [claim] = api.claim(racks[0], queue)
    new = replacing(api, queue, claim["lease_id"], **apart)
    reap(api)
    assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
    api.rows("release_lease", **token(claim))
    reap(api)
    assert api.claimed(racks[0], queue) == [new]
    assert api.rows("verify_invariants") == []
    beside = api.running(queue, racks[0])
    other = replacing(api, queue, beside["lease_id"], **apart)
    reap(api)
    assert "anti_affinity_conflict" in headline(api, other)
    assert api.lease(beside["lease_id"])["stop_reason"] is None


def test_beside_it_where_there_is_room_for_both(api: Api) -> None:
    queue, node = api.queue(), gpu_node(api, 2)
    claim = api.running(queue, node, **GPU)
    new = replacing(api, queue, claim["lease_id"], overlap=True, **GPU)
    reap(api)
    assert api.lease(claim["lease_id"])["stop_reason"] is None
    assert api.claimed(node, queue) == [new]
    reap(api)
    assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
    assert api.rows("verify_invariants") == []


def test_it_stops_first_where_there_is_no_room_for_both(api: Api) -> None:
    """Of a worker's places, too."""
    queue, node = api.queue(), api.node(concurrency=1)
    claim = api.running(queue, node)
    new = replacing(api, queue, claim["lease_id"], overlap=True)
    reap(api)
    assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
    assert api.claimed(node, queue) == []
    api.rows("release_lease", **token(claim))
    reap(api)
    assert api.claimed(node, queue) == [new]


@pytest.mark.parametrize(("then", "ends"), [("cancel", "cancelled"), ("requeue", "pending")])
def test_one_that_waits_is_held_until_the_new_one_runs(api: Api, then: str, ends: str) -> None:
    queue = api.queue(ageing_step="1 minute")
    old = api.spawn(queue, **GPU)
    new = replacing(api, queue, old, then)
    reap(api)
    assert headline(api, old) == f"held back: lease {new} takes its place once it is claimed"
    assert api.claimed(gpu_node(api), queue, qty=9) == [new]
    reap(api)
    assert api.state(old) == ends
    if then == "cancel":
        assert api.lease(old)["error"]["reason"] == "replaced"
    assert api.rows("verify_invariants") == []


def test_one_that_was_held_waits_on_when_the_new_one_ends_before_it_runs(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node()
    old = api.spawn(queue, delay=3600)
    new = replacing(api, queue, old, **OTHER_NODE)
    reap(api)
    assert api.claimed(node, queue) == []
    api.rows("cancel_lease", lease=new)
    reap(api)
    assert api.state(old) == "scheduled"
    clock.advance(timedelta(hours=2))
    assert api.claimed(node, queue) == [old]
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize("held", ["new", "old"])
def test_what_verify_invariants_finds(api: Api, held: str) -> None:
    """A lease that waits for another's place, or is held back for one, and never would be due."""
    queue = api.queue()
    old = api.spawn(queue, **GPU)
    new = replacing(api, queue, old)
    if held == "old":
        reap(api)
    with api.conn.transaction(force_rollback=True):
        api.conn.execute("delete from hwqueue.replacement where lease_id = %s", [new])
        found = [(row["rule"], row["subject"]) for row in api.rows("verify_invariants")]
    assert found == [("held_lease", str(old if held == "old" else new))]
    assert api.rows("verify_invariants") == []


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
    assert api.rows("verify_invariants") == []


def test_what_is_cancelled_while_its_room_is_kept(api: Api) -> None:
    queue, node = api.queue(), gpu_node(api)
    claim = api.running(queue, node, **GPU)
    new = replacing(api, queue, claim["lease_id"], "requeue", **GPU)
    reap(api)
    api.rows("cancel_lease", lease=new)
    reap(api)
    assert api.state(new) == "cancelled"
    api.rows("release_lease", **token(claim))
    assert api.claimed(node, queue) == [claim["lease_id"]]
    assert api.rows("verify_invariants") == []


def test_a_place_that_is_not_fetched(api: Api, clock: Clock) -> None:
    """It then waits in line, wherever it may run."""
    queue, node = api.queue(), gpu_node(api)
    claim = api.running(queue, node, **GPU)
    new = replacing(api, queue, claim["lease_id"], **GPU)
    reap(api)
    api.rows("release_lease", **token(claim))
    reap(api)
    clock.advance(timedelta(seconds=60))
    reap(api)
    assert api.state(new) == "pending"
    assert api.claimed(gpu_node(api), queue) == [new]
    assert api.rows("verify_invariants") == []


def test_what_is_refused(api: Api) -> None:
    queue = api.queue()
    old, own = str(api.spawn(queue)), str(uuid4())
    of_gang = api.rows("spawn_gang", queue=queue, members=Jsonb([{"task": "t", "count": 2}]))
    replacing(api, queue, UUID(old))
    refused: dict[str, list[Row]] = {
        "QHL04": [
            {"replaces": {"lease": str(uuid4())}},
            {"replaces": {"lease": old}, "tenant": "x"},
        ],
        "QHA01": [
            {"replaces": {"lease": old}},  # twice
            {"replaces": {"lease": str(of_gang[0]["lease_id"])}},
            {"replaces": {"lease": own}, "lease_id": own},
            {"replaces": {}},
            {"replaces": {"lease": old, "service": str(uuid4())}},
            {"replaces": {"service": str(uuid4())}, "delay": 5},
            {"replaces": {"service": str(uuid4())}, "one_of": str(uuid4())},
        ],
    }
    for code, all_options in refused.items():
        for options in all_options:
            with refusing(code):
                api.spawn(queue, **options)


def test_a_circle_in_a_batch_is_refused(api: Api) -> None:
    queue, one, two = api.queue(), str(uuid4()), str(uuid4())
    batch = [
        {"task": "t", "options": {"lease_id": one, "replaces": {"lease": two}}},
        {"task": "t", "options": {"lease_id": two, "replaces": {"lease": one}}},
    ]
    refusal = api.refused("QHA01", "spawn_leases", queue=queue, leases=Jsonb(batch))
    assert "circle" in refusal.message


def test_a_chain_goes_one_after_the_other(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    second = replacing(api, queue, claim["lease_id"])
    third = replacing(api, queue, second)
    reap(api)
    assert "waits for a place itself" in headline(api, third)
    api.rows("release_lease", **token(claim))
    reap(api)
    [taken] = api.claim(node, queue)
    assert taken["lease_id"] == second
    reap(api)
    assert api.lease(second)["stop_reason"] == "cancelled"
    assert api.rows("verify_invariants") == []


def test_its_terms_count_from_the_moment_that_it_is_earmarked(api: Api) -> None:
    """It may take the place of a lease that would keep it away, and nobody else may."""
    queue, node, app = api.queue(), gpu_node(api), f"app-{uuid4()}"
    away = {"leases": {"labels": {"app": app}}, "domain": "node", "away": True}
    options: Row = {
        "placement": {"resources": {"gpu": 1}, "require": [away]},
        "labels": {"app": app},
    }
    api.spawn(queue, **options)
    claim = api.claim_published(node, queue)
    new = replacing(api, queue, claim["lease_id"], **options)
    reap(api)
    assert "that one is asked to stop" in headline(api, new)
    assert api.rows("verify_invariants") == []
    api.rows("complete_lease", **token(claim))
    other = api.spawn(queue, **options | {"placement": {"require": [away]}})
    assert api.claimed(node, queue, qty=9) == []
    reap(api)
    [taken] = api.claim(node, queue)
    assert taken["lease_id"] == new
    assert api.rows("verify_invariants") == []
    api.rows("complete_lease", **token(taken))
    reap(api)
    assert api.claimed(node, queue) == [other]
    assert api.rows("verify_invariants") == []
