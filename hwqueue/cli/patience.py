"""Waiting for a database that is away, while a command follows something."""

import typer
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from hwqueue.cli.output import say
from hwqueue.text import first_line
from hwqueue.worker.transient import is_transient


def asking(ctx: typer.Context) -> Retrying:
    """What makes a call again until the database has answered it, and says so on stderr."""
    return Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_random_exponential(multiplier=0.5, max=30),
        before_sleep=lambda state: say(ctx, f"waiting for the database: {_why(state)}"),
        reraise=True,
    )


def _why(state: RetryCallState) -> str:
    error = state.outcome.exception() if state.outcome else None
    return first_line(error)
