"""What people type on the command line, its help, and what they are told when it is wrong."""

import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.emoji import Emoji
from typer.main import get_command

from hwqueue.cli.inputs import (
    identifier,
    json_object,
    json_value,
    labels,
    moment,
    moment_after,
    moment_before,
    pairs,
    span,
)
from hwqueue.cli.main import app
from hwqueue.cli.needed import required
from hwqueue.cli.spawning import Replacing
from hwqueue.cli.worker import load_app
from hwqueue.errors import ConfigError


def test_json_in_place_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "placement.json"
    file.write_text('{"require": []}')
    assert json_object('{"gpu": true}', "--tags") == {"gpu": True}
    assert json_object(str(file), "PLACEMENT") == {"require": []}
    assert json_value("[1, 2]", "--params") == [1, 2]
    assert json_value("null", "--params") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,}', "--tags: not JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1, "a": 2}', "key 'a' is there twice"),
        ("[1]", "a JSON object is needed, not [1]"),
        ('{"a": ' + 100_000 * "[" + 100_000 * "]" + "}", "nested too deep"),
        ("no-such-file", "neither JSON nor a file"),
        ("nul\x00file", "neither JSON nor a file"),
    ],
)
def test_bad_json(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        json_object(text, "--tags")
    assert message in str(caught.value)
    assert str(caught.value).startswith("--tags")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800), ("500ms", 0.5), ("1.5h", 5400)],
)
def test_spans(text: str, seconds: float) -> None:
    assert span(text, "--delay") == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "-5s", "5 m", "1y", "5s!", f"{'9' * 30}d"])
def test_bad_spans(text: str) -> None:
    with pytest.raises(ConfigError, match="span"):
        span(text, "--delay")


def test_moments_have_an_offset_or_are_spans_from_now() -> None:
    assert moment("2030-01-31T17:00:00Z", "--deadline") == datetime(2030, 1, 31, 17, tzinfo=UTC)
    for text in ("2030-01-31T17:00:00", "tomorrow", ""):
        with pytest.raises(ConfigError, match="not a time with an offset"):
            moment(text, "--deadline")
    assert moment_after("2h", "--deadline") == timedelta(hours=2)
    assert moment_before("3d", "--since") == timedelta(days=-3)
    fixed = datetime(2030, 1, 31, 17, tzinfo=UTC)
    assert moment_after("2030-01-31T17:00:00Z", "--deadline") == fixed
    assert moment_after(None, "--deadline") is None
    for text in ("tomorrow", "2h30", f"{'9' * 10}d"):
        with pytest.raises(ConfigError, match="--deadline"):
            moment_after(text, "--deadline")


def test_labels_are_pairs_or_json(tmp_path: Path) -> None:
    file = tmp_path / "labels.json"
    file.write_text('{"os": "linux"}')
    items = ["gpu=true", "n=1.5", "zone=west=2", "no=null", '{"a=b": ["x"]}', str(file)]
    expected = {"gpu": True, "n": 1.5, "zone": "west=2", "no": "null", "a=b": ["x"], "os": "linux"}
    assert labels(items, "--label") == expected
    assert labels(["inf=Infinity", "nan=NaN"], "--label") == {"inf": "Infinity", "nan": "NaN"}
    assert labels(None, "--label") == {}
    wrong = {"gpu": "neither JSON nor a file", "=1": "not key=value", "[1]": "JSON object"}
    for item, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            labels([item], "--label")
    with pytest.raises(ConfigError, match="'gpu' is given twice"):
        labels(["gpu=1", '{"gpu": 2}'], "--label")


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("52e6410", "52e6410"),
        ("1234e567", "1234e567"),
        ("1e3", "1e3"),
        ("12.10", "12.10"),
        ("3.10", "3.10"),
        ("12.0", "12.0"),
        ("007", "007"),
        ("-0", "-0"),
        ("+1", "+1"),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("8202758", 8202758),
        ('"8202758"', "8202758"),
        ('"true"', "true"),
        ("535.104", 535.104),
        ("-12.5", -12.5),
        ("0", 0),
        ("false", False),
        ('"', '"'),
        ('["a"]', '["a"]'),
    ],
)
def test_a_label_stays_as_typed_unless_json_writes_it_so(typed: str, value: object) -> None:
    [read] = labels([f"x={typed}"], "--label").values()
    assert read == value
    assert type(read) is type(value)


