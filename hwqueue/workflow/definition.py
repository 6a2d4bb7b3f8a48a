"""A workflow: its steps, and what all of them ask of their nodes."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypedDict, Unpack, overload

from hwqueue.client import AsyncClient, Client
from hwqueue.client._arguments import check_span
from hwqueue.client._json import plain
from hwqueue.errors import ConfigError
from hwqueue.options import check_options
from hwqueue.types import AsJson, CheckedStep, DefinedWorkflow, Json, RunOptions, SubmittedRun
from hwqueue.workflow.step import Step, plain_value
from hwqueue.workflow.values import Value
from hwqueue.workflow.waiting import Nested, Sleep, Wait

_NAME = re.compile(r"[a-z0-9_-]{1,100}")


class RunWideOptions(TypedDict, total=False):
    """What `Workflow` takes of its runs, beside what all steps ask of their nodes."""

    queue: str | None
    labels: Mapping[str, str] | None
    tenant: str | None
    priority: int | None
    deadline: timedelta | None
    on_failure: str | None
    result: Value | None
    retain_completed: timedelta | None
    retain_failed: timedelta | None
    pin_version: bool | str | None


class WorkflowOptions(RunWideOptions, total=False):
    """What `Workflow` takes beside its name and its steps."""

    affinity_tags: Mapping[str, Any] | None
    placement: AsJson | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """Steps and the order they run in; each may run on another machine.

    Attributes:
        name: 1 to 100 characters of `a-z0-9_-`.
        tasks: Its steps, in any order.
        affinity_tags: Node labels of every step must contain them, unless a step overrides them.
        placement: What every step asks of its node; ANDed with `affinity_tags`.
        queue: Of steps that name none; None: `default`.
        labels: Of its runs, text to text.
        tenant: Whose its runs are; None: nobody's.
        priority: Of its leases, -32768..32767; None: 0.
        deadline: How long after its submission a run fails that has not ended; None: never.
        on_failure: What a step's failure does: `finish_running` (None, too): nothing more starts;
            `fail_fast`: what runs is asked to stop as well; `continue`: only steps behind it are
            skipped. The run fails in each case.
        result: Of the run, such as `result("publish", "uri")`; None: null.
        retain_completed, retain_failed: How long a run is kept after its end, with its leases;
            None: 7 days, 30 days.
        pin_version: Whether the steps of a run run on one version of the code, on workers with
            `--app-version`: True, each submission names it (`app_version`); text, that version
            unless a submission names another one. None: on any.

    Raises:
        ConfigError: What no database is needed to see: names, steps that are not there, cycles.
    """

    name: str
    tasks: Iterable[Step | Sleep | Wait | Nested]
    affinity_tags: Mapping[str, Any] | None = None
    placement: AsJson | Mapping[str, Any] | None = None
    queue: str | None = None
    labels: Mapping[str, str] | None = None
    tenant: str | None = None
    priority: int | None = None
    deadline: timedelta | None = None
    on_failure: str | None = None
    result: Value | None = None
    retain_completed: timedelta | None = None
    retain_failed: timedelta | None = None
    pin_version: bool | str | None = None

    def __post_init__(self) -> None:
        where = f"workflow {self.name!r}: "
        object.__setattr__(self, "tasks", tuple(self.tasks))
        _check_name(self.name, "workflow")
        options = {key: getattr(self, key) for key in _OPTIONS}
        check_options(options, ConfigError, where)
        for name in ("deadline", "retain_completed", "retain_failed"):
            check_span(getattr(self, name), name, ConfigError, where)
        _check_pin(self.pin_version, where)
        _check_graph(self.steps, where)

    @property
    def steps(self) -> tuple[Step | Sleep | Wait | Nested, ...]:
        """Its steps, as they were given."""
        return tuple(self.tasks)

    def as_json(self) -> dict[str, Any]:
        """The specification, as `define_workflow` takes it; what says nothing is left out."""
        options = {key: getattr(self, key) for key in _OPTIONS}
        members = {
            **plain(options, f"workflow {self.name!r}"),
            "queue": self.queue,
            "tenant": self.tenant,
            "deadline": None if self.deadline is None else self.deadline.total_seconds(),
            "on_failure": self.on_failure,
            "result": None if self.result is None else plain_value(self.result),
            "retain": self._retain() or None,
            "pin_version": self.pin_version or None,
        }
        said = {key: value for key, value in members.items() if value is not None}
        return {"name": self.name, **said, "steps": [step.as_json() for step in self.steps]}

    def _retain(self) -> dict[str, float]:
        kept = {"completed": self.retain_completed, "failed": self.retain_failed}
        return {state: span.total_seconds() for state, span in kept.items() if span is not None}

    @overload
    def define(self, client: AsyncClient) -> Coroutine[Any, Any, DefinedWorkflow]: ...

    @overload
    def define(self, client: Client) -> DefinedWorkflow: ...

    def define(self, client: AsyncClient | Client) -> Coroutine[Any, Any, DefinedWorkflow] | DefinedWorkflow:
        """Define it under its name, as at a deployment; does nothing if nothing has changed.

        Runs that are under way keep the version that they were submitted with.

        Raises: As `define_workflow`.
        SQL: define_workflow. Safe inside your transaction: yes.
        """
        return client.define_workflow(self)

    @overload
    def submit(
        self, client: AsyncClient, input: Json = None, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, SubmittedRun]: ...

    @overload
    def submit(self, client: Client, input: Json = None, **options: Unpack[RunOptions]) -> SubmittedRun: ...

    def submit(
        self, client: AsyncClient | Client, input: Json = None, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, SubmittedRun] | SubmittedRun:
        """Submit a run of it as it is written here, whatever is defined under its name.

        `client.submit_workflow("gpu_training")` submits what is defined.

        Args:
            client: An `AsyncClient` (then await the result) or a `Client`; `Client.on(connection)`
                submits inside your transaction.
            input: JSON that `run_input` reads; None: an empty object.
            **options: See `hwqueue.types.RunOptions`, such as `affinity_tags`; no `version`.

        Raises: As `submit_spec`.
        SQL: submit_spec. Safe inside your transaction: yes, waits for nobody.
        """
        return client.submit_spec(self, input, **options)

    @overload
    def check(
        self, client: AsyncClient, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, list[CheckedStep]]: ...

    @overload
    def check(self, client: Client, **options: Unpack[RunOptions]) -> list[CheckedStep]: ...

    def check(
        self, client: AsyncClient | Client, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, list[CheckedStep]] | list[CheckedStep]:
        """Where each step could run if it were submitted now; changes nothing.

        `client.check_workflow("gpu_training")` checks what is defined.

        Args:
            **options: Those of the submission.

        Raises: As `submit_spec`.
        SQL: check_workflow. Safe inside your transaction: yes.
        """
        return client.check_workflow(self, **options)


_OPTIONS = ("affinity_tags", "placement", "labels", "priority")


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a {what}: it has 1 to 100 characters of a-z, 0-9, _ and -")


def _check_pin(pin: object, where: str) -> None:
    if not (pin is None or isinstance(pin, bool) or (isinstance(pin, str) and 0 < len(pin) <= 100)):
        raise ConfigError(f"{where}pin_version is True or a version of 1 to 100 characters, got {pin!r:.120}")


def _check_graph(steps: tuple[Step | Sleep | Wait | Nested, ...], where: str) -> None:
    """Raises: ConfigError for names that are wrong, twice or not there, and for cycles."""
    if not steps:
        raise ConfigError(f"{where}it has no steps")
    parents: dict[str, list[str]] = {}
    for step in steps:
        _check_name(step.name, "step")
        if step.name in parents:
            raise ConfigError(f"{where}two steps are called {step.name!r}")
        parents[step.name] = [edge.step for edge in step.edges]
    named = [(step.name, "comes after", edge.step) for step in steps for edge in step.edges]
    named += [
        (step.name, "is near", other)
        for step in steps
        if isinstance(step, Step) and step.near
        for other in step.near.steps
    ]
    for name, how, other in named:
        if other not in parents:
            raise ConfigError(
                f"{where}step {name!r} {how} {other!r}, which is not there",
                hint=f"its steps are {', '.join(parents)}",
            )
    try:
        TopologicalSorter(parents).prepare()
    except CycleError as error:
        shown = " -> ".join(reversed(error.args[1]))
        raise ConfigError(f"{where}its steps wait for each other: {shown}") from None
