"""Maps: steps that run their task once for each item of a list."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, each, fail, finish, step
from tests.sql.api import Api, count_all, outlive

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


def test_a_map_runs_its_task_for_each_item(api: Api) -> None:
    params = {"shard": {"$item": []}, "no": {"$index": True}, "model": {"$result": "a"}}
    flow = Flow(
        api,
        [
            step("a"),
            each("m", {"$input": ["shards"]}, params=params),
            step("end", params={"all": {"$results": "m"}, "sum": {"$result": "m"}}),
        ],
        input={"shards": ["x", {"$item": []}, None]},
    )
    flow.complete("a", result={"$index": 7})
    claims = flow.items()
    assert [claims[n]["params"] for n in range(3)] == [
        {"shard": "x", "no": 0, "model": {"$index": 7}},
        {"shard": {"$item": []}, "no": 1, "model": {"$index": 7}},
        {"shard": None, "no": 2, "model": {"$index": 7}},
    ]
    assert flow.counts() == (3, 0, 0)
    for number in (2, 0, 1):
        flow.settle(claims[number], result={"n": number})
    assert flow.counts() == (3, 3, 0)
    [claim] = flow.claims().values()
    assert claim["params"] == {
        "all": [{"n": 0}, {"n": 1}, {"n": 2}],
        "sum": {"items": 3, "failed": 0},
    }
    finish(api, claim)
    assert flow.state == "completed"


def test_the_window_lets_the_next_item_in(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(5)), max_parallel=2)])
    claims = flow.items()
    assert sorted(claims) == [0, 1]
    flow.settle(claims[1])
    assert sorted(flow.items()) == [2]
    flow.settle(claims[0])
    assert sorted(flow.items()) == [3]
    assert flow.counts() == (5, 2, 0)
    assert flow.steps()["m"]["headline"] == "2 of 5 items have ended"


def test_a_large_window_is_filled_in_portions(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(500)), max_parallel=64)])
    claims = flow.items()
    assert len(claims) == 64
    for number in range(3):
        flow.settle(claims[number])
        assert flow.lease_count() == 64
    flow.settle(claims[3])
    assert flow.lease_count() == 68


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
    places = set()
    for claim in flow.items().values():
        flow.settle(claim)
        places.add(
            api.conn.execute(
                "select part, arrived / 64 from hwqueue.tally where run_id = %s and part > 0",
                [flow.run],
            ).fetchone()
        )
    assert places == {(1, 0), (2, 1), (3, 2), (4, 3)}
    assert flow.counts() == (200, 200, 0)
    assert flow.states() == {"m": "completed", "b": "running"}


def test_the_items_of_a_batch_are_counted_together(api: Api) -> None:
    flow = Flow(api, [step("a"), each("m", list(range(500)), max_parallel=64)])
    chosen = list(flow.items().values())[:10]
    call: Row = {"node": flow.node, "epoch": flow.epoch, "queues": [flow.queue], "settle": []}
    leases = [claim["lease_id"] for claim in chosen]
    tokens = [claim["claim_token"] for claim in chosen]
    assert api.rows("settle_and_claim", **call, qty=0, completed=leases, completed_tokens=tokens) == []
    steps = sum("item" not in claim["headers"] for claim in chosen)
    assert flow.counts() == (500, 10 - steps, 0)
    assert flow.lease_count() == 1 + 64 + 10 - steps


def test_one_call_binds_a_bounded_number_of_bytes(api: Api) -> None:
    params: Row = {"all": {"$result": "a"}, "no": {"$index": True}}
    flow = Flow(api, [step("a"), each("m", [0] * 20, params=params)])
    flow.complete("a", result="x" * 1_000_000)
    assert flow.lease_count() == 1 + 9
    for _ in range(2):
        api.rows("advance_workflows")
    assert flow.lease_count() == 1 + 20
    assert sorted(claim["params"]["no"] for claim in flow.items().values()) == list(range(20))


def test_an_item_that_is_bound_often_has_failed(api: Api) -> None:
    params: Row = {"x": [{"$item": []}] * 300}
    flow = Flow(
        api,
        [
            step("a"),
            each("m", {"$result": "a"}, params=params),
            step("b", {"step": "m", "on": "ended"}),
        ],
    )
    flow.complete("a", result=["x" * 1_000_000])
    api.rows("advance_workflows")
    assert flow.reasons() == {"m": "items_failed"}
    [item] = api.rows("step_results", run=flow.run, step="m")
    assert item["error"]["reason"] == "params_too_large"


def test_a_list_of_results_that_is_bound_often_fails_the_step(api: Api) -> None:
    often = [{"$results": "m"}] * 300
    flow = Flow(
        api,
        [each("m", [1]), step("b", params={"x": often}), each("n", [1], params={"x": often})],
        on_failure="continue",
    )
    [claim] = flow.items().values()
    flow.settle(claim, result="x" * 1_000_000)
    assert flow.reasons() == {"b": "params_too_large"}  # a settlement binds no more than that
    api.rows("advance_workflows")
    assert flow.reasons() == {"b": "params_too_large", "n": "params_too_large"}


def test_text_that_looks_like_a_binding_is_text(api: Api) -> None:
    params = {"x": ["$item", "$literal"], "y": {"$literal": {"$item": []}}, "z": "$index"}
    flow = Flow(api, [each("m", [1], params=params)])
    [claim] = flow.items().values()
    assert claim["params"] == {"x": ["$item", "$literal"], "y": {"$item": []}, "z": "$index"}


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


def test_results_that_an_operator_declared(api: Api) -> None:
    flow = Flow(api, [step("a"), each("m", {"$result": "a"}), step("b", "m")])
    api.rows("skip_step", run=flow.run, step="m", result=[7, None])
    rows = api.rows("step_results", run=flow.run, step="m")
    assert [(row["item"], row["result"]) for row in rows] == [(0, 7), (1, None)]


def test_a_call_that_may_stay_open_leaves_the_window_to_others(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(3)), max_parallel=1)])
    finish(api, flow.items()[0])
    assert flow.items() == {}
    assert api.row("advance_workflows")["released"] == 1
    finish(api, flow.items()[1])
    api.rows("reap")
    finish(api, flow.items()[2])
    api.rows("reap")
    assert flow.state == "completed"


def test_a_long_list_is_spawned_by_sweeps(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(2_600)), max_parallel=2_500)])
    found = [flow.lease_count()]
    for _ in range(3):
        api.rows("advance_workflows")
        found.append(flow.lease_count())
    assert found == [500, 1_500, 2_500, 2_500]


def test_an_empty_list_completes_at_once(api: Api) -> None:
    last = step("b", params={"x": {"$results": "n"}})
    flow = Flow(api, [each("m", []), each("n", {"$results": "m"}), last])
    assert flow.counts() == (0, 0, 0)
    [claim] = flow.claims().values()
    assert claim["params"] == {"x": []}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": 1}, "over_is_not_a_list"),
        (None, "over_is_not_a_list"),
        ([0] * 100_001, "too_many_items"),
    ],
)
def test_a_list_that_is_none_fails_the_step(api: Api, value: Any, reason: str) -> None:
    flow = Flow(api, [each("m", {"$input": ["list"]})], input={"list": value})
    assert (flow.state, flow.reasons()) == ("failed", {"m": reason})
    assert flow.steps()["m"]["error"] is not None


def test_a_list_that_is_missing_fails_the_step(api: Api) -> None:
    flow = Flow(api, [each("m", {"$input": ["list"]})])
    assert flow.reasons() == {"m": "binding_missing"}


def test_an_item_that_cannot_be_bound_has_failed(api: Api) -> None:
    params = {"x": {"$item": ["x"]}}
    flow = Flow(api, [each("m", [{"x": 1}, {"y": 1}, {"x": 3}], params=params, tolerate=1)])
    claims = flow.items()
    assert {n: claim["params"] for n, claim in claims.items()} == {0: {"x": 1}, 2: {"x": 3}}
    for claim in claims.values():
        flow.settle(claim)
    assert flow.counts() == (3, 3, 1)
    assert flow.state == "completed"


def test_an_item_that_is_too_large_has_failed(api: Api) -> None:
    flow = Flow(api, [step("a"), each("m", {"$result": "a"}, tolerate="50 %")])
    api.rows("set_queue_policy", queue=flow.queue, policy={"max_params_bytes": 100})
    flow.complete("a", result=["x" * 200, "y"])
    [claim] = flow.items().values()
    assert claim["params"] == {"item": "y"}
    flow.settle(claim)
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
    for claim in [claims[2], *late.values()]:
        flow.settle(claim)
    assert flow.items() == {}
    assert flow.state == "failed"
    assert flow.states() == {"m": "failed", "b": "skipped"}
    assert flow.reasons() == {"m": "items_failed", "b": "run_failed"}
    said = {"items": 9, "failed": 2, "tolerated": 1, "first_error": "item 0: broken"}
    assert flow.steps()["m"]["error"] == said
    assert flow.steps()["m"]["error"]["tolerated"] == 1


def test_fail_fast_stops_the_other_items(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(9)), max_parallel=4)], on_failure="fail_fast")
    claims = flow.items()
    flow.settle(claims[0], outcome="fail", retry=False)
    for _ in range(2):
        api.rows("advance_workflows")
    assert api.lease(claims[1]["lease_id"])["stop_reason"] == "cancelled"
    for number in (1, 2, 3):
        fail(api, claims[number])
    api.rows("advance_workflows")
    assert (flow.state, flow.states()) == ("failed", {"m": "failed"})


def test_results_of_a_map_that_failed_have_gaps(api: Api) -> None:
    params = {"all": {"$results": "m", "path": ["n"], "default": -1}}
    flow = Flow(
        api,
        [
            each("m", [1, 2, 3], tolerate=0),
            step("b", {"step": "m", "on": "ended"}, params=params),
        ],
    )
    claims = flow.items()
    flow.settle(claims[0], result={"n": 5})
    flow.settle(claims[1], outcome="fail", retry=False)
    flow.settle(claims[2], result={})
    api.rows("advance_workflows")
    [claim] = flow.claims().values()
    assert claim["params"] == {"all": [5, -1, -1]}


def test_results_that_are_too_large_fail_the_step(api: Api) -> None:
    flow = Flow(api, [each("m", [1, 2]), step("b", params={"all": {"$results": "m"}})])
    api.rows("set_queue_policy", queue=flow.queue, policy={"max_params_bytes": 100})
    for claim in flow.items().values():
        flow.settle(claim, result="x" * 60)
    assert flow.reasons() == {"b": "params_too_large"}


def test_a_map_over_the_results_of_a_map(api: Api) -> None:
    flow = Flow(api, [each("m", [1, 2, 3]), each("n", {"$results": "m", "path": ["uri"]})])
    for number, claim in flow.items().items():
        flow.settle(claim, result={"uri": f"s3://{number}"})
    claims = flow.items()
    assert [claims[n]["params"]["item"] for n in range(3)] == ["s3://0", "s3://1", "s3://2"]


def test_a_dropped_queue_fails_the_items(api: Api) -> None:
    other = api.queue()
    flow = Flow(api, [step("a"), each("m", list(range(9)), queue=other, max_parallel=2, tolerate=3)])
    api.rows("drop_queue", queue=other, force=True)
    for _ in range(2):  # its transactions end, then its rows go
        outlive(api.conn)
        api.rows("prune")
    for _ in range(4):
        api.rows("advance_workflows")
    assert (flow.states()["m"], flow.reasons()["m"]) == ("failed", "items_failed")
    flow.complete("a")
    assert flow.state == "failed"


def test_a_map_for_a_dropped_queue_fails(api: Api) -> None:
    other = api.queue()
    flow = Flow(api, [step("a"), each("m", [1], queue=other, **{"after": ["a"]})])
    api.rows("drop_queue", queue=other, force=True)
    flow.complete("a")
    assert flow.reasons() == {"m": "queue_dropped"}


def test_a_map_at_the_end_of_a_run(api: Api) -> None:
    flow = Flow(api, [step("a"), each("z", [1, 2], max_parallel=1, **{"finally": "ended"})])
    flow.complete("a")
    for _ in range(2):
        [claim] = flow.items().values()
        flow.settle(claim)
    assert (flow.state, flow.states()["z"]) == ("completed", "completed")


def test_items_go_with_their_run(api: Api, clock: Clock) -> None:
    flow = Flow(api, [each("m", list(range(5)))], retain={"completed": 3600})
    claims = flow.items().values()
    for claim in claims:
        flow.settle(claim)
    count_all(api.conn)
    clock.advance(timedelta(hours=2))
    for _ in range(4):
        api.rows("prune", limit=2)
    api.refused("QHF03", "get_workflow_run", run=flow.run)
    for claim in claims:
        api.refused("QHL04", "get_lease", lease=claim["lease_id"])
    for table in ("map", "map_list", "tally"):
        row = api.conn.execute(
            f"select count(*) from hwqueue.{table} where run_id = %s", [flow.run]
        ).fetchone()
        assert row == (0,), table


def test_a_sweep_lets_a_portion_of_items_in_however_many_maps_there_are(api: Api) -> None:
    """And so does a resumed run; the other maps have their turn after that."""
    names = [f"m{number}" for number in range(4)]
    flow = Flow(api, [each(name, list(range(1_400)), max_parallel=1_400) for name in names])
    api.rows("pause_workflow_run", run=flow.run)
    api.rows("resume_workflow_run", run=flow.run)

    def let_in() -> int:
        row = api.conn.execute("select count(*) from hwqueue.lease where run_id = %s", [flow.run]).fetchone()
        assert row is not None
        return int(row[0])

    assert let_in() == 4 * 500 + 2 * 900
    assert api.row("advance_workflows")["more"]
    assert let_in() == 4 * 1_400
    api.rows("cancel_workflow_run", run=flow.run)
    for _ in range(30):
        api.rows("advance_workflows")
    assert flow.state == "cancelled"
