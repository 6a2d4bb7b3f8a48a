"""Limits, and their lanes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hwqueue.server.models.base import Answer, Moment, Name, Object, Request, Seconds, example
from hwqueue.server.models.derived import list_of
from hwqueue.types import Limit, LimitLane


class CreateLimit(Request):
    """A limit. The database reads the specification, and names what it refuses."""

    model_config = example(name="openai", spec={"rate": {"count": 600, "per": 60}})

    name: Name
    spec: Object


class SetLimit(Request):
    """Keys of a specification; null resets one."""

    model_config = example(changes={"slots": 5})

    changes: Object


class ThrottleLimit(Request):
    """For how long a lane is closed: until a time or for a span, the earlier one; neither opens it."""

    model_config = example(retry_after=30)

    key: Annotated[str, Field(max_length=200)] | None = None
    tenant: Annotated[str, Field(max_length=100)] | None = None
    until: Moment | None = None
    retry_after: Seconds | None = None


class LimitNow(Answer):
    """A limit after a change. changed: false if it was so before."""

    name: str
    changed: bool


class LimitSpec(Answer):
    """A limit's specification after a change."""

    name: str
    spec: Object


class Throttled(Answer):
    """Until when a lane is closed; null: it is open."""

    closed_until: Moment | None


Limits = list_of(Limit, name="Limits", doc="The limits, by name.")
LimitLanes = list_of(LimitLane, name="LimitLanes", doc="Lanes of a limit, in the order asked for.")
