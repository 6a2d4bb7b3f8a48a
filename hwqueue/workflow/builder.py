"""Workflows written one call after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Unpack

from hwqueue.handler.task import Task
from hwqueue.types import AsJson
from hwqueue.workflow.definition import RunWideOptions, Workflow
from hwqueue.workflow.step import AskedOptions, RunIf, Step, StepOptions, WaitingOptions, step_of
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

    def with_options(self, **options: Unpack[RunWideOptions]) -> WorkflowBuilder:
        """Set what else `Workflow` takes; None: as it was."""
        return self._with(**{key: value for key, value in options.items() if value is not None})

    def task(self, name: str, task: Task[..., Any] | str, **options: Unpack[StepOptions]) -> WorkflowBuilder:
        """Add a step; see `Step`, and `hwqueue.types.SpawnOptions` for the options of its lease.

        Args:
            **options: `override_affinity`: tags that win over the run's, key by key; excludes
                `affinity_tags`. `without_affinity("gpu")` takes tags away. `replace_affinity`:
                whether the step asks only what it says itself, not what its run does.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.step(step_of(name, task, options))

    def map(
        self,
        name: str,
        task: Task[..., Any] | str,
        *,
        over: Value | Sequence[Any],
        max_parallel: int | None = None,
        tolerate: int | str | None = None,
        **options: Unpack[StepOptions],
    ) -> WorkflowBuilder:
        """Add a step that runs its task once for each item of a list; see `task` for the rest.

        Args:
            over: The list, or what stands for one: `result("split", "shards")`.
            max_parallel: How many items wait or run at once; None: 1,000.
            tolerate: How many items may fail until the step does: a number, or `"10 %"`; None: 0.
            **options: `params`: of each item, with `item()` and `index()`; None:
                `{"item": item()}`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        kind = {"over": over, "max_parallel": max_parallel, "tolerate": tolerate}
        return self.step(step_of(name, task, {**options, **kind}))

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
        **options: Unpack[StepOptions],
    ) -> WorkflowBuilder:
        """Add a step whose leases start together or not at all; see `task` for the rest.

        Args:
            size: How many members it has, 2 to 1,000. Each runs the task; `context.gang` says its
                rank and where the others are.
            min_size, together, same, on_lost, hold: As in `hwqueue.types.GangOptions`.
            **options: Of each member; `patience` is none of them. In `params`, `index()` is its
                rank.

        Raises: ConfigError, when a value is of the wrong type.
        """
        kind = {
            "size": size,
            "min_size": min_size,
            "together": together,
            "same": same,
            "on_lost": on_lost,
            "hold": hold,
        }
        return self.step(step_of(name, task, {**options, **kind}))

    def sleep(
        self, name: str, until: timedelta | datetime | Value, **options: Unpack[WaitingOptions]
    ) -> WorkflowBuilder:
        """Add a step that ends after a span or at a time; see `Sleep`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.step(Sleep(name, until, **options))

    def wait(
        self,
        name: str,
        signal: str,
        *,
        timeout: timedelta | None = None,
        on_timeout: str | None = None,
        **options: Unpack[WaitingOptions],
    ) -> WorkflowBuilder:
        """Add a step that ends when its run gets a signal; see `Wait`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.step(Wait(name, signal, timeout, on_timeout, **options))

    def on_failure(
        self, name: str, task: Task[..., Any] | str, *, run_if: RunIf = (), **options: Unpack[AskedOptions]
    ) -> WorkflowBuilder:
        """Add a step that runs once when all else has ended, if the run is to fail: a `task` with
        `final="failed"`, which has no `after`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.task(name, task, run_if=run_if, final="failed", **options)

    def workflow(
        self,
        name: str,
        workflow: str,
        *,
        input: Mapping[str, Any] | Value | None = None,
        version: int | None = None,
        **options: Unpack[WaitingOptions],
    ) -> WorkflowBuilder:
        """Add a step that is a run of another workflow; see `Nested`.

        Raises: ConfigError, when a value is of the wrong type.
        """
        return self.step(Nested(name, workflow, input, version, **options))

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
