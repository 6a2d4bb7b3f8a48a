"""Options that many questions share."""

from typing import Annotated

import typer

Rounds = Annotated[int, typer.Option(help="Rounds; each gives a ratio", min=3)]
Seconds = Annotated[float, typer.Option(help="Measured seconds of a side in a round", min=0.01)]
Claims = Annotated[int, typer.Option(help="Claims from each database in a round", min=1)]
Connections = Annotated[list[int], typer.Option(help="Connections at once; may be repeated", min=1)]
