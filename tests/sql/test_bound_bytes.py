"""What one settlement or one call of upkeep binds is bounded in bytes, whatever runs ask."""

import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.flows import Flow, broken, each, step
from tests.sql.api import Api, token

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]

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
