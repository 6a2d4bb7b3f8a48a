"""Workflows written as functions, each a task of an app and a step.

flow = app.workflow("gpu_training", affinity_tags={"gpu": True})

@flow.step(override_affinity=without_affinity("gpu"))
def prepare(params, context): ...

@flow.step(after=[prepare], placement={"resources": {"gpu": 4}})
def train(params, context):
    data = context.result(prepare)
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, Unpack

from hwqueue.handler.binding import Handler
from hwqueue.types import Timing
from hwqueue.workflow.builder import WorkflowBuilder
from hwqueue.workflow.definition import Workflow, WorkflowOptions
from hwqueue.workflow.step import KindOptions, Step, step_of
from hwqueue.workflow.waiting import Nested, Sleep, Wait

_Added = TypeVar("_Added", Step, Sleep, Wait, Nested)


class Flow:
    """A workflow that gets its steps one by one. Made by `App.workflow`.

    Attributes:
        name: Of the workflow.
        schedule: When a run is submitted by itself; None: never.
    """

    def __init__(
        self,
        name: str,
        register: Callable[..., Any],
        *,
        schedule: Timing | None = None,
        **options: Unpack[WorkflowOptions],
    ) -> None:
        self.name = name
        self.schedule = schedule
        self._register = register
        self._options = options
        self._builder = WorkflowBuilder(name)

    @property
    def workflow(self) -> Workflow:
        """The workflow with the steps that it has now. Raises: ConfigError, see `Workflow`."""
        return Workflow(name=self.name, tasks=self._builder.steps, **self._options)

    def add(self, step: _Added) -> _Added:
        """Add a step that is no function, and return it: a `Nested`, `Sleep`, `Wait` or `Step`.

        Example:
            load = flow.add(Nested("load", "load_tables", {"day": run_input("day")}))
        """
        self._builder = self._builder.step(step)
        return step

    def step(
        self,
        name: str | None = None,
        *,
        task: str | None = None,
        process: bool = False,
        timeout: timedelta | None = None,
        **options: Unpack[KindOptions],
    ) -> Callable[[Handler], Step]:
        """Make a function a task of the app, and a step: `after` and `result` take what it returns.

        Args:
            name: Of the step; None: the function's.
            task: What its leases call the handler; None: `workflow.step`.
            process, timeout: Of the task, see `App.task`.
            **options: Of the step: see `WorkflowBuilder.task`. `over`, `max_parallel` and
                `tolerate` make it a map, see `WorkflowBuilder.map`; `size`, `min_size`, `together`,
                `same`, `on_lost` and `hold` a gang, see `WorkflowBuilder.gang`.

        Raises:
            ConfigError: The name is taken, or a value is of the wrong type.
        """

        def add(handler: Handler) -> Step:
            called = name or handler.__name__
            made = self._register(
                task or f"{self.name}.{called}",
                queue=options.get("queue") or self._options.get("queue") or "default",
                process=process,
                timeout=timeout,
            )(handler)
            return self.add(step_of(called, made, options))

        return add
