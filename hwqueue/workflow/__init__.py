"""Workflows: steps that run one after the other, each where it may."""

from hwqueue.workflow.builder import WorkflowBuilder
from hwqueue.workflow.definition import Workflow
from hwqueue.workflow.flow import Flow
from hwqueue.workflow.near import Near, near
from hwqueue.workflow.step import Step, WorkflowTask, without_affinity
from hwqueue.workflow.values import (
    After,
    Condition,
    Value,
    completed,
    ended,
    failed,
    index,
    item,
    literal,
    result,
    results,
    run,
    run_input,
)
from hwqueue.workflow.waiting import Nested, Sleep, Wait

__all__ = [
    "After", "Condition", "Flow", "Near", "Nested", "Sleep", "Step", "Value", "Wait", "Workflow",
    "WorkflowBuilder", "WorkflowTask", "completed", "ended", "failed", "index", "item", "literal",
    "near", "result", "results", "run", "run_input", "without_affinity",
]  # fmt: skip
