"""Asks one question as the command line would."""

from collections.abc import Callable
from typing import Any

import typer
from typer.testing import CliRunner

from benchmarks.core.report import Answer
from benchmarks.core.run import Run


def ask(question: Callable[..., Any], run: Run, *options: str) -> list[Answer]:
    """Its answers; raises what it raises."""
    app = typer.Typer()
    app.command()(question)
    ended = CliRunner().invoke(app, options, obj=run, standalone_mode=False, catch_exceptions=False)
    answers = ended.return_value
    return answers if isinstance(answers, list) else [answers]
