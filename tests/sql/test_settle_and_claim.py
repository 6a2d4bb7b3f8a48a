"""Settling: a lease by its token, and a batch with the next claim in one commit."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, raw, settlement, token


def settle(api: Api, node: Node, settlements: list[Row], *queues: str, qty: int = 0) -> list[Row]:
    queues = queues or (api.queue(),)
    return api.rows("settle_and_claim", **node.who, settle=settlements, queues=list(queues), qty=qty)


def test_the_rows(api: Api, queue: str, node: Node) -> None:
    done = api.running(queue, node)
    lease = api.spawn(queue, "next", {"n": 1}, headers={"h": 2})
    first, second = settle(api, node, [settlement(done)], queue, qty=5)
    expected = {"kind": "settled", "ordinal": 1, "verdict": "ok", "state": "completed"}
    assert first.items() >= (expected | {"lease_id": done["lease_id"]}).items()
    assert (first["claim_token"], first["task_name"]) == (None, None)
    [row] = [api.lease(lease)]
    expected = {"kind": "claimed", "lease_id": lease, "task_name": "next", "attempt": 1}
    expected |= {"queue": queue, "params": {"n": 1}, "headers": {"h": 2}, "ordinal": None}
    expected |= {"claim_token": row["claim_token"], "expires_at": row["expires_at"]}
    assert second.items() >= expected.items()


def test_each_outcome(api: Api, clock: Clock) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 30, "jitter": 0}), api.node()
    claims = [api.running(queue, node) for _ in range(8)]
    at = clock.now() + timedelta(minutes=7)
    rows = settle(
        api,
        node,
        [
            settlement(claims[0], result={"n": 1}),
            settlement(claims[1], "fail", error={"n": 2}),
            settlement(claims[2], "fail", retry=False),
            settlement(claims[3], "fail", retry_at=at.isoformat()),
            settlement(claims[4], "release"),
            settlement(claims[5], "release", delay="1 minute"),
            settlement(claims[6], "release", available_at=at.isoformat(), delay=None),
            settlement(claims[7], "release", available_at="2001-01-01T00:00:00Z"),
        ],
    )
    states = ["completed", "scheduled", "failed", "scheduled", "pending", "scheduled"]
    states += ["scheduled", "pending"]
    by_ordinal = sorted(rows, key=lambda row: int(row["ordinal"]))
    assert [row["state"] for row in by_ordinal] == states
    leases = [api.lease(claim["lease_id"]) for claim in claims]
    assert [lease["state"] for lease in leases] == states
    assert (leases[0]["result"], leases[1]["attempts"][0]["error"]) == ({"n": 1}, {"n": 2})
    assert leases[1]["available_at"] == clock.now() + timedelta(seconds=30)
    assert leases[3]["available_at"] == at
    assert leases[5]["available_at"] == clock.now() + timedelta(minutes=1)
    assert leases[6]["available_at"] == at
    assert leases[7]["available_at"] == clock.now()


def test_each_verdict(api: Api, queue: str, node: Node) -> None:
    """One bad settlement undoes neither the others nor the claim."""
    ok, cancelled, done, lost = (api.running(queue, node) for _ in range(4))
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    api.rows("release_lease", **token(cancelled))
    api.complete(done)
    api.rows("release_lease", **token(lost))
    elsewhere = api.running(api.queue())
    never = {"lease_id": ok["lease_id"], "claim_token": ok["claim_token"] + 9}
    given = [cancelled, done, never, lost, elsewhere, ok | {"lease_id": NOBODY}, ok, ok]
    rows = settle(api, node, [settlement(claim) for claim in given], queue, qty=1)
    verdicts = {row["ordinal"]: row["verdict"] for row in rows if row["kind"] == "settled"}
    expected = ["cancelled", "finished", "bad_token", "lost", "bad_token", "lost", "ok", "finished"]
    assert [verdicts[n + 1] for n in range(len(given))] == expected
    assert [row["lease_id"] for row in rows if row["kind"] == "claimed"] == [lost["lease_id"]]
    assert api.state(ok["lease_id"]) == "completed"
    assert api.state(elsewhere["lease_id"]) == "claimed"


def test_room_that_it_frees_is_there_for_the_claim(api: Api) -> None:
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 1000})
    done = api.running(queue, node, placement={"resources": {"cpu_milli": 1000}})
    lease = api.needing(queue, cpu_milli=800)
    assert api.claim(node, queue) == []
    rows = settle(api, node, [settlement(done)], queue, qty=2)
    assert [(row["kind"], row["lease_id"]) for row in rows] == [
        ("settled", done["lease_id"]),
        ("claimed", lease),
    ]


def test_settling_only_and_claiming_only(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """Tasks and the timeout go through to the claim."""
    done = api.running(queue, node)
    api.spawn(queue)
    assert [row["kind"] for row in settle(api, node, [settlement(done)], queue)] == ["settled"]
    assert [row["kind"] for row in settle(api, node, [], queue, qty=1)] == ["claimed"]
    assert settle(api, node, [], queue, qty=1) == []
    api.spawn(queue, "other")
    mine = api.spawn(queue, "mine")
    more = {"tasks": ["mine"], "claim_timeout": timedelta(seconds=5)}
    row = api.row("settle_and_claim", **node.who, settle=None, queues=[queue], qty=5, **more)
    assert (row["lease_id"], row["expires_at"]) == (mine, clock.now() + timedelta(seconds=5))


@pytest.mark.thorough
def test_the_node_is_checked_first(api: Api, node: Node) -> None:
    claim = api.running(api.queue(), node)
    arguments = {"settle": [settlement(claim)], "queues": [api.queue()]}
    for epoch in (0, 2, None):
        api.refused("QHN03", "settle_and_claim", node=node.node_id, epoch=epoch, **arguments)
    api.refused("QHN01", "settle_and_claim", node=NOBODY, epoch=1, **arguments)
    for nobody in (NOBODY, None):
        api.refused("QHN01", "settle_and_claim", node=nobody, epoch=None, **arguments, qty=0)
    arguments["queues"] = ["nowhere"]
    api.refused("QHQ01", "settle_and_claim", **node.who, **arguments)


def test_bad_quantities_and_queues(api: Api, queue: str, node: Node) -> None:
    for qty in (-1, 1001, None):
        assert api.fault("settle_and_claim", **node.who, settle=[], queues=[queue], qty=qty) == "p_qty"
    two_dimensions = [[queue], [api.queue()]]
    assert api.fault("settle_and_claim", **node.who, settle=[], queues=two_dimensions) == "p_queues"


GOOD = {"lease_id": str(uuid4()), "claim_token": 1, "outcome": "complete"}


@pytest.mark.parametrize(
    ("field", "settlements"),
    [
        ("p_settle", {}),
        ("p_settle[0]", ["x"]),
        ("p_settle[1].outcome", [GOOD, GOOD | {"outcome": "finish"}]),
        ("p_settle[0].outcome", [GOOD | {"outcome": None}]),
        ("p_settle[0]", [{"outcome": "complete", "claim_token": 1}]),
        ("p_settle[0]", [{"outcome": "complete", "lease_id": GOOD["lease_id"]}]),
        ("p_settle[0].lease_id", [GOOD | {"lease_id": 7}]),
        ("p_settle[0].claim_token", [GOOD | {"claim_token": "01"}]),
        ("p_settle[0].error", [GOOD | {"outcome": "fail", "error": "text"}]),
        ("p_settle[0].retry", [GOOD | {"outcome": "fail", "retry": "no"}]),
        ("p_settle[0].retry_at", [GOOD | {"outcome": "fail", "retry_at": "tomorrow"}]),
        ("p_settle[0].delay", [GOOD | {"outcome": "release", "delay": -1}]),
        ("p_settle[0].available_at", [GOOD | {"outcome": "release", "available_at": "soon"}]),
        (
            "p_settle[0].available_at",
            [GOOD | {"outcome": "release", "available_at": "2030-01-31T12:00:00Z", "delay": 1}],
        ),
        ("p_settle[0].reason", [GOOD | {"reason": "x"}]),
    ],
)
@pytest.mark.thorough
def test_bad_settlements(api: Api, queue: str, node: Node, field: str, settlements: Any) -> None:
    assert api.fault("settle_and_claim", **node.who, settle=settlements, queues=[queue]) == field


def test_a_result_that_is_too_large(api: Api) -> None:
    queue, node = api.queue(max_result_bytes=100), api.node()
    small, large = api.running(queue, node), api.running(queue, node)
    settle = [settlement(small, result=1), settlement(large, result="x" * 99)]
    assert api.fault("settle_and_claim", **node.who, settle=settle, queues=[queue]) == "p_settle[1].result"


def test_how_a_token_may_be_written(api: Api, queue: str, node: Node) -> None:
    """1.0 is a whole number, too; and text, as from JavaScript, whose numbers have 53 bits."""
    claim, other = api.running(queue, node), api.running(queue, node)
    written = json.dumps([settlement(other)]).replace(str(other["claim_token"]), f"{other['claim_token']}.0")
    rows = api.rows("settle_and_claim", **node.who, settle=raw(written), queues=[queue])
    assert [(row["verdict"], row["state"]) for row in rows] == [("ok", "completed")]
    named = {"lease_id": str(claim["lease_id"]), "claim_token": str(claim["claim_token"])}
    [beaten] = api.rows("heartbeat_node", **node.who, claims=[named])
    assert beaten["verdict"] == "ok"
    assert api.value("report_progress", reports=[named | {"fraction": 0.5}]) == 1
    line = {"line": 1, "at": "2030-01-01T00:00:00Z", "message": "a"}
    assert api.value("append_logs", logs=[named | {"lines": [line]}]) == 1
    settle = [named | {"outcome": "complete"}]
    api.rows("settle_and_claim", **node.who, settle=settle, queues=[queue], qty=0)
    assert api.state(claim["lease_id"]) == "completed"


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
            ("fail_lease", "p_error", {"error": error})
            for error in ("it broke", ["it broke"], {"message": "x" * 65536})
        ),
        *(("release_lease", "p_delay", {"delay": timedelta(days=days)}) for days in (-1, 3651)),
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
