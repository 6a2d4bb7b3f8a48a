"""Nested runs in tests: what they are defined as, and the runs below a run."""

from copy import copy
from typing import Any

from tests.calls import Calls, Row
from tests.flows import Flow
from tests.patience import looks


def nested(name: str, workflow: str, *after: Any, **more: Any) -> Row:
    """A step that is a run of another workflow."""
    return {"name": name, "kind": "workflow", "workflow": workflow, "after": list(after)} | more


def define(flow: Flow, name: str, *steps: Row, **spec: Any) -> None:
    """Define a workflow whose leases the node of a run claims."""
    given = {"name": name, "queue": flow.queue, "steps": list(steps)} | spec
    flow.calls.rows("define_workflow", spec=given)


def below(flow: Flow, step: str, *steps: str) -> Flow:
    """The run that a step is, or further down that a step of that is."""
    made = copy(flow)
    made.run = flow.steps()[step]["nested_run_id"]
    return below(made, *steps) if steps else made


def sweep(calls: Calls) -> None:
    """Work off arrivals until nothing more comes of it."""
    quiet = 0
    for _ in looks():
        quiet = 0 if calls.row("advance_workflows")["folded"] else quiet + 1
        if quiet == 2:  # changes of states that are kept have left nothing new either
            return


def opened(
    calls: Calls, *steps: Row, name: str = "child", within: list[Row] | None = None, **spec: Any
) -> tuple[Flow, Flow]:
    """A run whose step `n`, the only one unless others are given, is a run of these steps; and that run."""
    flow = Flow(calls, within or [nested("n", name)])
    define(flow, name, *steps, **spec)
    sweep(calls)
    return flow, below(flow, "n")
