"""Settling by lease and token: who may, and what the others are told."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, token

SETTLING: dict[str, Row] = {
    "complete_lease": {},
    "fail_lease": {"error": {}},
    "release_lease": {},
    "extend_claim": {"extend": timedelta(minutes=1)},
}
every = pytest.mark.parametrize(("function", "more"), SETTLING.items())


@every
def test_an_expired_claim_that_nobody_reaped(api: Api, clock: Clock, function: str, more: Row) -> None:
    """It settles like any other: a claim is lost by being granted anew, not by the clock."""
    claim = api.running(api.queue(claim_timeout=60, max_attempts=1))
    clock.advance(timedelta(hours=1))
    api.rows(function, **token(claim), **more)
    expected = {"complete_lease": "completed", "fail_lease": "failed", "extend_claim": "claimed"}
    assert api.state(claim["lease_id"]) == expected.get(function, "pending")


@every
@pytest.mark.parametrize("granted_anew", [False, True])
@pytest.mark.thorough
def test_reaped(api: Api, clock: Clock, function: str, more: Row, granted_anew: bool) -> None:
    queue = api.queue(claim_timeout=60)
    claim = api.running(queue)
    clock.advance(timedelta(seconds=61))
    api.rows("reap")
    if granted_anew:
        assert api.claimed(api.node(), queue) == [claim["lease_id"]]
    refusal = api.refused("QHL01", function, **token(claim), **more)
    assert refusal.detail == {
        "lease_id": str(claim["lease_id"]),
        "claim_token": claim["claim_token"],
        "state": "claimed" if granted_anew else "pending",
    }


def complete(api: Api, claim: Row) -> None:
    """The first settlement of the claim."""
    api.complete(claim)


def fail(api: Api, claim: Row) -> None:
    """The first settlement of the claim; no attempt is left."""
    api.rows("fail_lease", **token(claim), error={}, retry=False)


@every
@pytest.mark.parametrize("first", [complete, fail])
@pytest.mark.thorough
def test_the_second_settlement(api: Api, function: str, more: Row, first: Callable[[Api, Row], None]) -> None:
    claim = api.running(api.queue())
    first(api, claim)
    refusal = api.refused("QHL03", function, **token(claim), **more)
    assert refusal.detail["state"] == ("completed" if first is complete else "failed")


@every
@pytest.mark.parametrize("how", ["stopped", "waiting"])
@pytest.mark.thorough
def test_cancelled(api: Api, function: str, more: Row, how: str) -> None:
    """While it ran and its worker let go, or after the claim had ended."""
    claim = api.running(api.queue())
    if how == "stopped":
        api.rows("cancel_lease", lease=claim["lease_id"])
        api.rows("release_lease", **token(claim))
    else:
        api.rows("release_lease", **token(claim))
        api.rows("cancel_lease", lease=claim["lease_id"])
    refusal = api.refused("QHL02", function, **token(claim), **more)
    assert refusal.detail["state"] == "cancelled"


@every
@pytest.mark.parametrize("change", [1, 2**40, 2**62])
@pytest.mark.thorough
def test_a_token_that_was_never_granted(api: Api, function: str, more: Row, change: int) -> None:
    claim = api.running(api.queue())
    wrong = {"lease": claim["lease_id"], "token": claim["claim_token"] + change}
    assert api.refused("QHL05", function, **wrong, **more).detail["claim_token"] == wrong["token"]
    assert api.state(claim["lease_id"]) == "claimed"


@every
@pytest.mark.parametrize("wrong", [0, -1, None])
@pytest.mark.thorough
def test_no_token(api: Api, function: str, more: Row, wrong: int | None) -> None:
    claim = api.running(api.queue())
    api.refused("QHL05", function, lease=claim["lease_id"], token=wrong, **more)
    assert api.state(claim["lease_id"]) == "claimed"


@every
def test_a_lease_that_was_never_claimed(api: Api, function: str, more: Row) -> None:
    api.refused("QHL05", function, lease=api.spawn(api.queue()), token=1, **more)


@every
@pytest.mark.parametrize("lease", [NOBODY, None])
@pytest.mark.thorough
def test_no_such_lease(api: Api, function: str, more: Row, lease: UUID | None) -> None:
    refusal = api.refused("QHL04", function, lease=lease, token=1, **more)
    assert refusal.detail.get("lease_id") == (str(lease) if lease else None)


@every
def test_what_was_set_aside_is_free_again(api: Api, function: str, more: Row) -> None:
    """Of every kind, unless the claim goes on."""
    device = {"resource_id": str(uuid4()), "model": "T4"}
    node = api.node(capacity={"cpu_milli": 1000, "memory_mib": 100, "license": 1}, gpus=[device], slots=1)
    needs = {"cpu_milli": 1000, "memory_mib": 100, "license": 1, "gpu": 1}
    claim = api.running(api.queue(), node, placement={"resources": needs})
    queue = api.queue()
    api.spawn(queue)
    assert api.claim(node, queue) == []
    api.rows(function, **token(claim), **more)
    free = function != "extend_claim"
    row = api.used(node)
    assert row["used"].get("license", 0) == (0 if free else 1)
    assert row["gpus"][0]["milli_used"] == (0 if free else 1000)
    assert len(api.claim(node, queue)) == (1 if free else 0)


def bad(api: Api, function: str, **more: Any) -> str | None:
    """The field that is named when a running claim is settled so."""
    claim = api.running(api.queue(max_result_bytes=100))
    return api.fault(function, **token(claim), **more)


@pytest.mark.thorough
def test_bad_arguments(api: Api) -> None:
    assert bad(api, "complete_lease", result="x" * 99) == "result"
    assert bad(api, "fail_lease", error="it broke") == "settlement.error"
    assert bad(api, "fail_lease", error=["it broke"]) == "settlement.error"
    assert bad(api, "fail_lease", error={"message": "x" * 65536}) == "settlement.error"
    assert bad(api, "release_lease", delay=timedelta(seconds=-1)) == "settlement.delay"
    assert bad(api, "release_lease", delay=timedelta(days=3651)) == "settlement.delay"
    assert bad(api, "extend_claim", extend=timedelta(0)) == "p_extend"
    assert bad(api, "extend_claim", extend=timedelta(seconds=-60)) == "p_extend"
    assert bad(api, "extend_claim", extend=timedelta(days=3651)) == "p_extend"
    assert bad(api, "extend_claim", extend=None) == "p_extend"
