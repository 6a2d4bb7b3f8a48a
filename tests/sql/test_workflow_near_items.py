"""Maps near other maps, item by item, and steps near the items of a map."""

from typing import Any
from uuid import UUID

import pytest

from tests.calls import Row
from tests.flows import each, step
from tests.sql.api import Api

pytestmark = pytest.mark.usefixtures("sound")


def near(name: str = "load", /, **asked: Any) -> Row:
    return {"step": name, "mode": "require"} | asked


class Fleet:
    """Nodes of a queue of their own, and a run of a map `load` and of what comes after it."""

    def __init__(self, api: Api, racks: list[int], items: int, *steps: Row, **load: Any) -> None:
        self.api = api
        self.queue = api.queue(max_attempts=1)
        lab = {"lab": self.queue}
        self.nodes = [api.node(labels=lab | {"n": n}, rack=r) for n, r in enumerate(racks)]
        self.spec = {
            "name": self.queue,
            "queue": self.queue,
            "steps": [each("load", list(range(items)), **load), *steps],
            "affinity_tags": lab,
        }
        self.run = api.row("submit_spec", spec=self.spec)["run_id"]

    def step(self, name: str) -> Row:
        rows = self.api.rows("list_workflow_steps", run=self.run)
        return next(row for row in rows if row["step"] == name)

    def take(self, node: int, qty: int = 1, *, fails: bool = False) -> list[int]:
        """Let a node run what it may; the numbers of the items."""
        claims = self.api.claim(self.nodes[node], self.queue, qty=qty)
        for claim in claims:
            end = {"lease": claim["lease_id"], "token": claim["claim_token"]}
            if fails:
                self.api.rows("fail_lease", **end, error={"message": "no"}, retry=False)
            else:
                self.api.rows("complete_lease", **end)
        self.api.rows("advance_workflows")
        return [claim["headers"].get("item", -1) for claim in claims]

    def leases(self, task: str) -> list[Row]:
        rows = self.api.rows("list_leases", filter={"queue": self.queue, "task": task}, limit=1000)
        return sorted(rows, key=lambda row: row["headers"].get("item", -1))

    def takers(self, placement: Row) -> set[int]:
        found = self.api.rows("match_nodes", placement=placement)
        able: set[UUID] = {row["node_id"] for row in found if row["eligible"]}
        return {n for n, node in enumerate(self.nodes) if node.node_id in able}


def matched(**asked: Any) -> Row:
    return each("use", [*"abcd"], after=["load"], near=near(match="item", **asked))


def test_an_item_runs_where_the_item_with_its_number_ran(api: Api) -> None:
    fleet = Fleet(api, [1, 2, 3], 4, matched())
    assert (fleet.take(0, 2), fleet.take(1), fleet.take(0)) == ([0, 1], [2], [3])
    assert [fleet.takers(lease["placement"]) for lease in fleet.leases("use")] == [
        {0},
        {0},
        {1},
        {0},
    ]
    assert fleet.take(2, 9) == []
    assert (fleet.take(1, 9), fleet.take(0, 9)) == ([2], [0, 1, 3])
    assert fleet.step("use")["state"] == "completed"


def test_items_share_the_class_of_a_place_and_so_do_runs(api: Api) -> None:
    fleet = Fleet(api, [1, 1, 2], 4, matched(what="rack"))
    fleet.take(0, 2)
    fleet.take(1)
    fleet.take(2)
    assert [fleet.takers(lease["placement"]) for lease in fleet.leases("use")] == [
        {0, 1},
        {0, 1},
        {0, 1},
        {2},
    ]
    before = api.contents()["placement_class"]
    fleet.take(0, 9)
    fleet.take(2, 9)
    fleet.run = api.row("submit_spec", spec=fleet.spec)["run_id"]
    fleet.take(2, 2)
    fleet.take(0, 2)
    assert [row for row in fleet.leases("use") if row["state"] == "pending"]
    assert api.contents()["placement_class"] == before


