"""claim_hint: after an empty claim, when to ask again and what is in the way."""

from datetime import timedelta

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node

SECOND = timedelta(seconds=1)


def hint(api: Api, node: Node, *queues: str) -> tuple[timedelta, Row]:
    """When to ask again, and the reasons."""
    row = api.row("claim_hint", queues=list(queues), node=node.node_id)
    return row["retry_after"], row["reasons"]


def test_the_poll_interval(api: Api) -> None:
    slow, fast, node = api.queue(poll_interval=8), api.queue(poll_interval=3), api.node()
    assert hint(api, node, slow) == (8 * SECOND, {})
    assert hint(api, node, slow, fast, slow) == (3 * SECOND, {})
    refusal = api.refused("QHQ01", "claim_hint", queues=[slow, "nowhere"], node=node.node_id)
    assert refusal.detail["queue"] == "nowhere"
    api.refused("QHN01", "claim_hint", queues=[slow], node=NOBODY)
    assert api.fault("claim_hint", queues=[], node=node.node_id) == "p_queues"


def test_what_becomes_due_sooner(api: Api, clock: Clock) -> None:
    queue, node = api.queue(poll_interval=60), api.node()
    api.spawn(queue, delay=25)
    api.spawn(queue, delay=10)
    for seconds, expected in [(0, 10), (4, 6), (20, 0)]:
        clock.advance(seconds * SECOND)
        assert hint(api, node, queue)[0] == expected * SECOND


def test_reasons_count_classes(api: Api) -> None:
    """Of a node that suits some, of a cordoned one and a paused queue, and beside a new term."""
    queue, node = api.queue(), api.node(labels={"zone": "a"}, capacity={"cpu_milli": 1})
    for zone in ("b", "b", "c"):
        api.spawn(queue, affinity_tags={"zone": zone})
    api.spawn(queue, affinity_tags={"gone": 1})
    api.needing(queue, cpu_milli=2)
    api.spawn(queue, affinity_tags={"zone": "d"}, delay=60)
    api.spawn(queue)
    assert hint(api, node, queue)[1] == {"label_mismatch": 2, "label_missing": 1, "insufficient_capacity": 1}
    paused, queue, node = api.queue(), api.queue(), api.node()
    api.rows("pause_queue", queue=paused)
    api.rows("cordon_node", node=node.node_id)
    api.spawn(queue)
    assert hint(api, node, paused, queue)[1] == {"node_draining": 1, "queue_paused": 1}
    assert hint(api, node, paused) == (SECOND, {"queue_paused": 1})
    queue, node = api.queue(poll_interval=60), api.node(rack=1)  # a term that is not in force yet
    spread = [{"domain": "rack", "max_per_domain": 1, "select": {"labels": {"app": "db"}}}]
    api.spawn(queue, labels={"app": "db"}, placement={"spread": spread})
    assert hint(api, node, queue) == (0 * SECOND, {"unpublished": 1})
    api.settle_terms()
    assert hint(api, node, queue)[1] == {}
