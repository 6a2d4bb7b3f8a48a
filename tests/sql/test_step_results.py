"""Results of steps and inputs of runs: who may read them, and what they hold."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.calls import Calls
from tests.flows import Flow, step
from tests.sql.api import Api, refusing
from tests.sql.logins import WORKER, Logins


def test_a_step_has_the_result_of_its_lease(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a"), step("c", "b")], input={"n": 1})
    flow.complete("a", result={"uri": "s3://x"})
    flow.fail("b")
    found = {name: api.row("step_results", run=flow.run, step=name) for name in ("a", "b", "c")}
    assert [row["item"] for row in found.values()] == [0, 0, 0]
    assert (found["a"]["state"], found["a"]["result"]) == ("completed", {"uri": "s3://x"})
    assert (found["b"]["state"], found["b"]["error"]["message"]) == ("failed", "broken")
    assert (found["c"]["state"], found["c"]["result"]) == ("skipped", None)
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
    flow = Flow(api, [step("a")])
    api.rows("skip_step", run=flow.run, step="a", result=7)
    assert api.row("step_results", run=flow.run, step="a")["result"] == 7


def test_what_is_refused(api: Api) -> None:
    flow = Flow(api, [step("a")])
    api.refused("QHF06", "step_results", run=flow.run, step="b")
    api.refused("QHF03", "step_results", run=uuid4(), step="a")
    api.refused("QHA01", "step_results", run=flow.run, step="a", limit=0)
    api.refused("QHF03", "run_input", run=uuid4())


@pytest.mark.parametrize(
    "read",
    [
        lambda calls, **who: calls.rows("step_results", step="a", **who),
        lambda calls, **who: calls.rows("run_input", **who),
    ],
)
def test_a_worker_reads_the_run_of_a_lease_that_it_has_claimed(
    api: Api, logins: Logins, read: Callable[..., object]
) -> None:
    _, worker = logins.api(WORKER)
    _, other = logins.api(WORKER)
    _, producer = logins.api("hwqueue_producer")
    flow, foreign = Flow(api, [step("a"), step("b")]), Flow(api, [step("a")])
    node = worker.node()
    lease = worker.claim(node, flow.queue)[0]["lease_id"]
    assert read(worker, run=flow.run, lease=lease)
    assert read(producer, run=flow.run)

    def refused(code: str, calls: Calls, **who: object) -> None:
        with refusing(code):
            read(calls, **who)

    refused("QHL01", worker, run=flow.run)
    refused("QHL01", worker, run=foreign.run, lease=lease)
    refused("QHN04", other, run=flow.run, lease=lease)
    unclaimed = [row["lease_id"] for row in flow.steps().values() if row["lease_id"] != lease]
    refused("QHL01", worker, run=flow.run, lease=unclaimed[0])
