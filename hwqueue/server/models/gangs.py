"""Gangs: what is spawned, and told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hwqueue import types
from hwqueue.server.models.base import Answer, Id, Name, Request, Seconds, Task, Whole, example
from hwqueue.server.models.derived import Warnings, answer_of, list_of
from hwqueue.server.models.leases import OF_TOKEN, SPAWN_KINDS, Reason
from hwqueue.server.models.options import options_of

MOST_MEMBERS = 1000

Domain = Annotated[str, Field(min_length=1, max_length=300, examples=["rack", "label:zone"])]
_Domains = Annotated[list[Domain], Field(min_length=1, max_length=5)]
_Keys = Annotated[list[Annotated[str, Field(max_length=253)]], Field(max_length=5)]


@options_of(
    types.GangOptions,
    "gang",
    common=SPAWN_KINDS,
    kinds={
        "min_size": Annotated[Whole, Field(ge=1, le=MOST_MEMBERS)],
        "together": Domain | _Domains,
        "same": _Keys,
        "on_lost": Literal["stop", "replace", "continue"],
        "hold": Annotated[Seconds, Field(ge=1, le=3600)],
    },
    notes={"min_size": "null: all.", "tenant": OF_TOKEN},
    examples={"same": ["gpu_model"]},
)
class GangOptions(Request):
    __doc__ = (
        "Options of a gang; null counts as not given. From `priority` on they are options of each "
        "member that says nothing itself."
    )


# Keys and times are none of a member's; its tenant is the gang's.
_NOT_OF_MEMBERS = frozenset(
    {
        "tenant",
        "available_at",
        "delay",
        "patience",
        "idempotency_key",
        "unique",
        "notify",
        "one_of",
        "replaces",
        "limits",
    }
)


@options_of(
    types.SpawnOptions,
    "spawn",
    only=[name for name in types.SpawnOptions.__annotations__ if name not in _NOT_OF_MEMBERS],
    common=SPAWN_KINDS,
)
class MemberOptions(Request):
    """Options of a member, as of a spawn; null counts as not given."""


class MemberSpec(Request):
    """One or several equal members of a gang."""

    task: Task
    params: Any = Field(default=None, description="JSON for the handler; null: an empty object.")
    count: Annotated[Whole, Field(ge=1, le=MOST_MEMBERS)] = 1
    options: MemberOptions = MemberOptions()


class SpawnGangRequest(Request):
    """A gang to spawn: 2 to 1,000 leases in all."""

    model_config = example(
        queue="training",
        members=[
            {
                "task": "train",
                "params": {"epochs": 3},
                "count": 4,
                "options": {"placement": {"resources": {"gpu": 8}}},
            }
        ],
        options={"together": "rack", "same": ["gpu_model"], "priority": 5},
    )

    queue: Name = Field(examples=["training"])
    members: Annotated[list[MemberSpec], Field(min_length=1, max_length=MOST_MEMBERS)]
    options: GangOptions = GangOptions()


class WhatIfGangRequest(SpawnGangRequest):
    """A gang that is not spawned: as it would be."""


class CancelGangRequest(Request):
    """Why a gang is cancelled."""

    model_config = example(reason="wrong dataset")

    reason: Reason | None = Field(default=None, description="Kept with the gang.")


class GangNow(Answer):
    """A gang's state after it was asked to end."""

    gang_id: Id
    state: types.GangState


SpawnedMember = answer_of(types.SpawnedMember)


class SpawnedGang(Answer):
    """A gang that was spawned, and its members by rank."""

    gang_id: Id
    members: list[SpawnedMember]  # type: ignore[valid-type]
    warnings: Warnings


GangOut = answer_of(types.Gang)
GangWhy = answer_of(types.GangExplanation)
GangAhead = answer_of(types.GangForecast)
GangPage = list_of(types.GangSummary, pages=True, name="GangPage", doc="Gangs, newest first.")
