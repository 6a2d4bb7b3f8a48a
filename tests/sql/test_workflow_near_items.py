"""Maps near other maps, item by item, and steps near the items of a map."""

from typing import Any

import pytest

from tests.calls import Row
from tests.flows import each, step
from tests.sql.api import Api
from tests.sql.near import Fleet, near

pytestmark = pytest.mark.usefixtures("sound")

SLEEP: Row = {"name": "s", "kind": "sleep", "for": 1}


def loaded(api: Api, racks: list[int], items: int, *steps: Row, **load: Any) -> Fleet:
    """A run of a map `load` and of what comes after it."""
    return Fleet(api, racks, each("load", list(range(items)), **load), *steps)


def matched(**asked: Any) -> Row:
    return each("use", [*"abcd"], after=["load"], near=near("load", match="item", **asked))


def test_an_item_runs_where_the_item_with_its_number_ran(api: Api) -> None:
    fleet = loaded(api, [1, 2, 3], 4, matched())
    assert (fleet.take(0, 2), fleet.take(1), fleet.take(0)) == ([0, 1], [2], [3])
    assert fleet.takers_of_items("use") == [{0}, {0}, {1}, {0}]
    assert fleet.take(2, 9) == []
    assert (fleet.take(1, 9), fleet.take(0, 9)) == ([2], [0, 1, 3])
    assert fleet.steps()["use"]["state"] == "completed"


def test_items_share_the_class_of_a_place_and_so_do_runs(api: Api) -> None:
    fleet = loaded(api, [1, 1, 2], 4, matched(what="rack"))
    fleet.take(0, 2)
    fleet.take(1)
    fleet.take(2)
    assert fleet.takers_of_items("use") == [{0, 1}, {0, 1}, {0, 1}, {2}]
    before = api.contents()["placement_class"]
    fleet.take(0, 9)
    fleet.take(2, 9)
    fleet.run = api.row("submit_spec", spec=fleet.spec)["run_id"]
    fleet.take(2, 2)
    fleet.take(0, 2)
    assert [row for row in fleet.leases("use") if row["state"] == "pending"]
    assert api.contents()["placement_class"] == before


def test_the_window_is_filled_with_items_near_theirs(api: Api) -> None:
    use = each("use", [0] * 5, after=["load"], near=near("load", match="item"), max_parallel=2)
    fleet = loaded(api, [1, 2], 5, use)
    for n in range(5):
        assert fleet.take(n % 2) == [n]
    taken: list[int] = []
    for _ in range(3):
        taken += fleet.take(0) + fleet.take(1)
    assert sorted(taken) == [0, 1, 2, 3, 4]
    assert fleet.steps()["use"]["state"] == "completed"
    nodes = [api.lease(row["lease_id"])["node_id"] for row in fleet.leases("use")]
    assert nodes == [fleet.nodes[n % 2].node_id for n in range(5)]


def test_a_map_over_the_results_of_a_map_stays_where_those_are(api: Api) -> None:
    use = each("use", {"$results": "load"}, near=near("load", match="item"))
    fleet = loaded(api, [1, 2], 2, use)
    fleet.take(1)
    fleet.take(0)
    assert (fleet.take(0, 9), fleet.take(1, 9)) == ([1], [0])


def test_items_without_a_counterpart_run_anywhere_or_fail(api: Api) -> None:
    fleet = loaded(api, [1, 2], 2, matched())
    fleet.take(0, 2)
    assert fleet.takers_of_items("use") == [{0}, {0}, {0, 1}, {0, 1}]
    strict = matched(gone="fail") | {"tolerate": 2}
    fleet = loaded(api, [1, 2], 2, strict)
    fleet.take(0, 2)
    use = fleet.steps()["use"]
    assert (use["items"], use["items_done"], use["items_failed"]) == (4, 2, 2)
    assert [lease["error"] for lease in fleet.leases("use")[2:]] == [{"reason": "near_gone"}] * 2
    assert fleet.take(0, 9) == [0, 1]
    assert fleet.steps()["use"]["state"] == "completed"


@pytest.mark.parametrize(
    ("gone", "takers", "reason"),
    [(None, {0}, None), ("anywhere", {0, 1}, None), ("fail", None, "items_failed")],
)
def test_the_node_of_an_item_is_cordoned(
    api: Api, gone: str | None, takers: set[int] | None, reason: str | None
) -> None:
    asked = {"gone": gone} if gone else {}
    fleet = loaded(api, [1, 2], 4, matched(**asked), max_parallel=4)
    fleet.take(0, 3)
    [claim] = api.claim(fleet.nodes[1], fleet.queue)
    api.rows("cordon_node", node=fleet.nodes[0].node_id)
    api.complete(claim)
    api.rows("advance_workflows")
    api.rows("uncordon_node", node=fleet.nodes[0].node_id)
    states = [lease["state"] for lease in fleet.leases("use")]
    if takers is None:  # the other node is there: one item of four may run
        assert states == ["failed"] * 3 + ["pending"]
        assert fleet.take(1) == [3]
    else:
        assert states == ["pending"] * 4
        assert fleet.takers_of_items("use")[0] == takers
    assert fleet.steps()["use"]["reason"] == reason