def test_the_window_is_filled_with_items_near_theirs(api: Api) -> None:
    use = each("use", [0] * 5, after=["load"], near=near(match="item"), max_parallel=2)
    fleet = Fleet(api, [1, 2], 5, use)
    for n in range(5):
        assert fleet.take(n % 2) == [n]
    taken: list[int] = []
    for _ in range(3):
        taken += fleet.take(0) + fleet.take(1)
    assert sorted(taken) == [0, 1, 2, 3, 4]
    assert fleet.step("use")["state"] == "completed"
    nodes = [fleet.api.lease(row["lease_id"])["node_id"] for row in fleet.leases("use")]
    assert nodes == [fleet.nodes[n % 2].node_id for n in range(5)]


def test_a_map_over_the_results_of_a_map_stays_where_those_are(api: Api) -> None:
    use = each("use", {"$results": "load"}, near=near(match="item"))
    fleet = Fleet(api, [1, 2], 2, use)
    fleet.take(1)
    fleet.take(0)
    assert (fleet.take(0, 9), fleet.take(1, 9)) == ([1], [0])


def test_items_without_a_counterpart_run_anywhere_or_fail(api: Api) -> None:
    fleet = Fleet(api, [1, 2], 2, matched())
    fleet.take(0, 2)
    assert [fleet.takers(lease["placement"]) for lease in fleet.leases("use")] == [
        {0},
        {0},
        {0, 1},
        {0, 1},
    ]
    strict = matched(gone="fail") | {"tolerate": 2}
    fleet = Fleet(api, [1, 2], 2, strict)
    fleet.take(0, 2)
    use = fleet.step("use")
    assert (use["items"], use["items_done"], use["items_failed"]) == (4, 2, 2)
    assert [lease["error"] for lease in fleet.leases("use")[2:]] == [{"reason": "near_gone"}] * 2
    assert fleet.take(0, 9) == [0, 1]
    assert fleet.step("use")["state"] == "completed"


@pytest.mark.parametrize(
    ("gone", "takers", "reason"),
    [(None, {0}, None), ("anywhere", {0, 1}, None), ("fail", None, "items_failed")],
)
def test_the_node_of_an_item_is_cordoned(
    api: Api, gone: str | None, takers: set[int] | None, reason: str | None
) -> None:
    asked = {"gone": gone} if gone else {}
    fleet = Fleet(api, [1, 2], 4, matched(**asked), max_parallel=4)
    fleet.take(0, 3)
    [claim] = api.claim(fleet.nodes[1], fleet.queue)
    api.rows("cordon_node", node=fleet.nodes[0].node_id)
    api.rows("complete_lease", lease=claim["lease_id"], token=claim["claim_token"])
    api.rows("advance_workflows")
    api.rows("uncordon_node", node=fleet.nodes[0].node_id)
    states = [lease["state"] for lease in fleet.leases("use")]
    if takers is None:  # the other node is there: one item of four may run
        assert states == ["failed"] * 3 + ["pending"]
        assert fleet.take(1) == [3]
    else:
        assert states == ["pending"] * 4
        assert fleet.takers(fleet.leases("use")[0]["placement"]) == takers
    assert fleet.step("use")["reason"] == reason


def test_an_item_whose_place_contradicts_its_placement_fails(api: Api) -> None:
    use = matched(what="label:n") | {"affinity_tags": {"n": 0}, "tolerate": 1}
    fleet = Fleet(api, [1, 2], 4, use)
    fleet.take(0, 3)
    fleet.take(1)
    assert [lease["state"] for lease in fleet.leases("use")] == ["pending"] * 3 + ["failed"]
    assert fleet.leases("use")[3]["error"] == {"reason": "near_contradicts"}
    assert fleet.take(0, 9) == [0, 1, 2]
    assert fleet.step("use")["state"] == "completed"


