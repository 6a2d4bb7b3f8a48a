"""Groups of commands: what is wanted is found by another word for it, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

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
