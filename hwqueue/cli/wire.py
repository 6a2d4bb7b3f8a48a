"""hwqueue wire: the params blob for people. Neither command asks the database."""

import base64
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import json_object
from hwqueue.cli.options import options_of
from hwqueue.cli.output import show_one, show_rows, to_json
from hwqueue.errors import ConfigError
from hwqueue.wire import WireIntent, decode, encode

app = Commands("Read and write the binary form of placements.")

_HEX = re.compile(r"(\\x)?((?:[0-9A-Fa-f]{2})*)")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


@app.command(r"hwqueue wire decode '\x0910000903820600040000002a' --placement")
def decode_(
    ctx: typer.Context,
    blob: Annotated[
        str, Argument(help="Hex with or without \\x, base64, a file (raw or text), - for stdin.")
    ] = "-",
    *,
    placement: Annotated[
        bool, Option("--placement", help="Print what it means in the placement grammar.")
    ] = False,
) -> None:
    """Show what a params blob asks for; of a bad one, which byte is at fault.

    With --json it is what `hwqueue wire encode` reads.
    """
    intent = decode(_blob(blob))
    if placement:
        typer.echo(to_json(intent.placement()))
    elif options_of(ctx).json:
        typer.echo(to_json(intent.as_json()))
    else:
        parsed = intent.as_json()
        show_rows(ctx, parsed["affinity"], empty="no affinity")
        show_one(
            ctx,
            {
                "cpu_isolation": parsed["cpu_isolation"],
                "gpu_exclusivity": parsed["gpu_exclusivity"],
                "skipped_tags": ", ".join(parsed["unknown_tags"]) or None,
            },
        )


@app.command("""hwqueue wire encode '{"cpu_isolation": "whole_core"}' --form base64""")
def encode_(
    ctx: typer.Context,
    file: Annotated[str, Argument(help="What to ask for: a file, JSON in place, or - for stdin.")],
    *,
    form: Annotated[
        Literal["hex", "base64", "raw"],
        Option(help="Of the blob: hex with a leading \\x, base64, or its bytes."),
    ] = "hex",
) -> None:
    """Write a params blob; what it prints is taken by the spawn option `wire`.

    It reads what `hwqueue wire decode --json` prints.
    """
    blob = encode(WireIntent.from_json(json_object(file, "FILE")))
    text = f"\\x{blob.hex()}" if form != "base64" else base64.b64encode(blob).decode()
    if options_of(ctx).json:
        typer.echo(to_json({"wire": text, "bytes": len(blob)}))
    elif form == "raw":
        sys.stdout.buffer.write(blob)
    else:
        typer.echo(text)


def _blob(text: str) -> bytes:
    """The bytes that are meant. Raises: ConfigError."""
    if text == "-":
        return _bytes_or_text(sys.stdin.buffer.read())
    try:
        return _bytes_or_text(Path(text).read_bytes())
    except (OSError, ValueError) as error:  # not a file, or no name that a file can have
        found = _read_text(text)
        if found is None:
            raise ConfigError(
                f"BLOB: {text[:80]!r} is neither hex, nor base64, nor a file that can be read",
                hint="hex has two digits for each byte, base64 its padding",
            ) from error
        return found


def _bytes_or_text(content: bytes) -> bytes:
    """A file's blob: its bytes, unless they are text. No valid blob looks like text: the length
    of its first TLV would be beyond the longest blob."""
    try:
        found = _read_text(content.decode("ascii"))
    except UnicodeDecodeError:
        return content
    return content if found is None else found


def _read_text(text: str) -> bytes | None:
    """The bytes that hex or base64 stands for; hex wins where it could be both."""
    bare = "".join(text.split())
    if match := _HEX.fullmatch(bare):
        return bytes.fromhex(match[2])
    return base64.b64decode(bare) if _BASE64.fullmatch(bare) else None
