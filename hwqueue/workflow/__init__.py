"""Workflows: steps that run one after the other, each where it may."""

from hwqueue.workflow.builder import WorkflowBuilder
from hwqueue.workflow.definition import Workflow
from hwqueue.workflow.near import Near, near
from hwqueue.workflow.step import Step
from hwqueue.workflow.values import (
    After,
    Condition,
    Value,
    completed,
    ended,
    failed,
    literal,
    result,
    run,
    run_input,
)

__all__ = [
    "After", "Condition", "Near", "Step", "Value", "Workflow", "WorkflowBuilder", "completed",
    "ended", "failed", "literal", "near", "result", "run", "run_input",
]  # fmt: skip