def test_an_item_whose_place_contradicts_its_placement_fails(api: Api) -> None:
    use = matched(what="label:n") | {"affinity_tags": {"n": 0}, "tolerate": 1}
    fleet = loaded(api, [1, 2], 4, use)
    fleet.take(0, 3)
    fleet.take(1)
    assert [lease["state"] for lease in fleet.leases("use")] == ["pending"] * 3 + ["failed"]
    assert fleet.leases("use")[3]["error"] == {"reason": "near_contradicts"}
    assert fleet.take(0, 9) == [0, 1, 2]
    assert fleet.steps()["use"]["state"] == "completed"


def test_a_retry_follows_the_items_to_where_they_ran_again(api: Api) -> None:
    fleet = loaded(api, [1, 2], 2, each("use", [0, 1], after=["load"], near=near("load", match="item")))
    fleet.take(0, 2)
    fleet.take(0, 2)
    ids = [lease["lease_id"] for lease in fleet.leases("use")]
    api.rows("retry_workflow_run", run=fleet.run, options={"mode": "all"})
    assert (fleet.take(1), fleet.take(0)) == ([0], [1])
    assert fleet.takers_of_items("use") == [{1}, {0}]
    assert [lease["lease_id"] for lease in fleet.leases("use")] == ids
    assert (fleet.take(0, 9), fleet.take(1, 9)) == ([1], [0])
    assert fleet.steps()["use"]["state"] == "completed"


def test_a_step_near_a_map_runs_where_some_item_ran(api: Api) -> None:
    """And a map near a map without a match where any item ran."""
    use = each("use", [1, 2], after=["load"], near=near("load", what="rack"))
    fleet = loaded(api, [1, 2, 3], 3, step("sum", "load", near=near("load")), use)
    fleet.take(0, 2)
    fleet.take(2)
    assert fleet.takers("sum") == {0, 2}
    levels = fleet.steps()["sum"]["came_from"]["require"]
    [[origin]] = [found for found in levels if found[0].startswith("near load -> node ")]
    assert origin.count(" or node ") == 1
    assert fleet.takers_of_items("use") == [{0, 2}] * 2


def test_a_preference_for_the_place_of_an_item(api: Api) -> None:
    """And an item away from its counterpart."""
    fleet = loaded(api, [1, 2], 4, matched(mode="prefer"))
    fleet.take(0, 4)
    [placement] = {str(lease["placement"]) for lease in fleet.leases("use")}
    assert "prefer" in placement
    assert fleet.takers_of_items("use")[0] == {0, 1}
    fleet = loaded(api, [1, 2], 4, matched(away=True))
    fleet.take(0, 3)
    fleet.take(1)
    assert fleet.takers_of_items("use") == [{1}] * 3 + [{0}]


@pytest.mark.thorough
def test_only_the_first_hundred_places_of_a_map_are_read(api: Api) -> None:
    fleet = loaded(api, list(range(101)), 101, step("sum", "load", near=near("load", what="label:n")))
    for n in range(101):
        fleet.take(n)
    [rule] = [r for r in fleet.steps()["sum"]["placement"]["require"] if r.get("label") == "n"]
    assert len(rule["values"]) == 100


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([step("a"), each("m", [1], after=["a"], near=near("a", match="item"))], "is no map"),
        ([each("m", [1]), step("b", "m", near=near("m", match="item"))], "other items"),
        ([each("m", [1]), step("b", "m", near=near("m", away=True))], "may have run anywhere"),
        ([SLEEP, step("b", "s", near=near("s"))], "no lease of its own"),
    ],
)
@pytest.mark.thorough
def test_what_is_refused(api: Api, steps: list[Row], said: str) -> None:

    spec = {"name": "w", "queue": api.queue(), "steps": steps}
    refusal = api.refused("QHF02", "submit_spec", spec=spec)
    assert refusal.field == "spec.steps[1].near"
    assert said in refusal.message


def test_a_match_of_steps_is_the_default(api: Api) -> None:
    spec = {"name": "same", "steps": [step("a"), step("b", "a", near=near())]}
    assert api.row("define_workflow", spec=spec)["created"]
    spec["steps"] = [step("a"), step("b", "a", near=near("a", match="step"))]
    assert not api.row("define_workflow", spec=spec)["created"]
    spec["steps"] = [step("a"), step("b", "a", near=near("a", match="every"))]
    assert api.refused("QHF02", "define_workflow", spec=spec).field == "spec.steps[1].near.match"
