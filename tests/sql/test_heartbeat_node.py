"""How long a claim lasts: heartbeats, a new end, and the longest run."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, beat, raw, settlement, token


def verdicts(api: Api, node: Node, *claims: dict[str, Any]) -> list[str]:
    rows = api.rows("heartbeat_node", **node.who, claims=beat(*claims))
    by_lease = {row["lease_id"]: row["verdict"] for row in rows}
    return [by_lease[claim["lease_id"]] for claim in claims]


def test_each_claim_is_extended_by_its_own_timeout(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    claims = [api.running(queue, node), api.running(queue, node, claim_timeout=300)]
    clock.advance(timedelta(seconds=20))
    rows = api.rows("heartbeat_node", **node.who, claims=beat(*claims))
    ends = {row["lease_id"]: row["expires_at"] - clock.now() for row in rows}
    assert ends == {
        claims[0]["lease_id"]: timedelta(seconds=60),
        claims[1]["lease_id"]: timedelta(seconds=300),
    }
    for claim in claims:
        end = api.lease(claim["lease_id"])["expires_at"] - clock.now()
        assert end == ends[claim["lease_id"]]


def test_a_span_can_be_given_and_never_shortens(api: Api, node: Node, clock: Clock) -> None:
    """An expired claim that nobody reaped goes on, and so does one that is asked to stop."""
    claim = api.running(api.queue(claim_timeout=60), node)
    for seconds in (600, 5):
        [row] = api.rows("heartbeat_node", **node.who, claims=beat(claim), extend=timedelta(seconds=seconds))
        assert row["expires_at"] - clock.now() == timedelta(seconds=600)
    clock.advance(timedelta(minutes=11))
    assert verdicts(api, node, claim) == ["ok"]
    api.rows("reap")
    assert api.state(claim["lease_id"]) == "claimed"
    api.rows("cancel_lease", lease=claim["lease_id"])  # its worker needs the time to stop
    clock.advance(timedelta(seconds=50))
    [row] = api.rows("heartbeat_node", **node.who, claims=beat(claim))
    assert (row["verdict"], row["expires_at"]) == ("cancelled", clock.now() + timedelta(seconds=60))


def test_verdicts(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    ok, stopping, cancelled, done = (api.running(queue, node) for _ in range(4))
    api.rows("cancel_lease", lease=stopping["lease_id"])
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    api.rows("release_lease", **token(cancelled))
    api.complete(done)
    foreign = api.running(queue)
    wrong = ok | {"claim_token": ok["claim_token"] + 1}
    unknown = ok | {"lease_id": NOBODY}
    assert verdicts(api, node, ok, stopping, cancelled, done, foreign, unknown) == [
        *["ok", "cancelled", "cancelled", "finished", "lost", "lost"]
    ]
    assert verdicts(api, node, wrong) == ["lost"]
    end = api.lease(foreign["lease_id"])["expires_at"]
    assert end == clock.now() + timedelta(seconds=60)
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=5))
    assert verdicts(api, node, ok) == ["preempted"]


def test_only_the_claim_that_completed_the_lease_is_finished(api: Api, queue: str, node: Node) -> None:
    old = api.running(queue, node)
    api.rows("release_lease", **token(old))
    [new] = api.claim(node, queue)
    api.complete(new)
    failed = api.running(api.queue(max_attempts=1), node)
    api.rows("fail_lease", **token(failed), error={})
    assert verdicts(api, node, old) == ["lost"]
    assert verdicts(api, node, new) == ["finished"]
    assert verdicts(api, node, failed) == ["lost"]
    assert verdicts(api, api.node(), new) == ["lost"]


def test_the_node_lives_while_it_beats(api: Api, clock: Clock) -> None:
    node = api.node(heartbeat_timeout=45)
    clock.advance(timedelta(seconds=44))
    assert api.used(node)["live"]
    clock.advance(timedelta(seconds=1))
    assert not api.used(node)["live"]
    assert api.rows("heartbeat_node", **node.who) == []
    row = api.used(node)
    assert (row["live"], row["seen_at"]) == (True, clock.now())


def test_an_older_and_the_present_token_of_a_lease(api: Api, queue: str, node: Node) -> None:
    """Each is answered for itself, whichever comes first; the present one is extended."""
    old = api.running(queue, node)
    api.rows("release_lease", **token(old))
    [new] = api.claim(node, queue)
    for claims in ([old, new], [new, old]):
        rows = api.rows("heartbeat_node", **node.who, claims=beat(*claims))
        verdicts = {row["claim_token"]: row["verdict"] for row in rows}
        assert verdicts == {old["claim_token"]: "lost", new["claim_token"]: "ok"}


def test_a_claim_named_twice_is_answered_once(api: Api, queue: str, node: Node) -> None:
    held, done = api.running(queue, node), api.running(queue, node)
    api.complete(done)
    rows = api.rows("heartbeat_node", **node.who, claims=beat(held, done, held, done))
    assert {row["lease_id"]: row["verdict"] for row in rows} == {
        held["lease_id"]: "ok",
        done["lease_id"]: "finished",
    }
    assert len(rows) == 2


def test_a_claim_that_is_written_differently(api: Api, node: Node) -> None:
    """What reads back differently from what came is looked at closely: 1.0 and "1" are tokens, too."""
    claim = api.running(api.queue(), node)
    lease, number = str(claim["lease_id"]), claim["claim_token"]
    for written, given in ((lease.upper(), number), (lease, f"{number}.0"), (lease, f'"{number}"')):
        claims = raw(f'[{{"lease_id": "{written}", "claim_token": {given}}}]')
        [row] = api.rows("heartbeat_node", **node.who, claims=claims)
        assert (row["verdict"], row["lease_id"], row["claim_token"]) == ("ok", claim["lease_id"], number)


def test_unknown_nodes_and_epochs_that_are_not_its_own(api: Api) -> None:
    refusal = api.refused("QHN01", "heartbeat_node", node=NOBODY, epoch=1)
    assert refusal.detail["node_id"] == str(NOBODY)
    node = api.node()
    for epoch in (0, 2, -1, None):
        refusal = api.refused("QHN03", "heartbeat_node", node=node.node_id, epoch=epoch)
        assert refusal.detail["node_epoch"] == 1
    api.rows("deregister_node", node=node.node_id)
    api.refused("QHN01", "heartbeat_node", **node.who)


GOOD: dict[str, Any] = {"lease_id": str(uuid4()), "claim_token": 1}


@pytest.mark.parametrize(
    ("field", "claims"),
    [
        ("p_claims", {}),
        ("p_claims", "x"),
        ("p_claims[0]", ["x"]),
        ("p_claims[1]", [GOOD, {"lease_id": GOOD["lease_id"]}]),
        ("p_claims[1]", [GOOD, None]),
        ("p_claims[0].lease_id", [GOOD | {"lease_id": "x"}]),
        ("p_claims[1].lease_id", [GOOD, GOOD | {"lease_id": GOOD["lease_id"].replace("-", "")}]),
        ("p_claims[0].claim_token", [GOOD | {"claim_token": 1.5}]),
        ("p_claims[0]", [GOOD | {"claim_token": None}]),
        ("p_claims[0].claim_token", [GOOD | {"claim_token": -1}]),
        ("p_claims[0].claim_token", [GOOD | {"claim_token": 2**63}]),
        ("p_claims[0].claim_token", [GOOD | {"claim_token": "one"}]),
        ("p_claims[0].extend", [GOOD | {"extend": 5}]),
    ],
)
@pytest.mark.thorough
def test_bad_claims(api: Api, node: Node, field: str, claims: Any) -> None:
    assert api.refused("QHA01", "heartbeat_node", **node.who, claims=claims).field == field


@pytest.mark.parametrize("seconds", [0, -5, 4e9])
def test_bad_spans(api: Api, seconds: float) -> None:
    refusal = api.refused("QHA01", "heartbeat_node", **api.node().who, extend=timedelta(seconds=seconds))
    assert refusal.field == "p_extend"


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


def beats(api: Api, clock: Clock, node: Node, claim: Row, seconds: int) -> str:
    """Let time pass while the worker goes on; what its last heartbeat is told."""
    verdict = ""
    for _ in range(0, seconds, 20):
        clock.advance(timedelta(seconds=20))
        [row] = api.rows("heartbeat_node", **node.who, claims=Jsonb(beat(claim)))
        verdict = row["verdict"]
        api.rows("reap")
    return verdict


def test_it_is_asked_to_stop_and_fails(api: Api, queue: str, node: Node, clock: Clock) -> None:
    claim = api.running(queue, node, max_run=100)
    assert beats(api, clock, node, claim, 100) == "ok"
    assert api.lease(claim["lease_id"])["stop_reason"] == "run_time_exceeded"
    assert beats(api, clock, node, claim, 20) == "preempted"  # a word that all workers know
    assert api.value("release_lease", **token(claim)) in ("scheduled", "pending")
    found = api.lease(claim["lease_id"])
    assert found["attempt"] == 1  # it is used up
    [attempt] = found["attempts"]
    assert (attempt["outcome"], attempt["error"]["reason"]) == ("expired", "run_time_exceeded")


@pytest.mark.parametrize("capacity", [{}, {"capacity": {"cpu_milli": 1000}}])
def test_a_worker_that_goes_on_loses_the_claim(api: Api, clock: Clock, capacity: Row) -> None:
    """After a claim timeout more; what it held is free."""
    queue, node = api.queue(), api.node(**capacity)
    needs = {"placement": {"resources": {"cpu_milli": 1000}}} if capacity else {}
    claim = api.running(queue, node, max_run=100, max_attempts=1, **needs)
    beats(api, clock, node, claim, 120)
    assert api.state(claim["lease_id"]) == "claimed"
    assert beats(api, clock, node, claim, 40) in ("preempted", "lost")
    found = api.lease(claim["lease_id"])
    assert (found["state"], found["error"]["reason"]) == ("failed", "run_time_exceeded")
    api.refused("QHL03", "complete_lease", **token(claim))
    assert api.rows("verify_invariants") == []


def test_a_completion_in_time_wins_and_without_it_a_lease_runs_on(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node, max_run=100)
    beats(api, clock, node, claim, 120)
    assert api.value("complete_lease", **token(claim)) == "completed"
    claim = api.running(queue, node)
    assert beats(api, clock, node, claim, 400) == "ok"
    assert api.lease(claim["lease_id"])["stop_reason"] is None


def test_a_task_has_it_by_default(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """So do changed leases, and those whose class a term names."""
    api.rows("set_task", task="bounded", defaults={"max_run": "1 min"})
    lease = api.spawn(queue, "bounded")
    api.rows("update_lease", lease=lease, changes={"labels": {"changed": "yes"}})
    [claim] = api.claim(node, queue)
    beats(api, clock, node, claim, 60)
    assert api.lease(lease)["stop_reason"] == "run_time_exceeded"
    [row] = api.rows(
        "settle_and_claim", **node.who, settle=Jsonb([settlement(claim, "release")]), queues=[queue], qty=0
    )
    assert row["verdict"] == "ok"


def test_what_it_may_be(api: Api) -> None:
    asked = {"queue": api.queue(), "task": "work"}
    for value in (0, "soon", -1, True):
        refusal = api.refused("QHA01", "spawn_lease", **asked, options={"max_run": value})
        assert refusal.field == "options.max_run"
