"""hwqueue doctor: check an installation and say what to change."""

from collections import Counter
from typing import Annotated

import typer
from typer import Option

from hwqueue.cli.connect import locate
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, plain_text, say, show_one
from hwqueue.doctor import Finding, Level, examine

EXAMPLE = "hwqueue doctor --deep"


def doctor(
    ctx: typer.Context,
    *,
    deep: Annotated[
        bool, Option("--deep", help="Count the invariants again, too; reads whole tables.")
    ] = False,
) -> None:
    """Check the database, the schema, this login and the workers; say what to change.

    Exits with 1 if something fails; a warning is none.
    """
    found: list[Finding] = []
    for finding in examine(locate(ctx), deep=deep):
        found.append(finding)
        if not options_of(ctx).json:
            typer.echo(f"{finding.level.upper():<6}{finding.check}: {plain_text(finding.message)}")
            if finding.advice:
                typer.echo(f"      -> {plain_text(finding.advice)}")
    count = Counter(finding.level for finding in found)
    if options_of(ctx).json:
        show_one(ctx, {"ok": not count[Level.FAIL], "findings": found})
    say(ctx, ", ".join(f"{count[level]} {level}" for level in Level if count[level]))
    if count[Level.FAIL]:
        raise typer.Exit(ExitCode.FAILED)
