"""Workflows written one call after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Unpack, cast

from hwqueue.errors import ConfigError
from hwqueue.handler.task import Task
from hwqueue.types import AsJson, SpawnOptions
from hwqueue.workflow.definition import Workflow
from hwqueue.workflow.near import Near
from hwqueue.workflow.step import AfterLike, RunIf, Step
from hwqueue.workflow.values import Value
from hwqueue.workflow.waiting import Nested, Sleep, Wait


@dataclass(frozen=True, slots=True)
class WorkflowBuilder:
    """Writes a `Workflow`; every method returns a new builder.

    Example:
        training = (
            WorkflowBuilder("gpu_training")
            .with_affinity(gpu=True, memory="high")
            .task("prepare", prepare, override_affinity={"gpu": False})
            .task("train", train, after="prepare", max_attempts=3)
            .build()
        )
    """

    name: str
    _steps: tuple[Step | Sleep | Wait | Nested, ...] = ()
    _options: tuple[tuple[str, Any], ...] = ()

    def with_affinity(self, tags: Mapping[str, Any] | None = None, /, **more: Any) -> WorkflowBuilder:
        """Add labels that the nodes of every step must have: `with_affinity(gpu=True)`."""
        before = dict(self._options).get("affinity_tags") or {}
        return self._with(affinity_tags={**before, **(tags or {}), **more})

    def with_placement(self, placement: AsJson | Mapping[str, Any]) -> WorkflowBuilder:
        """Set what every step asks of its node; ANDed with the affinity."""
        return self._with(placement=placement)

    def with_options(
        self,
        *,
        queue: str | None = None,
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        deadline: timedelta | None = None,
        on_failure: str | None = None,
        result: Value | None = None,
        retain_completed: timedelta | None = None,
        retain_failed: timedelta | None = None,
        pin_version: bool | str | None = None,
    ) -> WorkflowBuilder:
        """Set what else `Workflow` takes; None: as it was."""
        told = {
            "queue": queue,
            "labels": labels,
            "tenant": tenant,
            "priority": priority,
            "deadline": deadline,
            "on_failure": on_failure,
            "result": result,
            "retain_completed": retain_completed,
            "retain_failed": retain_failed,
            "pin_version": pin_version,
        }
        return self._with(**{key: value for key, value in told.items() if value is not None})

    def task(
        self,
        name: str,
        task: Task[..., Any] | str,
        *,
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
        **options: Unpack[SpawnOptions],
    ) -> WorkflowBuilder:
        """Add a step; see `Step`, and `hwqueue.types.SpawnOptions` for the options.

        Args:
            override_affinity: Tags that win over the run's, key by key; excludes `affinity_tags`.
                `without_affinity("gpu")` takes tags away.
            replace_affinity: Whether the step asks only what it says itself, not what its run does.

        Raises: ConfigError, when a value is of the wrong type.
        """
        asked = dict(options)
        placement: Any = asked.pop("placement", None)
        tags: Any = asked.pop("affinity_tags", None)
        mode = _mode(name, tags, override_affinity, replace_affinity)
        step = Step(
            name,
            task,
            after=after,
            params=params,
            queue=queue,
            placement=placement,
            affinity_tags=tags if override_affinity is None else override_affinity,
            affinity=mode,
            join=join,
            run_if=run_if,
            on_failure=on_failure,
            final=final,
            near=near,
            options=SpawnOptions(**asked),  # type: ignore[typeddict-item]
        )
        return self.step(step)

    def map(
        self,
        name: str,
        task: Task[..., Any] | str,
        *,
        over: Value | Sequence[Any],
        params: Mapping[str, Any] | Value | None = None,
        max_parallel: int | None = None,
        tolerate: int | str | None = None,
        after: AfterLike = (),
        queue: str | None = None,
        override_affinity: Mapping[str, Any] | None = None,
        replace_affinity: bool = False,
        join: str | None = None,
        run_if: RunIf = (),
        on_failure: str | None = None,
        final: str | None = None,
        near: Near | None = None,
        **options: Unpack[SpawnOptions],
    ) -> WorkflowBuilder:
        """Add a step that runs its task once for each item of a list; see `task` for the rest.

        Args:
            over: The list, or what stands for one: `result("split", "shards")`.
            params: Of each item, with `item()` and `index()`; None: `{"item": item()}`.
            max_parallel: How many items wait or run at once; None: 1,000.
            tolerate: How many items may fail until the step does: a number, or `"10 %"`; None: 0.

        Raises: ConfigError, when a value is of the wrong type.
        """
        added = self.task(
            name,
            task,
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
        return self.step(replace(one, over=over, max_parallel=max_parallel, tolerate=tolerate))

    def gang(
        self,
        name: str,
        task: Task[..., Any] | str,
        *,
        size: int,
        min_size: int | None = None,
        together: str | Sequence[str] | None = None,
        same: Sequence[str] = (),
        on_lost: str | None = None,
        hold: timedelta | None = None,
        params: Mapping[str, Any] | Value | None = None,
        after: AfterLike = (),
        queue: str | None = None,
        override_affinity: Mapping[str, Any] | None = None,
        replace_affinity: bool = False,
        join: str | None = None,
        run_if: RunIf = (),
        on_failure: str | None = None,
        final: str | None = None,
        near: Near | None = None,
        **options: Unpack[SpawnOptions],
    ) -> WorkflowBuilder:
        """Add a step whose leases start together or not at all; see `task` for the rest.

        Args:
            size: How many members it has, 2 to 1,000. Each runs the task; `context.gang` says its
                rank and where the others are.
            min_size, together, same, on_lost, hold: As in `hwqueue.types.GangOptions`.
            params: Of each member; `index()` is its rank.
            **options: Of each member; `patience` is none of them.

        Raises: ConfigError, when a value is of the wrong type.
        """
        added = self.task(
            name,
            task,
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
        one = replace(
            cast(Step, added.steps[-1]),
            size=size,
            min_size=min_size,
            together=together,
            same=same,
            on_lost=on_lost,
            hold=hold,
        )
        return self.step(one)

    def sleep(
        self,
        name: str,
        until: timedelta | datetime | Value,
        *,
        after: AfterLike = (),
        join: str | None = None,
        run_if: RunIf = (),
        on_failure: str | None = None,
        final: str | None = None,
    ) -> WorkflowBuilder:
        """Add a step that ends after a span or at a time; see `Sleep`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.step(
            Sleep(
                name,
                until,
                after=after,
                join=join,
                run_if=run_if,
                on_failure=on_failure,
                final=final,
            )
        )

    def wait(
        self,
        name: str,
        signal: str,
        *,
        timeout: timedelta | None = None,
        on_timeout: str | None = None,
        after: AfterLike = (),
        join: str | None = None,
        run_if: RunIf = (),
        on_failure: str | None = None,
        final: str | None = None,
    ) -> WorkflowBuilder:
        """Add a step that ends when its run gets a signal; see `Wait`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.step(
            Wait(
                name,
                signal,
                timeout,
                on_timeout,
                after=after,
                join=join,
                run_if=run_if,
                on_failure=on_failure,
                final=final,
            )
        )

    def on_failure(
        self,
        name: str,
        task: Task[..., Any] | str,
        *,
        params: Mapping[str, Any] | Value | None = None,
        queue: str | None = None,
        override_affinity: Mapping[str, Any] | None = None,
        replace_affinity: bool = False,
        run_if: RunIf = (),
        near: Near | None = None,
        **options: Unpack[SpawnOptions],
    ) -> WorkflowBuilder:
        """Add a step that runs once when all else has ended, if the run is to fail: a `task` with
        `final="failed"`, which has no `after`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.task(
            name,
            task,
            params=params,
            queue=queue,
            override_affinity=override_affinity,
            replace_affinity=replace_affinity,
            run_if=run_if,
            final="failed",
            near=near,
            **options,
        )

    def workflow(
        self,
        name: str,
        workflow: str,
        *,
        input: Mapping[str, Any] | Value | None = None,
        version: int | None = None,
        after: AfterLike = (),
        join: str | None = None,
        run_if: RunIf = (),
        on_failure: str | None = None,
        final: str | None = None,
    ) -> WorkflowBuilder:
        """Add a step that is a run of another workflow; see `Nested`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.step(
            Nested(
                name,
                workflow,
                input,
                version,
                after=after,
                join=join,
                run_if=run_if,
                on_failure=on_failure,
                final=final,
            )
        )

    @property
    def steps(self) -> tuple[Step | Sleep | Wait | Nested, ...]:
        """The steps so far."""
        return self._steps

    def step(self, step: Step | Sleep | Wait | Nested) -> WorkflowBuilder:
        """Add a step that exists."""
        return replace(self, _steps=(*self._steps, step))

    def build(self) -> Workflow:
        """The workflow. Raises: ConfigError, see `Workflow`."""
        return Workflow(name=self.name, tasks=self._steps, **dict(self._options))

    def _with(self, **options: Any) -> WorkflowBuilder:
        return replace(self, _options=tuple({**dict(self._options), **options}.items()))


def _mode(name: str, tags: Any, override: Mapping[str, Any] | None, replaces: bool) -> str | None:
    if override is not None and (tags is not None or replaces):
        raise ConfigError(f"step {name!r}: override_affinity goes without affinity_tags and replace_affinity")
    if override is not None:
        return "override"
    return "replace" if replaces else None
