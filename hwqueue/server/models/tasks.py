"""Tasks, and the options that their leases have by default."""

from __future__ import annotations

from pydantic import Field

from hwqueue import types
from hwqueue.handler.task import TASK_OPTIONS
from hwqueue.server.models.base import (
    Answer,
    Object,
    Request,
    example,
)
from hwqueue.server.models.derived import list_of
from hwqueue.server.models.leases import SPAWN_KINDS
from hwqueue.server.models.options import options_of


@options_of(types.SpawnOptions, "task", only=TASK_OPTIONS, common=SPAWN_KINDS)
class TaskDefaults(Request):
    """Options of the task's later spawns, all of them; what is left out or null has no default."""

    model_config = example(placement={"resources": {"gpu": 1}}, max_attempts=1)


class TaskNow(Answer):
    """A task after a change."""

    task: str
    defaults: Object = Field(description="Without those that are null.")


class TaskDropped(Answer):
    """Whether a task was set."""

    task: str
    dropped: bool = Field(description="false: it was not set.")


Tasks = list_of(
    types.KnownTask,
    name="Tasks",
    doc="The tasks that have been set, or for which live workers declare defaults, by name.",
)
