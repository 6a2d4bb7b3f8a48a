"""Everywhere tasks: what is spawned, and told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import Field

from hwqueue.server.models.base import Answer, Flag, Id, Name, Request, Task, example
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.models.leases import SPAWN_KINDS
from hwqueue.server.models.options import request_of
from hwqueue.types import EverywhereState, EverywhereSummary, EverywhereTask, SpawnedEverywhere
from hwqueue.types import everywhere as options

_of_everywhere = get_type_hints(options.EverywhereOptions).keys()

_everywhere_options = request_of(
    options.EverywhereOptions,
    doc="Options of an everywhere task; null counts as not given. From `placement` on they are "
    "options of each lease.",
    kinds={
        "mode": Literal["once", "always"],
        "on_unmatched": Literal["keep", "stop"],
        "on_cordoned": Flag,
        **{name: kind for name, kind in SPAWN_KINDS.items() if name in _of_everywhere},
    },
    fields={
        "everywhere_id": Field(
            default=None, description="Yours; the same id and content is the same everywhere task."
        ),
        "mode": Field(
            default=None,
            description="`always` (default): when a lease has ended, its node gets another one. "
            "`once`: none.",
        ),
        "on_unmatched": Field(
            default=None,
            description="A running lease whose node does not suit any more goes on (`keep`, the "
            "default), or is asked to `stop`.",
        ),
        "on_cordoned": Field(default=None, description="true: on cordoned nodes, too."),
        "affinity_tags": Field(default=None, description="Node labels must contain them."),
        "tenant": Field(default=None, description="A token of one tenant sets it."),
        "labels": Field(default=None, description="Of the leases, not of their nodes."),
        "headers": Field(default=None, description="Carried along, not interpreted."),
        "claim_timeout": Field(default=None, description="Seconds from a claim's last heartbeat to its end."),
    },
)

if TYPE_CHECKING:  # a type checker knows only the base of models that are made on import
    EverywhereOptions = Request
else:
    EverywhereOptions = _everywhere_options


class SpawnEverywhereRequest(Request):
    """A task to run on every node that suits it."""

    model_config = example(
        queue="ops",
        task="agent",
        params={"level": "info"},
        options={"affinity_tags": {"gpu": True}, "mode": "always"},
    )

    queue: Name = Field(examples=["ops"])
    task: Task
    params: Any = Field(default=None, description="JSON for the handler; null: an empty object.")
    options: EverywhereOptions = EverywhereOptions()


class StopEverywhereRequest(Request):
    """How an everywhere task is stopped."""

    model_config = example(running="stop")

    running: Annotated[
        Literal["keep", "stop"],
        Field(description="Leases that run go on until they end, or are asked to stop."),
    ] = "keep"


class EverywhereNow(Answer):
    """An everywhere task's state after it was asked to stop."""

    everywhere_id: Id
    state: EverywhereState


SpawnedEverywhereOut = answer_of(SpawnedEverywhere)
EverywhereOut = answer_of(EverywhereTask)
EverywherePage = list_of(
    EverywhereSummary, pages=True, name="EverywherePage", doc="Everywhere tasks, newest first."
)