def test_a_retry_follows_the_items_to_where_they_ran_again(api: Api) -> None:
    fleet = Fleet(api, [1, 2], 2, each("use", [0, 1], after=["load"], near=near(match="item")))
    fleet.take(0, 2)
    fleet.take(0, 2)
    ids = [lease["lease_id"] for lease in fleet.leases("use")]
    api.rows("retry_workflow_run", run=fleet.run, options={"mode": "all"})
    assert (fleet.take(1), fleet.take(0)) == ([0], [1])
    assert [fleet.takers(lease["placement"]) for lease in fleet.leases("use")] == [{1}, {0}]
    assert [lease["lease_id"] for lease in fleet.leases("use")] == ids
    assert (fleet.take(0, 9), fleet.take(1, 9)) == ([1], [0])
    assert fleet.step("use")["state"] == "completed"


def test_a_step_near_a_map_runs_where_some_item_ran(api: Api) -> None:
    fleet = Fleet(api, [1, 2, 3], 3, step("sum", "load", near=near()))
    fleet.take(0, 2)
    fleet.take(2)
    assert fleet.takers(fleet.step("sum")["placement"]) == {0, 2}
    [[origin]] = [
        found
        for found in fleet.step("sum")["came_from"]["require"]
        if found[0].startswith("near load -> node ")
    ]
    assert origin.count(" or node ") == 1


def test_a_map_near_a_map_without_a_match_runs_where_any_item_ran(api: Api) -> None:
    fleet = Fleet(api, [1, 2, 3], 2, each("use", [1, 2], after=["load"], near=near(what="rack")))
    fleet.take(0)
    fleet.take(1)
    assert [fleet.takers(lease["placement"]) for lease in fleet.leases("use")] == [{0, 1}] * 2


def test_a_preference_for_the_place_of_an_item(api: Api) -> None:
    fleet = Fleet(api, [1, 2], 4, matched(mode="prefer"))
    fleet.take(0, 4)
    [placement] = {str(lease["placement"]) for lease in fleet.leases("use")}
    assert "prefer" in placement
    assert fleet.takers(fleet.leases("use")[0]["placement"]) == {0, 1}


def test_an_item_away_from_its_counterpart(api: Api) -> None:
    fleet = Fleet(api, [1, 2], 4, matched(away=True))
    fleet.take(0, 3)
    fleet.take(1)
    assert [fleet.takers(lease["placement"]) for lease in fleet.leases("use")] == [{1}] * 3 + [{0}]


@pytest.mark.thorough
def test_only_the_first_hundred_places_of_a_map_are_read(api: Api) -> None:
    fleet = Fleet(api, list(range(101)), 101, step("sum", "load", near=near(what="label:n")))
    for n in range(101):
        fleet.take(n)
    [rule] = [r for r in fleet.step("sum")["placement"]["require"] if r.get("label") == "n"]
    assert len(rule["values"]) == 100


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([step("a"), each("m", [1], after=["a"], near=near("a", match="item"))], "is no map"),
        ([each("m", [1]), step("b", "m", near=near("m", match="item"))], "other items"),
        ([each("m", [1]), step("b", "m", near=near("m", away=True))], "may have run anywhere"),
        (
            [step("s", kind="sleep", **{"for": 1}), step("b", "s", near=near("s"))],
            "no lease of its own",
        ),
    ],
)
@pytest.mark.thorough
def test_what_is_refused(api: Api, steps: list[Row], said: str) -> None:
    for one in steps:
        if one.get("kind") == "sleep":
            del one["task"]
    spec = {"name": "w", "queue": api.queue(), "steps": steps}
    refusal = api.refused("QHF02", "submit_spec", spec=spec)
    assert refusal.field == "spec.steps[1].near"
    assert said in refusal.message


def test_a_match_of_steps_is_the_default(api: Api) -> None:
    spec = {"name": "same", "steps": [step("a"), step("b", "a", near=near("a"))]}
    assert api.row("define_workflow", spec=spec)["created"]
    spec["steps"] = [step("a"), step("b", "a", near=near("a", match="step"))]
    assert not api.row("define_workflow", spec=spec)["created"]
    spec["steps"] = [step("a"), step("b", "a", near=near("a", match="every"))]
    assert api.refused("QHF02", "define_workflow", spec=spec).field == "spec.steps[1].near.match"
