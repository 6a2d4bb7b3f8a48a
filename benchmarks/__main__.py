"""`python -m benchmarks`: the questions, each a command."""

import typer

from benchmarks.ineligible import ineligible

app = typer.Typer(help="Measure hwqueue; every figure is a ratio within one run.")
app.command("ineligible")(ineligible)


@app.callback(invoke_without_command=True)
def everything(ctx: typer.Context) -> None:
    """Without a question: all of them at their default size."""
    if ctx.invoked_subcommand is None:
        ineligible()


app()
