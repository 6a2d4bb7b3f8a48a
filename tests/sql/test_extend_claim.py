"""extend_claim: a new end, counted from now, earlier or later."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, token


@pytest.mark.parametrize("seconds", [1, 30, 600])
def test_the_new_end_holds(api: Api, clock: Clock, seconds: int) -> None:
    """Shortened, too: reap finds it as soon as it is over, not before."""
    claim = api.running(api.queue(claim_timeout=60))
    span = timedelta(seconds=seconds)
    end = api.value("extend_claim", **token(claim), extend=span)
    assert end == clock.now() + span == api.lease(claim["lease_id"])["expires_at"]
    clock.advance(span - timedelta(milliseconds=1))
    api.rows("reap")
    assert api.state(claim["lease_id"]) == "claimed"
    clock.advance(timedelta(milliseconds=1))
    api.rows("reap")
    assert api.state(claim["lease_id"]) == "pending"


def test_a_claim_asked_to_stop_can_be_extended(api: Api) -> None:
    claim = api.running(api.queue())
    api.rows("cancel_lease", lease=claim["lease_id"])
    assert api.value("extend_claim", **token(claim), extend=timedelta(minutes=5))
