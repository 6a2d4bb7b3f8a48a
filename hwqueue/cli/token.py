"""hwqueue token: who may use the HTTP API."""

import hashlib
import secrets
from typing import Annotated

import typer
from typer import Argument, Option

from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import span
from hwqueue.cli.output import say, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.types import ApiToken

app = Commands("Who may use the HTTP API.")

Name = Annotated[str, Argument(help="Whom its actions are put down to; never given twice.")]


@app.command("hwqueue token create render-farm --role producer --expires 90d")
def create(
    ctx: typer.Context,
    name: Name,
    *,
    role: Annotated[str, Option(help="producer, viewer, operator, admin or worker.")],
    tenant: Annotated[
        str | None, Option(help="The only one it sees and spawns for; all if left out.")
    ] = None,
    node: Annotated[
        list[str] | None,
        Option(
            help="Of role worker: a node that it may register, or how its name begins, such as edge-*. "
            "Repeatable."
        ),
    ] = None,
    expires: Annotated[
        str | None, Option(help="Ends after this span, such as 90d; never if left out.")
    ] = None,
    bare: Annotated[bool, Option("--bare", help="Print the token and nothing else.")] = False,
) -> None:
    """Make a token and print it, this once: the database keeps only its hash."""
    lasts = span(expires, "--expires")
    secret = f"hwq_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(secret.encode()).digest()
    with open_client(ctx) as client:
        client.create_token(name, digest, role, tenant=tenant, expires_after=lasts, nodes=node)
        made = next(token for token in client.list_tokens() if token.name == name)
    if lasts is None:
        say(ctx, f"{name} never ends unless it is revoked; --expires 90d gives it an end")
    if bare:
        typer.echo(secret)
        return
    show_one(
        ctx,
        {
            "name": name,
            "role": role,
            "tenant": tenant,
            "nodes": made.nodes,
            "expires_at": made.expires_at,
            "token": secret,
        },
    )
    say(ctx, "keep the token: it is not shown again")


@app.command("hwqueue token list --json")
def list_(ctx: typer.Context) -> None:
    """List all tokens that there ever were, newest first; what they are is not known any more."""
    found = ask(ctx, Client.list_tokens)
    show_items(ctx, found, _row, empty="no tokens; make one: hwqueue token create NAME --role ROLE")


@app.command("hwqueue token revoke render-farm")
def revoke(ctx: typer.Context, name: Name) -> None:
    """End a token; servers may let it in for some seconds more."""
    was_good = ask(ctx, Client.revoke_token, name)
    say(ctx, f"{name} is revoked" if was_good else f"{name} was revoked before")


_row = row_of(
    ApiToken,
    "name role tenant nodes created_at created_by created_login expires_at used_at revoked_at revoked_by "
    "revoked_login",
)
