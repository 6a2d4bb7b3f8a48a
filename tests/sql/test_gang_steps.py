"""Steps that are gangs: their leases start together, and the step ends as the gang does."""

from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, broken, gang, step
from tests.sql.api import Api, Node, settlement, token
from tests.sql.gangs import GPU, later, reap

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


class Training(Flow):
    """A run with a step `train` that is a gang, and the nodes that it may run on."""

    def __init__(
        self,
        api: Api,
        nodes: list[Node],
        size: int,
        /,
        *others: Row,
        after: tuple[str, ...] = (),
        submitted: Row | None = None,
        **more: Any,
    ) -> None:
        super().__init__(api, [gang("train", size, *after, **GPU | more), *others], options=submitted)
        self.api, self.nodes = api, nodes

    @property
    def gang_id(self) -> UUID:
        gang_id = self.steps()["train"]["gang_id"]
        assert isinstance(gang_id, UUID)
        return gang_id

    @property
    def gang(self) -> Row:
        """The gang as it is now."""
        return self.api.row("get_gang", gang=self.gang_id)

    def fetch(self, nodes: list[Node] | None = None) -> dict[int, Row]:
        """What upkeep has reserved, once the nodes have fetched it, by rank."""
        reap(self.api)
        rows = [row for node in nodes or self.nodes for row in self.api.claim(node, self.queue, qty=10)]
        return {row["headers"]["gang_rank"]: row for row in rows}

    def end(self, *claims: Row, **how: Any) -> None:
        """Settle claims as the workers that have them do."""
        for claim in claims:
            node_id = self.api.lease(claim["lease_id"])["node_id"]
            [node] = [each for each in self.nodes if each.node_id == node_id]
            settle = [settlement(claim, **how)]
            [row] = self.api.rows("settle_and_claim", **node.who, settle=settle, queues=[self.queue], qty=0)
            assert row["verdict"] == "ok"


def test_a_gang_runs_between_other_steps(api: Api, racks: list[Node]) -> None:
    params = {"data": {"$result": "load"}, "rank": {"$index": True}}
    last = step("report", params={"all": {"$results": "train"}, "sum": {"$result": "train"}})
    flow = Training(api, racks, 3, step("load"), last, params=params, together="rack")
    assert (flow.steps()["train"]["gang_id"], flow.states()["train"]) == (None, "waiting")
    flow.complete("load", result="s3://x")
    found = flow.steps()["train"]
    assert (found["kind"], found["items"], found["items_done"]) == ("gang", 3, 0)
    told = flow.gang
    assert (told["state"], told["run_id"], told["step"]) == ("waiting", flow.run, "train")
    assert told["together"] == ["rack"]
    claims = flow.fetch()
    assert {rank: claim["params"] for rank, claim in claims.items()} == {
        rank: {"data": "s3://x", "rank": rank} for rank in range(3)
    }
    assert [claims[2]["headers"][key] for key in ("gang_size", "item", "step")] == [3, 2, "train"]
    assert api.row("gang_status", **token(claims[0]))["ready"]
    reap(api)
    assert flow.steps()["train"]["headline"] == "0 of 3 members have ended"
    for rank in (2, 0, 1):
        assert flow.states()["train"] == "running"
        flow.end(claims[rank], result={"rank": rank})
    assert flow.states()["train"] == "completed"
    [claim] = flow.claims().values()
    assert claim["params"] == {
        "all": [{"rank": 0}, {"rank": 1}, {"rank": 2}],
        "sum": {"items": 3, "failed": 0},
    }
    flow.settle(claim)
    assert flow.state == "completed"
    reap(api)
    assert flow.gang["state"] == "completed"


def test_what_it_waits_for(api: Api, racks: list[Node]) -> None:
    flow = Training(api, racks, 4, together="rack")
    reap(api)
    told = flow.steps()["train"]["headline"]
    assert told == f"waits for gang {flow.gang_id} of 4: no rack has room for all of them"
    [first, *_] = api.rows("step_results", run=flow.run, step="train")
    assert (first["item"], first["lease_state"]) == (0, "scheduled")
    explained = api.row("explain_lease", lease=first["lease_id"])
    assert explained["headline"] == told
    assert explained["released"].startswith("rank 0 of step train, released ")
    assert api.row("explain_gang", gang=flow.gang_id)["permanent"]


