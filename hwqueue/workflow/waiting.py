"""Steps of a workflow that are no tasks: they wait for a time, a signal, or a run of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hwqueue.client._arguments import check_span
from hwqueue.client._json import plain
from hwqueue.errors import ConfigError
from hwqueue.workflow.step import AfterLike, RunIf, conditions_of, edges_of, plain_value
from hwqueue.workflow.values import After, Condition, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """What all of them have; see `Step` for what it means."""

    name: str
    after: AfterLike = ()
    join: str | None = None
    run_if: RunIf = ()
    on_failure: str | None = None
    final: str | None = None
    _after: tuple[After, ...] = field(init=False, repr=False, compare=False, default=())
    _run_if: tuple[Condition, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_after", edges_of(self.after, (), ()))
        object.__setattr__(self, "_run_if", conditions_of(self.run_if, f"step {self.name!r}: "))
        object.__setattr__(self, "run_if", self._run_if)

    @property
    def edges(self) -> tuple[After, ...]:
        """What has to end before, what conditions and bindings name included."""
        return edges_of(self._after, self._run_if, self._kind())

    def as_json(self) -> dict[str, Any]:
        """The step as the specification has it; what says nothing is left out."""
        members = {
            **{key: plain_value(value) for key, value in self._kind().items()},
            "after": [edge.as_json() for edge in self._after],
            "join": self.join,
            "run_if": [condition.as_json() for condition in self._run_if],
            "on_failure": self.on_failure,
            "finally": self.final,
        }
        return {key: value for key, value in members.items() if value not in (None, [])}

    def _kind(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Sleep(_Waiting):
    """A step that ends at a time, without a worker: `Sleep("cool-down", timedelta(hours=1))`.

    Attributes:
        name: Unique in its workflow, as for `Step`.
        until: A span, from its release on; a time; or a `Value` that is one when it is released,
            such as `run_input("starts_at")`: text in RFC 3339.

    Raises:
        ConfigError: A value is of the wrong type; the message names the step.
    """

    name: str
    until: timedelta | datetime | Value

    def __post_init__(self) -> None:
        _Waiting.__post_init__(self)
        if not isinstance(self.until, timedelta | datetime | Value):
            raise ConfigError(
                f"step {self.name!r}: until is {self.until!r}, which is no timedelta, time or value"
            )

    def _kind(self) -> dict[str, Any]:
        if isinstance(self.until, Value):
            told: dict[str, Any] = {"until": self.until}
        else:
            key = "for" if isinstance(self.until, timedelta) else "until"
            told = plain({key: self.until}, f"step {self.name!r}")
        return {"name": self.name, "kind": "sleep", **told}


@dataclass(frozen=True, slots=True)
class Wait(_Waiting):
    """A step that ends when its run gets a signal; its result is the payload.

    Example:
        Wait("approve", "approved", after="score", timeout=timedelta(days=2), on_timeout="skip")

    Attributes:
        name: Unique in its workflow, as for `Step`.
        signal: The name that `Client.signal_workflow_run` sends, 1 to 200 characters.
        timeout: How long it waits, from its release on; None: until its run ends.
        on_timeout: What it does then: `fail` (None, too), `skip`, or `continue`: it counts as
            completed, without a result.

    Raises:
        ConfigError: A value is of the wrong type; the message names the step.
    """

    name: str
    signal: str
    timeout: timedelta | None = None
    on_timeout: str | None = None

    def __post_init__(self) -> None:
        _Waiting.__post_init__(self)
        check_span(self.timeout, "timeout", ConfigError, f"step {self.name!r}: ")

    def _kind(self) -> dict[str, Any]:
        told = {
            "signal": self.signal,
            "timeout": None if self.timeout is None else self.timeout.total_seconds(),
            "on_timeout": self.on_timeout,
        }
        return {"name": self.name, "kind": "wait", **told}


@dataclass(frozen=True, slots=True)
class Nested(_Waiting):
    """A step that is a run of another workflow; its result is what that run returns.

    Example:
        Nested("load", "load_tables", {"day": run_input("day")}, after="extract")

    Attributes:
        name: Unique in its workflow, as for `Step`.
        workflow: The name under which the other one is defined when the step is released.
        input: What that run is submitted with: an object with a `Value` at any depth, or a `Value`
            that is one; None: an empty object.
        version: Of that workflow; None: its newest.

    Raises:
        ConfigError: A value is of the wrong type; the message names the step.
    """

    name: str
    workflow: str
    input: Mapping[str, Any] | Value | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        _Waiting.__post_init__(self)
        if not isinstance(self.workflow, str):
            raise ConfigError(
                f"step {self.name!r}: workflow is {self.workflow!r}, which is no name",
                hint="define the other workflow, and give its name here",
            )

    def _kind(self) -> dict[str, Any]:
        told = {"workflow": self.workflow, "version": self.version, "input": self.input}
        return {"name": self.name, "kind": "workflow", **told}
