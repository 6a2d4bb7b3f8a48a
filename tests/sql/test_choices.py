"""Alternatives: of leases and gangs with the same `one_of` the first that gets room runs."""

from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, outlive, token

pytestmark = pytest.mark.usefixtures("sound")

BIG: Row = {"placement": {"require": [{"label": "gpu", "op": "in", "values": ["a100"]}]}}
SMALL: Row = {"placement": {"require": [{"label": "gpu", "op": "in", "values": ["v100"]}]}}


def two(api: Api, queue: str, **options: Any) -> tuple[str, UUID, UUID]:
    """Two alternatives; the choice, the one for an A100 and the one for a V100."""
    choice = str(uuid4())
    big = api.spawn(queue, **BIG, one_of=choice, **options)
    return choice, big, api.spawn(queue, **SMALL, one_of=choice, **options)


def small_node(api: Api) -> Node:
    return api.node(labels={"gpu": "v100"})


def big_node(api: Api) -> Node:
    return api.node(labels={"gpu": "a100"})


def gang_of_two(api: Api, queue: str, choice: str, gpus: int) -> UUID:
    """An alternative that is a gang, whose two members want GPUs each of a node for this queue."""
    own = {"label": "for", "op": "in", "values": [queue]}
    options = {"placement": {"require": [own], "resources": {"gpu": gpus}}}
    rows = api.rows(
        "spawn_gang",
        queue=queue,
        members=Jsonb([{"task": "train", "count": 2, "options": options}]),
        options={"one_of": choice},
    )
    found = rows[0]["gang_id"]
    assert isinstance(found, UUID)
    return found


def gang_node(api: Api, queue: str, gpus: int) -> Node:
    return api.node(labels={"for": queue}, gpus=[{"resource_id": str(uuid4())} for _ in range(gpus)])


def test_the_first_claimed_runs_and_the_other_never(api: Api) -> None:
    queue, big, small = api.queue(), big_node(api), small_node(api)
    choice, other, taken = two(api, queue)
    plain = api.spawn(queue, **BIG)
    api.granted(taken, small, queue)
    assert api.row("explain_lease", lease=other)["code"] == "choice_taken"
    assert api.claimed(big, queue, qty=9) == [plain]  # upkeep has not been here yet
    api.reap()
    found = api.lease(other)
    assert found["state"] == "cancelled"
    expected = {"reason": "choice_taken", "one_of": choice, "taken": str(taken)}
    assert found["error"].items() >= expected.items()
    assert api.state(taken) == "claimed"


def test_one_claim_takes_one_alternative(api: Api) -> None:
    """Also when a node could run several, and of many choices one each."""
    queue, node = api.queue(), api.node(labels={"gpu": "v100"}, concurrency=9)
    leases = [api.spawn(queue, **SMALL, one_of=str(uuid4())) for _ in range(2)]
    choice = str(uuid4())
    first, second = (api.spawn(queue, **SMALL, one_of=choice, idempotency_key=key) for key in "ab")
    assert api.spawn(queue, **SMALL, one_of=choice, idempotency_key="a") == first
    assert api.claimed(node, queue, qty=9) == [*leases, first]
    api.reap()
    assert api.state(second) == "cancelled"


def test_what_was_taken_is_the_choice_for_good(api: Api, clock: Clock) -> None:
    """It waits for its retry and runs again; once it is dead the choice has ended."""
    queue = api.queue(retry={"kind": "fixed", "base": 5})
    big, small = big_node(api), small_node(api)
    _, other, taken = two(api, queue, max_attempts=2)
    [claim] = api.claim(small, queue)
    assert api.value("fail_lease", **token(claim), error=Jsonb({})) == "scheduled"
    assert api.claimed(big, queue) == []
    api.reap()
    assert api.state(other) == "cancelled"
    clock.advance(timedelta(seconds=30))
    claim = api.granted(taken, small, queue)
    assert api.value("fail_lease", **token(claim), error=Jsonb({})) == "failed"
    refusal = api.refused("QHL03", "requeue_lease", lease=other)
    assert refusal.detail["taken"] == str(taken)
    [page] = api.rows("requeue_leases", filter={"queue": queue, "state": "cancelled"})
    assert (page["changed"], page["skipped"]) == ([], [other])
    assert api.value("requeue_failed", queue=queue) == 1
    assert api.claimed(small, queue) == [taken]


def test_an_alternative_that_ends_unclaimed_leaves_the_others(api: Api, clock: Clock) -> None:
    queue, small = api.queue(), small_node(api)
    choice, cancelled, taken = two(api, queue)
    api.rows("cancel_lease", lease=cancelled)
    soon = (clock.now() + timedelta(seconds=5)).isoformat()
    late = api.spawn(queue, **BIG, one_of=choice, deadline=soon)
    clock.advance(timedelta(seconds=6))
    api.reap()
    assert api.state(late) == "failed"
    assert "the first of 3 alternatives runs" in api.row("explain_lease", lease=taken)["headline"]
    assert api.claimed(small, queue) == [taken]
    assert api.value("requeue_failed", queue=queue) == 0  # another was taken


