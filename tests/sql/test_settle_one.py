"""Settling by lease and token: who may, and what the others are told."""

from datetime import timedelta
from uuid import uuid4

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
    api.reap_after(clock, timedelta(seconds=61))
    if granted_anew:
        assert api.claimed(api.node(), queue) == [claim["lease_id"]]
    refusal = api.refused("QHL01", function, **token(claim), **more)
    assert refusal.detail == {
        "lease_id": str(claim["lease_id"]),
        "claim_token": claim["claim_token"],
        "state": "claimed" if granted_anew else "pending",
    }


@every
@pytest.mark.parametrize(
    ("state", "calls"),
    [
        ("completed", ["complete_lease"]),
        ("failed", ["fail_lease"]),
        ("cancelled", ["cancel_lease", "release_lease"]),
        ("cancelled", ["release_lease", "cancel_lease"]),
    ],
)
@pytest.mark.thorough
def test_after_its_end(api: Api, function: str, more: Row, state: str, calls: list[str]) -> None:
    """It was settled; or cancelled while it ran and its worker let go, or after the claim had ended."""
    claim = api.running(api.queue())
    given: dict[str, Row] = {"cancel_lease": {}, "fail_lease": {"error": {}, "retry": False}}
    for call in calls:
        who = {"lease": claim["lease_id"]} if call == "cancel_lease" else token(claim)
        api.rows(call, **who, **given.get(call, {}))
    code = "QHL02" if state == "cancelled" else "QHL03"
    assert api.refused(code, function, **token(claim), **more).detail["state"] == state


@every
@pytest.mark.thorough
def test_a_token_that_was_never_granted(api: Api, function: str, more: Row) -> None:
    claim = api.running(api.queue())
    for change in (1, 2**40, 2**62):
        wrong = {"lease": claim["lease_id"], "token": claim["claim_token"] + change}
        assert api.refused("QHL05", function, **wrong, **more).detail["claim_token"] == wrong["token"]
    for none in (0, -1, None):
        api.refused("QHL05", function, lease=claim["lease_id"], token=none, **more)
    assert api.state(claim["lease_id"]) == "claimed"


@every
def test_a_lease_that_was_never_claimed_or_spawned(api: Api, function: str, more: Row) -> None:
    api.refused("QHL05", function, lease=api.spawn(api.queue()), token=1, **more)
    for lease in (NOBODY, None):
        refusal = api.refused("QHL04", function, lease=lease, token=1, **more)
        assert refusal.detail.get("lease_id") == (str(lease) if lease else None)


@every
def test_what_was_set_aside_is_free_again(api: Api, queue: str, function: str, more: Row) -> None:
    """Of every kind, unless the claim goes on."""
    device = {"resource_id": str(uuid4()), "model": "T4"}
    node = api.node(capacity={"cpu_milli": 1000, "memory_mib": 100, "license": 1}, gpus=[device], slots=1)
    needs = {"cpu_milli": 1000, "memory_mib": 100, "license": 1, "gpu": 1}
    claim = api.running(api.queue(), node, placement={"resources": needs})
    api.spawn(queue)
    assert api.claim(node, queue) == []
    api.rows(function, **token(claim), **more)
    free = function != "extend_claim"
    row = api.used(node)
    assert row["used"].get("license", 0) == (0 if free else 1)
    assert row["gpus"][0]["milli_used"] == (0 if free else 1000)
    assert len(api.claim(node, queue)) == (1 if free else 0)


@pytest.mark.parametrize(
    ("function", "field", "arguments"),
    [
        ("complete_lease", "result", {"result": "x" * 99}),
        *(
            ("fail_lease", "settlement.error", {"error": error})
            for error in ("it broke", ["it broke"], {"message": "x" * 65536})
        ),
        *(("release_lease", "settlement.delay", {"delay": timedelta(days=days)}) for days in (-1, 3651)),
        *(
            ("extend_claim", "p_extend", {"extend": extend})
            for extend in (timedelta(0), timedelta(seconds=-60), timedelta(days=3651), None)
        ),
    ],
)
@pytest.mark.thorough
@pytest.mark.every_variant
def test_bad_arguments(api: Api, function: str, field: str, arguments: Row) -> None:
    claim = api.running(api.queue(max_result_bytes=100))
    assert api.fault(function, **token(claim), **arguments) == field
