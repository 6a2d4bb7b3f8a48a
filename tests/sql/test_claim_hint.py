"""claim_hint: after an empty claim, when to ask again and what is in the way."""

from datetime import timedelta

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.sql.api import NOBODY, Api

SECOND = timedelta(seconds=1)


def test_the_poll_interval(api: Api) -> None:
    slow, fast, node = api.queue(poll_interval=8), api.queue(poll_interval=3), api.node()
    row = api.row("claim_hint", queues=[slow], node=node.node_id)
    assert (row["retry_after"], row["reasons"]) == (8 * SECOND, {})
    row = api.row("claim_hint", queues=[slow, fast, slow], node=node.node_id)
    assert (row["retry_after"], row["reasons"]) == (3 * SECOND, {})


def test_what_becomes_due_sooner(api: Api, clock: Clock) -> None:
    queue, node = api.queue(poll_interval=60), api.node()
    api.spawn(queue, delay=25)
    api.spawn(queue, delay=10)
    for seconds, expected in [(0, 10), (4, 6), (20, 0)]:
        clock.advance(seconds * SECOND)
        row = api.row("claim_hint", queues=[queue], node=node.node_id)
        assert row["retry_after"] == expected * SECOND


def test_reasons_count_classes(api: Api) -> None:
    queue, node = api.queue(), api.node(labels={"zone": "a"}, capacity={"cpu_milli": 1})
    for zone in ("b", "b", "c"):
        api.spawn(queue, affinity_tags={"zone": zone})
    api.spawn(queue, affinity_tags={"gone": 1})
    api.needing(queue, cpu_milli=2)
    api.spawn(queue, affinity_tags={"zone": "d"}, delay=60)
    api.spawn(queue)
    reasons = api.row("claim_hint", queues=[queue], node=node.node_id)["reasons"]
    assert reasons == {"label_mismatch": 2, "label_missing": 1, "insufficient_capacity": 1}


def test_a_cordoned_node_and_a_paused_queue(api: Api) -> None:
    paused, queue, node = api.queue(), api.queue(), api.node()
    api.rows("pause_queue", queue=paused)
    api.rows("cordon_node", node=node.node_id)
    api.spawn(queue)
    reasons = api.row("claim_hint", queues=[paused, queue], node=node.node_id)["reasons"]
    assert reasons == {"node_draining": 1, "queue_paused": 1}
    row = api.row("claim_hint", queues=[paused], node=node.node_id)
    assert row["reasons"] == {"queue_paused": 1}
    assert row["retry_after"] > timedelta(0)


def test_bad_arguments(api: Api) -> None:
    node = api.node()
    refusal = api.refused("QHQ01", "claim_hint", queues=["nowhere"], node=node.node_id)
    assert refusal.detail["queue"] == "nowhere"
    api.refused("QHN01", "claim_hint", queues=[api.queue()], node=NOBODY)
    assert api.fault("claim_hint", queues=[], node=node.node_id) == "p_queues"


def test_a_term_that_is_not_in_force_yet_is_said(api: Api) -> None:
    """Claims leave such a class out; nothing runs that could exceed its limit."""
    queue, node = api.queue(), api.node(rack=1)
    spread = [{"domain": "rack", "max_per_domain": 1, "select": {"labels": {"app": "db"}}}]
    api.spawn(queue, labels={"app": "db"}, placement={"spread": spread})
    reasons = api.row("claim_hint", queues=[queue], node=node.node_id)["reasons"]
    assert reasons == {"unpublished": 1}
    Direct(api.conn).settle_terms()
    assert api.row("claim_hint", queues=[queue], node=node.node_id)["reasons"] == {}
