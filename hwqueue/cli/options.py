"""The options that every command knows, wherever they stand on the line."""

from collections.abc import Sequence
from dataclasses import dataclass

import typer

_FLAGS = {"--json", "--verbose", "-v"}
_WITH_VALUE = "--dsn"


@dataclass(frozen=True)
class Options:
    """What was given: `dsn` None means not on the line."""

    dsn: str | None = None
    json: bool = False
    verbose: bool = False


def options_of(ctx: typer.Context) -> Options:
    """The options of the running command."""
    return ctx.find_object(Options) or Options()


def asks_for_json(args: Sequence[str]) -> bool:
    """Whether a line says --json, before it is parsed."""
    line = list(args)
    return "--json" in line[: line.index("--") if "--" in line else None]


def in_front(args: Sequence[str]) -> list[str]:
    """Move the options of `Options` to the front, so that they may follow a command, too.

    What comes after `--` is left alone.
    """
    line = list(args)
    end = line.index("--") if "--" in line else len(line)
    front, rest = [], []
    words = iter(line[:end])
    for word in words:
        if word in _FLAGS or word.startswith(f"{_WITH_VALUE}="):
            front.append(word)
        elif word == _WITH_VALUE:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            rest.append(word)
    return [*front, *rest, *line[end:]]
