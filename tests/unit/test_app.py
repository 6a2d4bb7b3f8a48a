"""The task decorator: what it accepts, what it refuses where it is written, what it spawns."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from hwqueue.app import App, Retry, Snooze, TaskDefaults
from hwqueue.client import Client
from hwqueue.client._pauses import Pauses
from hwqueue.cron_times import every
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.placement import PLACEMENT_KEYS, Placement
from hwqueue.types import LeaseSpec, LeaseState, RetryPolicy
from tests.unit.claims import lease


class RecordingClient:
    """Keeps the arguments of the last spawn."""

    def __init__(self) -> None:
        self.call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def spawn_lease(self, *args: Any, **options: Any) -> str:
        self.call = (args, options)
        return "spawned"

    spawn_leases = spawn_lease


def test_a_task_knows_its_kind_and_arguments_and_has_a_name_of_its_own() -> None:
    app = App()

    @app.task("plain")
    def plain(params: Any) -> None: ...

    @app.task("aware")
    async def aware(params: Any, context: Any) -> None: ...

    assert list(app.tasks) == ["plain", "aware"]
    assert (plain.is_async, plain.binding.whole) == (False, "params")
    assert (aware.is_async, aware.binding.whole) == (True, "params")
    assert (list(plain.binding.injected), list(aware.binding.injected)) == ([], ["context"])
    app.task("one")(lambda params: None)
    with pytest.raises(ConfigError, match="'one' is defined twice"):
        app.task("one")(lambda params: None)


def test_spawn_takes_the_tasks_defaults_and_lets_the_caller_override() -> None:
    @App().task("train", queue="gpu", max_attempts=2, placement={"require": []})
    def train(params: Any) -> None: ...

    client: Any = RecordingClient()
    delay = timedelta(minutes=1)
    assert train.spawn(client, {"epochs": 3}, delay=delay, max_attempts=9) == "spawned"
    args, options = client.call
    assert args == ("gpu", "train", {"epochs": 3})
    assert options == {"max_attempts": 9, "placement": {"require": []}, "delay": delay}

    train.spawn(client, queue="spare")
    assert client.call[0] == ("spare", "train", None)


def test_a_module_whose_import_failed_says_why_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django imports a module again after the first import failed."""
    (tmp_path / "halfway_apps.py").write_text("from hwqueue import App\napp = App()\n")
    source = "from halfway_apps import app\n@app.task('one')\ndef one(): ...\n"
    (tmp_path / "halfway.py").write_text(source + "import halfway_missing\n")
    (tmp_path / "halfway_other.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="halfway_missing"):
            import_module("halfway")
    with pytest.raises(ConfigError, match="'one' is defined twice"):
        import_module("halfway_other")


def test_an_app_may_have_the_tasks_of_another() -> None:
    app, other = App(), App()
    one = app.task("one")(lambda params: None)
    two = other.task("two")(lambda params: None)
    app.child_import, other.child_import = "mine:app", "theirs:app"
    app.include(other)
    assert (app.child_import_of("one"), app.child_import_of("two")) == ("mine:app", "theirs:app")
    assert app.tasks == {"one": one, "two": two}
    assert other.tasks == {"two": two}
    with pytest.raises(ConfigError, match="'two' is defined twice"):
        app.include(other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"process": True}, "at the top of its module"),
        ({"timeout": timedelta(0)}, "timeout must be more than zero"),
        ({"retry_on": "OSError"}, "'odd': OSError is no exception to retry on"),
        ({"schedule": every(cast("timedelta", 30))}, "'odd': schedule: every must be a timedelta"),
    ],
)
def test_options_of_a_task_that_cannot_be(options: dict[str, Any], said: str) -> None:
    def nested(params: Any) -> None: ...

    with pytest.raises(ConfigError, match=said):
        App().task("odd", **options)(nested)


