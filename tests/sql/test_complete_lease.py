"""complete_lease: done, and what came of it."""

from datetime import timedelta
from typing import Any

import pytest

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


@pytest.mark.parametrize("result", [{"rows": 7}, [1, 2], "text", 0, False, {}])
def test_results_are_kept(api: Api, result: Any) -> None:
    claim = api.running(api.queue())
    api.rows("complete_lease", **token(claim), result=result)
    assert api.lease(claim["lease_id"])["result"] == result


def test_a_result_as_large_as_allowed(api: Api) -> None:
    claim = api.running(api.queue(max_result_bytes=100))
    assert api.value("complete_lease", **token(claim), result="x" * 98) == "completed"


def test_before_a_cancellation_has_taken_effect_it_wins(api: Api) -> None:
    claim = api.running(api.queue())
    assert api.value("cancel_lease", lease=claim["lease_id"]) == "claimed"
    assert api.value("complete_lease", **token(claim), result=1) == "completed"
    assert api.lease(claim["lease_id"])["result"] == 1
