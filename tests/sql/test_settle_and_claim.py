"""settle_and_claim: a batch settled and the next claimed, in one commit."""

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
