"""Calls of typed tasks, right and wrong; nothing here is run.

`assert_type` says what a right call is. Each wrong one has a `type: ignore`, and both checkers
report an ignore that nothing needs, so a wrong call that they let pass is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import hwqueue
from hwqueue import AsyncLeaseContext, Depends, Lease, LeaseContext, LeaseSpec
from hwqueue.app import ParamsTask
from hwqueue.client import AsyncTaskSpawned, TaskSpawned

app = hwqueue.App()


@dataclass
class Picture:
    path: str


class Session: ...


def make_session() -> Iterator[Session]:
    yield Session()


@app.task("draw", priority=5, retry_on=OSError, timeout=timedelta(minutes=5))
def draw(frame: int, scene: str = "intro") -> Picture:
    return Picture(f"{scene}/{frame}")


@app.task("upload")
async def upload(context: AsyncLeaseContext, picture: Picture) -> str:
    return f"{picture.path}/{context.attempt}"


@app.task("store")
def store(context: LeaseContext, picture: Picture, session: Session = Depends(make_session)) -> None: ...


@app.task("old")
def old(params: dict[str, Any]) -> int:
    return len(params)


@app.task("old-context")
def old_context(params: dict[str, int], context: LeaseContext) -> int:
    return len(params) + context.attempt


@app.task("old-picture")
async def old_picture(params: Picture) -> list[Picture]:
    return [params]


def right(client: hwqueue.Client, lease: Lease, context: LeaseContext) -> None:
    assert_type(draw.spawn(client, frame=1), TaskSpawned[Picture])
    assert_type(draw.spawn(client, frame=1).result(), Picture)
    assert_type(upload.spawn(client, Picture("a")).result(), str)
    assert_type([one.result() for one in draw.spawn_many(client, [])], list[Picture])
    assert_type(draw.spawn(client, 1, scene="end"), TaskSpawned[Picture])
    big = draw.with_options(queue="big", priority=9)
    assert_type(big.spawn(client, 1), TaskSpawned[Picture])
    assert_type(draw.spec(frame=1), LeaseSpec)
    many = draw.spawn_many(client, [draw.spec(1), {"frame": 2}])
    assert_type(many, list[TaskSpawned[Picture]])
    assert_type(draw.result_of(lease), Picture)
    assert_type(draw(frame=1), Picture)
    assert_type(store.spawn(client, picture=Picture("a")), TaskSpawned[None])
    assert_type(upload.result_of(lease), str)
    assert_type(old, ParamsTask[dict[str, Any], int])
    assert_type(old.spawn(client, {"a": 1}, priority=3, queue="big"), TaskSpawned[int])
    assert_type(old.spawn(client), TaskSpawned[int])
    assert_type(old.result_of(lease), int)
    assert_type(old_context.spawn(client, {"a": 1}), TaskSpawned[int])
    assert_type(old_picture.spawn(client, Picture("a")).result(), list[Picture])
    assert_type(old_picture.result_of(lease), list[Picture])


async def right_async(client: hwqueue.AsyncClient) -> None:
    drawn = await draw.spawn(client, frame=1)
    assert_type(drawn, AsyncTaskSpawned[Picture])
    assert_type(await drawn.result(), Picture)
    assert_type(await (await upload.spawn(client, Picture("a"))).result(), str)
    assert_type(await draw.spawn_many(client, [draw.spec(1)]), list[AsyncTaskSpawned[Picture]])
    assert_type(await old.spawn(client, {"a": 1}), AsyncTaskSpawned[int])


def wrong(client: hwqueue.Client) -> None:
    draw.spawn(client)  # type: ignore[call-overload]
    draw.spawn(client, frame="1")  # type: ignore[call-overload]
    draw.spawn(client, frame=1, scenes="x")  # type: ignore[call-overload]
    draw.spawn(client, frame=1, priority=5)  # type: ignore[call-overload]
    draw.spawn(client, 1, "x", 3)  # type: ignore[call-overload]
    draw.with_options(prioritty=5)  # type: ignore[call-arg]
    draw.with_options(priority="5")  # type: ignore[arg-type]
    draw.spec(scene="x")  # type: ignore[call-arg]
    draw.spawn_many(client, [draw.spec("1")])  # type: ignore[arg-type]
    draw(1, 2)  # type: ignore[arg-type]
    store.spawn(client)  # type: ignore[call-overload]
    upload.spawn(client, picture="a")  # type: ignore[call-overload]
    old.spawn(client, "text")  # type: ignore[call-overload]
    old_context.spawn(client, {"a": "text"})  # type: ignore[dict-item]
    old.spawn(client, {}, prioritty=5)  # type: ignore[call-overload]
    old_picture.spawn(client, {"path": "a"})  # type: ignore[call-overload]


@app.task("not-an-exception", retry_on="OSError")  # type: ignore[arg-type]
def not_an_exception(frame: int) -> None: ...


@app.task("wrong-session")
def wrong_session(session: str = Depends(make_session)) -> None: ...  # type: ignore[assignment]
