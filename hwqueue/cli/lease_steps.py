"""What the handler of a lease has saved, and what it waits for, beside the lease."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from hwqueue.cli.output import fields_of, plain_text, show_rows
from hwqueue.types import SavedCheckpoint


def suspension(saved: Sequence[SavedCheckpoint]) -> str | None:
    """What a suspended lease waits for, in words; None: it is not suspended."""
    for one in saved:
        if one.is_suspended:
            return _words(one)
    return None


def with_steps(facts: Mapping[str, Any], saved: Sequence[SavedCheckpoint]) -> dict[str, Any]:
    """The facts of a lease, and what its handler has saved, if that is anything."""
    if not saved:
        return dict(facts)
    return {**facts, "checkpoints": [fields_of(one) for one in saved]}


def show_steps(ctx: typer.Context, saved: Sequence[SavedCheckpoint]) -> None:
    """Print them for a person, below the lease; nothing if there are none."""
    if not saved:
        return
    typer.echo()
    show_rows(ctx, list(_rows(saved)))


def _rows(saved: Sequence[SavedCheckpoint]) -> Iterator[dict[str, object]]:
    for one in saved:
        wait = f"open: {_words(one)}" if one.is_open else "saved"
        yield {"checkpoint": one.name, "at": one.saved_at, "bytes": one.bytes, "state": wait}


def _words(one: SavedCheckpoint) -> str:
    until = None if one.waits_until is None else plain_text(one.waits_until)
    if one.waits_for is None:
        return f"sleeps until {until}"
    return f"waits for signal {one.waits_for}" + ("" if until is None else f", until {until}")