def test_ids_and_pairs() -> None:
    with pytest.raises(ConfigError, match="'seven' is not an id"):
        identifier("seven", "LEASE_ID")
    assert pairs(["a=1", "b=x=y"], "--label") == {"a": "1", "b": "x=y"}
    for wrong, message in ((["a"], "not key=value"), (["a=1", "a=2"], "given twice")):
        with pytest.raises(ConfigError, match=message):
            pairs(wrong, "--label")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tasks", "is not module:name"),
        ("nowhere.at_all:app", "no module 'nowhere.at_all'"),
        ("some_tasks:other", "does not exist"),
        ("some_tasks:number", "is a int; an hwqueue.App is needed"),
    ],
)
def test_an_app_in_the_current_folder_and_bad_ones(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_tasks.py").write_text(
        "from hwqueue.app import App\n"
        "app = App()\n"
        "number = 7\n"
        "@app.task('hello')\n"
        "def hello(params): return params\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # load_app adds to it
    monkeypatch.delitem(sys.modules, "some_tasks", raising=False)
    assert list(load_app("some_tasks:app").tasks) == ["hello"]
    with pytest.raises(ConfigError) as caught:
        load_app(name)
    assert message in str(caught.value)


def test_a_command_says_which_extra_brings_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="is not installed") as refused, required("webhooks"):
        import_module("nothing_like_it")
    assert refused.value.hint == "pip install 'hwqueue[webhooks]'"
    # a module of this package is brought by none
    with pytest.raises(ModuleNotFoundError, match="nothing_like_it"), required("webhooks"):
        import_module("hwqueue.nothing_like_it")


def test_whose_place_a_lease_takes() -> None:
    name = "0197f3a2-7c1e-7000-8000-000000000007"
    of_service = Replacing(replaces=f"service:{name}", then="requeue", overlap=True).option()
    assert of_service is not None
    assert of_service.as_json() == {"service": name, "then": "requeue", "overlap": True}
    of_lease = Replacing(replaces=name).option()
    assert of_lease is not None
    assert of_lease.as_json() == {"lease": name, "then": "cancel", "overlap": False}
    assert Replacing().option() is None
    with pytest.raises(ConfigError, match="--replaces: 'A' is not an id"):
        Replacing(replaces="A").option()


REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
ELSEWHERE = "available_at|deadline|delay|detect|dsn|idempotency_key|min_size|name|on_conflict|one_of|unique"
REFRESH = "typer hwqueue.cli.main utils docs --name hwqueue --output docs/reference/cli.md"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from _commands(child, f"{path} {name}")


COMMANDS = dict(_commands(get_command(app), "hwqueue"))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_has_an_example_says_what_people_type_and_is_in_the_reference(path: str) -> None:
    """Typer replaces `:NAME:` where NAME is that of an emoji, such as key."""
    command = COMMANDS[path]
    assert command.help
    assert command.epilog.startswith("Example: ")
    assert path in command.epilog
    helps = [getattr(parameter, "help", None) for parameter in command.params]
    for text in filter(None, [command.help, command.epilog, *helps]):
        assert Emoji.replace(text) == text
        assert not re.search(rf"`({ELSEWHERE})`|null:|None:", text), text
    text = REFERENCE.read_text()
    begin = text.find(f" `{path}`\n")
    assert begin >= 0, f"{path} is missing; run: {REFRESH}"
    section = text[begin : text.find("\n#", begin) if "\n#" in text[begin:] else None]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        name = parameter.opts[-1] if parameter.opts[-1].startswith("-") else parameter.name
        assert name in section, f"{path}: {name} is missing; run: {REFRESH}"
        if help_text := getattr(parameter, "help", None):
            assert help_text in section, f"{path} {name} has changed; run: {REFRESH}"
    assert command.epilog in section, f"{path}: example has changed; run: {REFRESH}"
