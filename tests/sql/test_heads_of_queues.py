"""The order of claims from several queues, by the heads of the queues or not."""

from uuid import UUID

import psycopg
import pytest

from tests.races.marks import NOWHERE
from tests.sql.api import Api, Node
from tests.sql.warm import WarmApi

pytestmark = pytest.mark.thorough


@pytest.fixture(params=["cold", "warm", "marked"])
def api(request: pytest.FixtureRequest, conn: psycopg.Connection) -> Api:
    """Nodes at their first claim, and such as have claimed before; from where a mark is, too."""
    if request.param == "marked":
        request.getfixturevalue("eager_marks")
    return Api(conn) if request.param == "cold" else WarmApi(conn)


def drained(api: Api, node: Node, *queues: str) -> list[UUID]:
    found: list[UUID] = []
    while taken := api.claimed(node, *queues):
        found += taken
    return found


def test_the_oldest_of_all_queues_goes_first(api: Api) -> None:
    """A queue may be named twice; more are named than a claim compares at once."""
    one, two, node = api.queue(), api.queue(), api.node()
    for queues in ((one, two), (one, two, one)):
        leases = [api.spawn(queue) for queue in (two, one, one, two, two, one)]
        assert drained(api, node, *queues) == leases
    many = [api.queue() for _ in range(20)]
    leases = [api.spawn(queue) for queue in (*many, *reversed(many))]
    assert drained(api, node, *many) == leases


def test_priority_goes_before_age(api: Api) -> None:
    one, two, node = api.queue(), api.queue(), api.node()
    plain, late, urgent = api.spawn(one), api.spawn(two), api.spawn(two, priority=3)
    last = api.spawn(one, priority=-1)
    assert drained(api, node, one, two) == [urgent, plain, late, last]


def test_queues_that_are_empty_or_paused(api: Api) -> None:
    """What nobody may run is passed at a head: what comes behind is compared with the other queue's."""
    one, two, empty, paused, node = *(api.queue() for _ in range(4)), api.node()
    api.spawn(paused)
    api.rows("pause_queue", queue=paused)
    leases = [api.spawn(one) for _ in range(3)]
    assert drained(api, node, empty, one) == leases[:3]
    leases = [api.spawn(one) for _ in range(2)]
    assert drained(api, node, empty, paused, one) == leases
    api.spawn(one, **NOWHERE)
    leases = [api.spawn(queue) for queue in (two, one, two, one)]
    assert drained(api, node, one, two) == leases


def test_only_its_tasks(api: Api) -> None:
    one, two, node = api.queue(), api.queue(), api.node()
    api.spawn(one, "other")
    mine = [api.spawn(two, "mine"), api.spawn(one, "mine")]
    found = [api.claimed(node, one, two, tasks=["mine"]) for _ in range(3)]
    assert found == [[mine[0]], [mine[1]], []]


def test_leases_of_one_node_in_one_of_them(api: Api) -> None:
    """A lease that names the node is not in what its profile may run, and may be liked better."""
    one, two, node = api.queue(), api.queue(), api.node(labels={"zone": "a"})
    mine = {"require": [{"node": str(node.node_id)}]}
    liked = {"prefer": [{"weight": 50, "when": {"tags": {"zone": "a"}}}]}
    known = {api.spawn(one), *(api.spawn(two, placement=each) for each in ({}, mine, mine | liked))}
    assert set(drained(api, node, one, two)) == known
    leases = [api.spawn(queue) for queue in (one, two)]
    named = [api.spawn(two, placement=mine | liked), api.spawn(two, placement=mine)]
    assert drained(api, node, one, two) == [named[0], *leases, named[1]]


def test_settle_and_claim_takes_the_same(api: Api) -> None:
    one, two, node = api.queue(), api.queue(), api.node()
    leases = [api.spawn(queue) for queue in (two, one, two)]
    found: list[UUID] = []
    done: dict[str, list[object]] = {"completed": [], "completed_tokens": []}
    for _ in leases:
        [row] = api.rows("settle_and_claim", **node.who, settle=[], queues=[one, two], **done)
        found.append(row["lease_id"])
        done = {"completed": [row["lease_id"]], "completed_tokens": [row["claim_token"]]}
    assert found == leases
    assert api.rows("settle_and_claim", **node.who, settle=[], queues=[one, two], **done) == []
    assert {api.state(lease) for lease in leases} == {"completed"}
