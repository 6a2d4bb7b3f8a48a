"""Every command has an example in its help, and docs/reference/cli.md names everything."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.emoji import Emoji
from typer.main import get_command

from hwqueue.cli.main import app

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