def test_arguments_and_options_of_a_spawn_are_separate() -> None:
    @App().task("draw", queue="renders", priority=1, labels={"of": "draw"})
    def draw(frame: int, priority: str = "low") -> None: ...

    client: Any = RecordingClient()
    urgent = draw.with_options(priority=9)
    urgent.spawn(client, frame=1, priority="high")
    args, options = client.call
    assert args == ("renders", "draw", {"frame": 1, "priority": "high"})
    assert options == {"priority": 9, "labels": {"of": "draw"}}
    urgent.with_options(queue="spare", labels=None).spawn(client, 1)
    assert client.call == (("spare", "draw", {"frame": 1}), {"priority": 9})
    draw.spawn(client, 1)
    assert client.call[1] == {"priority": 1, "labels": {"of": "draw"}}


def test_an_option_among_the_arguments_is_refused_with_the_way_to_give_it() -> None:
    @App().task("draw")
    def draw(frame: int) -> None: ...

    spawn: Any = draw.spawn
    with pytest.raises(BadArgument, match="unexpected keyword argument 'delay'") as refused:
        spawn(RecordingClient(), frame=1, delay=timedelta(1))
    assert refused.value.hint == "spawn options go before: with_options(delay=...).spawn(...)"
    spawn_many: Any = draw.spawn_many
    for call in (spawn, spawn_many):
        with pytest.raises(BadArgument, match="'draw': a spawn begins with a client, not 'frame'"):
            call("frame", [])


def test_a_task_has_a_name() -> None:
    decorator: Any = App().task
    with pytest.raises(ConfigError, match="name must be a str, not <function"):
        decorator(lambda frame: None)


def test_a_batch_is_one_call() -> None:
    @App().task("draw", priority=1)
    def draw(frame: int) -> None: ...

    client: Any = RecordingClient()
    draw.spawn_many(client, [{"frame": 1}, draw.with_options(priority=2).spec(frame=2)])
    (queue, specs), options = client.call
    assert (queue, options) == ("default", {})
    assert specs == [
        LeaseSpec(task="draw", params={"frame": 1}, options={"priority": 1}),
        LeaseSpec(task="draw", params={"frame": 2}, options={"priority": 2}),
    ]


def test_a_batch_says_which_of_it_is_wrong() -> None:
    app = App()

    @app.task("draw")
    def draw(frame: int) -> None: ...

    @app.task("old")
    def old(params: dict[str, int]) -> None: ...

    client: Any = RecordingClient()
    with pytest.raises(BadArgument, match=r"leases\[1\]: task 'draw': params.frame must") as refused:
        draw.spawn_many(client, [{"frame": 1}, {"frame": "2"}])
    assert refused.value.detail == {"field": "params.frame", "index": 1}
    with pytest.raises(BadArgument, match=r"leases\[0\]: a lease of 'old' in a batch of task 'draw'"):
        draw.spawn_many(client, [old.spec({"a": 1})])
    with pytest.raises(BadArgument, match=r"leases\[0\]: arguments are a mapping or task.spec\(...\), not 1"):
        draw.spawn_many(client, cast("Any", [1]))
    old.spawn_many(client, [{"a": 1}])
    assert client.call[0][1] == [LeaseSpec(task="old", params={"a": 1}, options={})]


def test_defaults_are_one_json_object() -> None:
    policy = RetryPolicy(kind="fixed", base=timedelta(seconds=3))

    @App().task(
        "draw",
        queue="renders",
        placement=Placement().resources(gpu=1),
        retry=policy,
        claim_timeout=timedelta(minutes=2),
        timeout=timedelta(minutes=1),
    )
    def draw(frame: int) -> None: ...

    assert draw.defaults.as_json() == {
        "placement": {"resources": {"gpu": 1}},
        "retry": {"kind": "fixed", "base": 3},
        "claim_timeout": 120,
    }
    assert TaskDefaults().as_json() == {}


