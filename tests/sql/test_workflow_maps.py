"""Maps: a step whose task runs for each item of a list."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, broken, each, fail, finish, step, sweeps
from tests.sql.api import Api, completed, count_all, outlive, token

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


def test_a_map_runs_its_task_for_each_item(api: Api) -> None:
    params = {"shard": {"$item": []}, "no": {"$index": True}, "model": {"$result": "a"}}
    text: Row = {"x": ["$item", "$literal"], "z": "$index"}  # looks like a binding
    shards: list[Any] = ["x", {"$item": []}, None]
    end = step("end", params={"all": {"$results": "m"}, "sum": {"$result": "m"}})
    m = each("m", {"$input": ["shards"]}, params=params | text | {"y": {"$literal": {"$item": []}}})
    flow = Flow(api, [step("a"), m, end], input={"shards": shards})
    flow.complete("a", result={"$index": 7})
    claims = flow.items()
    same = text | {"y": {"$item": []}, "model": {"$index": 7}}
    assert [claims[n]["params"] for n in range(3)] == [
        {"shard": shard, "no": n} | same for n, shard in enumerate(shards)
    ]
    assert flow.counts() == (3, 0, 0)
    for number in (2, 0, 1):
        flow.settle(claims[number], result={"n": number})
    assert flow.counts() == (3, 3, 0)
    [claim] = flow.claims().values()
    results = [{"n": 0}, {"n": 1}, {"n": 2}]
    assert claim["params"] == {"all": results, "sum": {"items": 3, "failed": 0}}
    finish(api, claim)
    assert flow.state == "completed"


def test_the_window_lets_the_next_item_in(api: Api) -> None:
    """A large one is filled in portions."""
    flow = Flow(api, [each("m", list(range(5)), max_parallel=2)])
    claims = flow.items()
    assert sorted(claims) == [0, 1]
    flow.settle(claims[1])
    assert sorted(flow.items()) == [2]
    flow.settle(claims[0])
    assert sorted(flow.items()) == [3]
    assert flow.counts() == (5, 2, 0)
    assert flow.steps()["m"]["headline"] == "2 of 5 items have ended"
    flow = Flow(api, [each("m", list(range(500)), max_parallel=64)])
    claims = flow.items()
    assert len(claims) == 64
    for number, leases in enumerate((64, 64, 64, 68)):
        flow.settle(claims[number])
        assert flow.lease_count() == leases


def test_the_last_ends_fold_what_others_have_left(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(60))), step("b", "m")])
    claims = flow.items()
    for number in range(59):
        finish(api, claims[number])
    flow.settle(claims[59])
    assert flow.states() == {"m": "completed", "b": "running"}


def test_the_count_of_items_is_a_new_row_now_and_then(api: Api) -> None:
    """Versions of a row that no vacuum can remove yet make each search for it longer."""
    flow = Flow(api, [each("m", list(range(200))), step("b", "m")])
    place = "select array[part, arrived / 64] from hwqueue.tally where run_id = %s and part > 0"
    places = []
    for claim in flow.items().values():
        flow.settle(claim)
        if (found := api.one(place, flow.run)) not in places:
            places.append(found)
    assert places == [[1, 0], [2, 1], [3, 2], [4, 3]]
    assert flow.counts() == (200, 200, 0)
    assert flow.states() == {"m": "completed", "b": "running"}


def test_the_items_of_a_batch_are_counted_together(api: Api) -> None:
    flow = Flow(api, [step("a"), each("m", list(range(500)), max_parallel=64)])
    chosen = list(flow.items().values())[:10]
    call: Row = {"node": flow.node, "epoch": flow.epoch, "queues": [flow.queue], "settle": []}
    assert api.rows("settle_and_claim", **call, qty=0, **completed(*chosen)) == []
    steps = sum("item" not in claim["headers"] for claim in chosen)
    assert flow.counts() == (500, 10 - steps, 0)
    assert flow.lease_count() == 1 + 64 + 10 - steps


def test_one_call_binds_a_bounded_number_of_bytes(api: Api) -> None:
    params: Row = {"all": {"$result": "a"}, "no": {"$index": True}}
    flow = Flow(api, [step("a"), each("m", [0] * 20, params=params)])
    flow.complete("a", result="x" * 1_000_000)
    assert flow.lease_count() == 1 + 9
    sweeps(api, 2)
    assert flow.lease_count() == 1 + 20
    assert sorted(claim["params"]["no"] for claim in flow.items().values()) == list(range(20))


def test_an_item_that_is_bound_often_has_failed(api: Api) -> None:
    params: Row = {"x": [{"$item": []}] * 300}
    ended = step("b", {"step": "m", "on": "ended"})
    flow = Flow(api, [step("a"), each("m", {"$result": "a"}, params=params), ended])
    flow.complete("a", result=["x" * 1_000_000])
    api.rows("advance_workflows")
    assert flow.reasons() == {"m": "items_failed"}
    [item] = api.rows("step_results", run=flow.run, step="m")
    assert item["error"]["reason"] == "params_too_large"


def test_a_list_of_results_that_is_bound_often_fails_the_step(api: Api) -> None:
    often = [{"$results": "m"}] * 300
    steps = [each("m", [1]), step("b", params={"x": often}), each("n", [1], params={"x": often})]
    flow = Flow(api, steps, on_failure="continue")
    [claim] = flow.items().values()
    flow.settle(claim, result="x" * 1_000_000)
    assert flow.reasons() == {"b": "params_too_large"}  # a settlement binds no more than that
    api.rows("advance_workflows")
    assert flow.reasons() == {"b": "params_too_large", "n": "params_too_large"}


def test_results_come_in_pages_in_the_order_of_the_items(api: Api) -> None:
    flow = Flow(api, [step("a"), each("m", {"$result": "a"}, max_parallel=3)])

    def page(**more: int) -> list[tuple[int, str, Any]]:
        rows = api.rows("step_results", run=flow.run, step="m", **more)
        return [(row["item"], row["state"], row["result"]) for row in rows]

    assert (page(), page(after=-2)) == ([], [(-1, "waiting", None)])
    flow.complete("a", result=[0, 1, 2, 3])
    claims = flow.items()
    for number in (2, 0):
        flow.settle(claims[number], result={"n": number})
    flow.settle(claims[1], outcome="fail", retry=False)
    api.rows("advance_workflows")
    assert page(limit=2) == [(0, "completed", {"n": 0}), (1, "failed", None)]
    assert page(after=1) == [(2, "completed", {"n": 2}), (3, "running", None)]
    flow.settle(flow.items()[3])
    assert page(after=-2) == [(-1, "failed", None)]


def test_a_long_list_is_spawned_by_sweeps(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(2_600)), max_parallel=2_500)])
    found = [flow.lease_count()]
    for _ in range(3):
        api.rows("advance_workflows")
        found.append(flow.lease_count())
    assert found == [500, 1_500, 2_500, 2_500]


def test_a_map_over_the_results_of_a_map(api: Api) -> None:
    """An empty list completes at once."""
    flow = Flow(api, [each("m", [1, 2, 3]), each("n", {"$results": "m", "path": ["uri"]})])
    for number, claim in flow.items().items():
        flow.settle(claim, result={"uri": f"s3://{number}"})
    claims = flow.items()
    assert [claims[n]["params"]["item"] for n in range(3)] == ["s3://0", "s3://1", "s3://2"]
    last = step("b", params={"x": {"$results": "n"}})
    flow = Flow(api, [each("m", []), each("n", {"$results": "m"}), last])
    assert flow.counts() == (0, 0, 0)
    [claim] = flow.claims().values()
    assert claim["params"] == {"x": []}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"list": {"a": 1}}, "over_is_not_a_list"),
        ({"list": None}, "over_is_not_a_list"),
        ({"list": [0] * 100_001}, "too_many_items"),
        ({}, "binding_missing"),
    ],
    ids=["object", "null", "long", "missing"],
)
@pytest.mark.every_variant
def test_a_list_that_is_none_fails_the_step(api: Api, given: Row, reason: str) -> None:
    flow = Flow(api, [each("m", {"$input": ["list"]})], input=given)
    assert (flow.state, flow.reasons()) == ("failed", {"m": reason})
    assert flow.steps()["m"]["error"] is not None


def test_an_item_that_cannot_be_bound_or_is_too_large_has_failed(api: Api) -> None:
    params = {"x": {"$item": ["x"]}}
    items = [{"x": 1}, {"y": 1}, {"x": "x" * 200}, {"x": 3}]
    flow = Flow(api, [step("a"), each("m", {"$result": "a"}, params=params, tolerate="50 %")])
    api.rows("set_queue_policy", queue=flow.queue, policy={"max_params_bytes": 100})
    flow.complete("a", result=items)
    claims = flow.items()
    assert {n: claim["params"] for n, claim in claims.items()} == {0: {"x": 1}, 3: {"x": 3}}
    flow.settle_each(claims.values())
    assert flow.counts() == (4, 4, 2)
    assert flow.state == "completed"


def test_items_that_all_fail_at_once_fail_the_map(api: Api) -> None:
    flow = Flow(api, [each("m", [1, 2], params={"x": {"$item": ["x"]}})])
    api.rows("advance_workflows")
    assert (flow.state, flow.reasons()) == ("failed", {"m": "items_failed"})


@pytest.mark.parametrize(("tolerate", "most"), [(2, 2), ("10 %", 1), ("25%", 2), (None, 0)])
@pytest.mark.parametrize("over", [False, True])
def test_tolerated_failures(api: Api, tolerate: Any, most: int, over: bool) -> None:
    flow = Flow(api, [each("m", list(range(10)), tolerate=tolerate)])
    failures = most + 1 if over else most
    for number, claim in flow.items().items():
        if number < failures:
            flow.settle(claim, outcome="fail", retry=False)
        else:
            flow.settle(claim)
    api.rows("advance_workflows")
    assert flow.counts() == (10, 10, failures)
    assert flow.steps()["m"]["headline"] is None
    assert flow.states()["m"] == flow.state == ("failed" if over else "completed")


def test_more_failures_than_tolerated_spawn_no_more_items(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(9)), tolerate=1, max_parallel=3), step("b", "m")])
    claims = flow.items()
    for number in (0, 1):
        flow.settle(claims[number], outcome="fail", retry=False, error={"message": "broken"})
    late = flow.items()
    api.rows("advance_workflows")
    assert (flow.state, flow.states()["m"]) == ("failing", "running")
    flow.settle_each([claims[2], *late.values()])
    assert flow.items() == {}
    assert flow.state == "failed"
    assert flow.states() == {"m": "failed", "b": "skipped"}
    assert flow.reasons() == {"m": "items_failed", "b": "run_failed"}
    said = {"items": 9, "failed": 2, "tolerated": 1, "first_error": "item 0: broken"}
    assert flow.steps()["m"]["error"] == said


def test_fail_fast_stops_the_other_items(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(9)), max_parallel=4)], on_failure="fail_fast")
    claims = flow.items()
    flow.settle(claims[0], outcome="fail", retry=False)
    sweeps(api, 2)
    assert api.lease(claims[1]["lease_id"])["stop_reason"] == "cancelled"
    for number in (1, 2, 3):
        fail(api, claims[number])
    api.rows("advance_workflows")
    assert (flow.state, flow.states()) == ("failed", {"m": "failed"})


def test_results_of_a_map_that_failed_have_gaps(api: Api) -> None:
    """Results that are too large fail the step that reads them."""
    ended = {"step": "m", "on": "ended"}
    gaps = {"all": {"$results": "m", "path": ["n"], "default": -1}}
    large = {"all": {"$results": "m"}}
    steps = [each("m", [1, 2, 3], tolerate=0), step("b", ended, params=gaps), step("c", ended, params=large)]
    flow = Flow(api, steps, on_failure="continue")
    api.rows("set_queue_policy", queue=flow.queue, policy={"max_params_bytes": 100})
    claims = flow.items()
    flow.settle(claims[0], result={"n": 5, "rest": "x" * 60})
    flow.settle(claims[1], outcome="fail", retry=False)
    flow.settle(claims[2], result={"rest": "x" * 60})
    api.rows("advance_workflows")
    [claim] = flow.claims().values()
    assert claim["params"] == {"all": [5, -1, -1]}
    assert flow.reasons()["c"] == "params_too_large"


def test_a_dropped_queue_fails_the_items(api: Api) -> None:
    """And a map that is released later."""
    other = api.queue()
    maps = [each("m", list(range(9)), queue=other, max_parallel=2, tolerate=3)]
    maps.append(each("late", [1], queue=other, after=["a"]))
    flow = Flow(api, [step("a"), *maps], on_failure="continue")
    api.rows("drop_queue", queue=other, force=True)
    for _ in range(2):  # its transactions end, then its rows go
        outlive(api.conn)
        api.rows("prune")
    sweeps(api, 4)
    assert (flow.states()["m"], flow.reasons()["m"]) == ("failed", "items_failed")
    flow.complete("a")
    assert (flow.state, flow.reasons()["late"]) == ("failed", "queue_dropped")


def test_a_call_that_may_stay_open_leaves_the_window_to_others(api: Api) -> None:
    """Of a map at the end of a run, too."""
    items = list(range(3))
    last = each("z", [1, 2], max_parallel=1, **{"finally": "ended"})
    flow = Flow(api, [each("m", items, max_parallel=1), last])
    finish(api, flow.items()[0])
    assert flow.items() == {}
    assert api.row("advance_workflows")["released"] == 1
    for number in items[1:]:
        finish(api, flow.items()[number])
        api.rows("reap")
    for _ in range(2):
        [claim] = flow.items().values()
        flow.settle(claim)
    assert (flow.state, flow.states()) == ("completed", {"m": "completed", "z": "completed"})


def test_items_go_with_their_run(api: Api, clock: Clock) -> None:
    flow = Flow(api, [each("m", list(range(5)))], retain={"completed": 3600})
    claims = flow.items().values()
    flow.settle_each(claims)
    count_all(api.conn)
    clock.advance(timedelta(hours=2))
    for _ in range(4):
        api.rows("prune", limit=2)
    api.refused("QHF03", "get_workflow_run", run=flow.run)
    for claim in claims:
        api.refused("QHL04", "get_lease", lease=claim["lease_id"])
    assert api.one("select count(*) from hwqueue.map where run_id = %s", flow.run) == 0
    assert api.one("select count(*) from hwqueue.map_list where run_id = %s", flow.run) == 0
    assert api.one("select count(*) from hwqueue.tally where run_id = %s", flow.run) == 0


def test_a_sweep_lets_a_portion_of_items_in_however_many_maps_there_are(api: Api) -> None:
    """And so does a resumed run; the other maps have their turn after that."""
    names = [f"m{number}" for number in range(4)]
    flow = Flow(api, [each(name, list(range(1_400)), max_parallel=1_400) for name in names])
    api.rows("pause_workflow_run", run=flow.run)
    api.rows("resume_workflow_run", run=flow.run)
    assert flow.lease_count() == 4 * 500 + 2 * 900
    assert api.row("advance_workflows")["more"]
    assert flow.lease_count() == 4 * 1_400
    api.rows("cancel_workflow_run", run=flow.run)
    sweeps(api, 30)
    assert flow.state == "cancelled"


LIMIT = 1_000_000  # of params; 8 times as many bytes are bound of what turns out to be too large
WIDE = 12


def ended(flow: Flow) -> int:
    """How many steps, and items of maps, have ended."""
    rows = flow.steps().values()
    return sum(row["items_done"] if row["items"] else row["state"] == "failed" for row in rows)


def advance(api: Api, flow: Flow) -> int:
    """Work off what is left, and count the calls; none ends more than it may bind."""
    calls = 0
    while (before := ended(flow)) < 3 * WIDE and calls < 20 and flow.state == "running":
        [swept] = api.rows("advance_workflows")
        calls += 1
        assert before < ended(flow) <= before + 9
        assert swept["more"] or flow.state != "running"
    return calls


def test_items_of_many_maps(api: Api) -> None:
    """Each would be 40 MB, and the settlement begins all of these maps."""
    params: Row = {"x": [{"$item": []}] * 1_000}
    over = {"$input": ["shards"]}
    maps = [each(f"m{n}", over, params=params, tolerate="100 %", after=["a"]) for n in range(WIDE)]
    flow = Flow(api, [step("a"), *maps], input={"shards": ["x" * 40_000] * 3})
    flow.settle(flow.claims()["a"])
    assert 0 < ended(flow) <= 9
    assert advance(api, flow) <= 6
    assert ended(flow) == 3 * WIDE
    assert flow.state == "completed"


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_children_of_one_step(api: Api, paused: bool, together: bool) -> None:
    """What is not bound any more waits for the next sweep; calls of one transaction go on, too."""
    params = {"x": [{"$result": "a"}] * 9}
    steps = [step(f"b{n}", params=params, on_failure="continue") for n in range(WIDE)]
    flow = Flow(api, [step("a"), *steps, step("z", *(s["name"] for s in steps), join="any")])
    claim = flow.claims()["a"]
    if paused:
        api.rows("pause_workflow_run", run=flow.run)
    flow.settle(claim, result="x" * LIMIT)
    if paused:
        assert ended(flow) == 0
        api.rows("resume_workflow_run", run=flow.run)
    assert 0 < ended(flow) <= 9
    assert broken(api) == []
    if together:
        with api.conn.transaction():
            advance(api, flow)
    else:
        advance(api, flow)
    assert ended(flow) == WIDE
    assert flow.state == "failed"


def test_an_item_is_not_bound_beyond_its_limit(api: Api) -> None:
    asked = {"template": [{"$item": []}] * 100, "item": "x" * 1_000, "index": 0}
    call = """
      select (hwqueue.bind_value(%(template)s, null, null, false, %(item)s, %(index)s,
        %(most)s)).*"""
    for most, too_large in ((100_000, True), (200_000, False)):
        values = {**asked, "most": most}
        values |= {key: Jsonb(values[key]) for key in ("template", "item")}
        [row] = api.conn.execute(call, values)
        assert row[2] is too_large
    # one that lacks a value costs nothing: hundreds of them fail in one call
    items = each("m", list(range(400)), params={"$item": ["n"]}, tolerate="100 %")
    assert ended(Flow(api, [items])) == 400


def test_a_setting_of_a_session_does_no_harm(api: Api) -> None:
    """Any login may set it: what it leaves the next sweep does."""
    flow = Flow(api, [step("a"), step("b", params={"x": {"$result": "a"}})])
    with api.conn.transaction():
        api.conn.execute("select set_config('hwqueue.bound_bytes', 'none of them', true)")
        api.rows("complete_lease", **token(flow.claims()["a"]), result=1)
        assert flow.states()["b"] == "waiting"
        api.rows("advance_workflows")
        assert flow.states()["b"] == "running"
