"""Workflows written as functions, each a task of an app and a step.

flow = app.workflow("gpu_training", affinity_tags={"gpu": True})

@flow.step(override_affinity=without_affinity("gpu"))
def prepare(params, context): ...

@flow.step(after=[prepare], placement={"resources": {"gpu": 4}})
def train(params, context):
    data = context.result(prepare)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, Unpack, cast

from hwqueue.handler.binding import Handler
from hwqueue.types import SpawnOptions
from hwqueue.workflow.builder import WorkflowBuilder
from hwqueue.workflow.definition import Workflow, WorkflowOptions
from hwqueue.workflow.near import Near
from hwqueue.workflow.step import AfterLike, RunIf, Step
from hwqueue.workflow.values import Value
from hwqueue.workflow.waiting import Nested, Sleep, Wait

_Added = TypeVar("_Added", Step, Sleep, Wait, Nested)


class Flow:
    """A workflow that gets its steps one by one. Made by `App.workflow`.

    Attributes:
        name: Of the workflow.
    """

    def __init__(self, name: str, register: Callable[..., Any], **options: Unpack[WorkflowOptions]) -> None:
        self.name = name
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
        after: AfterLike = (),
        params: Mapping[str, Any] | Value | None = None,
        queue: str | None = None,
        override_affinity: Mapping[str, Any] | None = None,
        replace_affinity: bool = False,
        join: str | None = None,
        run_if: RunIf = (),
        on_failure: str | None = None,
        final: str | None = None,
        near: Near | None = None,
        over: Value | Sequence[Any] | None = None,
        max_parallel: int | None = None,
        tolerate: int | str | None = None,
        size: int | None = None,
        min_size: int | None = None,
        together: str | Sequence[str] | None = None,
        same: Sequence[str] = (),
        on_lost: str | None = None,
        hold: timedelta | None = None,
        process: bool = False,
        timeout: timedelta | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Callable[[Handler], Step]:
        """Make a function a task of the app, and a step: `after` and `result` take what it returns.

        Args:
            name: Of the step; None: the function's.
            task: What its leases call the handler; None: `workflow.step`.
            over, max_parallel, tolerate: Make it a map, see `WorkflowBuilder.map`.
            size, min_size, together, same, on_lost, hold: Make it a gang, see
                `WorkflowBuilder.gang`.
            process, timeout: Of the task, see `App.task`.
            **options: Of the step, and all else: see `WorkflowBuilder.task`.

        Raises:
            ConfigError: The name is taken, or a value is of the wrong type.
        """

        def add(handler: Handler) -> Step:
            called = name or handler.__name__
            made = self._register(
                task or f"{self.name}.{called}",
                queue=queue or self._options.get("queue") or "default",
                process=process,
                timeout=timeout,
            )(handler)
            added = self._builder.task(
                called,
                made,
                after=after,
                params=params,
                queue=queue,
                override_affinity=override_affinity,
                replace_affinity=replace_affinity,
                join=join,
                run_if=run_if,
                on_failure=on_failure,
                final=final,
                near=near,
                **options,
            )
            one = cast(Step, added.steps[-1])
            step = replace(
                one,
                over=over,
                max_parallel=max_parallel,
                tolerate=tolerate,
                size=size,
                min_size=min_size,
                together=together,
                same=same,
                on_lost=on_lost,
                hold=hold,
            )
            self._builder = self._builder.step(step)
            return step

        return add
