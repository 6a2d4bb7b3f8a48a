"""Everywhere tasks: what is spawned, and told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hwqueue import types
from hwqueue.server.models.base import Answer, Flag, Id, Name, Request, Task, example
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.models.leases import OF_TOKEN, SPAWN_KINDS
from hwqueue.server.models.options import options_of


@options_of(
    types.EverywhereOptions,
    "everywhere",
    common=SPAWN_KINDS,
    kinds={
        "mode": Literal["once", "always"],
        "on_unmatched": Literal["keep", "stop"],
        "on_cordoned": Flag,
    },
    notes={
        "mode": "null: `always`.",
        "on_unmatched": "null: `keep`.",
        "tenant": OF_TOKEN,
    },
)
class EverywhereOptions(Request):
    __doc__ = (
        "Options of an everywhere task; null counts as not given. From `placement` on they are "
        "options of each lease."
    )


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
    state: types.EverywhereState


SpawnedEverywhereOut = answer_of(types.SpawnedEverywhere)
EverywhereOut = answer_of(types.EverywhereTask)
EverywherePage = list_of(
    types.EverywhereSummary, pages=True, name="EverywherePage", doc="Everywhere tasks, newest first."
)
