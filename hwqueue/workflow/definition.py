"""A workflow: its steps, and what all of them ask of their nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any

from hwqueue.client._json import plain
from hwqueue.errors import ConfigError
from hwqueue.options import check_options
from hwqueue.types import AsJson
from hwqueue.workflow.step import Step, plain_value
from hwqueue.workflow.values import Value

_NAME = re.compile(r"[a-z0-9_-]{1,100}")


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

    Raises:
        ConfigError: What no database is needed to see: names, steps that are not there, cycles, a
            step that takes a result, or is near a step, that does not come before it.
    """

    name: str
    tasks: Iterable[Step]
    affinity_tags: Mapping[str, Any] | None = None
    placement: AsJson | Mapping[str, Any] | None = None
    queue: str | None = None
    labels: Mapping[str, str] | None = None
    tenant: str | None = None
    priority: int | None = None
    deadline: timedelta | None = None
    on_failure: str | None = None
    result: Value | None = None
    _before: Mapping[str, frozenset[str]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        where = f"workflow {self.name!r}: "
        object.__setattr__(self, "tasks", tuple(self.tasks))
        _check_name(self.name, "workflow")
        options = {key: getattr(self, key) for key in _OPTIONS}
        check_options(options, ConfigError, where)
        _check_span(self.deadline, where)
        object.__setattr__(self, "_before", _ancestors(self.steps, where))
        for step in self.steps:
            self._check_near(step, where)

    @property
    def steps(self) -> tuple[Step, ...]:
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
        }
        said = {key: value for key, value in members.items() if value is not None}
        return {"name": self.name, **said, "steps": [step.as_json() for step in self.steps]}

    def _check_near(self, step: Step, where: str) -> None:
        if step.near is None:
            return
        for other in step.near.as_json()["steps"]:
            if other not in self._before[step.name]:
                raise ConfigError(
                    f"{where}step {step.name!r} is near {other!r}, which does not come before it",
                    hint=f"add {other!r} to its after",
                )


_OPTIONS = ("affinity_tags", "placement", "labels", "priority")


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a {what}: it has 1 to 100 characters of a-z, 0-9, _ and -"
        )


def _check_span(value: Any, where: str) -> None:
    if value is not None and not isinstance(value, timedelta):
        raise ConfigError(f"{where}deadline must be a timedelta, not {value!r}")


def _ancestors(steps: tuple[Step, ...], where: str) -> dict[str, frozenset[str]]:
    """The steps that come before each, at any distance.

    Raises: ConfigError for names that are wrong, twice or not there, and for cycles.
    """
    if not steps:
        raise ConfigError(f"{where}it has no steps")
    parents: dict[str, list[str]] = {}
    for step in steps:
        _check_name(step.name, "step")
        if step.name in parents:
            raise ConfigError(f"{where}two steps are called {step.name!r}")
        parents[step.name] = [edge.step for edge in step.edges]
    for name, before in parents.items():
        for other in before:
            if other not in parents:
                raise ConfigError(
                    f"{where}step {name!r} comes after {other!r}, which is not there",
                    hint=f"its steps are {', '.join(parents)}",
                )
    try:
        order = tuple(TopologicalSorter(parents).static_order())
    except CycleError as error:
        shown = " -> ".join(reversed(error.args[1]))
        raise ConfigError(f"{where}its steps wait for each other: {shown}") from None
    found: dict[str, frozenset[str]] = {}
    for name in order:
        found[name] = frozenset(parents[name]).union(*(found[other] for other in parents[name]))
    return found
