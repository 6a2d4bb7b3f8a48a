"""Members of a gang: one or several equal leases of a task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hwqueue.client._json import given, plain
from hwqueue.errors import BadArgument
from hwqueue.handler.task import Task
from hwqueue.options import check_options
from hwqueue.types import AsJson, Json, SpawnOptions


@dataclass(frozen=True, slots=True)
class Member:
    """One or several equal members of a gang, for `spawn_gang`.

        client.spawn_gang("train", [Member(lead), Member(work, {"seed": 1}, count=3)])

    Options stand in this order: those of the member, what the task was given by `with_options`,
    those of the gang, and what the task is declared with. A `patience` that the task is declared
    with does not count: a gang waits for no better node.

    Attributes:
        task: A task of an app, or the name of one.
        params: The handler's arguments as a mapping, or what a handler of whole params takes; of a
            task that is named its JSON. None: no arguments, an empty object.
        count: How many, 1 to 1,000.
        placement: What each asks of its node; goes before that of the options.
        options: See `hwqueue.types.SpawnOptions`; no keys, no times, no `patience`.
    """

    task: Task[..., Any] | str
    params: Any = None
    count: int = field(default=1, kw_only=True)
    placement: AsJson | Mapping[str, Any] | None = field(default=None, kw_only=True)
    options: SpawnOptions = field(default_factory=SpawnOptions, kw_only=True)

    def as_member(self, gang_options: Collection[str] = ()) -> dict[str, Any]:
        """The JSON object that `spawn_gang` takes.

        Args:
            gang_options: What the gang says for all, and the task's defaults then do not.

        Raises: BadArgument: the params do not fit the handler, or an option is of the wrong type.
        """
        own: dict[str, Any] = given({**self.options, "placement": self._own_placement})
        check_options(own, BadArgument)
        if isinstance(self.task, str):
            name, params = self.task, self.params
        else:
            name, params = self.task.name, self._packed(self.task)
            declared = given(self.task.defaults.options())
            left_out = {"patience", *gang_options}
            inherited = {key: value for key, value in declared.items() if key not in left_out}
            own = {**inherited, **given(self.task.options), **own}
        return {
            "task": name,
            "params": {} if params is None else params,
            "options": plain(own, "options"),
            "count": self.count,
        }

    @property
    def _own_placement(self) -> AsJson | Mapping[str, Any] | None:
        return self.options.get("placement") if self.placement is None else self.placement

    def _packed(self, task: Task[..., Any]) -> Json:
        if self.params is None:
            return task.binding.pack((), {})
        if task.binding.whole is not None:
            return task.binding.pack((self.params,), {})
        if not isinstance(self.params, Mapping):
            raise BadArgument(
                f"task {task.name!r}: params must be a mapping of its handler's arguments, "
                f"got {self.params!r:.60}",
                detail={"field": "params"},
            )
        return task.binding.pack((), self.params)
