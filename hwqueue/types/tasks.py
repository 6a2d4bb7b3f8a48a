"""Tasks that the database has defaults for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTask:
    """A task, the options that its leases have by default, and who set them last.

    defaults: spawn options as JSON, spans in seconds. served: a live worker has a handler for the
    task, or did not say which tasks it has handlers for. set_at, set_by: None: nobody has set them,
    though a live worker's app declares some.
    """

    task: str
    defaults: Mapping[str, Any]
    served: bool
    set_at: datetime | None
    set_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedTask:
    """A task whose defaults in the database were not those that an app declares.

    is_set: They are now; else those of the database are newer, or a person has set them.
    """

    task: str
    is_set: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDifference:
    """An option that an app declares for a task and that the database has another default of.

    declared, stored: as JSON, spans in seconds or as interval text. stored: None: no default.
    """

    task: str
    option: str
    declared: Any
    stored: Any