def test_a_member_that_is_lost_has_not_ended(api: Api, racks: list[Node], clock: Clock) -> None:
    """All start again, the failed attempt is counted, and nothing of the run has failed."""
    flow = Training(api, racks, 2, step("b", "train"), options={"max_attempts": 2})
    first, second = flow.fetch().values()
    flow.end(first, outcome="fail")
    reap(api)
    assert flow.gang["state"] == "stopping"
    flow.end(second, outcome="release")
    reap(api)
    assert flow.states() == {"train": "running", "b": "waiting"}
    assert flow.steps()["train"]["items_done"] == 0
    assert broken(api) == []
    later(api, clock, racks)
    claims = flow.fetch()
    assert sorted(claim["attempt"] for claim in claims.values()) == [1, 2]
    flow.end(*claims.values())
    assert flow.states() == {"train": "completed", "b": "running"}


@pytest.mark.parametrize(
    ("policy", "states", "ends"),
    [
        ({}, {"train": "failed", "b": "skipped"}, "failed"),
        ({"on_failure": "ignore"}, {"train": "failed", "b": "running"}, "running"),
    ],
)
def test_a_member_that_fails_for_good_fails_the_step(
    api: Api, racks: list[Node], policy: Row, states: dict[str, str], ends: str
) -> None:
    flow = Training(api, racks, 3, step("b", "train"), **policy)
    claims = flow.fetch()
    flow.end(claims[1], outcome="fail")
    reap(api)
    assert api.lease(claims[0]["lease_id"])["stop_reason"] == "preempted"
    flow.end(claims[0], claims[2], outcome="release")
    reap(api)
    found = flow.steps()["train"]
    assert found["reason"] == "gang_failed"
    assert (flow.states(), flow.state) == (states, ends)
    assert found["error"] == {"items": 3, "failed": 3, "gang_id": str(flow.gang_id)}
    assert flow.gang["state"] == "failed"


@pytest.mark.parametrize(("needed", "ends"), [({}, "completed"), ({"min_size": 2}, "failed")])
def test_a_gang_goes_on_without_what_is_lost(api: Api, racks: list[Node], needed: Row, ends: str) -> None:
    flow = Training(api, racks, 3, on_lost="continue", together="rack", **needed)
    claims = flow.fetch()
    reap(api)
    for rank, outcome in ((2, "fail"), (1, "release"), (0, "complete")):
        flow.end(claims[rank], outcome=outcome)
        reap(api)
    found = flow.steps()["train"]
    assert (found["state"], found["items_failed"], flow.gang["state"]) == (ends, 2, ends)


def test_members_that_never_joined_are_not_missed(api: Api, racks: list[Node]) -> None:
    flow = Training(api, racks, 4, step("b", "train"), min_size=2, together="rack")
    claims = flow.fetch()
    assert sorted(claims) == [0, 1]
    flow.end(claims[0])
    reap(api)
    flow.end(claims[1])
    assert flow.states()["train"] == "running"  # upkeep has yet to let the others go
    reap(api)
    found = flow.steps()["train"]
    assert (found["state"], found["result"]) == ("completed", {"items": 4, "failed": 2})
    assert flow.states()["b"] == "running"


def test_a_cancelled_gang_cancels_its_step(api: Api, racks: list[Node]) -> None:
    """Also one of whose members as many have completed as it needs."""
    flow = Training(api, racks, 3, min_size=2, together="rack")
    claims = flow.fetch()
    flow.end(claims[0], claims[1])
    api.rows("cancel_gang", gang=flow.gang_id)
    reap(api)
    flow.end(claims[2], outcome="release")
    reap(api)
    assert flow.reasons() == {"train": "gang_cancelled"}
    assert (flow.states(), flow.state) == ({"train": "cancelled"}, "failed")


@pytest.mark.parametrize("fetched", [None, 1, 3])
def test_a_run_that_is_cancelled_stops_its_gang(api: Api, racks: list[Node], fetched: int | None) -> None:
    """While it waits, while some members are reserved, and while all run."""
    flow = Training(api, racks, 3, together="rack")
    claims = {} if fetched is None else flow.fetch(racks[2 : 2 + fetched])
    assert len(claims) == (fetched or 0)
    api.rows("cancel_workflow_run", run=flow.run)
    for node in racks:
        assert api.claim(node, flow.queue) == []
    reap(api)
    for claim in claims.values():
        assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
    flow.end(*claims.values(), outcome="release")
    reap(api)
    assert flow.reasons() == {"train": "run_stopped"}
    assert (flow.states(), flow.state) == ({"train": "cancelled"}, "cancelled")
    assert flow.gang["state"] == "cancelled"


