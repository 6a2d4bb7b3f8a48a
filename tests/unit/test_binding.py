"""How params become a handler's arguments: by its signature, checked at both ends."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest

from hwqueue.errors import BadArgument, ConfigError
from hwqueue.handler.binding import BadParams, Binding
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.depends import Depends
from tests.unit.claims import claim

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Picture:
    path: str
    at: datetime | None = None


class Frame(TypedDict):
    number: int


def bind(handler: Any) -> Binding:
    return Binding.of("draw", handler, is_async=inspect.iscoroutinefunction(handler))


def run(handler: Any, params: Any) -> Any:
    context = LeaseContext(claim=claim("draw", params))
    return bind(handler).run(handler, context)


async def run_async(handler: Any, params: Any) -> Any:
    context = AsyncLeaseContext(claim=claim("draw", params))
    return await bind(handler).run_async(handler, context)


def whole_with_context(params, context):  # type: ignore[no-untyped-def]
    return (params, context.attempt)


def whole_unused(_params: Any) -> Any:
    return _params


def whole_mapping(job: dict[str, Any]) -> Any:
    return job


def whole_typed_dict(frame: Frame, context: LeaseContext) -> Any:
    return frame


def whole_unreadable(params: Path) -> Any:
    return params


@wraps(whole_with_context)
def whole_wrapped(first: Any, second: Any) -> Any:
    """Takes by position what it hands on, under other names."""
    return (first, second.attempt)


def whole_positional(params: Mapping[str, Any], /) -> Any:
    return params


@pytest.mark.parametrize(
    ("handler", "returned"),
    [
        (lambda params: params, {"a": 1}),
        (whole_with_context, ({"a": 1}, 2)),
        (whole_unused, {"a": 1}),
        (whole_mapping, {"a": 1}),
        (whole_typed_dict, {"a": 1}),
        (whole_unreadable, {"a": 1}),
        (whole_positional, {"a": 1}),
        (whole_wrapped, ({"a": 1}, 2)),
    ],
)
def test_params_as_a_whole_are_left_alone(handler: Any, returned: Any) -> None:
    assert bind(handler).pack(({"a": 1},), {}) == {"a": 1}
    assert run(handler, {"a": 1}) == returned


def whole_picture(params: Picture, context: LeaseContext) -> Any:
    return params


def test_params_as_a_whole_may_be_a_dataclass() -> None:
    picture = Picture("a", datetime(2030, 1, 1, tzinfo=UTC))
    packed = bind(whole_picture).pack((picture,), {})
    assert packed == {"path": "a", "at": "2030-01-01T00:00:00+00:00"}
    assert run(whole_picture, packed) == picture
    with pytest.raises(BadArgument, match=r"task 'draw': params\.path is missing"):
        bind(whole_picture).pack(({},), {})


@dataclass
class Tree:
    child: Tree | None = None


def plant(tree: Tree) -> None:
    pass


def by_name(context: LeaseContext, frame: int, picture: Picture, *, scene: str = "intro") -> Any:
    return (context.attempt, frame, picture, scene)


def rest(frame: int, **sizes: float) -> Any:
    return (frame, sizes)


def rest_and_context(context: LeaseContext, **sizes: float) -> None: ...


def positional(a: int, /, b: int) -> Any:
    return (a, b)


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "packed", "returned"),
    [
        (
            by_name,
            (7,),
            {"picture": Picture("a")},
            {"frame": 7, "picture": {"path": "a", "at": None}},
            (2, 7, Picture("a"), "intro"),
        ),
        (rest, (1,), {"wide": 2}, {"frame": 1, "wide": 2}, (1, {"wide": 2.0})),
        (lambda: "ran", (), {}, {}, "ran"),
        (positional, (1, 2), {}, {"a": 1, "b": 2}, (1, 2)),
        (lambda a, b, c: (a, b, c), (1, [2]), {"c": None}, {"a": 1, "b": [2], "c": None}, (1, [2], None)),
    ],
)
def test_arguments_go_by_name(
    handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any], packed: Any, returned: Any
) -> None:
    assert bind(handler).pack(args, kwargs) == packed
    assert run(handler, packed) == returned


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'frame'"),
        ((1, Picture("a"), "x"), {}, "too many positional arguments"),
        ((1, Picture("a")), {"context": None}, "got an unexpected keyword argument 'context'"),
        (("1", Picture("a")), {}, 'params.frame must be an integer, not "1"'),
        ((1, {"path": 3}), {}, "params.picture.path must be a string, not 3"),
        ((1, object()), {}, "params.picture is of type object, not JSON"),
    ],
)
def test_a_wrong_spawn_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgument) as refused:
        bind(by_name).pack(args, kwargs)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"frame": 1}, "params.picture is missing"),
        ({"frame": 1, "picture": {"path": "a"}, "x": 1}, "params.x is unknown: there are frame,"),
        ({"frame": 1, "picture": {"path": None}}, "params.picture.path must be a string, not null"),
        ([1], "params must be an object, not [1]"),
    ],
)
def test_params_that_do_not_fit_are_said(params: Any, said: str) -> None:
    with pytest.raises(BadParams) as refused:
        run(by_name, params)
    assert str(refused.value).startswith(said)


def test_params_that_are_nested_too_deep_or_injected_are_said() -> None:
    tree: dict[str, Any] = {}
    for _ in range(5000):
        tree = {"child": tree}
    with pytest.raises(BadParams, match="params are nested too deep to be read"):
        run(plant, {"tree": tree})
    with pytest.raises(BadParams, match=r"params\.context is injected, it cannot be given"):
        run(rest_and_context, {"context": 1})


def odd_context(params: dict[str, Any], ctx):  # type: ignore[no-untyped-def]
    ...


def starred(*frames: int) -> None: ...


def unreadable(frame: Path, scene: str) -> None: ...


def no_json(frame: int, scene: set[int]) -> None: ...


def bound(self: Any, frame: int) -> None: ...


async def wrong_context(context: LeaseContext, frame: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (lambda frame: None, r"\(frame\) may mean \(params\), \(params, context\) or arguments by"),
        (lambda frame, scene: None, r"\(frame, scene\) may mean"),
        (odd_context, r"ctx\) may mean"),
        (bound, r"no self is given to \(self: "),
        (starred, r"a handler's arguments have names, unlike the \* of"),
        (unreadable, "its annotations cannot be read: name 'Path' is not defined"),
        (no_json, r"scene: set\[int\] cannot be made from JSON"),
        (wrong_context, "context: an async handler gets AsyncLeaseContext"),
    ],
)
def test_an_ambiguous_or_impossible_signature_is_refused(handler: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"task 'draw': .*{said}"):
        bind(handler)


told: list[str] = []


def settings(context: LeaseContext) -> str:
    told.append("settings")
    return f"attempt {context.attempt}"


def session(name: str = Depends(settings)) -> Iterator[str]:
    told.append("open")
    try:
        yield f"session of {name}"
    except ValueError:
        told.append("rolled back")
        raise
    finally:
        told.append("closed")


Session = Annotated[str, Depends(session)]


def with_session(frame: int, db: Session, name: str = Depends(settings)) -> Any:
    told.append("handler")
    if frame < 0:
        raise ValueError("negative")
    return (frame, db, name)


def test_dependencies_are_made_once_and_closed_after_the_handler_whose_exception_they_see() -> None:
    told.clear()
    assert run(with_session, {"frame": 1}) == (1, "session of attempt 2", "attempt 2")
    assert told == ["settings", "open", "handler", "closed"]
    told.clear()
    with pytest.raises(ValueError, match="negative"):
        run(with_session, {"frame": -1})
    assert told == ["settings", "open", "handler", "rolled back", "closed"]
    told.clear()
    with pytest.raises(BadParams):
        run(with_session, {"frame": "1"})
    assert told == []
    with pytest.raises(BadArgument, match="unexpected keyword argument 'db'"):
        bind(with_session).pack((1,), {"db": "mine"})
    with pytest.raises(BadParams, match=r"params\.db is unknown: there are frame"):
        run(with_session, {"frame": 1, "db": "mine"})


def swallow() -> Iterator[None]:
    with suppress(ValueError):
        yield


def swallowed(nothing: None = Depends(swallow)) -> None:
    raise ValueError("it failed all the same")


async def swallowed_async(nothing: None = Depends(swallow)) -> None:
    raise ValueError("it failed all the same")


async def test_a_dependency_that_swallows_an_exception_does_not_complete_the_lease() -> None:
    with pytest.raises(ValueError, match="all the same"):
        run(swallowed, {})
    with pytest.raises(ValueError, match="all the same"):
        await run_async(swallowed_async, {})


async def settings_async(context: AsyncLeaseContext) -> str:
    return f"attempt {context.attempt}"


async def session_async(name: str = Depends(settings_async)) -> AsyncIterator[str]:
    told.append("open")
    yield f"session of {name}"
    told.append("closed")


def plain(name: str = Depends(settings_async)) -> Iterator[str]:
    yield f"plain of {name}"
    told.append("plain closed")


async def with_session_async(
    db: Annotated[str, Depends(session_async)], frame: int, other: str = Depends(plain)
) -> Any:
    told.append("handler")
    return (frame, db, other)


go = threading.Event()


@dataclass(frozen=True)
class Slow:
    """An argument that is read until another task of the event loop says so."""

    numbers: list[int]

    def __post_init__(self) -> None:
        assert go.wait(30), "the event loop stood still"


async def adds(slow: Slow) -> int:
    return sum(slow.numbers)


async def test_the_event_loop_goes_on_while_many_params_are_read() -> None:
    go.clear()
    running = asyncio.create_task(run_async(adds, {"slow": {"numbers": [1] * 3000}}))
    await asyncio.sleep(0)
    go.set()
    assert await running == 3000
    with pytest.raises(BadParams, match=r"params\.slow\.numbers\[3000\] must be an integer"):
        await run_async(adds, {"slow": {"numbers": [*[1] * 3000, "x"]}})


async def test_async_handlers_have_async_dependencies() -> None:
    told.clear()
    made = await run_async(with_session_async, {"frame": 1})
    assert made == (1, "session of attempt 2", "plain of attempt 2")
    assert told == ["open", "handler", "plain closed", "closed"]


def needs_async(frame: int, db: str = Depends(session_async)) -> None: ...


def needs_more(url: str) -> str:
    return url


def in_need(db: str = Depends(needs_more)) -> None: ...


def first(other: Annotated[str, "later"]) -> str:
    return other


first.__annotations__["other"] = Annotated[str, Depends(first)]


def in_circles(db: str = Depends(first)) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (needs_async, "the dependency session_async is async, the handler is not"),
        (in_need, "the dependency needs_more gets no url: it may take the context"),
        (in_circles, "the dependency first depends on itself"),
    ],
)
def test_an_impossible_dependency_is_refused(handler: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"task 'draw': {said}"):
        bind(handler)
