"""Groups of commands, and groups of options that several commands have."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

Command = TypeVar("Command", bound=Callable[..., Any])

# Other queues, and other groups here, say the one where a group has the other.
_ALIKE: Sequence[frozenset[str]] = (
    frozenset({"add", "create", "define", "make", "new", "register", "spawn", "submit"}),
    frozenset({"delete", "deregister", "drop", "purge", "remove", "revoke", "rm"}),
    frozenset({"list", "ls"}),
    frozenset({"describe", "get", "info", "show", "status"}),
    frozenset({"cancel", "kill", "pause", "stop", "terminate"}),
    frozenset({"begin", "launch", "run", "start", "submit"}),
    frozenset({"edit", "modify", "policy", "set", "update"}),
    frozenset({"replay", "requeue", "retry", "rerun"}),
)


class Group(TyperGroup):
    """Says which command of its own a word for another one means.

    `ctx` is Any: where its class lives depends on the version of Typer.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        meant = self._meant(args[0]) if args and args[0] not in self.commands else []
        if meant:
            names = " or ".join(map(repr, meant))
            ctx.fail(f"No such command {args[0]!r}. Did you mean {names}?")
        return super().resolve_command(ctx, args)

    def _meant(self, word: str) -> list[str]:
        alike = frozenset[str]().union(*(words for words in _ALIKE if word in words))
        return [name for name in self.commands if name in alike]


class Only:
    """`Annotated[Group, Only("a", "b")]`: of this group of options a command has these alone."""

    def __init__(self, *names: str) -> None:
        self.names = names


class Commands:
    """The commands of one noun.

    An argument whose type is a dataclass stands for a group of options: the command has its fields
    as options of its own, and is called with an instance that holds what was typed.
    """

    def __init__(self, help_text: str) -> None:
        self.typer = typer.Typer(no_args_is_help=True, help=help_text, cls=Group)

    def command(self, example: str) -> Callable[[Command], Command]:
        """Add a function as a command, with an example in its help."""

        def add(function: Command) -> Command:
            add_command(self.typer, function, example)
            return function

        return add


def add_command(to: typer.Typer, function: Callable[..., Any], example: str, **settings: Any) -> None:
    """Add a command by the name of its function, which ends with _ where Python has that name."""
    name = function.__name__.rstrip("_").replace("_", "-")
    to.command(name, epilog=f"Example: {example}", **settings)(_spread(function))


def _spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the fields of each group among its parameters in place of the group."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[inspect.Parameter]]] = {}
    for each in inspect.signature(command, eval_str=True).parameters.values():
        kind, *marks = get_args(each.annotation) if get_origin(each.annotation) else (each.annotation,)
        if is_dataclass(kind) and isinstance(kind, type):
            groups[each.name] = kind, _options(kind, marks)
            parameters += groups[each.name][1]
        else:
            parameters.append(each)
    if not groups:
        return command

    @wraps(command)
    def call(**given: Any) -> None:
        made = {
            name: kind(**{option.name: given.pop(option.name) for option in options})
            for name, (kind, options) in groups.items()
        }
        command(**given, **made)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def _options(kind: type, marks: Sequence[object]) -> list[inspect.Parameter]:
    """The fields of a group, as parameters that are given by name."""
    chosen = [name for mark in marks if isinstance(mark, Only) for name in mark.names]
    types: Mapping[str, Any] = get_type_hints(kind, include_extras=True)
    assert types.keys() >= set(chosen), f"{kind.__name__} has not all of {chosen}"
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=types[each.name],
        )
        for each in fields(kind)
        if not chosen or each.name in chosen
    ]
