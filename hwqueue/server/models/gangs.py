"""Gangs: what is spawned, and told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

from pydantic import Field, create_model

from hwqueue.server.models.base import (
    Answer,
    Id,
    Name,
    Request,
    Seconds,
    Task,
    Whole,
    example,
)
from hwqueue.server.models.derived import Warnings, answer_of, list_of
from hwqueue.server.models.leases import SPAWN_KINDS, Reason
from hwqueue.server.models.options import request_of
from hwqueue.types import (
    Gang,
    GangExplanation,
    GangForecast,
    GangState,
    GangSummary,
    SpawnedMember,
)
from hwqueue.types import gangs as options
from hwqueue.types.leases import SpawnOptions

MOST_MEMBERS = 1000

Domain = Annotated[str, Field(min_length=1, max_length=300, examples=["rack", "label:zone"])]
_Domains = Annotated[list[Domain], Field(min_length=1, max_length=5)]
_Keys = Annotated[list[Annotated[str, Field(max_length=253)]], Field(max_length=5)]
_of_gangs = get_type_hints(options.GangOptions).keys()

_gang_options = request_of(
    options.GangOptions,
    doc="Options of a gang; null counts as not given. From `priority` on they are options of each "
    "member that says nothing itself.",
    kinds={
        "min_size": Annotated[Whole, Field(ge=1, le=MOST_MEMBERS)],
        "together": Domain | _Domains,
        "same": _Keys,
        "on_lost": Literal["stop", "replace", "continue"],
        "hold": Annotated[Seconds, Field(ge=1, le=3600)],
        **{name: kind for name, kind in SPAWN_KINDS.items() if name in _of_gangs},
    },
    fields={
        "gang_id": Field(default=None, description="Yours; one that exists is an error."),
        "min_size": Field(
            default=None,
            description="How many members must start together; the others join when there is room. "
            "Null: all. It goes with no deadline.",
        ),
        "together": Field(
            default=None,
            description="All members run in one place of this domain (`node`, `rack` or "
            "`label:KEY`); of several, of the first that has room. `fleet` as the last of several: "
            "anywhere, where none has.",
        ),
        "same": Field(
            default=None,
            description="Node labels whose values all members' nodes have in common.",
            examples=[["gpu_model"]],
        ),
        "on_lost": Field(
            default=None,
            description="When a running member waits again, and fewer than `min_size` are left: "
            "the others `stop`, and start again with it, or it is placed again beside them "
            "(`replace`). Or it has failed, and the others `continue` while enough are left.",
        ),
        "hold": Field(default=None, description="How long nodes have to fetch their members."),
        "one_of": Field(
            default=None,
            description="An id that alternatives share: the first with room runs, the others are cancelled.",
        ),
        "tenant": Field(default=None, description="A token of one tenant sets it."),
        "labels": Field(default=None, description="Of the leases, not of their nodes."),
        "headers": Field(default=None, description="Carried along, not interpreted."),
        "claim_timeout": Field(default=None, description="Seconds from a claim's last heartbeat to its end."),
        "max_run": Field(default=None, description="How long a member may run; then its attempt fails."),
        "deadline": Field(
            default=None,
            description="Not claimed by then, a member fails: a time, or seconds from now.",
        ),
    },
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
    }
)
_own = {name: hint for name, hint in get_type_hints(SpawnOptions).items() if name not in _NOT_OF_MEMBERS}
_member_options = request_of(
    TypedDict("MemberOptions", _own, total=False),  # type: ignore[operator]
    doc="Options of a member, as of a spawn; null counts as not given.",
    kinds={name: kind for name, kind in SPAWN_KINDS.items() if name in _own},
    fields={},
)

if TYPE_CHECKING:  # a type checker knows only the base of models that are made on import
    GangOptions = Request
    MemberOptions = Request
else:
    GangOptions, MemberOptions = _gang_options, _member_options


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
    state: GangState


class _GangOf(Answer):
    """A gang that was spawned, and its members by rank."""

    gang_id: Id


_Members: Any = list[answer_of(SpawnedMember)]  # type: ignore[misc]
SpawnedGang = create_model(
    "SpawnedGang",
    __base__=_GangOf,
    __doc__=_GangOf.__doc__,
    members=(_Members, ...),
    warnings=(Warnings, ...),
)
GangOut = answer_of(Gang)
GangWhy = answer_of(GangExplanation)
GangAhead = answer_of(GangForecast)
GangPage = list_of(GangSummary, pages=True, name="GangPage", doc="Gangs, newest first.")
