"""A step of a workflow: a task, what comes before it, and where it may run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict

from hwqueue.client._arguments import check_span
from hwqueue.client._json import given, plain
from hwqueue.errors import ConfigError
from hwqueue.handler.task import Task
from hwqueue.options import check_options
from hwqueue.types import AsJson, SpawnOptions
from hwqueue.workflow.near import Near
from hwqueue.workflow.values import After, Condition, StepLike, Value, completed

AfterLike: TypeAlias = "After | StepLike | Iterable[After | StepLike]"
RunIf: TypeAlias = "Condition | Value | Iterable[Condition | Value]"


class WaitingOptions(TypedDict, total=False):
    """What a step may say whatever it is: see `Step`."""

    after: AfterLike
    join: str | None
    run_if: RunIf
    on_failure: str | None
    final: str | None


class AskedOptions(SpawnOptions, total=False):
    """What a step of a task asks: see `WorkflowBuilder.task`."""

    params: Mapping[str, Any] | Value | None
    queue: str | None
    override_affinity: Mapping[str, Any] | None
    replace_affinity: bool
    near: Near | None


class StepOptions(AskedOptions, WaitingOptions, total=False):
    """What a step of a task may say."""


class KindOptions(StepOptions, total=False):
    """What a step may say that is a task, a map or a gang."""

    over: Value | Sequence[Any] | None
    max_parallel: int | None
    tolerate: int | str | None
    size: int | None
    min_size: int | None
    together: str | Sequence[str] | None
    same: Sequence[str]
    on_lost: str | None
    hold: timedelta | None


# Options of a spawn that a step says elsewhere, or that are of its run.
_NOT_OF_A_STEP = (
    "lease_id", "placement", "affinity_tags", "affinity_with", "anti_affinity_with", "tenant",
    "idempotency_key", "unique", "headers", "notify",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a workflow.

    Attributes:
        name: Unique in its workflow: 1 to 100 characters of `a-z0-9_-`.
        task: What runs: a task, whose defaults count where the step says nothing, or its name.
        after: Steps that come before: names, steps, or `ended("train")`, `failed("train")`. Steps
            whose results `params` or `run_if` take need not be named.
        params: The handler's arguments, JSON with a `Value` at any depth.
        queue: None: the task's if `task` is one, else the workflow's.
        placement: What it asks of a node, beside what its run asks.
        affinity_tags: Node labels must contain them; ANDed with `placement`.
        affinity: How that goes with what the run asks: `and` (None, too): both hold, and what
            contradicts is refused at submission; `override`: key by key of `affinity_tags`, the
            step's resources and isolation instead of the run's, all else ANDed; `replace`: the run
            is not looked at.
        join: `all` (None, too) or `any`: whether all of `after` has to hold, or one is enough.
        run_if: A condition or several; unless all hold the step is skipped. A value alone, such as
            `result("ask", "approved")`, holds when it is true.
        on_failure: What its failure does: `fail` (None, too): as the workflow says; `continue`:
            steps behind it are skipped, the run goes on and ends failed; `ignore`: it counts as
            completed, its result is null.
        over: Makes it a map: the task runs once for each item of this list, or of the list that
            the `Value` stands for, up to 100,000. Without `params` it gets `item`, the item. Its
            result is `{"items", "failed"}`; `results(step)` is what the items returned.
        max_parallel: How many items of a map wait or run at once; None: 1,000.
        tolerate: How many items may fail until the map does: a number, or `"10 %"`; None: 0.
        size: Makes it a gang: how many leases run the task, 2 to 1,000. None starts before there is
            room for all. `index()` in `params` is the rank. Its result is `{"items", "failed"}`;
            `results(step)` is what the members returned, by rank.
        min_size, together, same, on_lost, hold: Of a gang, as in `hwqueue.types.GangOptions`.
        final: It runs once when all else has ended: `completed`, `failed`, `cancelled` or `ended`
            says when. It has no `after`.
        near: The place where steps before it have run, such as `near("train", "rack")`.
        options: Further options of its lease: priority, max_attempts, retry, claim_timeout,
            patience, max_run, delay, deadline, labels, service_id, wire.

    Raises:
        ConfigError: A value is of the wrong type; the message names the step.
    """

    name: str
    task: Task[..., Any] | str
    after: AfterLike = ()
    params: Mapping[str, Any] | Value | None = None
    queue: str | None = None
    placement: AsJson | Mapping[str, Any] | None = None
    affinity_tags: Mapping[str, Any] | None = None
    affinity: str | None = None
    join: str | None = None
    run_if: RunIf = ()
    on_failure: str | None = None
    final: str | None = None
    near: Near | None = None
    over: Value | Sequence[Any] | None = None
    max_parallel: int | None = None
    tolerate: int | str | None = None
    size: int | None = None
    min_size: int | None = None
    together: str | Sequence[str] | None = None
    same: Sequence[str] = ()
    on_lost: str | None = None
    hold: timedelta | None = None
    options: SpawnOptions = field(default_factory=SpawnOptions)
    _after: tuple[After, ...] = field(init=False, repr=False, compare=False, default=())
    _run_if: tuple[Condition, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        where = f"step {self.name!r}: "
        for name in _NOT_OF_A_STEP:
            if self.options.get(name) is not None:
                raise ConfigError(f"{where}{name} is no option of a step")
        asked = {"placement": self.placement, "affinity_tags": self.affinity_tags}
        check_options({**self.options, **asked}, ConfigError, where)
        if self.near is not None and not isinstance(self.near, Near):
            raise ConfigError(
                f"{where}near takes what near(...) makes, not {self.near!r}",
                hint='from hwqueue.workflow import near: near("train", "rack")',
            )
        if self.over is None and (self.max_parallel, self.tolerate) != (None, None):
            raise ConfigError(f"{where}max_parallel and tolerate are of a map: give over, too")
        self._check_gang(where)
        object.__setattr__(self, "_after", edges_of(self.after, (), ()))
        object.__setattr__(self, "_run_if", conditions_of(self.run_if, where))
        object.__setattr__(self, "run_if", self._run_if)
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def _check_gang(self, where: str) -> None:
        check_span(self.hold, "hold", ConfigError, where)
        if self.size is None and self._gang():
            raise ConfigError(f"{where}{', '.join(self._gang())} is of a gang: give size, too")
        if self.size is not None and self.over is not None:
            raise ConfigError(f"{where}over makes it a map, size a gang: give one of them")
        if self.size is not None and self.options.get("patience") is not None:
            raise ConfigError(f"{where}patience is no option of a gang")

    def _gang(self) -> dict[str, Any]:
        """What it says of its gang beside the size."""
        said = {
            "min_size": self.min_size,
            "together": self.together,
            "same": list(self.same),
            "on_lost": self.on_lost,
            "hold": self.hold,
        }
        return {key: value for key, value in said.items() if value not in (None, [])}

    @property
    def kind(self) -> str:
        """What it is: `task`, `map` or `gang`."""
        if self.size is not None:
            return "gang"
        return "task" if self.over is None else "map"

    @property
    def edges(self) -> tuple[After, ...]:
        """What has to end before, what `params`, `over` and `run_if` name included."""
        return edges_of(self._after, self._run_if, [self.params, self.over])

    @property
    def task_name(self) -> str:
        """What its lease calls the handler."""
        return self.task if isinstance(self.task, str) else self.task.name

    def as_json(self) -> dict[str, Any]:
        """The step as the specification has it; what says nothing is left out."""
        defaults: dict[str, Any] = {}
        queue = self.queue
        if isinstance(self.task, Task):
            defaults = given({**self.task.defaults.options(), **self.task.options})
            queue = queue or self.task.defaults.queue
        asked = given({"placement": self.placement, "affinity_tags": self.affinity_tags}) or {
            key: defaults[key] for key in ("placement", "affinity_tags") if key in defaults
        }
        options = {**defaults, **given(self.options)}
        for key in ("placement", "affinity_tags", *(["patience"] if self.size else [])):
            options.pop(key, None)
        members = {
            "kind": None if self.kind == "task" else self.kind,
            "task": self.task_name,
            "queue": queue,
            "params": None if self.params is None else plain_value(self.params),
            "after": [edge.as_json() for edge in self._after],
            **plain(asked, f"step {self.name!r}"),
            "affinity": self.affinity,
            "join": self.join,
            "run_if": [condition.as_json() for condition in self._run_if],
            "near": None if self.near is None else self.near.as_json(),
            "on_failure": self.on_failure,
            "finally": self.final,
            "max_parallel": self.max_parallel,
            "tolerate": self.tolerate,
            "size": self.size,
            **plain(self._gang(), f"step {self.name!r}"),
            "options": plain(options, f"step {self.name!r}: options"),
        }
        said = {key: value for key, value in members.items() if value not in (None, [], {})}
        over = {} if self.over is None else {"over": plain_value(self.over)}  # may be an empty list
        return {"name": self.name, **said, **over}


WorkflowTask = Step
"""Another name of `Step`."""

_SAID = {each.name for each in fields(Step)} - {"options"}


def step_of(name: str, task: Task[..., Any] | str, said: Mapping[str, Any]) -> Step:
    """A step that says this; what a `Step` does not have are options of its lease.

    Raises: ConfigError, when a value is of the wrong type.
    """
    options = dict(said)
    override = options.pop("override_affinity", None)
    replaces = options.pop("replace_affinity", False)
    own = {key: options.pop(key) for key in said if key in _SAID}
    if override is not None:
        if own.get("affinity_tags") is not None or replaces:
            raise ConfigError(
                f"step {name!r}: override_affinity goes without affinity_tags and replace_affinity"
            )
        own |= {"affinity_tags": override, "affinity": "override"}
    elif replaces:
        own["affinity"] = "replace"
    return Step(name, task, **own, options=SpawnOptions(**options))  # type: ignore[typeddict-item]


def without_affinity(*labels: str) -> dict[str, None]:
    """Tags that take those of the run away: `override_affinity=without_affinity("gpu")`."""
    return dict.fromkeys(labels)


def plain_value(value: Any) -> Any:
    """JSON with each `Value` in it written as the specification has it."""
    if isinstance(value, Value):
        return value.as_json()
    if isinstance(value, Mapping):
        return {key: plain_value(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(member) for member in value]
    return value


def edges_of(after: AfterLike, run_if: Iterable[Condition], bound: Any) -> tuple[After, ...]:
    """What a step comes after: what it says, and the steps that conditions and values name."""
    each = (after,) if isinstance(after, str) or not isinstance(after, Iterable) else after
    said = tuple(one if isinstance(one, After) else completed(one) for one in each)
    there = {edge.step for edge in said}
    named = [*_results(bound), *(each.step for each in run_if if each.step)]
    added = [name for name in dict.fromkeys(named) if name not in there]
    return (*said, *(completed(name) for name in added))


def conditions_of(run_if: RunIf, where: str) -> tuple[Condition, ...]:
    """The conditions of a step; a value alone is to be true. Raises: ConfigError."""
    each = (run_if,) if isinstance(run_if, Condition | Value) else tuple(run_if)
    for one in each:
        if not isinstance(one, Condition | Value):
            raise ConfigError(
                f"{where}run_if takes conditions, not {one!r}",
                hint='compare what is known when the step starts: result("train", "loss") < 0.1',
            )
    return tuple(one.in_(True) if isinstance(one, Value) else one for one in each)


def _results(value: Any) -> Iterable[str]:
    """The steps whose results a value takes."""
    if isinstance(value, Value):
        if value.step is not None:
            yield value.step
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _results(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _results(member)
