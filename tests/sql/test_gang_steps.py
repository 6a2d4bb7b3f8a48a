"""Steps that are gangs: their leases start together, and the step ends as the gang does."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, broken, gang, step
from tests.sql.api import Api, Node, settlement, token
from tests.sql.test_gangs import racks, reap

__all__ = ["racks"]

pytestmark = pytest.mark.thorough

GPU: Row = {"placement": {"resources": {"gpu": 1}}}


@pytest.fixture(autouse=True)
def sound(api: Api) -> Iterator[None]:
    """After each test every tally equals its recount, and every gang agrees with its step."""
    yield
    assert broken(api) == []


def start(flow: Flow, nodes: list[Node]) -> dict[int, Row]:
    """What upkeep has reserved, once the nodes have fetched it, by rank."""
    assert isinstance(flow.calls, Api)
    reap(flow.calls)
    rows = [row for node in nodes for row in flow.calls.claim(node, flow.queue, qty=10)]
    return {row["headers"]["gang_rank"]: row for row in rows}


def settle(flow: Flow, nodes: list[Node], claim: Row, **how: Any) -> None:
    """Settle a claim as the worker that has it does."""
    node_id = flow.calls.row("get_lease", lease=claim["lease_id"])["node_id"]
    [node] = [each for each in nodes if each.node_id == node_id]
    [row] = flow.calls.rows(
        "settle_and_claim",
        **node.who,
        settle=[settlement(claim, **how)],
        queues=[flow.queue],
        qty=0,
    )
    assert row["verdict"] == "ok"


def gang_of(flow: Flow, name: str = "train") -> UUID:
    gang_id = flow.steps()[name]["gang_id"]
    assert isinstance(gang_id, UUID)
    return gang_id


def test_a_gang_runs_between_other_steps(api: Api, racks: list[Node]) -> None:
    params = {"data": {"$result": "load"}, "rank": {"$index": True}}
    last = step("report", params={"all": {"$results": "train"}, "sum": {"$result": "train"}})
    flow = Flow(api, [step("load"), gang("train", 3, params=params, together="rack", **GPU), last])
    assert (flow.steps()["train"]["gang_id"], flow.states()["train"]) == (None, "waiting")
    flow.complete("load", result="s3://x")
    found = flow.steps()["train"]
    assert (found["kind"], found["items"], found["items_done"]) == ("gang", 3, 0)
    told = api.row("get_gang", gang=found["gang_id"])
    assert (told["state"], told["run_id"], told["step"]) == ("waiting", flow.run, "train")
    assert told["together"] == ["rack"]
    claims = start(flow, racks)
    assert {rank: claim["params"] for rank, claim in claims.items()} == {
        rank: {"data": "s3://x", "rank": rank} for rank in range(3)
    }
    assert [claims[2]["headers"][key] for key in ("gang_size", "item", "step")] == [3, 2, "train"]
    assert api.row("gang_status", **token(claims[0]))["ready"]
    reap(api)
    assert flow.steps()["train"]["headline"] == "0 of 3 members have ended"
    for rank in (2, 0, 1):
        assert flow.states()["train"] == "running"
        settle(flow, racks, claims[rank], result={"rank": rank})
    assert flow.states()["train"] == "completed"
    [claim] = flow.claims().values()
    assert claim["params"] == {
        "all": [{"rank": 0}, {"rank": 1}, {"rank": 2}],
        "sum": {"items": 3, "failed": 0},
    }
    flow.settle(claim)
    assert flow.state == "completed"
    reap(api)
    assert api.row("get_gang", gang=found["gang_id"])["state"] == "completed"


def test_what_it_waits_for(api: Api, racks: list[Node]) -> None:
    flow = Flow(api, [gang("train", 4, together="rack", **GPU)])
    gang_id = gang_of(flow)
    reap(api)
    told = flow.steps()["train"]["headline"]
    assert told == f"waits for gang {gang_id} of 4: no rack has room for all of them"
    [first, *_] = api.rows("step_results", run=flow.run, step="train")
    assert (first["item"], first["lease_state"]) == (0, "scheduled")
    explained = api.row("explain_lease", lease=first["lease_id"])
    assert explained["headline"] == told
    assert explained["released"].startswith("rank 0 of step train, released ")
    assert api.row("explain_gang", gang=gang_id)["permanent"]


def test_a_member_that_is_lost_has_not_ended(api: Api, racks: list[Node], clock: Clock) -> None:
    """All start again, the failed attempt is counted, and nothing of the run has failed."""
    flow = Flow(api, [gang("train", 2, options={"max_attempts": 2}, **GPU), step("b", "train")])
    first, second = start(flow, racks).values()
    settle(flow, racks, first, outcome="fail")
    reap(api)
    assert api.row("get_gang", gang=gang_of(flow))["state"] == "stopping"
    settle(flow, racks, second, outcome="release")
    reap(api)
    assert flow.states() == {"train": "running", "b": "waiting"}
    assert flow.steps()["train"]["items_done"] == 0
    assert broken(api) == []
    clock.advance(timedelta(seconds=20))
    for node in racks:
        api.rows("heartbeat_node", **node.who, claims=[])
    claims = start(flow, racks)
    assert sorted(claim["attempt"] for claim in claims.values()) == [1, 2]
    for claim in claims.values():
        settle(flow, racks, claim)
    assert flow.states() == {"train": "completed", "b": "running"}


@pytest.mark.parametrize(
    ("policy", "states", "ends"),
    [
        (None, {"train": "failed", "b": "waiting"}, "failed"),
        ("ignore", {"train": "failed", "b": "running"}, "running"),
    ],
)
def test_a_member_that_fails_for_good_fails_the_step(
    api: Api, racks: list[Node], policy: str | None, states: dict[str, str], ends: str
) -> None:
    more = {"on_failure": policy} if policy else {}
    flow = Flow(api, [gang("train", 3, **more, **GPU), step("b", "train")])
    claims = start(flow, racks)
    settle(flow, racks, claims[1], outcome="fail")
    reap(api)
    assert api.lease(claims[0]["lease_id"])["stop_reason"] == "preempted"
    for rank in (0, 2):
        settle(flow, racks, claims[rank], outcome="release")
    reap(api)
    assert flow.steps()["train"]["reason"] == "gang_failed"
    shown = {name: "waiting" if was == "skipped" else was for name, was in flow.states().items()}
    assert (shown, flow.state) == (states, ends)
    error = {"items": 3, "failed": 3, "gang_id": str(gang_of(flow))}
    assert flow.steps()["train"]["error"] == error
    assert api.row("get_gang", gang=gang_of(flow))["state"] == "failed"


@pytest.mark.parametrize(("needed", "ends"), [(None, "completed"), (2, "failed")])
def test_a_gang_goes_on_without_what_is_lost(
    api: Api, racks: list[Node], needed: int | None, ends: str
) -> None:
    how = {"on_lost": "continue"} | ({"min_size": needed, "together": "rack"} if needed else {})
    flow = Flow(api, [gang("train", 3, **how, **GPU)])
    claims = start(flow, racks)
    reap(api)
    for rank, outcome in ((2, "fail"), (1, "release"), (0, "complete")):
        settle(flow, racks, claims[rank], outcome=outcome)
        reap(api)
    found = flow.steps()["train"]
    assert (found["state"], found["items_failed"]) == (ends, 2)
    assert api.row("get_gang", gang=gang_of(flow))["state"] == ends


def test_members_that_never_joined_are_not_missed(api: Api, racks: list[Node]) -> None:
    flow = Flow(api, [gang("train", 4, min_size=2, together="rack", **GPU), step("b", "train")])
    claims = start(flow, racks)
    assert sorted(claims) == [0, 1]
    settle(flow, racks, claims[0])
    reap(api)
    settle(flow, racks, claims[1])
    assert flow.states()["train"] == "running"  # upkeep has yet to let the others go
    reap(api)
    found = flow.steps()["train"]
    assert (found["state"], found["result"]) == ("completed", {"items": 4, "failed": 2})
    assert flow.states()["b"] == "running"


def test_a_cancelled_gang_cancels_its_step(api: Api, racks: list[Node]) -> None:
    """Also one of whose members as many have completed as it needs."""
    flow = Flow(api, [gang("train", 3, min_size=2, together="rack", **GPU)])
    claims = start(flow, racks)
    for rank in (0, 1):
        settle(flow, racks, claims[rank])
    api.rows("cancel_gang", gang=gang_of(flow))
    reap(api)
    settle(flow, racks, claims[2], outcome="release")
    reap(api)
    assert flow.steps()["train"]["reason"] == "gang_cancelled"
    assert (flow.states(), flow.state) == ({"train": "cancelled"}, "failed")


@pytest.mark.parametrize("fetched", [None, 1, 3])
def test_a_run_that_is_cancelled_stops_its_gang(api: Api, racks: list[Node], fetched: int | None) -> None:
    """While it waits, while some members are reserved, and while all run."""
    flow = Flow(api, [gang("train", 3, together="rack", **GPU)])
    claims = {} if fetched is None else start(flow, racks[2 : 2 + fetched])
    assert len(claims) == (fetched or 0)
    api.rows("cancel_workflow_run", run=flow.run)
    for node in racks:
        assert api.claim(node, flow.queue) == []
    reap(api)
    for claim in claims.values():
        assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
        settle(flow, racks, claim, outcome="release")
    reap(api)
    assert flow.reasons() == {"train": "run_stopped"}
    assert (flow.states(), flow.state) == ({"train": "cancelled"}, "cancelled")
    assert api.row("get_gang", gang=gang_of(flow))["state"] == "cancelled"


def test_a_retry_runs_the_whole_gang_again(api: Api, racks: list[Node]) -> None:
    """Under the same ids, a member that had completed among them; at once, before upkeep looks."""
    flow = Flow(api, [step("a"), gang("train", 2, "a", **GPU)])
    flow.complete("a")
    claims = start(flow, racks)
    was = gang_of(flow)
    settle(flow, racks, claims[0])
    settle(flow, racks, claims[1], outcome="fail")
    api.rows("advance_workflows")
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.states() == {"a": "completed", "train": "running"}
    found = api.row("get_gang", gang=was)
    assert (gang_of(flow), found["state"], found["started_at"]) == (was, "waiting", None)
    assert broken(api) == []
    again = start(flow, racks)
    assert {rank: claim["lease_id"] for rank, claim in again.items()} == {
        rank: claim["lease_id"] for rank, claim in claims.items()
    }
    assert [claim["attempt"] for claim in again.values()] == [1, 1]
    for claim in again.values():
        settle(flow, racks, claim)
    assert flow.state == "completed"
    reap(api)
    assert api.row("get_gang", gang=was)["state"] == "completed"


def test_a_paused_run_spawns_no_gang(api: Api, racks: list[Node]) -> None:
    flow = Flow(api, [step("a"), gang("train", 2, "a", **GPU)])
    api.rows("pause_workflow_run", run=flow.run)
    flow.complete("a")
    reap(api)
    assert (flow.steps()["train"]["gang_id"], flow.states()["train"]) == (None, "waiting")
    api.rows("resume_workflow_run", run=flow.run)
    assert len(start(flow, racks)) == 2


def test_a_large_gang_is_left_to_a_sweep(api: Api) -> None:
    """A settlement spawns 500 leases at most; the gang still comes as a whole."""
    flow = Flow(api, [gang("train", 501)])
    found = flow.steps()["train"]
    assert (found["gang_id"], found["headline"]) == (None, "is about to spawn its gang")
    assert broken(api) == []
    api.rows("advance_workflows")
    assert len(api.row("get_gang", gang=gang_of(flow))["members"]) == 501
    api.rows("cancel_workflow_run", run=flow.run)
    reap(api)
    api.rows("advance_workflows")
    assert flow.state == "cancelled"


def test_a_gang_near_a_step_that_has_run(api: Api, racks: list[Node]) -> None:
    near = {"step": "load", "what": "rack", "mode": "require"}
    train = gang("train", 2, "load", near=near, **GPU)
    flow = Flow(api, [step("load", **GPU), train, step("b", "train", near={"step": "train"})])
    [claim] = [row for node in racks[2:3] for row in api.claim(node, flow.queue)]
    settle(flow, racks, claim)
    claims = start(flow, racks)
    ran = {api.lease(claim["lease_id"])["node_id"] for claim in claims.values()}
    assert ran < {node.node_id for node in racks[2:]}
    for claim in claims.values():
        settle(flow, racks, claim)
    [wanted] = flow.steps()["b"]["placement"]["prefer"]
    assert {UUID(node) for node in wanted["when"][0]["node"]} == ran


def test_a_gang_of_a_run_that_is_submitted_for_later(api: Api, racks: list[Node], clock: Clock) -> None:
    flow = Flow(api, [gang("train", 2, **GPU)], options={"delay": "1 hour"})
    assert start(flow, racks) == {}
    assert ": it may start at " in flow.steps()["train"]["headline"]
    clock.advance(timedelta(hours=1))
    for node in racks:
        api.rows("heartbeat_node", **node.who, claims=[])
    assert len(start(flow, racks)) == 2


def test_an_operator_ends_a_gang_that_waits(api: Api, racks: list[Node]) -> None:
    flow = Flow(api, [gang("train", 9, **GPU), step("b", params={"all": {"$results": "train"}})])
    api.rows("skip_step", run=flow.run, step="train", result=[1])
    [claim] = flow.claims().values()
    assert claim["params"] == {"all": [1]}
    reap(api)
    assert api.row("get_gang", gang=gang_of(flow))["state"] == "cancelled"


def test_params_that_cannot_be_bound_fail_the_step(api: Api) -> None:
    flow = Flow(
        api,
        [gang("a", 2, params={"x": {"$input": ["y"]}}), gang("b", 2, params={"x": {"$item": [0]}})],
        on_failure="continue",
    )
    assert flow.reasons() == {"a": "binding_missing", "b": "binding_missing"}
    assert flow.state == "failed"


def test_what_a_member_cannot_do(api: Api, racks: list[Node]) -> None:
    flow = Flow(api, [gang("train", 2, **GPU)])
    [first, _] = start(flow, racks).values()
    items = [{"name": "x"}]
    api.refused("QHF02", "add_items", **token(first), items=items)
    own = {"steps": {"train": {"options": {"patience": 5}}}}
    refused = api.refused("QHF02", "submit_spec", spec=flow.spec, options=own)
    assert refused.field == "options.steps.train.options.patience"


def test_equal_gangs_are_one_definition(api: Api) -> None:
    """Defaults say nothing, and one domain is a list of it."""
    queue = api.queue()
    more: Row = {"min_size": 2, "on_lost": "stop", "hold": "30 s", "same": [], "together": ["rack"]}
    steps = [gang("a", 2, together="rack"), gang("a", 2, **more)]
    rows = [api.row("submit_spec", spec={"name": queue, "queue": queue, "steps": [one]}) for one in steps]
    found = [api.row("get_run_workflow", run=row["run_id"]) for row in rows]
    assert found[0] == found[1]
    assert found[0]["spec"]["steps"][0]["together"] == ["rack"]
