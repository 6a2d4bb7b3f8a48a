"""Suspended leases that prefer the node where their handler was."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step
from tests.sql.api import Api, settlement, token

LONG_AGO = "2001-01-01 00:00:00+00"


class Shop:
    """A queue whose leases wait a minute for a better node, and two nodes."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.api = api
        self.queue = api.queue(patience=60, max_attempts=9, retry={"kind": "fixed", "base": 0})
        self.nodes = [api.node(), api.node()]
        self.lease = api.spawn(self.queue, **options)

    def claim(self, node: int) -> Row:
        [row] = self.api.claim(self.nodes[node], self.queue)
        assert row["lease_id"] == self.lease
        return row

    def suspend(self, node: int, near: str | None = "self") -> None:
        """Let a node run it until its handler sleeps, until a time that is over."""
        claim = self.claim(node)
        state = self.api.value("suspend_lease", **token(claim), until=LONG_AGO, near=near)
        assert state == "pending"

    def prefers(self) -> list[UUID]:
        wishes = self.api.lease(self.lease)["placement"].get("prefer", [])
        return [UUID(wish["when"][0]["node"][0]) for wish in wishes]

    def waits_for(self) -> int:
        """The node that gets it while the other one asks first."""
        for node in (0, 1):
            if self.api.claim(self.nodes[node], self.queue):
                return node
        raise AssertionError("nobody may have it")


@pytest.mark.parametrize("node", [0, 1])
def test_it_waits_for_the_node_that_it_was_on(api: Api, node: int) -> None:
    """Whether it says so alone or in a batch of settlements."""
    shop = Shop(api)
    shop.suspend(node)
    assert shop.prefers() == [shop.nodes[node].node_id]
    assert shop.waits_for() == node
    other = Shop(api)
    claim = other.claim(node)
    waits = settlement(claim, "suspend", signal="go", near="self")
    api.rows("settle_and_claim", **other.nodes[node].who, settle=[waits], queues=[other.queue], qty=0)
    assert other.prefers() == [other.nodes[node].node_id]
    claim = Shop(api).claim(0)
    for near in ("", "rack", "x"):
        refusal = api.refused("QHA01", "suspend_lease", **token(claim), signal="go", near=near)
        assert refusal.field == "settlement.near"


def test_another_node_takes_it_when_its_patience_is_over(api: Api, clock: Clock) -> None:
    """From then on that is the node which it prefers, also with as many expressions as fit beside one."""
    own = [{"label": f"l{n}", "op": "does_not_exist"} for n in range(199)]
    shop = Shop(api, placement={"require": [*own[:99], {"any": [own[99:]]}]})
    shop.suspend(0)
    assert api.claim(shop.nodes[1], shop.queue) == []
    clock.advance(timedelta(seconds=61))
    shop.nodes = [api.node(node.node_id, name=node.name, instance_id="2") for node in shop.nodes]
    shop.suspend(1)
    assert shop.prefers() == [shop.nodes[1].node_id]


def test_the_preference_is_for_one_claim(api: Api, clock: Clock) -> None:
    """Whichever way that ends."""
    shop = Shop(api)
    plain = api.lease(shop.lease)["placement"]
    shop.suspend(0)
    shop.suspend(0, near=None)
    assert (shop.prefers(), api.lease(shop.lease)["placement"]) == ([], plain)
    for end in ("fail_lease", "release_lease", "requeue_lease", "reap"):
        shop.suspend(0)
        assert shop.prefers() == [shop.nodes[0].node_id]
        claim = shop.claim(0)
        if end == "reap":
            api.reap_after(clock, timedelta(hours=1))
        elif end == "release_lease":
            api.rows(end, **token(claim))
        else:
            api.rows("fail_lease", **token(claim), error={}, retry=end == "fail_lease")
        if end == "requeue_lease":
            api.rows(end, lease=shop.lease)
        assert (api.state(shop.lease), shop.prefers()) == ("pending", [])


def test_leases_of_a_node_share_a_class(api: Api) -> None:
    """And a placement that is full is left as it is."""
    shop = Shop(api)
    shop.suspend(0)
    before = api.contents()["placement_class"]
    shop.lease, first = api.spawn(shop.queue), shop.lease
    api.rows("cancel_lease", lease=first)
    shop.suspend(0)
    assert api.contents()["placement_class"] == before
    wishes = [{"when": [{"label": "zone", "op": "in", "values": [n]}], "weight": 1} for n in range(100)]
    shop = Shop(api, placement={"prefer": wishes})
    plain = api.lease(shop.lease)["placement"]
    shop.suspend(0)
    assert api.lease(shop.lease)["placement"] == plain


def test_what_a_lease_prefers_by_itself_stays(api: Api) -> None:
    """Also where its placement is changed meanwhile."""
    own = {"prefer": [{"when": [{"label": "zone", "op": "in", "values": ["a"]}], "weight": 5}]}
    shop = Shop(api, placement=own)
    plain = api.lease(shop.lease)["placement"]
    shop.suspend(0)
    assert len(api.lease(shop.lease)["placement"]["prefer"]) == 2
    shop.suspend(0, near=None)
    assert api.lease(shop.lease)["placement"] == plain
    shop = Shop(api)
    shop.suspend(0)
    api.rows("update_lease", lease=shop.lease, changes={"priority": 3})
    assert shop.prefers() == [shop.nodes[0].node_id]
    wish = {"when": [{"node": [str(shop.nodes[0].node_id)]}], "weight": 100}
    api.rows("update_lease", lease=shop.lease, changes={"placement": {"prefer": [wish]}})
    for near in (None, "self", None):
        shop.suspend(0, near=near)
        assert shop.prefers() == [shop.nodes[0].node_id], "it has always preferred that node"


def test_a_step_that_a_retry_runs_again_prefers_no_node(api: Api) -> None:
    flow = Flow(api, [step("a")])
    [claim] = flow.claims().values()
    api.rows("suspend_lease", **token(claim), signal="go", near="self")
    api.rows("signal_lease", lease=claim["lease_id"], name="go")
    assert api.lease(claim["lease_id"])["placement"]["prefer"]
    flow.complete("a")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    assert api.lease(claim["lease_id"])["placement"] == {}
    [claim] = flow.claims().values()
    api.rows("release_lease", **token(claim))
    assert api.lease(claim["lease_id"])["placement"] == {}