def test_a_retry_runs_the_whole_gang_again(api: Api, racks: list[Node]) -> None:
    """Under the same ids, a member that had completed among them; at once, before upkeep looks."""
    flow = Training(api, racks, 2, step("a"), after=("a",))
    flow.complete("a")
    claims = flow.fetch()
    was = flow.gang_id
    flow.end(claims[0])
    flow.end(claims[1], outcome="fail")
    api.rows("advance_workflows")
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.states() == {"a": "completed", "train": "running"}
    found = flow.gang
    assert (found["gang_id"], found["state"], found["started_at"]) == (was, "waiting", None)
    assert broken(api) == []
    again = flow.fetch()
    assert {rank: claim["lease_id"] for rank, claim in again.items()} == {
        rank: claim["lease_id"] for rank, claim in claims.items()
    }
    assert [claim["attempt"] for claim in again.values()] == [1, 1]
    flow.end(*again.values())
    assert flow.state == "completed"
    reap(api)
    assert flow.gang["state"] == "completed"


def test_a_paused_run_spawns_no_gang(api: Api, racks: list[Node]) -> None:
    flow = Training(api, racks, 2, step("a"), after=("a",))
    api.rows("pause_workflow_run", run=flow.run)
    flow.complete("a")
    reap(api)
    assert (flow.steps()["train"]["gang_id"], flow.states()["train"]) == (None, "waiting")
    api.rows("resume_workflow_run", run=flow.run)
    assert len(flow.fetch()) == 2


def test_a_large_gang_is_left_to_a_sweep(api: Api) -> None:
    """A settlement spawns 500 leases at most; the gang still comes as a whole."""
    flow = Training(api, [], 501, placement={})
    found = flow.steps()["train"]
    assert (found["gang_id"], found["headline"]) == (None, "is about to spawn its gang")
    assert broken(api) == []
    api.rows("advance_workflows")
    assert len(flow.gang["members"]) == 501
    api.rows("cancel_workflow_run", run=flow.run)
    reap(api)
    api.rows("advance_workflows")
    assert flow.state == "cancelled"


def test_a_gang_near_a_step_that_has_run(api: Api, racks: list[Node]) -> None:
    near = {"step": "load", "what": "rack", "mode": "require"}
    others = step("load", **GPU), step("b", "train", near={"step": "train"})
    flow = Training(api, racks, 2, *others, after=("load",), near=near)
    [claim] = [row for node in racks[2:3] for row in api.claim(node, flow.queue)]
    flow.end(claim)
    claims = flow.fetch()
    ran = {api.lease(claim["lease_id"])["node_id"] for claim in claims.values()}
    assert ran < {node.node_id for node in racks[2:]}
    flow.end(*claims.values())
    [wanted] = flow.steps()["b"]["placement"]["prefer"]
    assert {UUID(node) for node in wanted["when"][0]["node"]} == ran


def test_a_gang_of_a_run_that_is_submitted_for_later(api: Api, racks: list[Node], clock: Clock) -> None:
    flow = Training(api, racks, 2, submitted={"delay": "1 hour"})
    assert flow.fetch() == {}
    assert ": it may start at " in flow.steps()["train"]["headline"]
    later(api, clock, racks, 3600)
    assert len(flow.fetch()) == 2


def test_an_operator_ends_a_gang_that_waits(api: Api, racks: list[Node]) -> None:
    flow = Training(api, racks, 9, step("b", params={"all": {"$results": "train"}}))
    api.rows("skip_step", run=flow.run, step="train", result=[1])
    [claim] = flow.claims().values()
    assert claim["params"] == {"all": [1]}
    reap(api)
    assert flow.gang["state"] == "cancelled"


def test_params_that_cannot_be_bound_fail_the_step(api: Api) -> None:
    bad: dict[str, Row] = {"a": {"$input": ["y"]}, "b": {"$item": [0]}}
    steps = [gang(name, 2, params={"x": value}) for name, value in bad.items()]
    flow = Flow(api, steps, on_failure="continue")
    assert flow.reasons() == {"a": "binding_missing", "b": "binding_missing"}
    assert flow.state == "failed"


def test_what_a_member_cannot_do(api: Api, racks: list[Node]) -> None:
    flow = Training(api, racks, 2)
    [first, _] = flow.fetch().values()
    api.refused("QHF02", "add_items", **token(first), items=[{"name": "x"}])
    own = {"steps": {"train": {"options": {"patience": 5}}}}
    refused = api.refused("QHF02", "submit_spec", spec=flow.spec, options=own)
    assert refused.field == "options.steps.train.options.patience"


def test_equal_gangs_are_one_definition(api: Api, queue: str) -> None:
    """Defaults say nothing, and one domain is a list of it."""
    more: Row = {"min_size": 2, "on_lost": "stop", "hold": "30 s", "same": [], "together": ["rack"]}
    steps = [gang("a", 2, together="rack"), gang("a", 2, **more)]
    rows = [api.row("submit_spec", spec={"name": queue, "queue": queue, "steps": [one]}) for one in steps]
    found = [api.row("get_run_workflow", run=row["run_id"]) for row in rows]
    assert (found[0], found[0]["spec"]["steps"][0]["together"]) == (found[1], ["rack"])
