"""What a workflow says about its steps beside their tasks: where params come from, and when.

    .task("train", train, params={"data": result("prepare", "path"), "lr": run_input("lr")})
    .task("publish", publish, after=[ended("train")], run_if=[result("train", "loss") < 0.1])

It only writes JSON; the database checks what it means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hwqueue.placement import JsonText

__all__ = [
    "After",
    "Condition",
    "Value",
    "completed",
    "ended",
    "failed",
    "index",
    "item",
    "literal",
    "result",
    "results",
    "run",
    "run_input",
    "step_name",
]

Scalar = str | int | float | bool


class _Named(Protocol):
    """A step of any kind."""

    @property
    def name(self) -> str:
        """Its name in the workflow."""


StepLike: TypeAlias = "str | _Named"
"""A step or its name."""

_ABSENT: Any = object()


def step_name(step: StepLike) -> str:
    """The name of a step, or the name itself."""
    return step if isinstance(step, str) else step.name


class Condition(JsonText):
    """A condition on a run's input or a step's result. Made by comparing a `Value`."""

    __slots__ = ()

    @property
    def step(self) -> str | None:
        """The step whose result it looks at."""
        name: str | None = self.as_json().get("step")
        return name

    def __bool__(self) -> bool:
        raise TypeError(
            "a condition is neither true nor false before the run: `and`, `or` and `1 < value < 5` "
            "do not combine conditions; list them in run_if"
        )


class Value:
    """A value that is known when its step starts. Made by `run_input`, `result` and the like.

    In `params` it stands for the value itself, at any depth. `run_input` and `result` can be
    compared, for `run_if`: `result("train", "loss") < 0.1`.
    """

    __slots__ = ("_members",)
    __hash__ = None  # type: ignore[assignment]  # == makes a condition, so there is no equality

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)

    def __repr__(self) -> str:
        return f"Value({json.dumps(self._members)})"

    def as_json(self) -> dict[str, Any]:
        """As the specification of workflows has it."""
        return dict(self._members)

    @property
    def step(self) -> str | None:
        """The step whose result it is, or whose results."""
        return self._members.get("$result") or self._members.get("$results")

    def __eq__(self, other: Scalar) -> Condition:  # type: ignore[override]
        return self.in_(other)

    def __ne__(self, other: Scalar) -> Condition:  # type: ignore[override]
        return self.not_in(other)

    def __gt__(self, other: float) -> Condition:
        return self._compare("gt", other)

    def __ge__(self, other: float) -> Condition:
        return self._compare("gte", other)

    def __lt__(self, other: float) -> Condition:
        return self._compare("lt", other)

    def __le__(self, other: float) -> Condition:
        return self._compare("lte", other)

    def in_(self, *values: Scalar) -> Condition:
        """Equal to one of the values; types count, `1` is not `"1"`."""
        return self._compare("in", *values)

    def not_in(self, *values: Scalar) -> Condition:
        """Equal to none of the values, or not there."""
        return self._compare("not_in", *values)

    def exists(self) -> Condition:
        """There, whatever it is."""
        return Condition.of(**self._place(), op="exists")

    def does_not_exist(self) -> Condition:
        """Not there."""
        return Condition.of(**self._place(), op="does_not_exist")

    def _compare(self, op: str, *values: Scalar) -> Condition:
        return Condition.of(**self._place(), op=op, values=list(values))

    def _place(self) -> dict[str, Any]:
        if "$input" in self._members:
            return {"input": self._members["$input"]}
        if "$result" in self._members:
            return {"step": self._members["$result"], "path": self._members.get("path", [])}
        raise TypeError(f"{self!r} cannot be compared: only run_input(...) and result(...) can")


def run_input(*path: str | int, default: Any = _ABSENT) -> Value:
    """What the run was submitted with; with a path, the part of it there.

    Args:
        *path: Keys of objects and indexes of lists, from the outside in.
        default: Instead, where the input has nothing there. Without it the step fails
            (`binding_missing`).
    """
    return Value(_with_default({"$input": list(path)}, default))


def result(step: StepLike, *path: str | int, default: Any = _ABSENT) -> Value:
    """What a step returned; with a path, the part of it there. The step has to come before.

    Args:
        *path, default: As for `run_input`.
    """
    members: dict[str, Any] = {"$result": step_name(step)}
    if path:
        members["path"] = list(path)
    return Value(_with_default(members, default))


def results(step: StepLike, *path: str | int, default: Any = _ABSENT) -> Value:
    """What the items of a map, or the members of a gang, returned: a list in their order.

    With a path, the part of each result there. In `params` the list has to fit into them, else the
    step fails (`params_too_large`); as `over` of another map it has no limit.

    Args:
        *path: As for `run_input`.
        default: For an item that has failed or has nothing there; None otherwise.
    """
    members: dict[str, Any] = {"$results": step_name(step)}
    if path:
        members["path"] = list(path)
    return Value(_with_default(members, default))


def item(*path: str | int, default: Any = _ABSENT) -> Value:
    """In `params` of a map: the item; with a path, the part of it there.

    Args:
        *path: As for `run_input`.
        default: Instead, where the item has nothing there. Without it the item fails.
    """
    return Value(_with_default({"$item": list(path)}, default))


def index() -> Value:
    """In `params` of a map: the place of the item in the list, from 0; of a gang: the rank."""
    return Value({"$index": True})


def run(what: str) -> Value:
    """A fact of the run itself: its `id`, the `name` of the workflow, or `submitted_at`."""
    return Value({"$run": what})


def literal(value: Any) -> Value:
    """JSON as it stands, also where a key of it begins with `$`."""
    return Value({"$literal": value})


@dataclass(frozen=True, slots=True)
class After:
    """A step that has to end before. Made by `completed`, `failed`, `ended`."""

    step: str
    on: str

    def as_json(self) -> str | dict[str, str]:
        """As the specification has it: a plain name where it has to complete."""
        return self.step if self.on == "completed" else {"step": self.step, "on": self.on}


def completed(step: StepLike) -> After:
    """After a step has completed, as a plain name says, too; else this one is skipped."""
    return After(step_name(step), "completed")


def failed(step: StepLike) -> After:
    """After a step has failed for good; else this one is skipped."""
    return After(step_name(step), "failed")


def ended(step: StepLike) -> After:
    """After a step has ended in any way, skipped included."""
    return After(step_name(step), "ended")


def _with_default(members: dict[str, Any], default: Any) -> dict[str, Any]:
    return members if default is _ABSENT else {**members, "default": default}
