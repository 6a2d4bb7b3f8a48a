"""The task decorator: what it accepts, what it refuses, what it spawns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hwqueue.app import App, Retry
from hwqueue.errors import ConfigError


class RecordingClient:
    """Keeps the arguments of the last spawn."""

    def __init__(self) -> None:
        self.call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def spawn_lease(self, *args: Any, **options: Any) -> str:
        self.call = (args, options)
        return "spawned"


def test_a_task_knows_its_kind_and_arguments() -> None:
    app = App()

    @app.task("plain")
    def plain(params: Any) -> None: ...

    @app.task("aware")
    async def aware(params: Any, context: Any) -> None: ...

    assert list(app.tasks) == ["plain", "aware"]
    assert (plain.is_async, plain.wants_context) == (False, False)
    assert (aware.is_async, aware.wants_context) == (True, True)


def test_calling_a_task_calls_its_handler() -> None:
    @App().task("double")
    def double(params: int) -> int:
        return 2 * params

    assert double(21) == 42


def test_spawn_takes_the_tasks_defaults_and_lets_the_caller_override() -> None:
    @App().task("train", queue="gpu", max_attempts=2, placement={"require": []})
    def train(params: Any) -> None: ...

    client: Any = RecordingClient()
    delay = timedelta(minutes=1)
    assert train.spawn(client, {"epochs": 3}, delay=delay, max_attempts=9) == "spawned"
    args, options = client.call
    assert args == ("gpu", "train", {"epochs": 3})
    assert options == {
        "max_attempts": 9,
        "placement": {"require": []},
        "delay": delay,
        "shard": 0,
    }

    train.spawn(client, queue="spare")
    assert client.call[0] == ("spare", "train", None)


def test_a_name_is_taken_once() -> None:
    app = App()
    app.task("one")(print)
    with pytest.raises(ConfigError, match="'one' is defined twice"):
        app.task("one")(print)


@pytest.mark.parametrize("handler", [lambda: None, lambda a, b, c: None, lambda *, params: None])
def test_a_handler_takes_params_and_perhaps_a_context(handler: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes \(params\) or \(params, context\)"):
        App().task("odd")(handler)


def test_a_process_handler_must_be_importable() -> None:
    def nested(params: Any) -> None: ...

    with pytest.raises(ConfigError, match="at the top of its module"):
        App().task("nested", process=True)(nested)


def test_a_timeout_is_more_than_zero() -> None:
    with pytest.raises(ConfigError, match="timeout must be more than zero"):
        App().task("never", timeout=timedelta(0))(lambda params: None)


def test_retry_takes_one_time_with_a_zone() -> None:
    with pytest.raises(ConfigError, match="after or at"):
        Retry(after=timedelta(1), at=datetime.now(UTC))
    with pytest.raises(ConfigError, match="time zone"):
        Retry(at=datetime(2030, 1, 1))
