"""extend_claim: a new end, counted from now, earlier or later."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, beat, token


@pytest.mark.parametrize("seconds", [1, 30, 600])
def test_the_new_end_holds(api: Api, clock: Clock, seconds: int) -> None:
    """Shortened, too: reap finds it as soon as it is over, not before."""
    claim = api.running(api.queue(claim_timeout=60))
    span = timedelta(seconds=seconds)
    end = api.value("extend_claim", **token(claim), extend=span)
    assert end == clock.now() + span == api.lease(claim["lease_id"])["expires_at"]
    api.reap_after(clock, span - timedelta(milliseconds=1))
    assert api.state(claim["lease_id"]) == "claimed"
    api.reap_after(clock, timedelta(milliseconds=1))
    assert api.state(claim["lease_id"]) == "pending"


def test_there_is_an_end_to_it(api: Api) -> None:
    claim = api.running(api.queue())
    assert api.value("extend_claim", **token(claim), extend=timedelta(days=30))
    too_long = timedelta(days=30, seconds=1)
    refusal = api.refused("QHA01", "extend_claim", **token(claim), extend=too_long)
    assert (refusal.field, "30 days" in refusal.message) == ("p_extend", True)


@pytest.mark.parametrize("when", ["before", "after", "by a heartbeat"])
def test_a_cancelled_claim_ends(api: Api, clock: Clock, when: str) -> None:
    """However long it was extended: a worker that does not stop loses it after its timeout."""
    queue, node = api.queue(claim_timeout=60), api.node()
    claim = api.running(queue, node)
    month = timedelta(days=30)
    if when == "before":
        api.rows("extend_claim", **token(claim), extend=month)
    api.rows("cancel_lease", lease=claim["lease_id"])
    if when == "after":
        assert api.value("extend_claim", **token(claim), extend=month)
    elif when == "by a heartbeat":
        api.rows("heartbeat_node", **node.who, claims=beat(claim), extend=month)
    api.reap_after(clock, timedelta(seconds=61))
    assert api.state(claim["lease_id"]) == "cancelled"
