"""complete_lease: done, and what came of it."""

from datetime import timedelta
from typing import Any

from hwqueue.testing import Clock
from tests.sql.api import Api, token


def test_it_is_done(api: Api, clock: Clock) -> None:
    node = api.node()
    claim = api.running(api.queue(), node)
    claimed_at = clock.now()
    clock.advance(timedelta(seconds=7))
    assert api.value("complete_lease", **token(claim)) == "completed"
    lease = api.lease(claim["lease_id"])
    expected = {
        "state": "completed",
        "attempt": 1,
        "claim_token": claim["claim_token"],
        "node_id": node.node_id,
        "claimed_at": claimed_at,
        "finished_at": clock.now(),
        "expires_at": None,
        "result": None,
        "error": None,
        "attempts": [],
    }
    assert {key: lease[key] for key in expected} == expected


def test_results_are_kept(api: Api) -> None:
    """As large as allowed, too."""
    results: list[Any] = [{"rows": 7}, [1, 2], "x" * 98, 0, False, {}]
    for result in results:
        claim = api.running(api.queue(max_result_bytes=100))
        assert api.value("complete_lease", **token(claim), result=result) == "completed"
        assert api.lease(claim["lease_id"])["result"] == result


def test_before_a_cancellation_has_taken_effect_it_wins(api: Api) -> None:
    claim = api.running(api.queue())
    assert api.value("cancel_lease", lease=claim["lease_id"]) == "claimed"
    assert api.value("complete_lease", **token(claim), result=1) == "completed"
    assert api.lease(claim["lease_id"])["result"] == 1