def test_one_that_is_added_after_the_choice_is_cancelled(api: Api, clock: Clock) -> None:
    """However long after it: the marks of upkeep have passed what was taken then."""
    queue, big, small = api.queue(), big_node(api), small_node(api)
    choice, _, taken = two(api, queue)
    assert api.claimed(small, queue) == [taken]
    for _ in range(3):
        clock.advance(timedelta(seconds=1))
        outlive(api.conn)
        api.rows("reap")
    late = api.spawn(queue, **BIG, one_of=choice)
    assert api.claimed(big, queue) == []
    api.reap()
    assert api.state(late) == "cancelled"


def test_alternatives_stay_what_they_are(api: Api) -> None:
    """A change of one, another queue, and a term that names it."""
    queue, other_queue = api.queue(), api.queue()
    node = api.node(labels={"gpu": "v100"})
    _, changed, moved = two(api, queue)
    api.rows("update_lease", lease=changed, changes=SMALL)
    api.rows("update_lease", lease=moved, changes={"queue": other_queue})
    follower = api.spawn(queue, placement={"require": [{"lease": str(moved), "domain": "node"}]})
    api.settle_terms()
    assert api.claimed(node, other_queue) == [moved]
    assert api.claimed(node, queue, qty=9) == [follower]
    api.reap()
    assert api.state(changed) == "cancelled"


def test_a_gang_and_a_lease(api: Api, queue: str) -> None:
    """Whichever has room first: reserving takes the choice, and a claim does."""
    node = gang_node(api, queue, 2)
    choices = [str(uuid4()) for _ in range(2)]
    gangs = [gang_of_two(api, queue, choices[each], each + 1) for each in range(2)]
    leases = [api.spawn(queue, **SMALL, one_of=choice) for choice in choices]
    api.reap()
    states = [api.row("get_gang", gang=gang)["state"] for gang in gangs]
    assert states == ["reserved", "waiting"]  # two GPUs for each member of the other: no room
    assert api.state(leases[0]) == "cancelled"
    assert len(api.claim(node, queue, qty=9)) == 2
    assert api.claimed(small_node(api), queue, qty=9) == [leases[1]]
    api.reap()
    found = api.row("get_gang", gang=gangs[1])
    assert (found["state"], found["reason"]) == ("cancelled", "choice_taken")


def test_a_gang_that_had_no_room_has_taken_nothing(api: Api, queue: str) -> None:
    choice = str(uuid4())
    gang_of_two(api, queue, choice, 1)
    lease = api.spawn(queue, **SMALL, one_of=choice)
    gang_node(api, queue, 1)
    api.reap()
    assert api.claimed(small_node(api), queue) == [lease]


def test_adopted_work_takes_its_choice(api: Api) -> None:
    queue, node = api.queue(), small_node(api)
    choice, other, _ = two(api, queue)
    api.rows("adopt_lease", queue=queue, node=node.node_id, task="t", options={"one_of": choice})
    assert api.claimed(big_node(api), queue) == []
    api.reap()
    assert api.state(other) == "cancelled"
    again = {"queue": queue, "node": node.node_id, "task": "t", "options": {"one_of": choice}}
    api.refused("QHL03", "adopt_lease", **again)


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        ("choice_taken", "update hwqueue.choice set taken = null where taken = any (%s)"),
        (
            "choice_class",
            "update hwqueue.choice set members = array_remove(members, taken) where taken = any (%s)",
        ),
    ],
)
def test_what_verify_invariants_finds(api: Api, queue: str, rule: str, planted: LiteralString) -> None:
    """A lease, and a gang whose room is kept; a gang has no class of its own."""
    _, _, taken = two(api, queue)
    assert api.claimed(small_node(api), queue) == [taken]
    gang_node(api, queue, 2)
    gang = gang_of_two(api, queue, str(uuid4()), 1)
    api.reap()
    found = api.breaks(planted, [taken, gang])
    subjects = {str(taken), str(gang)} if rule == "choice_taken" else {str(taken)}
    assert found == {(rule, subject) for subject in subjects}


def test_what_is_refused(api: Api) -> None:
    """A choice is of one tenant and has a hundred alternatives, and none of them is unique."""
    queue, choice = api.queue(), str(uuid4())
    batch = [{"task": "t", "options": {"one_of": choice, "tenant": "a"}}] * 100
    api.rows("spawn_leases", queue=queue, leases=batch)
    refused: list[Row] = [{"one_of": choice, "tenant": tenant} for tenant in ("a", "b")]
    unique = {"one_of": str(uuid4()), "unique": {"key": "k"}}
    for options in [*refused, {"one_of": "x"}, {"one_of": True}, unique]:
        assert api.fault("spawn_lease", queue=queue, task="t", options=options) == "options.one_of"


def test_choices_go_with_their_leases(api: Api, clock: Clock) -> None:
    queue = api.queue(retain_completed="1 minute", retain_failed="1 minute")
    node = small_node(api)
    choice, _, taken = two(api, queue)
    kept, _, _ = two(api, queue)
    claim = api.granted(taken, node, queue)
    api.reap()
    api.complete(claim)
    for _ in range(3):
        api.reap_after(clock, timedelta(minutes=11))
        api.rows("prune")
    left = {str(id_) for (id_,) in api.conn.execute("select choice_id from hwqueue.choice")}
    assert (choice in left, kept in left) == (False, True)