@pytest.mark.parametrize(
    ("only", "never", "error", "may"),
    [
        (None, (), ValueError(), True),
        (OSError, (), ConnectionError(), True),
        ((OSError, KeyError), (), ValueError(), False),
        (None, ValueError, ValueError(), False),
        (OSError, ConnectionError, ConnectionError(), False),
        (OSError, ConnectionError, FileNotFoundError(), True),
        ((), (), ValueError(), False),
    ],
)
def test_exceptions_decide_on_another_attempt(only: Any, never: Any, error: Exception, may: bool) -> None:
    task = App().task("picky", retry_on=only, no_retry_on=never)(lambda params: None)
    assert task.may_retry(error) is may


def test_a_result_is_read_as_what_the_handler_returns() -> None:
    @App().task("at")
    def at(frame: int) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    done = lease("at", state=LeaseState.COMPLETED, result="2030-01-01T00:00:00+00:00")
    assert at.result_of(done) == at(1)  # calling a task calls its handler
    with pytest.raises(BadArgument, match="'at': result must be a time in ISO 8601, not 3"):
        at.result_of(lease("at", state=LeaseState.COMPLETED, result=3))
    with pytest.raises(BadArgument, match="of task at is failed: it has no result"):
        at.result_of(lease("at", state=LeaseState.FAILED))
    with pytest.raises(BadArgument, match="of task other has no result of task at"):
        at.result_of(lease("other", state=LeaseState.COMPLETED))


NO_SPAN = r"must be a timedelta, such as timedelta\(seconds=5\), not 5"
FIVE: Any = 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 5}, f"timeout {NO_SPAN}"),
        ({"claim_timeout": 5}, f"claim_timeout {NO_SPAN}"),
        ({"patience": 5}, f"patience {NO_SPAN}"),
        ({"retry": RetryPolicy(base=FIVE)}, rf"retry\.base {NO_SPAN}"),
        ({"retry": 3}, "retry must be a RetryPolicy or a mapping, not 3"),
        ({"max_attempts": "x"}, "max_attempts must be an int, not 'x'"),
        ({"priority": True}, "priority must be an int, not True"),
        ({"labels": {"a": 1}}, "labels must be a mapping of text to text"),
        ({"affinity_tags": "gpu"}, "affinity_tags must be a mapping, not 'gpu'"),
        ({"placement": "gpu"}, "placement must be a Placement or a mapping, not 'gpu'"),
        ({"placement": {"resource": {"gpu": 1}}}, "placement has no key 'resource'"),
    ],
)
def test_options_of_the_wrong_type_are_refused_at_the_definition(options: dict[str, Any], said: str) -> None:
    app = App()
    with pytest.raises(ConfigError, match=f"task 'draw': {said}"):
        app.task("draw", **options)
    assert not app.tasks


def test_no_plain_number_is_a_span() -> None:
    @App().task("draw")
    def draw(frame: int) -> None: ...

    with pytest.raises(BadArgument, match=f"^delay {NO_SPAN}") as caught:
        draw.with_options(delay=FIVE)
    assert caught.value.field == "delay"
    with pytest.raises(BadArgument, match="deadline must be a datetime"):
        draw.with_options(deadline=FIVE)
    with pytest.raises(BadArgument, match=f"^timeout {NO_SPAN}"):
        Pauses(FIVE)
    with pytest.raises(BadArgument, match=f"^pool_timeout {NO_SPAN}"):
        Client("dbname=none", pool_timeout=FIVE)


def test_the_keys_of_a_placement_are_those_of_the_database() -> None:
    text = Path("sql/placement/normalise.sql").read_text()
    [keys] = re.findall(r"array\[('require'[^]]*)\], p_field, 'QHC03'", text)
    assert {each.strip(" '") for each in keys.split(",")} == set(PLACEMENT_KEYS)


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_a_handler_waits_for_a_span(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__}: after {NO_SPAN}"):
        kind(after=5)


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("given", [5, timedelta(seconds=5)])
def test_a_span_that_was_taken_for_the_message_is_refused(kind: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="message must be text") as caught:
        kind(given)
    assert f"{kind.__name__}(after=timedelta(seconds=5))" in str(caught.value.hint)
