"""Every `hwqueue ...` in the documents names a command that exists, with options that exist.

What is written as somebody would type it has to be complete: it is parsed as the program parses it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from hwqueue.cli.main import app
from tests.shell_lines import calls, commands, mentions
from tests.transitions import transitions

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "lab/**/*.md")
    for page in ROOT.glob(pattern)
    if page != ROOT / "docs" / "reference" / "cli.md"  # generated; its examples are looked at here
)
pytestmark = pytest.mark.embedded
PROGRAM = get_command(app)
# Errors of a line. Where the classes live depends on the version of Typer.
UsageError: Any = typer.BadParameter.__base__


def parse(words: list[str], *, whole: bool = True) -> None:
    """Take a line's words as the program would. whole: False if arguments may be missing."""
    command: Any = PROGRAM
    context: Any = None
    name: str | None = "hwqueue"
    while True:
        try:
            context = command.make_context(name, words, parent=context)
        except UsageError as error:
            # a group on its own stands for all of it
            if whole or not ("Missing" in error.format_message() or not words):
                raise AssertionError(f"{error.ctx.command_path}: {error.format_message()}") from None
            return
        if not hasattr(command, "commands"):
            return
        rest = [*context._protected_args, *context.args]
        try:
            name, command, words = command.resolve_command(context, rest)
        except UsageError as error:
            raise AssertionError(error.format_message()) from None


def examples() -> Iterator[tuple[str, str]]:
    """The line of the help of each command."""

    def walk(command: Any) -> Iterator[tuple[str, str]]:
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child)
            if child.epilog:
                yield name, child.epilog.removeprefix("Example: ")

    return walk(PROGRAM)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page(page: Path) -> None:
    for command in commands(page):
        for words in calls(command):
            parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_named_in_a_page(page: Path) -> None:
    for text in mentions(page):
        if re.match(r"hwqueue [a-z-]", text):
            for words in calls(text):
                parse(words, whole=False)


@pytest.mark.parametrize(("name", "example"), list(examples()))
def test_examples_of_the_help(name: str, example: str) -> None:
    found = list(calls(example))
    assert any(name in words for words in found)
    for words in found:
        parse(words)


def test_there_are_commands_and_the_targets_of_make() -> None:
    assert sum(len(list(calls(command))) for page in PAGES for command in commands(page)) > 20
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for line in [*commands(page), *mentions(page)]:
            if found := re.match(r"make ([a-z-]+)", line):
                assert f"\n{found[1]}:" in makefile, f"{page.name}: {line}"


@pytest.mark.parametrize(
    "line",
    [
        "hwqueue lease update X",
        "hwqueue lease list --sate failed",
        "hwqueue lease list --state broken",
        "A=1 hwqueue lease",
        "x | hwqueue lease explain",
        "export X=$(hwqueue token create)",
        'psql "$(hwqueue db urls)"',
        "hwqueue serve --port many 2>log &",
    ],
)
def test_what_does_not_exist_is_seen(line: str) -> None:
    [words] = calls(line)
    with pytest.raises(AssertionError):
        parse(words)


def test_the_picture_in_the_readme_has_every_way_between_states() -> None:
    drawn = set(re.findall(r"^ +(\S+) --> (\w+):", (ROOT / "README.md").read_text(), re.M))
    rows = transitions()
    assert rows
    assert drawn == {("[*]" if origin == "none" else origin, target) for origin, target, _ in rows}
