"""Negative control: each rule of verify_invariants for runs finds a break that is planted."""

from typing import LiteralString

import pytest

from tests.calls import Row
from tests.flows import Flow, each, finish, gang, step
from tests.nests import define, nested, sweep
from tests.sql.api import Api
from tests.sql.test_added_steps import added

JOIN = [step("a"), step("b"), step("c", "a", "b")]
NAP = {"name": "a", "kind": "sleep", "for": "1 day"}
WAIT = {"name": "a", "kind": "wait", "signal": "go"}
NESTED = [nested("a", "below")]

TALLY = "update hwqueue.tally set "
STEP = "update hwqueue.step set "
OF_RUN = " where run_id = %s and step_no = 0 and part = 0"
OF_JOIN = " where run_id = %s and step_no > 0 and part = 0"
OF_MAP = " where run_id = %s and part > 0"
OF_ALL = " where run_id = %s"
OF_A = " where run_id = %s and step_no = 1"
SIGNAL = """
  insert into hwqueue.run_signal (run_id, name, sent_at) values (%s, 'go', now())
"""

# The rules that find it, what is there, and what is changed: one thing each.
BREAKS: dict[str, tuple[set[str], list[Row], LiteralString]] = {
    "more work is counted": ({"run_work"}, [step("a")], TALLY + "need = need + 1" + OF_RUN),
    "a parent is counted twice": ({"run_join"}, JOIN, TALLY + "arrived = 1" + OF_JOIN),
    "an edge is counted unmet": ({"run_join"}, JOIN, TALLY + "unmet = 1" + OF_JOIN),
    "an item is counted twice": ({"run_items"}, [each("a", [1])], TALLY + "need = 2" + OF_MAP),
    "a failure is made up": ({"run_items"}, [each("a", [1])], TALLY + "failed = 1" + OF_MAP),
    "nobody ends a map": ({"run_items", "run_stuck"}, [each("a", [1])], TALLY + "arrived = need" + OF_MAP),
    "a gang step has lost its gang": (
        {"step_gang"},
        [gang("a", 2)],
        "update hwqueue.gang set run_id = gen_random_uuid() where run_id = %s",
    ),
    "a run ends before its steps": (
        {"run_over"},
        [step("a")],
        "update hwqueue.run set state = 'completed', finished_at = now()" + OF_ALL,
    ),
    "a step has lost its lease": ({"step_lease"}, [step("a")], STEP + "lease_id = gen_random_uuid()" + OF_A),
    "a lease outlives its step": (
        {"step_lease", "run_work"},
        [step("a")],
        STEP + "state = 'completed'" + OF_A,
    ),
    "nothing ends a sleep": ({"step_due"}, [NAP], STEP + "due_at = null" + OF_A),
    "an ended step is due": (
        {"step_due", "step_lease", "run_work"},
        [step("a")],
        STEP + "state = 'completed', due_at = now()" + OF_A,
    ),
    "a signal wakes nobody": ({"wait_signal"}, [WAIT], SIGNAL),
    "a retry below is forgotten": (
        {"step_nested", "run_over"},
        NESTED,
        "update hwqueue.run set parent_attempt = 0, state = 'failed', finished_at = now()"
        " where parent_run_id = %s",
    ),
    "a step and its run have lost each other": (
        {"step_nested", "run_nested"},
        NESTED,
        "update hwqueue.run set parent_run_id = gen_random_uuid() where parent_run_id = %s",
    ),
}


def found(flow: Flow, api: Api, planted: LiteralString) -> set[str]:
    """The rules that the change breaks."""
    return {rule for rule, _ in api.breaks(planted, flow.run)}


@pytest.mark.parametrize("broken_by", BREAKS)
def test_what_verify_invariants_finds_in_runs(api: Api, broken_by: str) -> None:
    rules, steps, planted = BREAKS[broken_by]
    flow = Flow(api, steps)
    if steps == NESTED:
        define(flow, "below", step("x"))
        sweep(api)
    assert found(flow, api, planted) == rules


def test_a_step_that_nobody_releases_and_a_retry_that_is_forgotten(api: Api) -> None:
    """Its parents have ended, and are counted; the retry is one of added steps."""
    flow = Flow(api, [step("a"), step("b", "a")])
    finish(api, flow.claims()["a"])
    planted = STEP + "state = 'waiting', lease_id = null where run_id = %s and step_no = 2"
    assert found(flow, api, planted) == {"run_stuck", "run_work"}
    flow = Flow(api, [step("a")])
    more = added(flow, flow.claims()["a"], step("x"))
    more.fail("x")
    sweep(api)
    planted = (
        "with later as (update hwqueue.run set attempt = 2, state = 'running' where run_id = %s)"
        " update hwqueue.map set runs_since = 0"
    )
    assert found(flow, api, planted) == {"run_nested"}
