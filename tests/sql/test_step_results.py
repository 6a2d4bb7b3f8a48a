"""Results of steps and inputs of runs: who may read them, and what they hold."""

from uuid import uuid4

import pytest

from tests.calls import Row
from tests.flows import Flow, each, fail, step
from tests.sql.api import Api, refusing
from tests.sql.logins import WORKER, Logins


def test_a_step_has_the_result_of_its_lease(api: Api) -> None:
    """And tells where it ran."""
    flow = Flow(api, [step("a"), step("b", "a"), step("c", "b")], input={"n": 1})
    lease = flow.steps()["a"]["lease_id"]
    flow.complete("a", result={"uri": "s3://x"})
    released = api.row("step_results", run=flow.run, step="b")
    assert (released["lease_state"], released["node_id"]) == ("pending", None)
    flow.fail("b")
    a, b, c = (api.row("step_results", run=flow.run, step=name) for name in "abc")
    assert [row["item"] for row in (a, b, c)] == [0, 0, 0]
    assert (a["state"], a["result"]) == ("completed", {"uri": "s3://x"})
    assert (b["state"], b["error"]["message"]) == ("failed", "broken")
    assert (c["state"], c["result"]) == ("skipped", None)
    assert (a["lease_id"], a["lease_state"]) == (lease, "completed")
    assert (a["node_id"], a["attempt"]) == (flow.node, 1)
    assert a["claimed_at"] <= a["finished_at"]
    assert api.rows("step_results", run=flow.run, step="a", after=0) == []
    assert api.value("run_input", run=flow.run) == {"n": 1}


STORED = """
  select count(*), sum(octet_length(t.row))
  from hwqueue.run r join hwqueue.step s using (run_id),
    lateral (
      select l::text from hwqueue.lease l where l.lease_id = s.lease_id
      union all select o::text from hwqueue.outcome o where o.lease_id = s.lease_id
      union all select s::text
      union all select r::text) t(row)
  where r.run_id = %s
"""


def test_a_result_is_not_copied_to_the_steps_after_it(api: Api) -> None:
    """Fifty steps and a join read it where it is; what one of them binds is a copy of that part."""
    size = 100_000
    names = [f"b{n}" for n in range(50)]
    part = {"x": {"$result": "a", "path": ["n"]}}
    flow = Flow(api, [step("a"), *(step(n, "a", params=part) for n in names), step("c", *names)])
    flow.complete("a", result={"n": 7, "rest": "x" * size})
    flow.complete(*names, result="y" * 1_000)
    [claim] = flow.claims().values()
    assert claim["params"] == {}
    [(rows, stored)] = api.conn.execute(STORED, [flow.run]).fetchall()
    assert rows > 150
    assert size < stored < 3 * size
    assert len(api.row("step_results", run=flow.run, step="a")["result"]["rest"]) == size


def test_what_an_operator_declared_is_the_result(api: Api) -> None:
    flow = Flow(api, [step("a"), each("m", {"$result": "a"})])
    api.rows("skip_step", run=flow.run, step="m", result=[7, None])
    assert api.rows("step_results", run=flow.run, step="m", state="failed") == []
    rows = api.rows("step_results", run=flow.run, step="m", state="completed")
    assert [(row["item"], row["result"], row["lease_id"]) for row in rows] == [(0, 7, None), (1, None, None)]
    api.rows("skip_step", run=flow.run, step="a", result=7)
    assert api.row("step_results", run=flow.run, step="a")["result"] == 7


def test_what_is_refused(api: Api) -> None:
    flow = Flow(api, [step("a")])
    api.refused("QHF06", "step_results", run=flow.run, step="b")
    api.refused("QHF03", "step_results", run=uuid4(), step="a")
    api.refused("QHA01", "step_results", run=flow.run, step="a", limit=0)
    api.refused("QHF03", "run_input", run=uuid4())


@pytest.mark.parametrize(("read", "more"), [("step_results", {"step": "a"}), ("run_input", {})])
def test_a_worker_reads_the_run_of_a_lease_that_it_has_claimed(
    api: Api, logins: Logins, read: str, more: Row
) -> None:
    worker, other, producer = (logins.api(role)[1] for role in (WORKER, WORKER, "hwqueue_producer"))
    flow, foreign = Flow(api, [step("a"), step("b")]), Flow(api, [step("a")])
    node = worker.node()
    lease = worker.claim(node, flow.queue)[0]["lease_id"]
    [unclaimed] = [row["lease_id"] for row in flow.steps().values() if row["lease_id"] != lease]
    assert worker.rows(read, run=flow.run, lease=lease, **more)
    assert producer.rows(read, run=flow.run, **more)
    for code, calls, who in (
        ("QHL01", worker, {"run": flow.run}),
        ("QHL01", worker, {"run": foreign.run, "lease": lease}),
        ("QHN04", other, {"run": flow.run, "lease": lease}),
        ("QHL01", worker, {"run": flow.run, "lease": unclaimed}),
    ):
        with refusing(code):
            calls.rows(read, **who, **more)


def test_items_tell_where_they_ran(api: Api) -> None:
    """Of three the first has completed, the second failed, the third is claimed; then some wait."""
    flow = Flow(api, [each("m", list(range(3))), step("b", "m")])
    claims = flow.items()
    flow.settle(claims[0], result={"n": 0})
    flow.settle(claims[1], outcome="fail", retry=False)
    rows = api.rows("step_results", run=flow.run, step="m")
    assert [row["item"] for row in rows] == [0, 1, 2]
    assert [row["lease_state"] for row in rows] == ["completed", "failed", "claimed"]
    for row in rows:
        lease = api.lease(row["lease_id"])
        shown = ("node_id", "attempt", "claimed_at", "finished_at")
        assert [row[name] for name in shown] == [lease[name] for name in shown]
        assert (row["node_id"], row["node_name"]) == (flow.node, f"flow-node-{flow.node}")
        assert (row["attempt"], row["claimed_at"] is None) == (1, False)
    assert [row["finished_at"] is None for row in rows] == [False, False, True]
    for name, after in (("b", -1), ("m", -2)):  # what is not released has no lease
        row = api.row("step_results", run=flow.run, step=name, after=after)
        assert (row["lease_id"], row["lease_state"], row["finished_at"]) == (None, None, None)
    waiting = Flow(api, [each("m", [1])])
    row = api.row("step_results", run=waiting.run, step="m")
    assert (row["state"], row["lease_state"], row["attempt"]) == ("running", "pending", 0)
    assert (row["node_id"], row["node_name"], row["claimed_at"]) == (None, None, None)


def test_items_in_a_state_come_in_pages(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(6)), tolerate=6)])
    claims = flow.items()
    fail(api, Flow(api, [each("m", [0])]).items()[0])  # of another run
    for number in (1, 3, 4):
        flow.settle(claims[number], outcome="fail", retry=False)
    flow.settle(claims[5])

    def page(state: str, step: str = "m", **more: int) -> list[int]:
        rows = api.rows("step_results", run=flow.run, step=step, state=state, **more)
        assert {row["state"] for row in rows} <= {state}
        return [row["item"] for row in rows]

    assert page("failed", limit=2) == [1, 3]
    assert page("failed", after=3) == [4]
    assert (page("running"), page("completed"), page("cancelled")) == ([0, 2], [5], [])
    assert (page("running", after=-2), page("failed", after=-2)) == ([-1], [])
    api.refused("QHA01", "step_results", run=flow.run, step="m", state="pending")
