"""The options that every command knows, wherever they stand on the line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import typer

from hwqueue.app import App

_FLAGS = {"--json", "--verbose", "-v"}
_WITH_VALUE = "--dsn"
PROCESS_DSN = "HWQUEUE_PROCESS_DSN"
"""The variable that stands for `--dsn` where the command starts itself again."""
RUN = "run"
"""The command whose line ends with another command."""


@dataclass(frozen=True)
class Host:
    """What a program that holds the commands knows better than they do, such as `manage.py`.

    Attributes:
        origin: What names its database and its app, for messages.
        dsn: Its database, where the line names none.
        app: Its app, where the line names none.
        line: What runs it again, its arguments included.
    """

    origin: str
    dsn: Callable[[], str]
    app: Callable[[], App]
    line: tuple[str, ...]


@dataclass(frozen=True)
class Options:
    """What was given: `dsn` None means not on the line. host: None: `hwqueue` itself."""

    dsn: str | None = None
    json: bool = False
    verbose: bool = False
    host: Host | None = field(default=None, repr=False)


def options_of(ctx: typer.Context) -> Options:
    """The options of the running command."""
    return ctx.find_object(Options) or Options()


def asks_for_json(args: Sequence[str]) -> bool:
    """Whether a line says --json, before it is parsed."""
    line = list(args)
    return "--json" in line[: line.index("--") if "--" in line else None]


def in_front(args: Sequence[str]) -> list[str]:
    """Move the options of `Options` to the front, so that they may follow a command, too.

    What comes after `--` is left alone, and so is a `run` without it: its words may be those of the
    command that it is to run.
    """
    line = list(args)
    if "--" not in line and _command_of(line) == RUN:
        return line
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


def _command_of(line: Sequence[str]) -> str | None:
    """The first word that is no global option."""
    words = iter(line)
    for word in words:
        if word == _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None
